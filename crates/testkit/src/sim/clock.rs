//! The virtual clock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use transload_hal::Clock;
use transload_hal::Instant;

/// The time of a simulated machine: nanoseconds since it was built. Clones read one clock.
///
/// The clock moves only when the [`Sim`](super::Sim) is stepped, waited for or pumped; it never reads the time of day.
#[derive(Clone, Default)]
pub struct SimClock(Arc<AtomicU64>);

impl SimClock {
    /// The time now, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, ns: u64) {
        self.0.fetch_max(ns, Ordering::AcqRel);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Instant {
        Instant(self.now_ns())
    }
}

impl fmt::Debug for SimClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns simulated", self.now_ns())
    }
}
