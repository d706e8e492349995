//! Shared parts of the tests of this backend.
#![allow(dead_code, reason = "each test program uses some of it")]

pub(crate) mod gallery;

use std::sync::Mutex;
use std::time::Duration;

use transload_hal::{
    Backend, Buffer, CompletionSink, Fault, Fence, HostSpan, Op, Outcome, Part, Waited,
};
use transload_wgpu::Wgpu;

/// Outcomes, in the order of their reports.
#[derive(Default)]
pub(crate) struct Heard(pub(crate) Mutex<Vec<Outcome>>);

impl CompletionSink for Heard {
    fn settle(&self, _: Fence, outcome: Outcome) {
        self.0.lock().unwrap().push(outcome);
    }
}

/// Every Vulkan adapter of this machine.
pub(crate) fn adapters() -> Vec<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    let instance = wgpu::Instance::new(descriptor);
    pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN))
}

/// A device of every Vulkan adapter of this machine.
pub(crate) fn opened() -> Vec<(wgpu::Device, wgpu::Queue)> {
    let open = |adapter| transload_wgpu::open_device(adapter).ok();
    let opened: Vec<_> = adapters().iter().filter_map(open).collect();
    let provided = std::env::var("TRANSLOAD_ADAPTER").map_or(0, |count| count.parse().unwrap());
    assert!(
        opened.len() >= provided,
        "{provided} drivers were provided, and these adapters found: {opened:?}"
    );
    opened
}

/// A device with the features, of the first adapter that has them.
pub(crate) fn opened_with(features: wgpu::Features) -> Option<(wgpu::Device, wgpu::Queue)> {
    let adapters = adapters();
    let able = |adapter: &&wgpu::Adapter| adapter.features().contains(features);
    let adapter = adapters.iter().find(able)?;
    let descriptor = wgpu::DeviceDescriptor {
        required_features: features,
        required_limits: adapter.limits(),
        ..Default::default()
    };
    pollster::block_on(adapter.request_device(&descriptor)).ok()
}

/// The test runner counts the test as skipped, and not as passed.
pub(crate) fn skip(what: &str) {
    use std::io::Write as _;
    println!("skipped {what}");
    if let Some(file) = std::env::var_os("TRANSLOAD_SKIPS") {
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file);
        writeln!(file.unwrap(), "{what}").unwrap();
    }
}

/// `len` bytes of `buffer` from `offset` on.
pub(crate) fn part(buffer: &Buffer, offset: u64, len_bytes: u64) -> Part<'_> {
    Part {
        buffer,
        offset,
        len_bytes,
    }
}

/// A limit that a working backend never reaches.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// Executes the operations and waits for them.
pub(crate) fn run(backend: &Wgpu, ops: &[Op<'_>]) -> Result<(), Fault> {
    // SAFETY: the test alone uses the buffers, which outlive the wait.
    let fence = unsafe { backend.submit(None, ops, &[]) }
        .map_err(transload_hal::SubmitError::into_fault)?;
    if !fence.is_immediate() {
        let waited = backend.wait(fence, LONG);
        assert_eq!(waited, Waited::Settled);
    }
    Ok(())
}

/// Writes memory that the host reaches.
pub(crate) fn fill(slot: &Buffer, offset: u64, bytes: &[u8]) {
    let span = slot.host(offset, bytes.len() as u64).unwrap();
    // SAFETY: no operation uses the slot, which the caller keeps alive.
    unsafe { HostSpan::of(bytes).copy_to(span) };
}

/// Reads memory that the host reaches.
pub(crate) fn read(slot: &Buffer, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    let span = slot.host(offset, len).unwrap();
    // SAFETY: no operation uses the slot, which the caller keeps alive.
    unsafe { span.copy_to(HostSpan::of_mut(&mut bytes)) };
    bytes
}

/// Bytes without a short period.
pub(crate) fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    (0..len).map(|_| numbers.next() as u8).collect()
}

/// Pseudo-random numbers, which are the same for the same seed.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        // splitmix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        number ^ (number >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
