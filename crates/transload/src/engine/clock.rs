//! Clocks of the engine.

use transload_core::Instant;
use transload_hal::Clock;

/// A clock that stands still. The engine uses it without an operating system, unless the program gives it another one:
/// everything works, but times are reported as 0 and deadlines never pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoClock;

impl Clock for NoClock {
    fn now(&self) -> Instant {
        Instant(0)
    }
}

/// The monotonic clock of the operating system, or of the browser. It starts at 0 when it is first asked.
#[cfg(feature = "std")]
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Origin,
}

#[cfg(all(feature = "std", not(browser)))]
type Origin = std::time::Instant;

/// In nanoseconds of the page's clock.
#[cfg(browser)]
type Origin = u64;

#[cfg(feature = "std")]
impl SystemClock {
    /// Makes a clock that starts at 0 now.
    pub fn new() -> SystemClock {
        #[cfg(not(browser))]
        let origin = std::time::Instant::now();
        #[cfg(browser)]
        let origin = crate::std::browser_clock::nanoseconds();
        SystemClock { origin }
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
    #[cfg(not(browser))]
    fn now(&self) -> Instant {
        let elapsed = self.origin.elapsed();
        let seconds = elapsed.as_secs().saturating_mul(1_000_000_000);
        Instant(seconds.saturating_add(elapsed.subsec_nanos().into()))
    }

    #[cfg(browser)]
    fn now(&self) -> Instant {
        let now = crate::std::browser_clock::nanoseconds();
        Instant(now.saturating_sub(self.origin))
    }
}
