//! The backend: the host's memories and links, and access to its queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use transload_hal::{
    Access, AllocError, AllocSpec, Backend, BackendId, Buffer, CompletionSink, ConnectError, Cost,
    Curve, DeviceId, DeviceInfo, EngineId, ErrorClass, External, ExternalKind, Fault, Fence, HOST,
    HOST_ENGINE, HostReach, HostSpan, ImportError, Inventory, LinkId, MemoryId, MemoryInfo, Op,
    Passage, Room, StorageId, SubmitError, Waited, host_links,
};

use crate::memory::{self, DISK, FILE, PAGEABLE, SHARED};
use crate::pool::Limits;
use crate::queue::{Queue, is_reached};
use crate::tuning::Tuning;

/// The name of this backend.
pub const BACKEND: BackendId = HOST;

/// The engine of all copies by processors. Its costs already include what several threads gain, because one copy uses as
/// many threads as help.
pub const ENGINE: EngineId = HOST_ENGINE;

/// The host backend: the memory that processors load from and store to, files, and the threads that copy.
///
/// It is cheap to make: threads start when a copy needs them, and end when the `Host` is dropped.
pub struct Host {
    queue: Queue,
    inventory: Inventory,
}

/// How a [`Host`] copies.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HostOptions {
    /// The number of threads and the kind of stores, by size.
    pub tuning: Tuning,
    /// The number of threads, and how long they linger.
    pub limits: Limits,
}

impl HostOptions {
    /// Sets the number of threads and the kind of stores, by size.
    #[must_use]
    pub fn with_tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Sets the number of threads, and how long they linger.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

impl Host {
    /// Makes a host with the default tuning for this machine's processors and caches.
    #[must_use]
    pub fn new() -> Self {
        Self::with(HostOptions::default())
    }

    /// Makes a host with other options.
    #[must_use]
    pub fn with(options: HostOptions) -> Self {
        let inventory = inventory();
        // In a build for one thread, transforms must not be sent to another thread.
        let threads = if cfg!(any(transload_local, target_family = "wasm")) {
            0
        } else {
            options.limits.threads
        };
        let limits = Limits {
            threads,
            ..options.limits
        };
        Self {
            queue: Queue::new(options.tuning, limits),
            inventory,
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memories = self.inventory.memories.iter().map(|memory| memory.id);
        f.debug_struct("Host")
            .field("memories", &memories.collect::<Vec<_>>())
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: a fence settles as done when the last piece ran without a fault, and only after every piece has
// ended; `submit` checks all operations before it runs one; tasks stay within their operands; the queue
// tells each fence that it did not return as settled once; buffers are made of memory that their owners
// own.
unsafe impl Backend for Host {
    fn inventory(&self) -> Inventory {
        self.inventory.clone()
    }

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        memory::allocate(memory, spec)
    }

    /// What the system has available, in the limits of the cgroups; of files nothing is known.
    fn available_bytes(&self, memory: MemoryId) -> Option<u64> {
        match memory {
            PAGEABLE | SHARED => Room::now().available_bytes,
            _ => None,
        }
    }

    /// Knows shared memory and mapped files again whose address was exported.
    fn identity(&self, span: HostSpan) -> (StorageId, u64) {
        memory::lent::identity(span)
    }

    /// Imports memory and files without copying:
    ///
    /// - [`External::Host`] into `cpu:0/pageable`.
    /// - A file, as a [`HostFile`](crate::HostFile) or `std::fs::File` in an [`External::Object`] or by its handle, into
    ///   `cpu:0/file`, where it is read and written by position.
    /// - On Linux the handle of a memfd or a file, or a file as an object, into `cpu:0/shared`: mapped, read-only or
    ///   shared, as it says. The handle of a sealed memfd into `cpu:0/pageable`, too: a copy-on-write view.
    /// - On Windows the handle of a section, or a file as an object, into `cpu:0/shared`: mapped the same way.
    ///
    /// Handles are an [`External::Handle`] of the kind [`ExternalKind::File`]; on Windows, of [`ExternalKind::Win32`].
    ///
    /// # Safety
    /// Besides what the trait demands: a mapped file must not be shortened while the buffer lives, which a seal
    /// guarantees and nothing else can. Touching lost pages raises SIGBUS.
    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        // SAFETY: the caller's contract.
        unsafe { memory::import(memory, external) }
    }

    /// Exports the address of memory that has one ([`ExternalKind::Host`]), and a new handle of shared memory and files:
    /// [`ExternalKind::File`], a file descriptor; on Windows [`ExternalKind::Win32`].
    ///
    /// On Linux the first export of shared memory below 1 MiB, of either kind, makes a descriptor of its own for it: it
    /// copies the bytes into a new memfd and maps that at the same address. It keeps the descriptor until the buffer
    /// goes. The caller must not export memory while an operation that it submitted writes the bytes. Code
    /// that took the address another way and registered it with a driver must register it again. Memory that was
    /// allocated [for sharing](AllocSpec::for_sharing) has its descriptor from the start, and export leaves its pages alone.
    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
        memory::export(buffer, kind)
    }

    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError> {
        let has = |id| self.inventory.memories.iter().any(|memory| memory.id == id);
        if has(src) && has(dst) {
            return Ok(Access::Native);
        }
        // A device's backend lists the links to the memory that it maps for the processors, and to the processors' memories
        // that it provides, such as pinned memory. Other backends have links to the latter, too.
        if [src, dst].into_iter().all(is_reached) {
            return Ok(Access::Import);
        }
        Err(ConnectError::NoAccess {
            src,
            dst,
            reason: "the host copies between the processors' memories and those that devices map"
                .into(),
        })
    }

    /// Between two memories the host has one link, so `via` chooses nothing; another one is refused.
    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        check_link(via)?;
        // SAFETY: the caller's contract.
        unsafe { self.queue.submit(ops, after, true) }
    }

    /// Copies on the pool's threads, if the pool has any and at most half of the slots for submissions are taken.
    unsafe fn submit_apart(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        check_link(via)?;
        // SAFETY: the caller's contract.
        unsafe { self.queue.submit(ops, after, !self.queue.has_room()) }
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.queue.attach(sink)
    }

    /// True if the pool has threads: they report outcomes by themselves.
    fn completes_unattended(&self) -> bool {
        self.queue.has_threads()
    }

    /// Does nothing: the threads that copy report outcomes by themselves.
    fn pump(&self) {}

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        self.queue.wait(fence, limit)
    }

    /// Counts the pieces of copies, of 64 KiB to 1 MiB each. Overlapping copies and transforms have one piece.
    fn progress(&self, fence: Fence) -> u64 {
        self.queue.progress(fence)
    }

    /// Leaves out the pieces that no thread has begun.
    fn stop(&self, fence: Fence) -> u64 {
        self.queue.stop(fence)
    }
}

fn check_link(via: Option<LinkId>) -> Result<(), SubmitError> {
    match via {
        Some(link) if link.engine.device != DeviceId::CPU0 => {
            let message = format!(
                "the host has no engine {} for {} → {}",
                link.engine, link.src, link.dst
            );
            let fault = Fault::new(ErrorClass::Caller, message);
            Err(SubmitError::Refused(fault))
        }
        _ => Ok(()),
    }
}

fn inventory() -> Inventory {
    let room = Room::now();
    let total_bytes = room.total_bytes;
    let device = DeviceInfo {
        id: DeviceId::CPU0,
        backend: BACKEND,
        name: processor_name(),
        software: false,
        simulated: false,
        memory_bytes: total_bytes,
        driver: None,
        uuid: None,
        pci: None,
        numa_node: None,
    };
    let memory = |id, total_bytes, alignment, is_file: bool| MemoryInfo {
        id,
        backend: BACKEND,
        total_bytes,
        max_alloc_bytes: match room.limit_bytes {
            _ if is_file => memory::file::MAX_LEN_BYTES,
            Some(limit_bytes) => limit_bytes,
            None => isize::MAX as u64,
        },
        alignment,
        host_addressable: !is_file,
        staging: id == PAGEABLE,
        passage: Passage::default(),
    };
    let mut memories = vec![memory(
        PAGEABLE,
        total_bytes,
        memory::heap::ALIGNMENT,
        false,
    )];
    if memory::HAS_SHARED {
        memories.push(memory(SHARED, total_bytes, PAGE, false));
    }
    if memory::HAS_FILES {
        memories.push(memory(FILE, None, 1, true));
    }
    if memory::HAS_DISK {
        memories.push(memory(DISK, None, 1, true));
    }
    let own = memories
        .iter()
        .map(|memory| HostReach::both_ways(memory.id, Access::Native));
    let links = host_links(&own.collect::<Vec<_>>(), &[]);
    // xxh3 and its like read at about the rate of a copy by one thread out of memory.
    let transform = Curve::from(Cost::from_rate(200, 10_000_000_000));
    Inventory {
        backend: BACKEND,
        devices: vec![device],
        memories,
        links,
        lacks: Vec::new(),
        transform: Some((ENGINE, transform)),
    }
}

/// Shared memory starts on a page; this is the smallest page of the systems that have it here.
const PAGE: u64 = 4096;

/// The processor's name (`/proc/cpuinfo`), or its architecture.
fn processor_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = |line: &str| {
        let (key, value) = line.split_once(':')?;
        let value = value.trim();
        (key.trim() == "model name" && !value.is_empty()).then(|| value.to_owned())
    };
    info.lines()
        .find_map(named)
        .unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

#[cfg(test)]
mod tests {
    use transload_hal::Topology;

    use super::*;

    #[test]
    fn the_inventory_makes_a_topology_with_every_pair_linked() {
        let inventory = Host::new().inventory();
        let count = inventory.memories.len();
        assert_eq!(inventory.links.len(), count * count);
        assert_eq!(inventory.memories[0].id, PAGEABLE);
        let mut topology = Topology::new();
        topology.add(inventory).unwrap();
        for src in topology.memories() {
            for dst in topology.memories() {
                assert_eq!(topology.links_between(src.id, dst.id).count(), 1);
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_machine_has_a_name_and_a_size() {
        let device = Host::new().inventory().devices.remove(0);
        assert!(!device.name.is_empty());
        assert!(device.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn the_memories_that_processors_reach_connect_and_no_others() {
        use transload_hal::MemoryKind;
        let host = Host::new();
        assert_eq!(host.connect(PAGEABLE, FILE), Ok(Access::Native));
        let gpu: DeviceId = "cuda:0".parse().unwrap();
        let adapter: DeviceId = "wgpu:0".parse().unwrap();
        let mapped = adapter.memory(MemoryKind::Mapped);
        // Another backend provides it, and it is still memory of the processors.
        let pinned = DeviceId::CPU0.memory(MemoryKind::Pinned);
        for own in [PAGEABLE, pinned] {
            assert_eq!(host.connect(own, mapped), Ok(Access::Import));
            assert_eq!(host.connect(mapped, own), Ok(Access::Import));
            assert!(matches!(
                host.connect(own, gpu.memory(MemoryKind::Device)),
                Err(ConnectError::NoAccess { .. })
            ));
        }
    }
}
