//! Reports transfers to observers: events for `tracing`, counters for `metrics`.
//!
//! Runs after the lock was released, and catches panics: a trace never fails a transfer. Switched off, each costs one
//! load.

use alloc::string::String;

use transload_core::{MemoryId, Method};

use crate::error::TransferError;
use crate::report::Report;

/// A transfer that has ended, as it is reported.
#[cfg_attr(
    not(any(feature = "tracing", feature = "metrics")),
    expect(dead_code, reason = "this build has no observer")
)]
pub(crate) struct Ended {
    src: MemoryId,
    dst: MemoryId,
    method: Method,
    bytes: u64,
    elapsed_ns: u64,
    fallbacks: usize,
    error: Option<String>,
}

impl Ended {
    #[cold]
    #[inline(never)]
    pub(crate) fn new(
        (src, dst, method): (MemoryId, MemoryId, Method),
        bytes: u64,
        result: &Result<Report, TransferError>,
    ) -> Ended {
        let report = result.as_ref().ok();
        Ended {
            src,
            dst,
            method,
            bytes,
            elapsed_ns: report.map_or(0, |report| report.elapsed_ns),
            fallbacks: report.map_or(0, |report| report.fallbacks().len()),
            error: result.as_ref().err().map(|error| alloc::format!("{error}")),
        }
    }

    /// Reports the transfer to `tracing` and `metrics`.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell(&self, metrics: bool) {
        let told = super::unwind::guarded(|| {
            self.trace();
            if metrics {
                self.count();
            }
        });
        // A panic of an observer is not reported: the result of the transfer stands.
        drop(told);
    }

    #[cfg(feature = "tracing")]
    fn trace(&self) {
        let (src, dst) = (
            tracing::field::display(self.src),
            tracing::field::display(self.dst),
        );
        let method = self.method.as_str();
        let (bytes, elapsed_ns, fallbacks) = (self.bytes, self.elapsed_ns, self.fallbacks);
        match &self.error {
            None => {
                tracing::debug!(target: "transload", %src, %dst, method, bytes, elapsed_ns, fallbacks, "transfer done")
            }
            Some(error) => {
                tracing::warn!(target: "transload", %src, %dst, method, bytes, error, "transfer failed")
            }
        }
    }

    #[cfg(not(feature = "tracing"))]
    fn trace(&self) {}

    #[cfg(feature = "metrics")]
    fn count(&self) {
        let method = self.method.as_str();
        if self.error.is_some() {
            metrics::counter!("transload_failures_total", "method" => method).increment(1);
            return;
        }
        metrics::counter!("transload_transfers_total", "method" => method).increment(1);
        metrics::counter!("transload_bytes_total", "method" => method).increment(self.bytes);
        metrics::counter!("transload_fallbacks_total", "method" => method)
            .increment(self.fallbacks as u64);
        metrics::histogram!("transload_seconds", "method" => method)
            .record(self.elapsed_ns as f64 / 1e9);
    }

    #[cfg(not(feature = "metrics"))]
    fn count(&self) {}
}

/// Returns whether an observer is there. `tracing` answers by its static level alone: no subscriber is called.
pub(crate) fn is_watched(metrics: bool) -> bool {
    #[cfg(feature = "tracing")]
    if tracing::level_enabled!(tracing::Level::DEBUG) {
        return true;
    }
    cfg!(feature = "metrics") && metrics
}
