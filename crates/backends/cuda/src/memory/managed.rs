//! Managed memory: host and device use one address, and the driver moves the pages.

use std::ptr::NonNull;
use std::sync::Arc;

use transload_hal::{AllocError, AllocSpec, Buffer, HostSpan, MemoryId, StorageId, StorageInfo};

use super::storage::{info, refused, with_room};
use crate::context::Context;
use crate::gpu::Gpu;
use crate::raw::{CUdeviceptr, CUmemAttach_flags};

/// The largest allocation, in bytes. An allocation may be larger than the device's memory, and than the host's,
/// although that is of no use. 2^47 is the number of addresses that a process has on x86-64 and, by default, on
/// 64-bit Arm.
pub(super) const LARGEST: u64 = 1 << 47;

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
    let flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
    let made = context.allocate(|| {
        let driver = &context.driver;
        // SAFETY: the place is ours.
        unsafe { driver.cuMemAllocManaged(&raw mut start, with_room(spec), flags) }
    });
    made.map_err(|error| refused(opened.blame(error)))?;
    let owner = Allocation {
        context: Arc::clone(context),
        start,
    };
    let base = start.next_multiple_of(spec.alignment);
    let pointer = NonNull::new(std::ptr::with_exposed_provenance_mut(base as usize));
    let host = pointer.filter(|_| gpu.facts.shares_managed);
    let info = StorageInfo {
        host: host.map(|start| HostSpan::new(start, spec.len_bytes as usize)),
        // The addresses of managed memory are valid on the host.
        ..info(memory, StorageId::Host, base, spec.len_bytes)
    };
    // SAFETY: the driver keeps the range mapped for host and device until the owner frees it; where the host must
    // not touch it while the device works, no address is given.
    Ok(unsafe { Buffer::new(info, Box::new(owner)) })
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let (context, start) = (Arc::clone(&self.context), self.start);
        // Any device may use the memory.
        self.context
            .reapers
            .common
            .free(move || context.free(start));
    }
}
