//! The adapters of this machine, each with a device of the test's own. The test reads their bytes by wgpu calls of its
//! own.

use std::fmt;
use std::sync::{Arc, Weak};

use transload::host::Host;
use transload::{
    AllocSpec, Buffer, DeviceId, DeviceKind, MemoryId, MemoryKind, StagingBudget, TransferManager,
};
use transload_wgpu::Wgpu;

pub(crate) const MIB: u64 = 1 << 20;

/// A byte that no pattern repeats for long.
pub(crate) const POISON: u8 = 0xA5;

/// The most turns of a loop that waits for a thread; a thread needs far fewer to finish its work.
const MOST_TURNS: u32 = 1 << 22;

/// Enough for a few transfers at once, but not for all: some wait for slots.
const STAGING: u64 = 32 * MIB;

pub(crate) struct Adapters {
    pub(crate) manager: TransferManager,
    pub(crate) all: Vec<Adapter>,
    /// The last field: its drop checks run after all other fields were dropped.
    _gone: Gone,
}

/// One adapter, open.
pub(crate) struct Adapter {
    pub(crate) id: DeviceId,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
}

impl Adapters {
    /// Opens every Vulkan adapter. Returns `None`, and reports the test as skipped, where there are fewer than `needed`
    /// adapters. Fails where the environment promises that many drivers.
    pub(crate) fn open(needed: usize) -> Option<Adapters> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        let instance = wgpu::Instance::new(descriptor);
        let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        let all: Vec<Adapter> = found
            .iter()
            .filter_map(|adapter| transload_wgpu::open_device(adapter).ok())
            .zip(0..)
            .map(|((device, queue), index)| Adapter {
                id: DeviceId::new(DeviceKind::WGPU, index),
                device,
                queue,
            })
            .collect();
        if all.len() < needed {
            let provided =
                std::env::var("TRANSLOAD_ADAPTER").map_or(0, |count| count.parse().unwrap());
            assert!(
                provided < needed,
                "{provided} drivers were provided, and these adapters found: {all:?}"
            );
            skip(&format!("needs {needed} adapters, and fewer are here"));
            return None;
        }
        // An uncaptured wgpu error would panic in the thread that causes it.
        for adapter in &all {
            adapter.device.on_uncaptured_error(Arc::new(|_| {}));
        }
        let devices = all
            .iter()
            .map(|adapter| (adapter.device.clone(), adapter.queue.clone()));
        let backend = Arc::new(Wgpu::with_devices(devices));
        let gone = Gone(Arc::downgrade(&backend));
        let manager = TransferManager::builder()
            .backend(Arc::new(Host::new()))
            .backend(backend)
            // All tests of this process share the process's own budget.
            .staging(Arc::new(StagingBudget::new(STAGING)))
            .build()
            .unwrap();
        Some(Adapters {
            manager,
            all,
            _gone: gone,
        })
    }

    /// Every ordered pair of two different adapters.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&Adapter, &Adapter)> {
        let others = |one: &Adapter| {
            let id = one.id;
            self.all.iter().filter(move |other| other.id != id)
        };
        self.all
            .iter()
            .flat_map(move |one| others(one).map(move |other| (one, other)))
    }

    pub(crate) fn buffer(&self, on: &Adapter, len: u64) -> Buffer {
        self.manager
            .allocate(on.place(), AllocSpec::bytes(len))
            .unwrap()
    }

    /// A buffer that holds `bytes`, written by wgpu itself.
    pub(crate) fn filled(&self, on: &Adapter, bytes: &[u8]) -> Buffer {
        let buffer = self.buffer(on, bytes.len() as u64);
        on.fill(&buffer, bytes);
        buffer
    }

    /// Returns when no staging slot is leased. The thread that ends a transfer returns the slots a moment after the
    /// transfer is over.
    fn give_staging_back(&self) {
        self.manager.wait_idle();
        let staging = self.manager.staging();
        for _ in 0..MOST_TURNS {
            self.manager.clear_cache();
            if staging.used_bytes() == 0 {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{} bytes of slots never came back", staging.used_bytes());
    }

    /// The bytes of a buffer on any adapter or on the heap.
    pub(crate) fn look(&self, buffer: &Buffer) -> Vec<u8> {
        let device = buffer.memory().device;
        match self.all.iter().find(|adapter| adapter.id == device) {
            Some(adapter) => adapter.bytes_of(buffer),
            None => buffer.read().unwrap().to_vec(),
        }
    }
}

impl Drop for Adapters {
    /// Asserts that the test leaves no slot behind.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.give_staging_back();
        }
    }
}

/// The backend; the last manager, transfer or buffer frees it.
struct Gone(Weak<Wgpu>);

impl Drop for Gone {
    fn drop(&mut self) {
        let alive = || self.0.strong_count() > 0;
        for _ in 0..MOST_TURNS {
            if std::thread::panicking() || !alive() {
                return;
            }
            std::thread::yield_now();
        }
        panic!("something keeps the manager alive after its last handle was dropped");
    }
}

impl Adapter {
    pub(crate) fn memory(&self) -> MemoryId {
        self.id.memory(MemoryKind::Device)
    }

    pub(crate) fn place(&self) -> transload::Place {
        self.memory().into()
    }

    /// Fills a whole buffer by wgpu's own call.
    pub(crate) fn fill(&self, buffer: &Buffer, bytes: &[u8]) {
        let native = buffer.native::<wgpu::Buffer>().unwrap();
        let mut words = bytes.to_vec();
        words.resize(bytes.len().next_multiple_of(4), 0);
        self.queue.write_buffer(native, 0, &words);
        self.queue.submit([]);
        self.device
            .poll(wgpu::PollType::wait_indefinitely())
            .unwrap();
    }

    /// Reads a whole buffer through a second buffer and a mapping of the test's own.
    pub(crate) fn bytes_of(&self, buffer: &Buffer) -> Vec<u8> {
        let native = buffer.native::<wgpu::Buffer>().unwrap();
        let copy = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: native.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(native, 0, &copy, 0, native.size());
        self.queue.submit([encoder.finish()]);
        copy.map_async(wgpu::MapMode::Read, .., |result| result.unwrap());
        self.device
            .poll(wgpu::PollType::wait_indefinitely())
            .unwrap();
        let mut bytes = copy.get_mapped_range(..).unwrap().to_vec();
        bytes.truncate(buffer.len() as usize);
        bytes
    }

    /// Bytes that the driver has allocated to this device's buffers and textures.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let report = self.device.generate_allocator_report().unwrap();
        report.total_allocated_bytes
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.device.adapter_info().name)
    }
}

/// Bytes without a short period.
pub(crate) fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; len as usize];
    for chunk in bytes.chunks_mut(8) {
        let word = random.next().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}

/// Xorshift, which is random enough for a test.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // The upper bits of xorshift are more random than the lower ones.
        (self.next() >> 16) % end
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Runs the test `name` in a process of its own, where no other test allocates, after the shell command `limits`.
/// Returns true in that process, which then runs the rest of the test.
#[cfg(target_os = "linux")]
pub(crate) fn alone(name: &str, limits: &str) -> bool {
    if std::env::var_os("TRANSLOAD_ALONE").is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("{limits}\nexec \"$0\" \"$@\"")])
        .arg(program)
        .args(["--exact", name, "--nocapture"])
        .env("TRANSLOAD_ALONE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} failed in its own process");
    assert!(said.contains("1 passed"), "{name} did not run");
    false
}

/// The test runner counts the test as skipped, and not as passed.
pub(crate) fn skip(why: &str) {
    use std::io::Write as _;
    let test = std::thread::current().name().unwrap_or("wgpu").to_owned();
    let what = format!("{test}: {why}");
    println!("skipped {what}");
    if let Some(file) = std::env::var_os("TRANSLOAD_SKIPS") {
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file);
        writeln!(file.unwrap(), "{what}").unwrap();
    }
}
