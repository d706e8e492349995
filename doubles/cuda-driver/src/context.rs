//! Contexts: the current one of a thread, and the errors that ruin a context.
//!
//! Source: CUDA Driver API, Primary Context Management and Context Management; of errors that stay: the meaning of
//! `CUDA_ERROR_ECC_UNCORRECTABLE` and `CUDA_ERROR_LAUNCH_FAILED` there.

mod current;
mod functions;

use std::collections::BTreeSet;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transload_cuda::raw::{CUcontext, CUdevice, CUresult};

pub(crate) use self::current::{current, present};
pub use self::functions::*;
use crate::answer::Answer;

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: CUdevice,
    pub(crate) flags: c_uint,
    /// Whether it is the device's shared one.
    pub(crate) primary: bool,
    pub(crate) ruin: Ruin,
    /// The contexts whose memory this one reaches.
    pub(crate) peers: BTreeSet<CUcontext>,
}

/// The end of a context, shared with its work: the sticky error, which some work causes, and its destruction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ruin(Arc<Fate>);

#[derive(Debug, Default)]
struct Fate {
    error: AtomicU32,
    /// Held while a device of the context works, so that no work goes on after the end.
    ended: Mutex<bool>,
}

impl Ruin {
    /// Ruins the context, unless it is ruined already.
    pub(crate) fn with(&self, result: CUresult) {
        // The first error is the one that is reported.
        let _ = self
            .0
            .error
            .compare_exchange(0, result.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// # Errors
    /// The error that has ruined it.
    pub(crate) fn check(&self) -> Answer {
        CUresult(self.0.error.load(Ordering::Acquire)).ok()
    }

    /// The result for a caller that waited for work of the context.
    ///
    /// # Errors
    /// As [`Ruin::check`], and `CONTEXT_IS_DESTROYED` after its end. Waits as [`Ruin::end`] does.
    pub(crate) fn after_waiting(&self) -> Answer {
        self.check()?;
        match *self.ended() {
            true => Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
            false => Ok(()),
        }
    }

    /// Runs work of a device of the context, unless the context is ruined or has ended.
    pub(crate) fn unless(&self, function: impl FnOnce()) {
        let ended = self.ended();
        if !*ended && self.check().is_ok() {
            function();
        }
    }

    /// Ends the work of the context's device: when this returns, none of it goes on, nor ever will. Waits for bytes
    /// that are moving now, so the caller must hold no lock.
    fn end(&self) {
        *self.ended() = true;
    }

    fn ended(&self) -> MutexGuard<'_, bool> {
        self.0.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device's shared context, and how many holders it has.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    pub(crate) context: Option<CUcontext>,
    holders: usize,
}
