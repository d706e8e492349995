//! Functions that are not modelled yet: each answers `NOT_SUPPORTED`, never success.
#![allow(unused_variables, reason = "nothing is done with them")]

use std::ffi::c_void;

use transload_cuda::raw::*;

use crate::call::{Answer, Call, driver};

fn not_modelled(_: &Call) -> Answer {
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

driver! {
    fn cuDeviceGetDefaultMemPool(pool_out: *mut CUmemoryPool, dev: CUdevice), call => {
        not_modelled(call)
    }

    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice), call => {
        not_modelled(call)
    }

    fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool), call => {
        not_modelled(call)
    }

    fn cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream), call => {
        not_modelled(call)
    }

    fn cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream), call => {
        not_modelled(call)
    }

    fn cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream), call => {
        not_modelled(call)
    }

    fn cuMemPoolCreate(pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps), call => {
        not_modelled(call)
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool), call => {
        not_modelled(call)
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize), call => {
        not_modelled(call)
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void), call => {
        not_modelled(call)
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void), call => {
        not_modelled(call)
    }

    fn cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize), call => {
        not_modelled(call)
    }

    fn cuMemPoolGetAccess(flags: *mut CUmemAccess_flags, mem_pool: CUmemoryPool, location: *mut CUmemLocation), call => {
        not_modelled(call)
    }

    fn cuMemPoolExportToShareableHandle(handle_out: *mut c_void, pool: CUmemoryPool, handle_type: CUmemAllocationHandleType, flags: u64), call => {
        not_modelled(call)
    }

    fn cuMemPoolImportFromShareableHandle(pool_out: *mut CUmemoryPool, handle: *mut c_void, handle_type: CUmemAllocationHandleType, flags: u64), call => {
        not_modelled(call)
    }

    fn cuMemPoolExportPointer(share_data_out: *mut CUmemPoolPtrExportData, ptr: CUdeviceptr), call => {
        not_modelled(call)
    }

    fn cuMemPoolImportPointer(ptr_out: *mut CUdeviceptr, pool: CUmemoryPool, share_data: *mut CUmemPoolPtrExportData), call => {
        not_modelled(call)
    }

    fn cuImportExternalSemaphore(ext_sem_out: *mut CUexternalSemaphore, sem_handle_desc: *const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC), call => {
        not_modelled(call)
    }

    fn cuSignalExternalSemaphoresAsync(ext_sem_array: *const CUexternalSemaphore, params_array: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, num_ext_sems: u32, stream: CUstream), call => {
        not_modelled(call)
    }

    fn cuWaitExternalSemaphoresAsync(ext_sem_array: *const CUexternalSemaphore, params_array: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, num_ext_sems: u32, stream: CUstream), call => {
        not_modelled(call)
    }

    fn cuDestroyExternalSemaphore(ext_sem: CUexternalSemaphore), call => {
        not_modelled(call)
    }
}
