//! How often the threads of an idle process wake up.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::case::{Outcome, Verdict};
use crate::series::Series;

const IDLE: Duration = Duration::from_secs(5);
const SETTLED: Duration = Duration::from_millis(200);

/// Counts the wake-ups of all threads of this process in 5 s. `None` where the system does not count them.
/// The caller sets [`Outcome::verified`].
pub(crate) fn watch(case: &str) -> Result<Option<Outcome>> {
    // Threads that have just done their work may not have parked yet.
    std::thread::park_timeout(SETTLED);
    let Some(before) = wakeups() else {
        return Ok(None);
    };
    let begin = Instant::now();
    // Waits once, which is counted for this thread.
    std::thread::park_timeout(IDLE);
    let lasted = begin.elapsed();
    let after = wakeups().unwrap_or(before);
    // The park above is one; it wakes early at most in theory.
    let woken = after.saturating_sub(before).saturating_sub(1);
    let mut outcome = Outcome::new(case, &Series::from_iter([lasted.as_secs_f64()]));
    let of = "wake-ups in 5 s:";
    outcome.verdict = Some(Verdict::at_most(of, woken as f64, 0.0, "wake-ups"));
    Ok(Some(outcome))
}

/// The number of times that threads of this process blocked: each wait that ends begins another. `None` where the
/// system does not count this.
fn wakeups() -> Option<u64> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let mut sum = 0;
    for thread in threads {
        let path = thread.ok()?.path().join("status");
        // A thread may have ended meanwhile.
        let Ok(text) = std::fs::read_to_string(path) else {
            continue;
        };
        let of = |line: &str| {
            let count = line.strip_prefix("voluntary_ctxt_switches:")?;
            count.trim().parse::<u64>().ok()
        };
        sum += text.lines().find_map(of)?;
    }
    Some(sum)
}
