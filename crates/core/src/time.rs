//! Time as the core sees it: a number that the caller passes.

use core::fmt;
use core::ops::Add;
use core::time::Duration;

/// A point in time: nanoseconds since an origin that the clock's owner chose.
///
/// Nothing here reads a clock: `std::time::Instant` panics in browsers, and tests step time themselves. Every function
/// that needs the time takes it as an argument.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// A point that no clock reaches: 584 years.
    pub const FAR: Instant = Instant(u64::MAX);

    /// Nanoseconds from `earlier` to `self`; 0 when `earlier` is later.
    pub const fn since_ns(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.since_ns(earlier))
    }

    /// `ns` nanoseconds later, at most [`Instant::FAR`].
    pub const fn plus_ns(self, ns: u64) -> Instant {
        Instant(self.0.saturating_add(ns))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        self.plus_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}
