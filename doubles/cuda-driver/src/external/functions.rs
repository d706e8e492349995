//! The driver's functions on external memory.

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use transload_cuda::raw::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_DEDICATED,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUcontext, CUdeviceptr, CUexternalMemory,
    CUexternalMemoryHandleType, CUresult,
};

use super::{External, PAGE};
use crate::answer::{Answer, put};
use crate::call::{Call, driver};
use crate::shared::client_file;
use crate::space::{ALIGNMENT, Allocation, Sort};
use crate::state::State;

impl State {
    /// Removes all external memory of a context.
    pub(crate) fn end_externals_of(&mut self, context: CUcontext) {
        self.externals
            .retain(|external| external.context != context);
    }

    /// # Errors
    /// `INVALID_HANDLE` for what is no external memory.
    fn external(&self, handle: CUexternalMemory) -> Result<&External, CUresult> {
        let external = self.externals.get(handle.0.addr() as u64);
        external.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// # Errors
    /// `INVALID_VALUE` for a range that goes beyond the memory.
    fn map_external(
        &mut self,
        call: &Call,
        handle: CUexternalMemory,
        buffer: &CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
    ) -> Result<CUdeviceptr, CUresult> {
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        let (context, _) = call.current(self)?;
        let external = self.external(handle)?;
        let end = buffer.offset.checked_add(buffer.size).ok_or(wrong)?;
        if buffer.flags != 0 || buffer.size == 0 || end > external.size {
            return Err(wrong);
        }
        let (device, bytes) = (external.device, Arc::clone(&external.bytes));
        let offset = (external.offset + buffer.offset) as usize;
        // Aligned as in the memory, whatever the other interface asks for.
        let within = buffer.offset % PAGE;
        let reserved = self
            .space
            .reserve(buffer.size + within, PAGE.max(ALIGNMENT));
        let base = reserved.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)? + within;
        let added = self.space.add(Allocation {
            base,
            size: buffer.size,
            sort: Sort::External(handle.0.addr() as u64),
            device,
            context,
            flags: 0,
            id: 0,
            bytes,
            offset,
        });
        added.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        Ok(base)
    }
}

/// # Errors
/// `NOT_SUPPORTED` for what is not modelled, `INVALID_VALUE` for what means nothing.
fn check(desc: &CUDA_EXTERNAL_MEMORY_HANDLE_DESC) -> Answer {
    let known = CUDA_EXTERNAL_MEMORY_DEDICATED;
    // Direct3D 11 and NvSci have types that the binding has no name for.
    let types = CUexternalMemoryHandleType::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD.0
        ..=CUexternalMemoryHandleType::CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD.0;
    if !types.contains(&desc.type_.0) || desc.flags & !known != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if desc.type_ != CUexternalMemoryHandleType::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(())
}

driver! {
    /// Takes an opaque file descriptor over, for the device of the current context; on failure it stays the
    /// caller's.
    fn cuImportExternalMemory(
        ext_mem_out: *mut CUexternalMemory,
        mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    ), call => {
        if ext_mem_out.is_null() || mem_handle_desc.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller passes a valid description.
        let desc = unsafe { mem_handle_desc.read_unaligned() };
        let mut state = call.state();
        let current = call.current(&state)?;
        check(&desc)?;
        // SAFETY: that is what the type says it is.
        let fd = unsafe { desc.handle.fd };
        let file = client_file(fd).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let external = External::new(current, file, desc.size)?;
        // SAFETY: it is open, or there were no file; from here on it is ours, as documented.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        let number = state.externals.add(external);
        let handle = CUexternalMemory(ptr::without_provenance_mut(number as usize));
        // SAFETY: the caller passes a valid out-pointer for a handle.
        unsafe { put(ext_mem_out, handle) }
    }

    /// Addresses for a range of the memory, to be freed with `cuMemFree`. Ranges may overlap, and then show the
    /// same bytes at several addresses.
    fn cuExternalMemoryGetMappedBuffer(
        dev_ptr: *mut CUdeviceptr,
        ext_mem: CUexternalMemory,
        buffer_desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
    ), call => {
        if dev_ptr.is_null() || buffer_desc.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller passes a valid description.
        let buffer = unsafe { buffer_desc.read_unaligned() };
        let base = call.state().map_external(call, ext_mem, &buffer)?;
        // SAFETY: the caller passes a valid out-pointer for an address.
        unsafe { put(dev_ptr, base) }
    }

    /// Mappings of it stay until they are freed.
    fn cuDestroyExternalMemory(ext_mem: CUexternalMemory), call => {
        let removed = call.state().externals.remove(ext_mem.0.addr() as u64);
        removed.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }
}
