//! The engine's source of time.

use transload_core::Instant;

use crate::{MaybeSend, MaybeSync};

/// Tells the time. The program supplies it, because there is no clock without an operating system, the standard
/// library's clock panics in browsers, and tests step time themselves.
pub trait Clock: MaybeSend + MaybeSync {
    /// Returns the time now. Never goes back.
    fn now(&self) -> Instant;
}
