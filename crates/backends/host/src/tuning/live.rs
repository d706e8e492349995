//! Detects, from the copies that run, that other processes compete for the processors.
//!
//! On a machine with free processors, several threads copy faster than one. If another process competes,
//! the system now and then puts one of them to sleep in the middle of a piece, for milliseconds, and the
//! whole copy waits for it: two threads on two busy cores were measured at a half to a quarter of one
//! thread's rate. No setting fits both, so each size class keeps a running mean of both widths, takes the
//! faster one, and now and then tries the other.

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

/// Every so many copies of a class one goes by the other width, to see whether the world has changed. At
/// first and after a change this often.
const TRY_EVERY: u32 = 16;
/// Twice as rarely after each try that changed nothing, down to this: a lost try costs several copies'
/// time where the other width is bad.
const TRY_RARELY: u32 = 256;
/// This often once a try won, until the mean has followed.
const TRY_SOON: u32 = 4;

#[derive(Debug)]
struct Class {
    /// Copies since the last try.
    count: AtomicU32,
    /// Copies from one try to the next.
    interval: AtomicU32,
    /// Running means in picoseconds per KiB; 0 before the first sample.
    one: AtomicU64,
    wide: AtomicU64,
}

impl Live {
    pub(crate) fn new() -> Self {
        Self {
            classes: array::from_fn(|_| Class::new()),
        }
    }

    /// Whether a copy of `len_bytes` that the tuning would run on several threads should do so now.
    pub(crate) fn goes_wide(&self, len_bytes: u64) -> bool {
        let class = self.class(len_bytes);
        let count = class.count.fetch_add(1, Ordering::Relaxed) + 1;
        let tries = count >= class.interval.load(Ordering::Relaxed);
        if tries {
            class.count.store(0, Ordering::Relaxed);
        }
        class.prefers_wide() != tries
    }

    /// Notes how long a copy took that had the machine's copies to itself.
    pub(crate) fn record(&self, len_bytes: u64, wide: bool, elapsed: Duration) {
        let kib = (len_bytes >> 10).max(1);
        let sample = (elapsed.as_nanos() as u64).saturating_mul(1000) / kib;
        self.class(len_bytes).record(wide, sample.max(1));
    }

    fn class(&self, len_bytes: u64) -> &Class {
        let log2 = len_bytes.max(1).ilog2().saturating_sub(FIRST_LOG2) as usize;
        &self.classes[log2.min(CLASSES - 1)]
    }
}

impl Class {
    fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            interval: AtomicU32::new(TRY_EVERY),
            one: AtomicU64::new(0),
            wide: AtomicU64::new(0),
        }
    }

    /// True by default, until one thread takes less than two thirds of the time. Several threads that are
    /// in each other's way take twice to four times as long. If they are not, the few copies that come
    /// after a pause and have to wake a thread must not decide for all.
    fn prefers_wide(&self) -> bool {
        let (one, wide) = (
            self.one.load(Ordering::Relaxed),
            self.wide.load(Ordering::Relaxed),
        );
        one == 0 || wide <= one.saturating_add(one / 2)
    }

    fn record(&self, wide: bool, sample: u64) {
        let preferred = self.prefers_wide();
        let (own, other) = if wide {
            (&self.wide, &self.one)
        } else {
            (&self.one, &self.wide)
        };
        own.store(mean(own.load(Ordering::Relaxed), sample), Ordering::Relaxed);
        let interval = if self.prefers_wide() != preferred {
            TRY_EVERY
        } else if wide == preferred {
            return;
        } else if sample < other.load(Ordering::Relaxed) / 8 * 7 {
            TRY_SOON
        } else {
            self.interval
                .load(Ordering::Relaxed)
                .saturating_mul(2)
                .min(TRY_RARELY)
        };
        self.interval.store(interval, Ordering::Relaxed);
    }
}

/// A step of a running mean over some eight samples. Means, since what hurts are the few copies that take
/// a hundred times as long; a single one counts as eight times the mean at most, which alone does not
/// make a clear winner lose.
fn mean(mean: u64, sample: u64) -> u64 {
    if mean == 0 {
        return sample;
    }
    let sample = sample.min(mean.saturating_mul(8));
    mean - mean / 8 + sample / 8
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
    fn several_threads_are_kept_while_they_win_and_one_is_tried_ever_more_rarely() {
        let live = Live::new();
        assert!(run(&live, 160, 100_000, |_| 60_000) >= 157);
        run(&live, 1000, 100_000, |_| 60_000);
        assert!(run(&live, 1024, 100_000, |_| 60_000) >= 1020);
    }

    #[test]
    fn one_thread_takes_over_when_several_get_in_each_others_way_and_gives_back() {
        let live = Live::new();
        run(&live, 2000, 100_000, |_| 60_000);
        assert!(run(&live, 100, 100_000, |_| 200_000) < 20);
        run(&live, 2000, 100_000, |_| 200_000);
        assert!(run(&live, 1024, 100_000, |_| 200_000) <= 4);
        run(&live, TRY_RARELY + 60, 100_000, |_| 60_000);
        assert!(run(&live, 160, 100_000, |_| 60_000) >= 150);
    }

    #[test]
    fn a_single_late_copy_changes_little_and_many_change_the_width() {
        let live = Live::new();
        run(&live, 1000, 100_000, |_| 50_000);
        let went = run(&live, 500, 100_000, |i| {
            if i == 100 { 5_000_000 } else { 50_000 }
        });
        assert!(went >= 490, "{went}");
        let went = run(&live, 1000, 100_000, |i| {
            if i % 20 == 0 { 5_000_000 } else { 90_000 }
        });
        assert!(went < 200, "{went}");
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
