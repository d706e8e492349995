//! Functions that are not modelled yet: each answers `NOT_SUPPORTED`, never success.
#![allow(unused_variables, reason = "nothing is done with them")]

use transload_cuda::raw::*;

use crate::call::{Answer, Call, driver};

fn not_modelled(_: &Call) -> Answer {
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

driver! {
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
