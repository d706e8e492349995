//! A device's own memory.

use std::sync::Arc;

use transload_hal::{AllocError, AllocSpec, Buffer, MemoryId};

use super::{DEVICES, info, refused, with_room};
use crate::context::Context;
use crate::gpu::Gpu;
use crate::raw::CUdeviceptr;

/// An allocation, freed when dropped.
struct Allocation {
    context: Arc<Context>,
    start: CUdeviceptr,
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
    let mut start = 0;
    // SAFETY: the place is ours.
    let made = unsafe {
        context
            .driver
            .cuMemAlloc_v2(&raw mut start, with_room(spec))
    };
    made.map_err(|error| refused(opened.blame(error)))?;
    let owner = Allocation {
        context: Arc::clone(context),
        start,
    };
    let base = start.next_multiple_of(spec.alignment);
    let info = info(memory, DEVICES, base, spec.len_bytes);
    // SAFETY: the host cannot reach it; the addresses are this allocation's until the owner frees them.
    Ok(unsafe { Buffer::new(info, Box::new(owner)) })
}

impl Drop for Allocation {
    /// Blocks until the device is idle, as CUDA frees.
    fn drop(&mut self) {
        // Of a context that is gone nothing is left to free.
        if let Ok(_current) = self.context.enter() {
            // SAFETY: it was allocated, and is freed once; no operation uses it any more.
            let _ = unsafe { self.context.driver.cuMemFree_v2(self.start) };
        }
    }
}
