//! Why a stream or an event of the user is not used.

use transload_hal::{ErrorClass, Fault};

use crate::raw::{CUresult, CallError};

/// Why a stream or an event of the user was not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The driver does not know the handle.
    #[error("the handle {handle:#x} is of no {what} that there is: {fault}")]
    Unknown {
        /// A stream, or an event.
        what: &'static str,
        /// The handle.
        handle: usize,
        /// The driver's error.
        fault: Fault,
    },
    /// A default stream belongs to the thread's current context, and the thread has none.
    #[error("the default stream is one of the thread's current context, and no context is current")]
    NoContext,
    /// The stream, or the one that the event was recorded in, is being captured into a graph.
    #[error(
        "the {what} {handle:#x} is part of a graph that is being captured, and nothing happens in it before it is launched"
    )]
    Capturing {
        /// A stream, or an event.
        what: &'static str,
        /// The handle.
        handle: usize,
    },
    /// The fence belongs to another backend.
    #[error("{fence} is no fence of this backend, so no stream of its devices can wait for it")]
    ForeignFence {
        /// The fence.
        fence: String,
    },
    /// Only a thread can wait for the fence.
    #[error("{fence} has no event that a stream could wait for: a thread has to")]
    NoEvent {
        /// The fence.
        fence: String,
    },
    /// The context, or the whole device, is lost.
    #[error("{fault}")]
    Lost {
        /// How it was lost.
        fault: Fault,
    },
    /// The driver refused.
    #[error("{fault}")]
    Refused {
        /// The driver's error.
        fault: Fault,
    },
}

impl StreamError {
    /// The category of the error. Use it to decide whether to retry.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            StreamError::Unknown { .. }
            | StreamError::NoContext
            | StreamError::Capturing { .. }
            | StreamError::ForeignFence { .. } => ErrorClass::Caller,
            StreamError::NoEvent { .. } => ErrorClass::Unsupported,
            StreamError::Lost { .. } => ErrorClass::Lost,
            StreamError::Refused { fault } => fault.class,
        }
    }

    pub(super) fn of_fault(fault: Fault) -> StreamError {
        match fault.class {
            ErrorClass::Lost => StreamError::Lost { fault },
            _ => StreamError::Refused { fault },
        }
    }
}

/// Whether the driver reported that it knows no such stream or event.
pub(super) fn is_unknown(error: &CallError) -> bool {
    error.is(CUresult::CUDA_ERROR_INVALID_HANDLE) || error.is(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}
