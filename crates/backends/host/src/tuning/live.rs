//! Noticing, while copies run, that other processes want the processors too.
//!
//! On a machine with its processors free, several threads copy faster than one. Where another process
//! competes, one of them is put to sleep in the middle of a piece and everybody waits for it: two threads
//! on two busy cores were measured at half of one thread's rate. No setting fits both, so each size class
//! keeps a running median of both widths, takes the faster one, and now and then tries the other.

use std::array;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// One thread or all that the tuning allows, by size class, from what was seen lately.
///
/// Relaxed atomics throughout: a lost sample costs nothing, and no promise rests on the choice.
#[derive(Debug)]
pub(crate) struct Live {
    classes: [Class; CLASSES],
}

/// Powers of two from [`FIRST_LOG2`] on; the last class takes all that is larger.
const CLASSES: usize = 12;
/// 2^18 bytes, below which tunings keep copies inline.
const FIRST_LOG2: u32 = 18;
/// Every so many copies of a class go by the other width, to see whether the world has changed: often
/// enough to return within a hundred copies, rarely enough to cost at most a few percent.
const TRY_EVERY: u32 = 16;

#[derive(Debug, Default)]
struct Class {
    count: AtomicU32,
    /// Running medians in picoseconds per KiB; 0 before the first sample.
    one: AtomicU64,
    wide: AtomicU64,
}

impl Live {
    pub(crate) fn new() -> Self {
        Self {
            classes: array::from_fn(|_| Class::default()),
        }
    }

    /// Whether a copy of `len_bytes` that the tuning would run on several threads should do so now.
    pub(crate) fn goes_wide(&self, len_bytes: u64) -> bool {
        let class = self.class(len_bytes);
        let count = class.count.fetch_add(1, Ordering::Relaxed);
        let (one, wide) = (
            class.one.load(Ordering::Relaxed),
            class.wide.load(Ordering::Relaxed),
        );
        // Wide by default: one thread must be seen to be an eighth faster.
        let prefers_wide = one == 0 || wide <= one + one / 8;
        let tries = count % TRY_EVERY == TRY_EVERY - 1;
        prefers_wide != tries
    }

    /// Notes how long a copy took that had the machine's copies to itself.
    pub(crate) fn record(&self, len_bytes: u64, wide: bool, elapsed: Duration) {
        let class = self.class(len_bytes);
        let median = if wide { &class.wide } else { &class.one };
        let kib = (len_bytes >> 10).max(1);
        let sample = (elapsed.as_nanos() as u64).saturating_mul(1000) / kib;
        median.store(
            towards(median.load(Ordering::Relaxed), sample.max(1)),
            Ordering::Relaxed,
        );
    }

    fn class(&self, len_bytes: u64) -> &Class {
        let log2 = len_bytes.max(1).ilog2().saturating_sub(FIRST_LOG2) as usize;
        &self.classes[log2.min(CLASSES - 1)]
    }
}

/// A step of a running median: up or down by a fixed ratio, however far the sample lies, so that one
/// copy that met a descheduled thread counts no more than any other.
fn towards(median: u64, sample: u64) -> u64 {
    if median == 0 {
        return sample;
    }
    let step = (if sample.abs_diff(median) > median / 4 {
        median / 8
    } else {
        median / 32
    })
    .max(1);
    if sample > median {
        median + step.min(sample - median)
    } else {
        median - step.min(median - sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 4 << 20;

    /// Runs `count` copies whose times are given by width; how many went wide.
    fn run(live: &Live, count: u32, one_ns: u64, wide_ns: impl Fn(u32) -> u64) -> u32 {
        let mut went = 0;
        for i in 0..count {
            let wide = live.goes_wide(LEN);
            went += u32::from(wide);
            let ns = if wide { wide_ns(i) } else { one_ns };
            live.record(LEN, wide, Duration::from_nanos(ns));
        }
        went
    }

    #[test]
    fn several_threads_are_kept_while_they_win_and_one_is_tried_now_and_then() {
        let live = Live::new();
        assert_eq!(run(&live, 160, 100_000, |_| 60_000), 150);
    }

    #[test]
    fn one_thread_takes_over_when_several_get_in_each_others_way_and_gives_back() {
        let live = Live::new();
        run(&live, 160, 100_000, |_| 60_000);
        run(&live, 40, 100_000, |_| 200_000);
        assert_eq!(run(&live, 160, 100_000, |_| 200_000), 10);
        run(&live, 160, 100_000, |_| 60_000);
        assert_eq!(run(&live, 160, 100_000, |_| 60_000), 150);
    }

    #[test]
    fn single_late_copies_change_nothing() {
        let live = Live::new();
        run(&live, 160, 100_000, |_| 80_000);
        let went = run(&live, 160, 100_000, |i| {
            if i % 10 == 0 { 5_000_000 } else { 80_000 }
        });
        assert_eq!(went, 150);
    }

    #[test]
    fn classes_do_not_disturb_each_other_and_every_length_has_one() {
        let live = Live::new();
        for len in [0, 1, LEN / 2, u64::MAX] {
            live.record(len, true, Duration::MAX);
            live.record(len, false, Duration::ZERO);
        }
        assert!(live.goes_wide(LEN));
    }
}
