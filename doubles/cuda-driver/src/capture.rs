//! Captured streams: their work is not executed, and some calls are refused meanwhile.
//!
//! Source: CUDA Driver API, Stream Management, cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode; CUDA C++
//! Programming Guide, CUDA Graphs, Prohibited and Unhandled Operations.
//!
//! There are no graphs, so work given to a captured stream is dropped, with a note, and the graph at the end is a null
//! handle. Events, functions and pool memory in a captured stream are not modelled, and the calls say so.

mod functions;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};

use transload_cuda::raw::{CUresult, CUstreamCaptureMode};

pub use self::functions::*;
use crate::answer::Answer;

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// A stream's capture.
#[derive(Debug)]
pub(crate) struct Capture {
    mode: CUstreamCaptureMode,
    thread: ThreadId,
    /// A thread made a call that the capture forbids.
    is_spoilt: AtomicBool,
}

impl Capture {
    fn forbids(&self, thread: ThreadId, mode: CUstreamCaptureMode) -> bool {
        self.mode != RELAXED && (self.thread == thread || (self.mode, mode) == (GLOBAL, GLOBAL))
    }

    fn spoil(&self) {
        self.is_spoilt.store(true, Ordering::Relaxed);
    }

    fn is_spoilt(&self) -> bool {
        self.is_spoilt.load(Ordering::Relaxed)
    }
}

/// The captures in progress. Their streams own them.
#[derive(Debug, Default)]
pub(crate) struct Captures(Mutex<Vec<Weak<Capture>>>);

thread_local! {
    /// The capture mode of this thread.
    static MODE: Cell<CUstreamCaptureMode> = const { Cell::new(GLOBAL) };
}

/// Functions that may be unsafe during a capture. The documentation names `cudaMalloc`, and gives no list. Here it is
/// every function that allocates, frees or maps memory, makes or destroys the driver's objects, copies synchronously,
/// or queries or waits for the end of work: too many rather than too few.
const MAY_BE_UNSAFE: &[&str] = &[
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxReset_v2",
    "cuCtxCreate_v2",
    "cuCtxDestroy_v2",
    "cuCtxSynchronize",
    "cuCtxEnablePeerAccess",
    "cuCtxDisablePeerAccess",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemAllocManaged",
    "cuMemAdvise",
    "cuMemAdvise_v2",
    "cuMemcpy",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoD_v2",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuIpcCloseMemHandle",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolTrimTo",
    "cuMemPoolSetAttribute",
    "cuMemPoolSetAccess",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuImportExternalMemory",
    "cuDestroyExternalMemory",
];

impl Captures {
    /// Whether this thread may call a function now. If it may not, the captures that forbid it are spoilt.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED`.
    pub(crate) fn admit(&self, function: &str) -> Answer {
        let captures = self.under_way();
        let (thread, mode) = (thread::current().id(), MODE.get());
        if captures.is_empty() || mode == RELAXED || !MAY_BE_UNSAFE.contains(&function) {
            return Ok(());
        }
        let captures = captures.iter().filter_map(Weak::upgrade);
        let forbidding: Vec<_> = captures.filter(|of| of.forbids(thread, mode)).collect();
        forbidding.iter().for_each(|of| of.spoil());
        match forbidding.is_empty() {
            true => Ok(()),
            false => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        }
    }

    fn begin(&self, mode: CUstreamCaptureMode) -> Arc<Capture> {
        let capture = Arc::new(Capture {
            mode,
            thread: thread::current().id(),
            is_spoilt: AtomicBool::new(false),
        });
        self.under_way().push(Arc::downgrade(&capture));
        capture
    }

    fn under_way(&self) -> MutexGuard<'_, Vec<Weak<Capture>>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|of| of.strong_count() > 0);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::name_of;

    #[test]
    fn what_may_be_unsafe_is_called_by_names_that_there_are() {
        for name in MAY_BE_UNSAFE {
            assert_eq!(name_of(name), Some(*name));
        }
    }
}
