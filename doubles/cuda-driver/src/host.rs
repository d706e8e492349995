//! Memory of the host that devices reach: allocated by the driver, or registered with it.
//!
//! Source: CUDA Driver API, Memory Management: cuMemHostAlloc, cuMemAllocHost, cuMemFreeHost, cuMemHostRegister,
//! cuMemHostUnregister, cuMemHostGetDevicePointer, cuMemHostGetFlags; and Unified Addressing, by which such memory
//! is portable and mapped whether or not the flags say so, and has one address for host and devices. That
//! documentation lets write-combined memory have another address on devices; here it has the same.
//!
//! The reference does not define what happens to memory that is freed or unregistered with work under way. Freeing
//! waits for all of that work, as for device memory (CUDA C++ Programming Guide, Implicit Synchronization, lists
//! page-locked memory). Unregistering waits too, because the client may free the pages right after. If the work
//! used them, the double notes that, because no document says that a driver waits there.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use transload_cuda::raw::{CU_MEMHOSTALLOC, CU_MEMHOSTREGISTER, CUdeviceptr, CUresult};

use crate::answer::{Answer, put};
use crate::bytes::Bytes;
use crate::call::{Call, driver};
use crate::log::Count;
use crate::maps::{self, Access};
use crate::memory::let_go;
use crate::space::{Allocation, Sort};
use crate::state::State;

const ALLOCATION_FLAGS: c_uint =
    CU_MEMHOSTALLOC::PORTABLE | CU_MEMHOSTALLOC::DEVICEMAP | CU_MEMHOSTALLOC::WRITECOMBINED;

const REGISTRATION_FLAGS: c_uint = CU_MEMHOSTREGISTER::PORTABLE
    | CU_MEMHOSTREGISTER::DEVICEMAP
    | CU_MEMHOSTREGISTER::IOMEMORY
    | CU_MEMHOSTREGISTER::READ_ONLY;

driver! {
    /// Aligned to pages; zeros at first. Freed with its context.
    fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: c_uint), call => {
        if pp.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let start = call.state().allocate_host(call, bytesize, flags)?;
        // SAFETY: the caller passes a valid out-pointer for a pointer.
        unsafe { put(pp, start) }
    }

    /// As `cuMemHostAlloc` without flags.
    fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize), call => {
        if pp.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let start = call.state().allocate_host(call, bytesize, 0)?;
        // SAFETY: the caller passes a valid out-pointer for a pointer.
        unsafe { put(pp, start) }
    }

    /// Frees memory that the driver allocated, by its first byte. Null is refused.
    fn cuMemFreeHost(p: *mut c_void), call => {
        let mut state = call.state();
        call.current(&state)?;
        let base = p.addr() as u64;
        let found = state.space.get(base).filter(|of| of.sort == Sort::Pinned);
        found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let freed = state.space.remove(base).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let_go(call, state, freed)
    }

    /// Registers memory that the process has mapped, of any alignment. Read-only memory needs `READ_ONLY`, and copies
    /// into memory that is registered so are refused. I/O memory is not modelled.
    fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: c_uint), call => {
        let mut state = call.state();
        state.register(call, p, bytesize, flags)?;
        call.world.log.add(Count::Registrations, 1);
        Ok(())
    }

    /// Unregisters by the first registered byte.
    fn cuMemHostUnregister(p: *mut c_void), call => {
        let mut state = call.state();
        call.current(&state)?;
        let base = p.addr() as u64;
        match state.space.get(base).map(|of| of.sort) {
            Some(Sort::Registered) => {}
            None if !p.is_null() => return Err(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
            // Not allocated, or memory of the driver's own.
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        let gone = state.space.remove(base).ok_or(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
        call.world.log.add(Count::Unregistrations, 1);
        // Work that is not done yet keeps the bytes that it moves.
        if Arc::strong_count(&gone.bytes) > 1 {
            let (base, size) = (gone.base, gone.size);
            let function = call.function;
            call.world.log.note(format_args!("{function}: copies use {base:#x}, {size} bytes, and are under way"));
        }
        let_go(call, state, gone)
    }

    /// The same address, of any byte of memory that was allocated or registered here.
    fn cuMemHostGetDevicePointer_v2(pdptr: *mut CUdeviceptr, p: *mut c_void, flags: c_uint), call => {
        let state = call.state();
        call.current(&state)?;
        let address = p.addr() as u64;
        let found = state.space.at(address);
        let found = found.filter(|of| matches!(of.sort, Sort::Pinned | Sort::Registered));
        if found.is_none() || flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller passes a valid out-pointer for an address.
        unsafe { put(pdptr, address) }
    }

    /// The flags of the allocation. Registered memory has none.
    fn cuMemHostGetFlags(p_flags: *mut c_uint, p: *mut c_void), call => {
        let state = call.state();
        call.current(&state)?;
        let found = state.space.at(p.addr() as u64);
        let found = found.filter(|of| of.sort == Sort::Pinned);
        let found = found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: the caller passes a valid out-pointer for flags.
        unsafe { put(p_flags, found.flags) }
    }
}

impl State {
    fn allocate_host(
        &mut self,
        call: &Call,
        size: usize,
        flags: c_uint,
    ) -> Result<*mut c_void, CUresult> {
        let (context, device) = call.current(self)?;
        if size == 0 || flags & !ALLOCATION_FLAGS != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        call.world.faults.on_allocation()?;
        let bytes = Bytes::anonymous(size).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let start = bytes.start();
        let added = self.space.add(Allocation {
            base: start.expose_provenance() as u64,
            size: size as u64,
            sort: Sort::Pinned,
            device,
            context,
            flags,
            id: 0,
            bytes,
            offset: 0,
        });
        // Addresses that the system has just returned are unused, unless a client registered some that it unmapped.
        added.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        call.world.log.add(Count::Allocations, 1);
        Ok(start.cast())
    }

    fn register(&mut self, call: &Call, p: *mut c_void, size: usize, flags: c_uint) -> Answer {
        let (context, device) = call.current(self)?;
        let wrong = CUresult::CUDA_ERROR_INVALID_VALUE;
        let base = p.addr() as u64;
        let end = base.checked_add(size as u64).ok_or(wrong)?;
        if p.is_null() || size == 0 || flags & !REGISTRATION_FLAGS != 0 {
            return Err(wrong);
        }
        if flags & CU_MEMHOSTREGISTER::IOMEMORY != 0 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if let Some(there) = self.space.overlapping(&(base..end)).next() {
            return Err(match there.sort {
                // Memory that the driver has pinned is registered already.
                Sort::Registered | Sort::Pinned => {
                    CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                }
                _ => wrong,
            });
        }
        match maps::access(&(base..end)) {
            Some(Access::ReadWrite) => {}
            Some(Access::Read) if flags & CU_MEMHOSTREGISTER::READ_ONLY != 0 => {}
            _ => return Err(wrong),
        }
        call.world.faults.on_allocation()?;
        // The address alone must lead back to the memory.
        p.expose_provenance();
        let start = ptr::with_exposed_provenance_mut(base as usize);
        // SAFETY: the client keeps registered memory until it has unregistered it.
        let bytes = unsafe { Bytes::of_client(start, size) };
        let added = self.space.add(Allocation {
            base,
            size: size as u64,
            sort: Sort::Registered,
            device,
            context,
            flags,
            id: 0,
            bytes,
            offset: 0,
        });
        added.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        Ok(())
    }
}
