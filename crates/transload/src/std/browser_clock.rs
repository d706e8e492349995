//! The clock of the page, since that of the standard library panics in browsers.

use std::time::Duration;

use wasm_bindgen::prelude::wasm_bindgen;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn milliseconds() -> f64;
}

/// Since the page was opened or the worker began. Never goes back; browsers round it to some microseconds, or to 100.
pub(crate) fn nanoseconds() -> u64 {
    // Saturates, and a page does not stay open for centuries.
    (milliseconds() * 1e6) as u64
}

/// In the place of the standard library's.
#[derive(Clone, Copy)]
pub(crate) struct Instant(u64);

impl Instant {
    pub(crate) fn now() -> Instant {
        Instant(nanoseconds())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(nanoseconds().saturating_sub(self.0))
    }
}
