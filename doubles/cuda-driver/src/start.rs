//! Starting the driver, and the queries that are allowed before.
//!
//! Source: CUDA Driver API, Initialization, Version Management and Error Handling.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::process;
use std::sync::OnceLock;

use transload_cuda::raw::CUresult;

use crate::answer::put;
use crate::call::driver;

driver! {
    /// Fails where the settings mean nothing, and after a fork in the child.
    always fn cuInit(flags: c_uint), call => {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if let Some(trouble) = &call.world.trouble {
            call.world.log.note(trouble);
            return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
        }
        if call.world.machine.devices().is_empty() {
            return Err(CUresult::CUDA_ERROR_NO_DEVICE);
        }
        call.world.initialise(process::id())
    }

    /// The version that was set, else the newest that is modelled.
    always fn cuDriverGetVersion(driver_version: *mut c_int), call => {
        // SAFETY: the caller passes a valid out-pointer for a number.
        unsafe { put(driver_version, call.world.config.version.0 as c_int) }
    }

    /// NVIDIA's name; null and an error for a number without one.
    always fn cuGetErrorName(error: CUresult, p_str: *mut *const c_char), call => {
        let _ = call;
        // SAFETY: the caller passes a valid out-pointer for a pointer.
        unsafe { put_named(error, p_str, |text| &text.name) }
    }

    /// A meaning, in words of ours; null and an error for a number without one.
    always fn cuGetErrorString(error: CUresult, p_str: *mut *const c_char), call => {
        let _ = call;
        // SAFETY: the caller passes a valid out-pointer for a pointer.
        unsafe { put_named(error, p_str, |text| &text.meaning) }
    }
}

/// Name and meaning of a result, as C has text.
struct Text {
    result: CUresult,
    name: CString,
    meaning: CString,
}

/// # Safety
/// The place is null, or one for a pointer.
unsafe fn put_named(
    error: CUresult,
    place: *mut *const c_char,
    which: impl Fn(&'static Text) -> &'static CString,
) -> crate::answer::Answer {
    let found = texts().iter().find(|text| text.result == error);
    let text = found.map_or(std::ptr::null(), |text| which(text).as_ptr());
    // SAFETY: the caller keeps the same promise.
    unsafe { put(place, text) }?;
    found.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn texts() -> &'static [Text] {
    static TEXTS: OnceLock<Vec<Text>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let text = |of: Option<&str>| CString::new(of.unwrap_or_default()).unwrap_or_default();
        CUresult::NAMED
            .iter()
            .map(|result| Text {
                result: *result,
                name: text(result.name()),
                meaning: text(result.meaning()),
            })
            .collect()
    })
}
