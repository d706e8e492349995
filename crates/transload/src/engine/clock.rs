//! Where the engine takes the time from.

use transload_core::Instant;
use transload_hal::Clock;

/// Stands still. What the engine has until it is told of a better clock where there is no operating
/// system: everything works, but times are reported as 0 and deadlines never pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoClock;

impl Clock for NoClock {
    fn now(&self) -> Instant {
        Instant(0)
    }
}

/// The monotonic clock of the operating system, from the first time that it was asked.
#[cfg(feature = "std")]
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: std::time::Instant,
}

#[cfg(feature = "std")]
impl SystemClock {
    /// A clock that starts at 0 now.
    pub fn new() -> SystemClock {
        SystemClock {
            origin: std::time::Instant::now(),
        }
    }
}

#[cfg(feature = "std")]
impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

#[cfg(feature = "std")]
impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
