//! The capture mode of threads during this backend's calls, so that the user's graph captures do not forbid them.
//!
//! While a stream is captured into a graph in the global mode, CUDA forbids every thread of the process all calls that
//! may be unsafe: a call that is "not enqueued asynchronously to a stream, and is not observed by stream capture",
//! such as an allocation (CUDA Driver API, Stream Management, cuThreadExchangeStreamCaptureMode). Such a call fails
//! and invalidates the capture. No call of this backend is meant for a graph, so the backend sets the thread's capture
//! mode to relaxed for the duration of its calls.
//!
//! Submitting does not relax the thread: after the first submission, every call that it makes puts work into streams
//! of this backend, which are never captured. Two more calls for each small copy would cost measurable time.

use std::cell::Cell;

use crate::raw::{CUstreamCaptureMode, Driver};

thread_local! {
    /// A caller on this thread has relaxed it.
    static IS_RELAXED: Cell<bool> = const { Cell::new(false) };
}

/// Until this is dropped, captures forbid this thread nothing.
#[must_use]
pub(crate) struct Relaxed<'a> {
    driver: &'a Driver,
    before: CUstreamCaptureMode,
}

/// Relaxes the thread, unless it is relaxed already. If the driver refuses, this does nothing: a call that a capture
/// forbids then fails with an error.
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
