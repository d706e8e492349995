//! The backend: its devices, and access to their memories and lanes.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use transload_hal::{
    Access, AllocError, AllocSpec, Backend, Buffer, CompletionSink, ConnectError, External,
    ExternalKind, Fault, Fence, ImportError, Inventory, LinkId, MemoryId, MemoryKind, Op,
    SubmitError, Waited, check_fences, link_between,
};

use crate::absent::Absent;
use crate::gpu::{Gpu, Opened};
use crate::ids::BACKEND;
use crate::interconnect::Interconnect;
use crate::inventory::inventory;
use crate::memory;
use crate::queue::{Lane, Move, Relays, Sink, Way, lane_of};
use crate::raw::{CUresult, CallError, Driver};

/// CUDA devices.
pub struct Cuda {
    driver: Arc<Driver>,
    pub(crate) gpus: Vec<Gpu>,
    absent: Vec<Absent>,
    inventory: Inventory,
    sink: Sink,
    /// Pairs of devices of which the first reaches the memory of the second.
    peers: Mutex<HashSet<(usize, usize)>>,
    exchange: memory::Exchange,
    relays: Relays,
}

impl Cuda {
    pub(crate) fn new(
        driver: Arc<Driver>,
        gpus: Vec<Gpu>,
        absent: Vec<Absent>,
        sink: Sink,
        interconnect: &Interconnect,
    ) -> Cuda {
        Cuda {
            inventory: inventory(&driver, &gpus, interconnect),
            driver,
            gpus,
            absent,
            sink,
            peers: Mutex::default(),
            exchange: memory::Exchange::default(),
            relays: Relays::default(),
        }
    }

    /// The number of devices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.gpus.len()
    }

    /// Whether there are no devices; always false, because without devices there is no backend.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// The driver's functions, for calls that this backend does not offer.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Devices of the machine that the backend does not use, and why.
    #[must_use]
    pub fn absent(&self) -> &[Absent] {
        &self.absent
    }

    /// Gives the memory that the backend keeps for its next allocations back to the devices: about a 32nd part of each
    /// device's memory, and not much more than 1 GiB. The backend does this by itself when one of its allocations finds no
    /// memory. Until then, other code in this process and other processes cannot use that memory.
    pub fn trim(&self) {
        for opened in self.gpus.iter().filter_map(Gpu::opened) {
            opened.context.trim();
        }
    }

    pub(crate) fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    pub(crate) fn relays(&self) -> &Relays {
        &self.relays
    }

    pub(crate) fn lane(&self, fence: Fence) -> Option<&Lane> {
        let (gpu, way) = lane_of(fence);
        Some(self.gpus.get(gpu)?.opened()?.lane(way))
    }

    /// Lets a device reach another one's memory, and the reverse if possible.
    fn enable(&self, from: &Gpu, to: &Gpu) -> Result<(), Fault> {
        let [opened, other] = [from.open()?, to.open()?];
        let _current = opened.context.enter()?;
        // SAFETY: the context is retained as long as the device is.
        let enabled = unsafe { self.driver.cuCtxEnablePeerAccess(other.context.handle, 0) };
        match enabled {
            Err(error) if !error.is(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) => {
                Err(opened.blame(error))
            }
            _ => {
                let admitted = other.context.admit(&opened.context);
                admitted.map_err(|error| other.blame(error))?;
                let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
                peers.insert((from.number, to.number));
                Ok(())
            }
        }
    }

    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.contains(&(from, to))
    }

    fn gpu(&self, memory: MemoryId) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.id == memory.device)
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.inventory.devices.iter();
        f.debug_struct("Cuda")
            .field("driver", self.driver.source())
            .field("version", &self.driver.version())
            .field(
                "devices",
                &devices.map(|device| &device.name).collect::<Vec<_>>(),
            )
            .finish_non_exhaustive()
    }
}

impl Opened {
    /// The fault of a failed call of this device.
    pub(crate) fn blame(&self, error: CallError) -> Fault {
        self.lane(Way::Within).blame(error)
    }
}

// SAFETY: a fence settles when its event has come to pass, which is behind all of its operations in their stream, or when
// the device is lost, and CUDA's contexts that are ruined do nothing any more; operands are checked before anything is
// given to the driver, and what was given before one was refused is waited for; each fence is told once, by the one
// that takes it off its lane; buffers are the driver's own, kept by their owners.
unsafe impl Backend for Cuda {
    fn inventory(&self) -> Inventory {
        self.inventory.clone()
    }

    /// Device memory comes from a pool of the backend's own if the driver has pools. Then neither allocating nor dropping a
    /// buffer waits for the device's work; a user of the memory by its address must finish that use before the last view is
    /// dropped. Memory that can be shared with other processes ([`AllocSpec::shareable`]) does not come from the pool, and
    /// freeing it waits until the device is idle.
    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        memory::allocate(&self.gpus, memory, spec)
    }

    /// What the driver reports as free in device memory (`cuMemGetInfo`), which opens the device.
    fn available_bytes(&self, memory: MemoryId) -> Option<u64> {
        let gpu = self.gpu(memory);
        memory::free_bytes(gpu.filter(|_| memory.kind == MemoryKind::Device)?)
    }

    /// Imports these externals:
    ///
    /// - [`External::Host`] into `cpu:0/pinned`. The backend locks the memory where it is and registers it with the driver
    ///   for all devices. The registration lasts until the last buffer of the memory is dropped and the devices are idle
    ///   after that; the owner is kept as long. Memory that the user has registered, or allocated with the driver, is used
    ///   as it is. Registering takes some tenths of a second for a gibibyte (1 to 2 GB/s: openvm-org/stark-backend issue
    ///   384), which pays if the memory is used repeatedly.
    /// - [`External::Device`]: the user's own memory by its address, from `cuMemAlloc` or a pool, mapped, managed, pinned or
    ///   registered, into the memory that it belongs to. The backend asks the driver what the address is. Memory of a device
    ///   must belong to its primary context, or to none.
    /// - [`External::Object`], with the feature `cudarc`: a slice of cudarc (`transload_cuda::cudarc`); the caller has
    ///   nothing to promise.
    /// - [`External::Ipc`] into the memory of the device that it names by UUID. Buffers of one handle share a mapping, which
    ///   the last one closes. A handle that this backend made itself gives a view of the buffer that it was made of.
    ///
    /// # Safety
    /// Besides what the trait demands: memory of a pool is valid for the host from the import until its owner is dropped,
    /// independent of the streams that it was allocated and will be freed in. The process that made a handle keeps its
    /// memory until the buffer has been dropped.
    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        // SAFETY: the caller's promise.
        unsafe { memory::import(&self.gpus, &self.exchange, memory, external) }
    }

    /// Exports pinned memory as host memory, and device memory by its address, for the user's kernels, or by a handle for
    /// other processes.
    ///
    /// A handle names the whole allocation, even if the buffer is a slice of it, and on hardware everything else in the same
    /// 2 MiB (CUDA C++ Programming Guide, Interprocess Communication): a process that opens the handle sees all of that. The
    /// buffer must live until the other processes have closed the handle.
    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
        memory::export(&self.gpus, &self.exchange, buffer, kind)
    }

    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError> {
        let link = link_between(&self.inventory, src, dst)?;
        if link.id.access == Access::Peer
            && let Some((from, to)) = self.gpu(src).zip(self.gpu(dst))
        {
            let enabled = self.enable(from, to);
            enabled.map_err(|fault| ConnectError::Failed {
                src,
                dst,
                fault: Box::new(fault),
            })?;
            // The reverse direction is another link; that link reports a failure itself.
            let _ = self.enable(to, from);
        }
        Ok(link.id.access)
    }

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        check_fences(BACKEND, after)?;
        let Some((gpu, way)) = self.place(via, ops)? else {
            return Ok(Fence::immediate(BACKEND));
        };
        let opened = gpu.open().map_err(SubmitError::Refused)?;
        if way == Way::Visible && opened.context.reapers.is_idle() && !shows_exposed(ops) {
            // Nothing can have written the bytes since the last submission settled, which showed the host its writes.
            return match opened.context.lost() {
                Some(fault) => Err(SubmitError::Refused(fault.clone())),
                None => Ok(Fence::immediate(BACKEND)),
            };
        }
        let moves = ops
            .iter()
            .filter_map(|op| Move::of(&self.gpus, op).ok().flatten());
        let own = opened.lane(way);
        let after = after.iter().filter_map(|fence| {
            let lane = self.lane(*fence)?;
            // Submissions to one lane are in order.
            (!std::ptr::eq(lane, own)).then(|| (lane, fence.sequence()))
        });
        // SAFETY: the caller's promise.
        unsafe { own.submit(moves, after) }
    }

    /// Small copies that go through one lane become one submission with a fence for each.
    unsafe fn submit_each(
        &self,
        via: LinkId,
        ops: &[Op<'_>],
        told: &mut dyn FnMut(Result<Fence, SubmitError>),
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.submit_small_together(via, ops, told) }
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.sink.set(sink).is_ok()
    }

    fn completes_unattended(&self) -> bool {
        true
    }

    fn expect(&self) {
        for opened in self.gpus.iter().filter_map(Gpu::opened) {
            opened.lanes().iter().for_each(Lane::expect);
        }
    }

    /// Does nothing: the lanes' own threads report outcomes.
    fn pump(&self) {}

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        match self.lane(fence).filter(|_| !fence.is_immediate()) {
            Some(lane) => lane.wait(fence.sequence(), limit),
            None => Waited::Settled,
        }
    }
}

/// Whether the program's own work may use memory that is made visible.
fn shows_exposed(ops: &[Op<'_>]) -> bool {
    let shown = |op: &Op<'_>| matches!(op, Op::MakeVisible { part } if part.buffer.is_exposed());
    ops.iter().any(shown)
}
