//! Captures of the user's, and this backend's calls meanwhile.
//!
//! While a stream is captured into a graph in the global mode, CUDA forbids every thread of the process what may be
//! unsafe: what is "not enqueued asynchronously to a stream, and is not observed by stream capture", as allocating is
//! not (CUDA Driver API, Stream Management, cuThreadExchangeStreamCaptureMode). Such a call fails, and the capture is
//! spoilt with it. No call of this backend is meant for anybody's graph, so the thread says that it knows what it does
//! for as long as it is in here.
//!
//! Submitting does without: all that it calls, when it has run before, puts work into streams of this backend's, which
//! nobody captures. Two more calls for each small copy would be felt.

use std::cell::Cell;

use crate::raw::{CUstreamCaptureMode, Driver};

thread_local! {
    /// Somebody on this thread has relaxed it.
    static IS_RELAXED: Cell<bool> = const { Cell::new(false) };
}

/// Captures forbid this thread nothing until this goes.
#[must_use]
pub(crate) struct Relaxed<'a> {
    driver: &'a Driver,
    before: CUstreamCaptureMode,
}

/// Relaxes the thread, unless it is. A driver that refuses is left alone: what captures forbid fails then,
/// and says so.
pub(crate) fn relax(driver: &Driver) -> Option<Relaxed<'_>> {
    if IS_RELAXED.get() {
        return None;
    }
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the place is ours.
    unsafe { driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) }.ok()?;
    IS_RELAXED.set(true);
    Some(Relaxed {
        driver,
        before: mode,
    })
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        IS_RELAXED.set(false);
        // SAFETY: the place is ours. A driver that refuses leaves the thread as it is.
        let _ = unsafe {
            self.driver
                .cuThreadExchangeStreamCaptureMode(&raw mut self.before)
        };
    }
}
