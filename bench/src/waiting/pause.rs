//! A thread that sleeps, as a part of what is measured.

use std::time::{Duration, Instant};

/// Sleeps for at least `time`. A thread that sleeps by `park_timeout` can be woken early, so it parks again.
pub(super) fn pause(time: Duration) {
    let begin = Instant::now();
    loop {
        let left = time.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return;
        }
        std::thread::park_timeout(left);
    }
}
