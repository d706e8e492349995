//! Reserved addresses, their mappings, and the devices that may use them.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use transload_cuda::raw::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemRangeHandleType, CUresult,
};

use super::GRANULARITY;
use super::pieces::device_at;
use crate::access::Access;
use crate::answer::{Answer, put};
use crate::call::{Call, driver};
use crate::physical::GRAIN;
use crate::space::{Allocation, Sort};
use crate::state::State;

const WRONG: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// A range of multiples of the granularity.
///
/// # Errors
/// `INVALID_VALUE` for any other, and for an empty one.
fn grains(base: u64, size: u64) -> Result<Range<u64>, CUresult> {
    if size == 0 || !size.is_multiple_of(GRANULARITY) || !base.is_multiple_of(GRANULARITY) {
        return Err(WRONG);
    }
    Ok(base..base.checked_add(size).ok_or(WRONG)?)
}

impl State {
    /// # Errors
    /// `INVALID_VALUE` where the piece is too short, the range is not reserved or something is there.
    fn map(&mut self, range: Range<u64>, handle: CUmemGenericAllocationHandle) -> Answer {
        let size = range.end - range.start;
        let (base, len) = self
            .vmm
            .reservations
            .range(..=range.start)
            .next_back()
            .ok_or(WRONG)?;
        if range.end > base + len {
            return Err(WRONG);
        }
        let piece = self.vmm.piece(handle)?;
        if size > piece.bytes.len() as u64 {
            return Err(WRONG);
        }
        let added = self.space.add(Allocation {
            base: range.start,
            size,
            sort: Sort::Mapped {
                piece: handle,
                access: Access::NONE,
            },
            device: piece.device,
            context: Default::default(),
            flags: 0,
            id: 0,
            bytes: Arc::clone(&piece.bytes),
            offset: 0,
        });
        added.map_err(|_| WRONG)?;
        piece.mappings += 1;
        Ok(())
    }

    /// Where the mappings begin that make up a range, each with its piece.
    ///
    /// # Errors
    /// `INVALID_VALUE` where a part of the range is not mapped, or of a mapping that goes beyond it.
    fn mappings(
        &self,
        range: &Range<u64>,
    ) -> Result<Vec<(u64, CUmemGenericAllocationHandle)>, CUresult> {
        let mut at = range.start;
        let mut found = Vec::new();
        for allocation in self.space.overlapping(range) {
            let Sort::Mapped { piece, .. } = allocation.sort else {
                return Err(WRONG);
            };
            if allocation.base != at {
                return Err(WRONG);
            }
            at = allocation.range().end;
            found.push((allocation.base, piece));
        }
        if at == range.end {
            Ok(found)
        } else {
            Err(WRONG)
        }
    }

    /// # Errors
    /// Before anything is changed.
    fn set_access(
        &mut self,
        call: &Call,
        range: &Range<u64>,
        wishes: &[CUmemAccessDesc],
    ) -> Answer {
        let mappings = self.mappings(range)?;
        let mut granted = Vec::new();
        for wish in wishes {
            let device = device_at(self, wish.location)?;
            wish.flags.name().ok_or(WRONG)?;
            granted.push((device, wish.flags));
            if wish.flags == CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE {
                continue;
            }
            for (base, _) in &mappings {
                let at = self.space.get(*base).ok_or(WRONG)?.device;
                if !reaches(call, device, at) {
                    return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
                }
            }
        }
        for (base, _) in mappings {
            let Some(Allocation {
                sort: Sort::Mapped { access, .. },
                ..
            }) = self.space.get_mut(base)
            else {
                continue;
            };
            for (device, flags) in &granted {
                access.set(*device, *flags);
            }
        }
        Ok(())
    }
}

/// Whether a device can be given access to memory of another, or of its own.
pub(crate) fn reaches(call: &Call, device: CUdevice, memory_of: CUdevice) -> bool {
    let ordinals = (usize::try_from(device.0), usize::try_from(memory_of.0));
    let (Ok(device), Ok(memory_of)) = ordinals else {
        return false;
    };
    device == memory_of || call.world.machine.can_access(device, memory_of)
}

driver! {
    /// Addresses that nothing else has, aligned to 2 MiB at least; at `addr` if it is aligned and nothing is
    /// there. They are never given out again by the driver's own choice.
    fn cuMemAddressReserve(
        ptr: *mut CUdeviceptr,
        size: usize,
        alignment: usize,
        addr: CUdeviceptr,
        flags: u64,
    ), call => {
        let (size, alignment) = (size as u64, alignment as u64);
        let pages = size != 0 && size.is_multiple_of(GRAIN) && addr.is_multiple_of(GRAIN);
        let aligned = alignment == 0 || alignment.is_power_of_two();
        if ptr.is_null() || flags != 0 || !pages || !aligned {
            return Err(WRONG);
        }
        let mut state = call.state();
        let reserved = state.space.reserve_apart(size, alignment.max(GRANULARITY), addr);
        let base = reserved.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        state.vmm.reservations.insert(base, size);
        // SAFETY: the caller passes a valid out-pointer for an address.
        unsafe { put(ptr, base) }
    }

    /// Frees exactly one reserved range, when it has no mapping any more.
    fn cuMemAddressFree(ptr: CUdeviceptr, size: usize), call => {
        let mut state = call.state();
        let reserved = state.vmm.reservations.get(&ptr).copied();
        let size = reserved.filter(|reserved| *reserved == size as u64).ok_or(WRONG)?;
        if state.space.overlapping(&(ptr..ptr + size)).next().is_some() {
            return Err(WRONG);
        }
        state.vmm.reservations.remove(&ptr);
        Ok(())
    }

    /// Maps the first `size` bytes of a piece at reserved, unmapped addresses. No device has access yet.
    fn cuMemMap(
        ptr: CUdeviceptr,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: u64,
    ), call => {
        // Source: the note at `offset`: "currently must be zero".
        if offset != 0 || flags != 0 {
            return Err(WRONG);
        }
        call.state().map(grains(ptr, size as u64)?, handle)
    }

    /// Removes one mapping, or several adjacent ones, each as a whole. Returns when all work in flight is done, as
    /// documented for most uses.
    fn cuMemUnmap(ptr: CUdeviceptr, size: usize), call => {
        let range = grains(ptr, size as u64)?;
        let mut state = call.state();
        for (base, piece) in state.mappings(&range)? {
            state.space.remove(base);
            if let Some(of) = state.vmm.pieces.get_mut(piece) {
                of.mappings -= 1;
            }
            state.vmm.settle(piece);
        }
        let tickets = state.unfinished_anywhere();
        drop(state);
        call.world.engine.wait_all(&tickets);
        Ok(())
    }

    /// Sets the access of devices to one mapping, or to several adjacent ones, each as a whole. Refuses a device that
    /// does not reach the memory.
    fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize), call => {
        let range = grains(ptr, size as u64)?;
        if desc.is_null() || count == 0 {
            return Err(WRONG);
        }
        let mut wishes = Vec::new();
        for index in 0..count {
            // SAFETY: the caller's array is as long as it says.
            let at = unsafe { desc.add(index) };
            // SAFETY: as above.
            wishes.push(unsafe { at.read_unaligned() });
        }
        call.state().set_access(call, &range, &wishes)
    }

    /// The access of a device to the mapping at an address.
    fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr), call => {
        if location.is_null() {
            return Err(WRONG);
        }
        // SAFETY: the caller's location.
        let location = unsafe { location.read_unaligned() };
        let state = call.state();
        let device = device_at(&state, location)?;
        let Some(Sort::Mapped { access, .. }) = state.space.at(ptr).map(|of| of.sort) else {
            return Err(WRONG);
        };
        // SAFETY: the caller passes a valid out-pointer for flags.
        unsafe { put(flags, u64::from(access.of(device).0)) }
    }

    /// Devices here have no dma-bufs, as `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED` reports.
    fn cuMemGetHandleForAddressRange(
        handle: *mut c_void,
        dptr: CUdeviceptr,
        size: usize,
        handle_type: CUmemRangeHandleType,
        flags: u64,
    ), call => {
        let _ = flags;
        let pages = size != 0 && (size as u64).is_multiple_of(GRAIN) && dptr.is_multiple_of(GRAIN);
        if handle.is_null() || !pages || handle_type.name().is_none() {
            return Err(WRONG);
        }
        call.state().space.place(dptr, size as u64)?;
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }
}
