//! Memory of devices.
//!
//! Source: CUDA Driver API, Memory Management: cuMemAlloc, cuMemFree, cuMemGetInfo, cuMemGetAddressRange.
//! The text says that freeing "may perform implicit synchronization": here it always does, and
//! waits for all work in flight on the device before it reuses the memory. Memory of pools is the exception, as in that
//! text.

use std::ptr;
use std::sync::MutexGuard;

use transload_cuda::raw::{CUcontext, CUdevice, CUdeviceptr, CUresult};

use crate::answer::{Answer, put, put_if_wanted};
use crate::bytes::{Bytes, Memory};
use crate::call::{Call, driver};
use crate::context;
use crate::engine::Ticket;
use crate::log::Count;
use crate::space::{ALIGNMENT, Allocation, Sort};
use crate::state::State;
use crate::stream::wait;

impl State {
    /// Memory of a device, without addresses yet.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub(crate) fn device_bytes(
        &self,
        call: &Call,
        device: CUdevice,
        size: u64,
    ) -> Result<std::sync::Arc<Bytes>, CUresult> {
        call.world.faults.on_allocation()?;
        let memory = self.device(device)?.memory()?;
        let extent = memory.allocate(size);
        let extent = extent.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        call.world.log.add(Count::Allocations, 1);
        Ok(Bytes::of_device(extent))
    }

    fn allocate(&mut self, call: &Call, size: u64) -> Result<CUdeviceptr, CUresult> {
        let (context, device) = call.current(self)?;
        if size == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let bytes = self.device_bytes(call, device, size)?;
        let reserved = self.space.reserve(size, ALIGNMENT);
        let base = reserved.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let added = self.space.add(Allocation {
            base,
            size,
            sort: Sort::Device,
            device,
            context,
            flags: 0,
            id: 0,
            bytes,
            offset: 0,
        });
        added.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        Ok(base)
    }

    /// All work in flight, in every context.
    pub(crate) fn unfinished_anywhere(&self) -> Vec<Ticket> {
        let contexts = self.contexts.iter();
        let contexts = contexts.map(|(number, _)| ptr::without_provenance_mut(number as usize));
        contexts
            .flat_map(|context| self.unfinished_of(CUcontext(context)))
            .collect()
    }

    /// Work in flight that may use an allocation: all work on its device, or on any device if it is host memory.
    pub(crate) fn unfinished_around(&self, allocation: &Allocation) -> Vec<Ticket> {
        let on_device = matches!(allocation.memory(), Memory::Device(_));
        let contexts = self.contexts.iter();
        let contexts = contexts.filter(|(_, of)| !on_device || of.device == allocation.device);
        contexts
            .flat_map(|(number, _)| {
                self.unfinished_of(CUcontext(ptr::without_provenance_mut(number as usize)))
            })
            .collect()
    }
}

/// Frees an allocation that no client can find any more, once no work can use it.
///
/// # Errors
/// The error that has ruined the current context by then.
pub(crate) fn let_go(
    call: &Call,
    mut state: MutexGuard<'_, State>,
    allocation: Allocation,
) -> Answer {
    // The call waits for other users of the memory even if the context was ruined just now.
    let (current, _) = context::present(&state)?;
    state.managed.forget(allocation.id);
    let ruin = state.context(current)?.ruin.clone();
    let tickets = state.unfinished_around(&allocation);
    drop(state);
    let waited = wait(call, &tickets, &ruin);
    drop(allocation);
    waited
}

driver! {
    /// Aligned to 512 bytes. The memory keeps its previous bytes.
    fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize), call => {
        if dptr.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let base = call.state().allocate(call, bytesize as u64)?;
        // SAFETY: the caller passes a valid out-pointer for an address.
        unsafe { put(dptr, base) }
    }

    /// Frees the allocation that begins there, of any context, after all work in flight on its device. Memory of a pool
    /// is freed at once, for the pool's next allocation. Null is accepted and does nothing.
    fn cuMemFree_v2(dptr: CUdeviceptr), call => {
        let mut state = call.state();
        call.current(&state)?;
        if dptr == 0 {
            return Ok(());
        }
        let freed = state.space.get(dptr);
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        match freed.ok_or(wrong)?.sort {
            Sort::Device | Sort::Managed | Sort::External(_) => {}
            Sort::Pool { pool, .. } => {
                state.free_to_pool(pool, dptr);
                return Ok(());
            }
            Sort::Pinned | Sort::Registered | Sort::Mapped { .. } | Sort::Ipc => return Err(wrong),
        }
        let freed = state.space.remove(dptr).ok_or(wrong)?;
        let_go(call, state, freed)
    }

    /// For the current context's device.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize), call => {
        let state = call.state();
        let (_, device) = call.current(&state)?;
        let (free_bytes, total_bytes) = state.device(device)?.memory()?.info();
        // SAFETY: the caller passes a valid out-pointer for a size.
        unsafe { put(free, free_bytes as usize) }?;
        // SAFETY: as above.
        unsafe { put(total, total_bytes as usize) }
    }

    /// Both answers are optional.
    fn cuMemGetAddressRange_v2(pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr), call => {
        let state = call.state();
        call.current(&state)?;
        let found = state.space.at(dptr).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        // SAFETY: the caller passes null or a valid out-pointer for an address.
        unsafe { put_if_wanted(pbase, found.base) };
        // SAFETY: the caller passes null or a valid out-pointer for a size.
        unsafe { put_if_wanted(psize, found.size as usize) };
        Ok(())
    }
}
