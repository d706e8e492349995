//! Streams, events and contexts: flags and callbacks.

use core::ffi::c_void;

use super::words::words;
use super::{CUresult, CUstream};

/// A function of the user's that runs between works of a stream. It must call nothing of CUDA's.
pub type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// As [`CUhostFn`], also told how the stream fares.
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(stream: CUstream, status: CUresult, user_data: *mut c_void)>;

words! {
    /// How a stream stands to the legacy default stream.
    CUstream_flags: u32 {
        /// Each waits for the other.
        CU_STREAM_DEFAULT = 0,
        /// Neither waits.
        CU_STREAM_NON_BLOCKING = 1,
    }
}

words! {
    /// The purposes of an event.
    CUevent_flags: u32 {
        /// Times, and is waited for by spinning.
        CU_EVENT_DEFAULT = 0,
        /// Is waited for without using a processor.
        CU_EVENT_BLOCKING_SYNC = 1,
        /// Takes no times, and is cheaper for it.
        CU_EVENT_DISABLE_TIMING = 2,
        /// Can be opened by another process; takes no times.
        CU_EVENT_INTERPROCESS = 4,
    }
}

words! {
    /// How a context waits, and for what.
    CUctx_flags: u32 {
        /// As the driver sees fit.
        CU_CTX_SCHED_AUTO = 0,
        /// By spinning.
        CU_CTX_SCHED_SPIN = 1,
        /// By giving way to other threads between looks.
        CU_CTX_SCHED_YIELD = 2,
        /// Without using a processor.
        CU_CTX_SCHED_BLOCKING_SYNC = 4,
        /// Synchronous operations on memory wait for their end, whatever the memories are. Since CUDA 12.1.
        CU_CTX_SYNC_MEMOPS = 0x80,
    }
}

words! {
    /// Whether a stream is being recorded into a graph.
    CUstreamCaptureStatus: u32 {
        /// It is not.
        CU_STREAM_CAPTURE_STATUS_NONE = 0,
        /// It is.
        CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
        /// It was, and something spoilt it.
        CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
    }
}

words! {
    /// Which calls a capture forbids to which threads, and which calls of a thread captures may forbid.
    CUstreamCaptureMode: u32 {
        /// To all threads what may be unsafe.
        CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
        /// To the thread that captures.
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
        /// To no thread.
        CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    }
}

words! {
    /// Which of two versions of a function `cuGetProcAddress_v2` finds.
    CUdriverProcAddress_flags: u64 {
        /// The legacy default stream's.
        CU_GET_PROC_ADDRESS_DEFAULT = 0,
        /// The same, said outright.
        CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
        /// The one whose default stream is the thread's.
        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
    }
}

words! {
    /// The result of `cuGetProcAddress_v2`.
    CUdriverProcAddressQueryResult: u32 {
        /// The function.
        CU_GET_PROC_ADDRESS_SUCCESS = 0,
        /// Nothing of that name.
        CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
        /// Only something newer than was asked for.
        CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
    }
}
