//! A device's own memory.

use std::sync::Arc;

use transload_hal::{AllocError, AllocSpec, Buffer, MemoryId};

use super::storage::{info, refused, with_room};
use crate::context::Context;
use crate::gpu::Gpu;
use crate::ids::DEVICES;
use crate::raw::{CUdeviceptr, CUresult, CallError};

/// An allocation, freed when dropped.
struct Allocation {
    context: Arc<Context>,
    start: CUdeviceptr,
    bytes: usize,
    source: Source,
}

/// Where an allocation comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The backend's pool: freeing does not wait.
    Pool,
    /// The driver itself: freeing waits until the device is idle.
    Driver,
}

pub(super) fn allocate(
    gpu: &Gpu,
    memory: MemoryId,
    spec: &AllocSpec,
) -> Result<Buffer, AllocError> {
    let refused = |fault| refused(memory, spec.len_bytes, fault);
    let opened = gpu.open().map_err(refused)?;
    let context = &opened.context;
    let _current = context.enter().map_err(refused)?;
    let owner = Allocation::new(context, spec);
    let owner = owner.map_err(|error| refused(opened.blame(error)))?;
    let base = owner.start.next_multiple_of(spec.alignment);
    let info = info(memory, DEVICES, base, spec.len_bytes);
    // SAFETY: the host cannot reach it; the addresses are this allocation's until the owner frees them.
    Ok(unsafe { Buffer::new(info, Box::new(owner)) })
}

impl Allocation {
    /// Allocates from the pool if there is one, or by `cuMemAlloc` if the memory is to be shared with other processes:
    /// they can open only what `cuMemAlloc` made (CUDA Driver API, Memory Management, cuIpcGetMemHandle). The context
    /// must be current.
    fn new(context: &Arc<Context>, spec: &AllocSpec) -> Result<Allocation, CallError> {
        let (driver, bytes) = (&context.driver, with_room(spec));
        let of = |start, source| Allocation {
            context: Arc::clone(context),
            start,
            bytes,
            source,
        };
        if let Some(pool) = context.pool().filter(|_| !spec.shareable) {
            match context.allocate(|| pool.allocate(driver, bytes)) {
                Ok(start) => return Ok(of(start, Source::Pool)),
                Err(error) if error.is(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => return Err(error),
                // If only the pool fails, the driver's allocation below succeeds; if the device fails, that allocation
                // reports it.
                Err(_) => {}
            }
        }
        let mut start = 0;
        // SAFETY: the place is ours.
        context.allocate(|| unsafe { driver.cuMemAlloc_v2(&raw mut start, bytes) })?;
        Ok(of(start, Source::Driver))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let context = &self.context;
        if let Some(pool) = context.pool().filter(|_| self.source == Source::Pool) {
            // Of a context that is gone nothing is left to free.
            if let Ok(_current) = context.enter()
                && pool.free(&context.driver, self.start, self.bytes)
            {
                let own = Arc::clone(context);
                // Trimming unmaps the pages, of which the driver has to tell the device, so a reaper does it.
                context.reapers.own.free(move || {
                    own.trim();
                });
            }
            return;
        }
        let (own, start) = (Arc::clone(context), self.start);
        context.reapers.own.free(move || own.free(start));
    }
}
