//! Host memory that the driver allocates. It is used for write-combined memory, which bypasses the processors' caches,
//! so that the host should only write it, front to back, and devices read it; and if memory of the process cannot be
//! registered.
//!
//! Devices may know it by another address than the host. Copies accept both addresses (CUDA Driver API, Unified
//! Addressing, Disjoint Addressing); this backend uses the host's.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use transload_hal::{AllocSpec, Buffer, Fault, HostSpan, StorageId, StorageInfo};

use super::block::page_bytes;
use super::storage::info;
use crate::context::Context;
use crate::gpu::Opened;
use crate::ids::PINNED;
use crate::raw::{CU_MEMHOSTALLOC, CUresult};

/// Memory of the driver, freed when dropped.
struct Hosted {
    context: Arc<Context>,
    start: *mut c_void,
}

// SAFETY: the address is a name for the driver.
unsafe impl Send for Hosted {}
// SAFETY: as above.
unsafe impl Sync for Hosted {}

/// Allocates the memory, write-combined or not; `None` if the system has no such memory.
pub(super) fn allocate(
    opened: &Opened,
    spec: &AllocSpec,
    is_combined: bool,
) -> Result<Option<Buffer>, Fault> {
    let context = &opened.context;
    let _current = context.enter()?;
    // The driver's memory begins at a page.
    let lead = spec.alignment.saturating_sub(page_bytes());
    let bytes = (spec.len_bytes.max(1) + lead) as usize;
    let mut flags = CU_MEMHOSTALLOC::PORTABLE | CU_MEMHOSTALLOC::DEVICEMAP;
    if is_combined {
        flags |= CU_MEMHOSTALLOC::WRITECOMBINED;
    }
    let mut start = std::ptr::null_mut();
    let made = context.allocate(|| {
        // SAFETY: the place is ours.
        unsafe { context.driver.cuMemHostAlloc(&raw mut start, bytes, flags) }
    });
    match made {
        Ok(()) => {}
        Err(error) if error.is(CUresult::CUDA_ERROR_NOT_SUPPORTED) => return Ok(None),
        Err(error) => return Err(opened.blame(error)),
    }
    let owner = Hosted {
        context: Arc::clone(context),
        start,
    };
    let lead = start.cast::<u8>().align_offset(spec.alignment as usize);
    let Some(start) = NonNull::new(start.cast::<u8>().wrapping_add(lead)) else {
        return Ok(None);
    };
    let span = HostSpan::new(start, spec.len_bytes as usize);
    let info = StorageInfo {
        host: Some(span),
        ..info(PINNED, StorageId::Host, span.addr(), spec.len_bytes)
    };
    // SAFETY: the driver keeps the memory where it is until the owner frees it, and the memory has no other owner.
    Ok(Some(unsafe { Buffer::new(info, Box::new(owner)) }))
}

impl Drop for Hosted {
    fn drop(&mut self) {
        let (context, start) = (Arc::clone(&self.context), self.start.expose_provenance());
        self.context.reapers.common.free(move || {
            let start = std::ptr::with_exposed_provenance_mut(start);
            if let Ok(_current) = context.enter() {
                // SAFETY: it was allocated, and is freed once; no operation uses it any more.
                let _ = unsafe { context.driver.cuMemFreeHost(start) };
            }
        });
    }
}
