//! The user's streams: their contexts, and whether work can be put into them.

use transload_hal::{ErrorClass, Fault};

use super::error::{StreamError, is_unknown};
use crate::capture::{Relaxed, relax};
use crate::device::Cuda;
use crate::fault::{fault_of, is_ruined};
use crate::gpu::{Opened, any};
use crate::raw::{CUcontext, CUresult, CUstream, CUstreamCaptureStatus, CallError, Driver};

/// A stream of the user. Its context is the thread's current one until this is dropped.
pub(super) struct UserStream<'a> {
    cuda: &'a Cuda,
    pub(super) stream: CUstream,
    context: CUcontext,
    /// Dropped after the context is popped.
    _relaxed: Option<Relaxed<'a>>,
}

impl Cuda {
    /// Makes a stream's context current on this thread.
    ///
    /// # Safety
    /// The stream is one of the driver's.
    pub(super) unsafe fn user_stream(
        &self,
        stream: CUstream,
    ) -> Result<UserStream<'_>, StreamError> {
        let driver = self.driver();
        let context = match is_default(stream) {
            true => current(driver)?,
            // SAFETY: the caller's promise.
            false => unsafe { self.context_of(stream) }?,
        };
        if let Some(fault) = self.own(context).and_then(|own| own.context.lost()) {
            let fault = fault.clone();
            return Err(StreamError::Lost { fault });
        }
        // SAFETY: the context is the stream's.
        let pushed = unsafe { driver.cuCtxPushCurrent_v2(context) };
        pushed.map_err(|error| StreamError::of_fault(fault_of(error)))?;
        let user_stream = UserStream {
            cuda: self,
            stream,
            context,
            _relaxed: relax(driver),
        };
        user_stream.ensure_no_capture()?;
        Ok(user_stream)
    }

    /// # Safety
    /// As [`Cuda::user_stream`].
    unsafe fn context_of(&self, stream: CUstream) -> Result<CUcontext, StreamError> {
        // The call below needs any current context.
        let any = self.any().map_err(StreamError::of_fault)?;
        let _current = any.context.enter().map_err(StreamError::of_fault)?;
        let mut context = CUcontext::NULL;
        // SAFETY: the stream is the driver's, by the caller's promise; the place is ours.
        let asked = unsafe { self.driver().cuStreamGetCtx(stream, &raw mut context) };
        match asked {
            Ok(()) => Ok(context),
            Err(error) if is_unknown(&error) => Err(StreamError::Unknown {
                what: "stream",
                handle: stream.0.addr(),
                fault: fault_of(error),
            }),
            Err(error) => Err(StreamError::of_fault(any.blame(error))),
        }
    }

    /// A working device: the one of the thread's current context, if it belongs to this backend.
    pub(super) fn any(&self) -> Result<&Opened, Fault> {
        let current = current(self.driver())
            .ok()
            .and_then(|context| self.own(context));
        let alive = |opened: &&Opened| opened.context.lost().is_none();
        match current.filter(alive) {
            Some(opened) => Ok(opened),
            None => any(self.gpus()),
        }
    }

    /// The device whose primary context that is.
    fn own(&self, context: CUcontext) -> Option<&Opened> {
        let mut opened = self.gpus().iter().filter_map(|gpu| gpu.opened());
        opened.find(|opened| opened.context.handle == context)
    }
}

impl UserStream<'_> {
    /// Whether all work of the stream is over.
    pub(super) fn is_done(&self) -> Result<bool, StreamError> {
        // SAFETY: the stream is the driver's, by the promise that this was made with.
        match unsafe { self.cuda.driver().cuStreamQuery(self.stream) } {
            Ok(()) => Ok(true),
            Err(error) if error.is(CUresult::CUDA_ERROR_NOT_READY) => Ok(false),
            Err(error) => Err(self.refusal(error)),
        }
    }

    /// The error of a refused call.
    pub(super) fn refusal(&self, error: CallError) -> StreamError {
        if let Some(own) = self.cuda.own(self.context) {
            return StreamError::of_fault(own.blame(error));
        }
        // SAFETY: as above.
        let asked = unsafe { self.cuda.driver().cuStreamQuery(self.stream) };
        match is_ruined(asked) {
            // The context is intact, so the error concerns only the call.
            false => StreamError::of_fault(fault_of(error)),
            true => {
                let message = format!("the context of {:?} is lost: {error}", self.stream);
                let fault = Fault::new(ErrorClass::Lost, message);
                StreamError::Lost { fault }
            }
        }
    }

    /// Refuses a stream that is being captured: work put into it would run at each launch of the graph, or
    /// invalidate the capture.
    fn ensure_no_capture(&self) -> Result<(), StreamError> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: as above; the place is ours.
        let asked = unsafe {
            self.cuda
                .driver()
                .cuStreamIsCapturing(self.stream, &raw mut status)
        };
        let is_none = status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        match asked {
            Ok(()) if is_none => Ok(()),
            // The legacy default stream, while a stream that waits for it is captured.
            Err(error) if !error.is(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) => {
                Err(self.refusal(error))
            }
            _ => Err(StreamError::Capturing {
                what: "stream",
                handle: self.stream.0.addr(),
            }),
        }
    }
}

impl Drop for UserStream<'_> {
    fn drop(&mut self) {
        let mut popped = CUcontext::NULL;
        // SAFETY: the place is ours, and what is on top was pushed when this was made.
        let _ = unsafe { self.cuda.driver().cuCtxPopCurrent_v2(&raw mut popped) };
    }
}

fn is_default(stream: CUstream) -> bool {
    [CUstream::NULL, CUstream::LEGACY, CUstream::PER_THREAD].contains(&stream)
}

/// The thread's current context.
fn current(driver: &Driver) -> Result<CUcontext, StreamError> {
    let mut context = CUcontext::NULL;
    // SAFETY: the place is ours.
    let asked = unsafe { driver.cuCtxGetCurrent(&raw mut context) };
    asked.map_err(|error| StreamError::of_fault(fault_of(error)))?;
    match context.is_null() {
        true => Err(StreamError::NoContext),
        false => Ok(context),
    }
}
