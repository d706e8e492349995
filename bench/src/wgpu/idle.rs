//! `wgpu-idle`: how often any thread of the process woke up in 5 s after work.

use std::time::{Duration, Instant};

use anyhow::Result;
use transload::AllocSpec;

use super::twice;
use crate::case::{Outcome, Verdict};
use crate::series::Series;

const IDLE: Duration = Duration::from_secs(5);

pub(super) fn run(case: &str) -> Result<Option<Vec<Outcome>>> {
    let Some((manager, opened, foreign)) = twice()? else {
        return Ok(None);
    };
    const LEN: usize = 1 << 20;
    let src = manager.adopt(vec![7u8; LEN])?;
    let back = manager.adopt(vec![0u8; LEN])?;
    for gpu in [&opened, &foreign] {
        let there = manager.allocate(gpu.default_place(), AllocSpec::bytes(LEN as u64))?;
        for _ in 0..100 {
            manager.copy(&src, &there).wait()?;
            // A detached transfer and a future have the manager's own thread at work, too.
            drop(manager.copy(&src, &there));
            pollster::block_on(manager.copy(&there, &back))?;
        }
    }
    manager.wait_idle();
    let verified = *back.read()? == *src.read()?;
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
    outcome.verified = verified;
    let of = "wake-ups in 5 s:";
    outcome.verdict = Some(Verdict::at_most(of, woken as f64, 0.0, "wake-ups"));
    Ok(Some(vec![outcome]))
}

/// How often the threads of this process gave the processor up of their own accord: each wait that
/// ends begins another. `None` where the system does not tell.
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
