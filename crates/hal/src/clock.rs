//! Where the engine takes the time from.

use transload_core::Instant;

use crate::{MaybeSend, MaybeSync};

/// Tells the time. Injected, because there is no clock without an operating system, the one of the
/// standard library panics in browsers, and tests step time themselves.
pub trait Clock: MaybeSend + MaybeSync {
    /// The time now. Never goes back.
    fn now(&self) -> Instant;
}
