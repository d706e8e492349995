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
        let elapsed = self.origin.elapsed();
        let seconds = elapsed.as_secs().saturating_mul(1_000_000_000);
        Instant(seconds.saturating_add(elapsed.subsec_nanos().into()))
    }
}
