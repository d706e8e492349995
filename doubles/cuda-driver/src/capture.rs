//! Captured streams: their work is not executed, and some calls are refused meanwhile.
//!
//! Source: CUDA Driver API, Stream Management, cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode; CUDA C++
//! Programming Guide, CUDA Graphs, Prohibited and Unhandled Operations.
//!
//! There are no graphs, so work given to a captured stream is dropped, with a note, and the graph at the end is a null
//! handle. Events, functions and pool memory in a captured stream are not modelled, and the calls say so.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};

use transload_cuda::raw::{
    CUgraph, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::call::{Answer, driver, put};
use crate::state::State;
use crate::work::Role;

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

impl State {
    /// Whether a stream is captured, so that its work is dropped. The legacy default stream cannot be used while a
    /// stream that it synchronizes with is captured.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_IMPLICIT` of such a default stream, and `STREAM_CAPTURE_INVALIDATED` where the capture is
    /// spoilt.
    pub(crate) fn is_captured(&self, number: u64) -> Result<bool, CUresult> {
        let stream = self.stream(number)?;
        if stream.role == Role::Legacy {
            let beside = self.streams.captured_beside(stream);
            beside.iter().for_each(|of| of.spoil());
            return match beside.is_empty() {
                true => Ok(false),
                false => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
            };
        }
        match &stream.capture {
            Some(capture) if capture.is_spoilt() => {
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
            }
            capture => Ok(capture.is_some()),
        }
    }

    /// Refuses any query of a captured stream's progress, from every thread.
    ///
    /// # Errors
    /// As [`State::is_captured`], and `STREAM_CAPTURE_UNSUPPORTED`.
    pub(crate) fn ensure_no_capture(&self, number: u64) -> Answer {
        if !self.is_captured(number)? {
            return Ok(());
        }
        self.stream(number)?
            .capture
            .iter()
            .for_each(|of| of.spoil());
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }
}

driver! {
    /// Not of the legacy default stream, nor of one that is captured.
    fn cuStreamBeginCapture_v2(h_stream: CUstream, mode: CUstreamCaptureMode), call => {
        if mode.name().is_none() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = call.state();
        let number = state.stream_number(h_stream)?;
        let stream = state.stream_mut(number)?;
        if stream.role == Role::Legacy {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream.capture.is_some() {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        stream.capture = Some(call.world.captures.begin(mode));
        Ok(())
    }

    /// The graph is null, whether the capture was spoilt or not: there are no graphs.
    fn cuStreamEndCapture(h_stream: CUstream, ph_graph: *mut CUgraph), call => {
        let mut state = call.state();
        let number = state.stream_number(h_stream)?;
        let stream = state.stream_mut(number)?;
        let capture = stream.capture.take().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.mode != RELAXED && capture.thread != thread::current().id() {
            stream.capture = Some(capture);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        // SAFETY: the caller passes a valid out-pointer for a graph.
        unsafe { put(ph_graph, CUgraph::NULL) }?;
        match capture.is_spoilt() {
            true => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            false => Ok(()),
        }
    }

    /// Spoils nothing.
    fn cuStreamIsCapturing(h_stream: CUstream, capture_status: *mut CUstreamCaptureStatus), call => {
        let mut state = call.state();
        let number = state.stream_number(h_stream)?;
        let stream = state.stream(number)?;
        if stream.role == Role::Legacy && !state.streams.captured_beside(stream).is_empty() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let status = match &stream.capture {
            None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
            Some(capture) if capture.is_spoilt() => {
                CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED
            }
            Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        };
        // SAFETY: the caller passes a valid out-pointer for a status.
        unsafe { put(capture_status, status) }
    }

    /// Swaps the mode of the calling thread.
    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode), call => {
        let _ = call;
        if mode.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's mode.
        let wanted = unsafe { mode.read_unaligned() };
        if wanted.name().is_none() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { put(mode, MODE.replace(wanted)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::name_of;

    #[test]
    fn what_may_be_unsafe_is_called_by_names_that_there_are() {
        for name in MAY_BE_UNSAFE {
            assert_eq!(name_of(name), Some(*name));
        }
    }
}
