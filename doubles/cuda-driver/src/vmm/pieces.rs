//! Pieces of memory: made, exported to other processes, imported from them, and released.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::sync::Arc;

use rustix::fs::fstat;
use transload_cuda::raw::{
    CUdevice, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult,
};

use super::{GRANULARITY, Piece};
use crate::answer::{Answer, put};
use crate::bytes::Bytes;
use crate::call::{Call, driver};
use crate::log::Count;
use crate::shared::{Kind, Label, client_file};
use crate::space::Sort;
use crate::state::State;

impl State {
    /// # Errors
    /// What a wish that is not modelled or means nothing is answered with.
    fn create(
        &mut self,
        call: &Call,
        size: u64,
        wish: &CUmemAllocationProp,
    ) -> Result<CUmemGenericAllocationHandle, CUresult> {
        let device = self.device_wished(wish)?;
        if size == 0 || !size.is_multiple_of(GRANULARITY) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        call.world.faults.on_allocation()?;
        let charge = self.device(device)?.memory()?.charge(size);
        let charge = charge.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let label = Label {
            kind: Kind::Piece,
            size,
            uuid: self.device(device)?.description.uuid.0,
            word: wish.requestedHandleTypes.0,
        };
        let file = label.file();
        let bytes = file.and_then(|file| Bytes::of_charged_file(file, 0, size as usize, charge));
        let bytes = bytes.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        call.world.log.add(Count::Allocations, 1);
        Ok(self.vmm.pieces.add(Piece {
            device,
            types: wish.requestedHandleTypes,
            bytes,
            holders: 1,
            mappings: 0,
        }))
    }

    /// The device that memory is to be on, if all else that is wished for is modelled too.
    ///
    /// # Errors
    /// As [`State::create`].
    fn device_wished(&self, wish: &CUmemAllocationProp) -> Result<CUdevice, CUresult> {
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        let not_modelled = CUresult::CUDA_ERROR_NOT_SUPPORTED;
        match wish.type_ {
            CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED => {}
            CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED => return Err(not_modelled),
            _ => return Err(wrong),
        }
        handle_types(wish.requestedHandleTypes)?;
        // Compression is a hint, which this device ignores; the other flags need features that it lacks.
        if wish.allocFlags.gpuDirectRDMACapable != 0 || wish.allocFlags.usage != 0 {
            return Err(not_modelled);
        }
        let shared =
            wish.requestedHandleTypes != CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        match wish.location.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
                let device = CUdevice(wish.location.id);
                self.device(device)?;
                Ok(device)
            }
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST if shared => Err(wrong),
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
            | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA => Err(not_modelled),
            _ => Err(wrong),
        }
    }

    /// # Errors
    /// `INVALID_VALUE` for a file that is no piece, `NOT_SUPPORTED` for one of a device that is not here.
    fn take_in(&mut self, file: BorrowedFd<'_>) -> Result<CUmemGenericAllocationHandle, CUresult> {
        let label = Label::read(file).filter(|label| label.kind == Kind::Piece);
        let label = label.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let device = self.device_of_uuid(label.uuid)?;
        let bytes = match self.bytes_of(file) {
            Some(bytes) => bytes,
            None => {
                let file = file.try_clone_to_owned();
                let file = file.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
                let bytes = Bytes::of_file(file, 0, label.size as usize);
                bytes.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?
            }
        };
        Ok(self.vmm.pieces.add(Piece {
            device,
            types: CUmemAllocationHandleType(label.word),
            bytes,
            holders: 1,
            mappings: 0,
        }))
    }

    /// The bytes of a piece that this process already has, so that they are counted and mapped once.
    fn bytes_of(&self, file: BorrowedFd<'_>) -> Option<Arc<Bytes>> {
        let number = |file: BorrowedFd<'_>| fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino));
        let wanted = number(file)?;
        let mut pieces = self.vmm.pieces.iter().map(|(_, piece)| &piece.bytes);
        let same =
            |bytes: &&Arc<Bytes>| bytes.file().and_then(|(file, _)| number(file)) == Some(wanted);
        pieces.find(same).cloned()
    }
}

/// # Errors
/// `NOT_SUPPORTED` where one of them is not modelled, `INVALID_VALUE` where one means nothing.
pub(crate) fn handle_types(types: CUmemAllocationHandleType) -> Answer {
    use CUmemAllocationHandleType as T;
    let fd = T::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
    let others = T::CU_MEM_HANDLE_TYPE_WIN32.0
        | T::CU_MEM_HANDLE_TYPE_WIN32_KMT.0
        | T::CU_MEM_HANDLE_TYPE_FABRIC.0;
    if types.0 & !(fd | others) != 0 {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    } else if types.0 & others != 0 {
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    } else {
        Ok(())
    }
}

/// A single type, and one that is modelled.
///
/// # Errors
/// As [`handle_types`].
pub(crate) fn one_handle_type(of: CUmemAllocationHandleType) -> Answer {
    handle_types(of)?;
    if of == CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// # Safety
/// The pointer is null, or there is such a thing.
pub(crate) unsafe fn read<T: Copy>(from: *const T) -> Result<T, CUresult> {
    if from.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's promise. Clients may hand in things at any alignment.
    Ok(unsafe { from.read_unaligned() })
}

driver! {
    /// Memory of a device, for mapping, in multiples of the granularity. Zeros at first, on which clients must
    /// not rely.
    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        size: usize,
        prop: *const CUmemAllocationProp,
        flags: u64,
    ), call => {
        if handle.is_null() || flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's properties.
        let wish = unsafe { read(prop) }?;
        let made = call.state().create(call, size as u64, &wish)?;
        // SAFETY: the caller passes a valid out-pointer for a handle.
        unsafe { put(handle, made) }
    }

    /// The memory stays as long as it is mapped. To be called as often as the handle was given out.
    fn cuMemRelease(handle: CUmemGenericAllocationHandle), call => {
        let mut state = call.state();
        state.vmm.piece(handle)?.holders -= 1;
        state.vmm.settle(handle);
        Ok(())
    }

    /// A new file descriptor, the caller's to close, for another process or this one.
    fn cuMemExportToShareableHandle(
        shareable_handle: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        handle_type: CUmemAllocationHandleType,
        flags: u64,
    ), call => {
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        one_handle_type(handle_type)?;
        if shareable_handle.is_null() || flags != 0 {
            return Err(wrong);
        }
        let mut state = call.state();
        let piece = state.vmm.piece(handle)?;
        if piece.types.0 & handle_type.0 == 0 {
            return Err(wrong);
        }
        let (file, _) = piece.bytes.file().ok_or(wrong)?;
        let file = file.try_clone_to_owned();
        let file = file.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        // SAFETY: the caller passes a valid out-pointer for a file descriptor.
        unsafe { put(shareable_handle.cast::<c_int>(), file.into_raw_fd()) }
    }

    /// Takes a piece of another process in, or one of this process once more. The file descriptor, which comes
    /// as a pointer of its value, stays the caller's.
    fn cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle,
        os_handle: *mut c_void,
        sh_handle_type: CUmemAllocationHandleType,
    ), call => {
        one_handle_type(sh_handle_type)?;
        if handle.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let file = client_file(os_handle.addr() as c_int);
        let file = file.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let made = call.state().take_in(file.as_fd())?;
        // SAFETY: the caller passes a valid out-pointer for a handle.
        unsafe { put(handle, made) }
    }

    /// 2 MiB, the least and the best.
    fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        prop: *const CUmemAllocationProp,
        option: CUmemAllocationGranularity_flags,
    ), call => {
        // SAFETY: the caller's properties.
        let wish = unsafe { read(prop) }?;
        call.state().device_wished(&wish)?;
        option.name().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: the caller passes a valid out-pointer for a size.
        unsafe { put(granularity, GRANULARITY as usize) }
    }

    /// The properties with which it was made, or which the import found.
    fn cuMemGetAllocationPropertiesFromHandle(
        prop: *mut CUmemAllocationProp,
        handle: CUmemGenericAllocationHandle,
    ), call => {
        let properties = call.state().vmm.piece(handle)?.properties();
        // SAFETY: the caller passes a valid out-pointer for properties.
        unsafe { put(prop, properties) }
    }

    /// The handle that was mapped at an address, to be released once more; also if it had been released.
    fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void), call => {
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        if handle.is_null() {
            return Err(wrong);
        }
        let mut state = call.state();
        let Some(Sort::Mapped { piece, .. }) = state.space.at(addr.addr() as u64).map(|of| of.sort) else {
            return Err(wrong);
        };
        state.vmm.pieces.get_mut(piece).ok_or(wrong)?.holders += 1;
        // SAFETY: the caller passes a valid out-pointer for a handle.
        unsafe { put(handle, piece) }
    }
}

/// Where access is granted or asked for.
///
/// # Errors
/// `INVALID_DEVICE` where there is no such device; `NOT_SUPPORTED` for the host, which has no part in it;
/// `INVALID_VALUE` for what is no place.
pub(crate) fn device_at(state: &State, location: CUmemLocation) -> Result<CUdevice, CUresult> {
    match location.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
            let device = CUdevice(location.id);
            state.device(device)?;
            Ok(device)
        }
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}
