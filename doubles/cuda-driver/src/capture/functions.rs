//! The driver's functions on captures.

use std::thread;

use transload_cuda::raw::{
    CUgraph, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::{MODE, RELAXED};
use crate::answer::{Answer, put};
use crate::call::driver;
use crate::state::State;
use crate::work::Role;

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
