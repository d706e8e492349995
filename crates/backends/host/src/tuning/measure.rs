//! Measuring which way of copying wins at each size on this machine.

use std::collections::TryReserveError;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::{Band, Choice, Tuning, piece_bytes};
use crate::pool::{Crew, Extent, JobEnd, Limits, Pool, Side, Work};
use crate::raw::{self, Store};

/// Times copies of any size up to a largest, by any width and store kind, between two buffers of its
/// own whose pages were touched before.
#[derive(Debug)]
pub struct CopyBench {
    pool: Pool<OneCopy>,
    src: Vec<u8>,
    dst: Vec<u8>,
}

impl CopyBench {
    /// Buffers of `largest_bytes` each, and a pool with the default limits.
    ///
    /// # Errors
    /// When there is no memory for the buffers.
    pub fn new(largest_bytes: usize) -> Result<Self, TryReserveError> {
        let filled = |value| {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(largest_bytes)?;
            bytes.resize(largest_bytes, value);
            Ok::<_, TryReserveError>(bytes)
        };
        Ok(Self {
            pool: Pool::new(OneCopy::default(), Limits::default()),
            src: filled(1)?,
            dst: filled(2)?,
        })
    }

    /// The time of one copy of `len_bytes` (at most the largest), the mean of `turns` back to back.
    /// Blocks.
    ///
    /// # Panics
    /// When `len_bytes` exceeds the largest.
    pub fn sample(&mut self, len_bytes: usize, choice: Choice, turns: u32) -> Duration {
        let (src, dst) = (&self.src[..len_bytes], &mut self.dst[..len_bytes]);
        let begin = Instant::now();
        for _ in 0..turns {
            copy(&self.pool, dst, src, choice);
        }
        begin.elapsed() / turns.max(1)
    }
}

fn copy(pool: &Pool<OneCopy>, dst: &mut [u8], src: &[u8], choice: Choice) {
    if choice.threads <= 1 {
        // SAFETY: two separate slices of one length, borrowed for the call.
        return unsafe { raw::copy(dst.as_mut_ptr(), src.as_ptr(), src.len(), choice.store) };
    }
    let step = piece_bytes(src.len(), choice.threads);
    let job = Job {
        dst: dst.as_mut_ptr() as usize,
        src: src.as_ptr() as usize,
        len: src.len(),
        step,
        store: choice.store,
    };
    let work = pool.work();
    *work.job.write().unwrap_or_else(PoisonError::into_inner) = Some(job);
    let before = work.ended.load(Ordering::Relaxed);
    let extent = Extent {
        pieces: u32::try_from(src.len().div_ceil(step)).unwrap_or(u32::MAX),
        width: choice.threads,
        waiters_from: Side::Back,
    };
    pool.start(0, extent);
    // The buffers stay borrowed until the job is over.
    pool.help(0, true, None, || {
        work.ended.load(Ordering::Acquire) != before
    });
}

/// One copy at a time.
#[derive(Debug, Default)]
struct OneCopy {
    job: RwLock<Option<Job>>,
    ended: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    dst: usize,
    src: usize,
    len: usize,
    step: usize,
    store: Store,
}

impl Work for OneCopy {
    fn run(&self, _: u32, piece: u32) {
        let job = *self.job.read().unwrap_or_else(PoisonError::into_inner);
        let Some(job) = job else { return };
        let from = piece as usize * job.step;
        let len = job.step.min(job.len - from);
        let (dst, src) = ((job.dst + from) as *mut u8, (job.src + from) as *const u8);
        // SAFETY: a piece of two separate buffers that `copy` borrows until the job has ended.
        unsafe { raw::copy(dst, src, len, job.store) };
    }

    fn finish(&self, _: u32, _: JobEnd, _: &Crew<Self>) {
        self.ended.fetch_add(1, Ordering::Release);
    }
}

/// Smallest and largest sizes measured: below, one thread always wins; above, the largest band goes on.
const SMALLEST: usize = 256 << 10;
const LARGEST: usize = 64 << 20;
/// A wider or less cacheable way must win by this much, in percent; noise alone does by less.
const MARGIN: u32 = 5;

/// The largest copy that is inline by itself: some 0.1 ms at 40 GB/s.
const INLINE_LIMIT: usize = 4 << 20;

/// Returns the smallest size from which string moves are faster than a loop between two buffers in the cache, if any of
/// those measured is. Measures at the first call.
pub(super) fn strings_win_from() -> Option<usize> {
    static FROM: OnceLock<Option<usize>> = OnceLock::new();
    let wins = |size: &usize| {
        let (mut src, mut dst) = (Lines::of(*size)?, Lines::of(*size)?);
        let turns = (32 << 10) / size + 1;
        let mut time = |store| {
            let begin = Instant::now();
            for _ in 0..turns {
                let (from, to) = (src.first(), dst.first());
                // SAFETY: two separate buffers of that length, borrowed for the call.
                unsafe { raw::copy(black_box(to), from, *size, store) };
            }
            begin.elapsed()
        };
        let mut least = [Duration::MAX; 2];
        // The first round warms the caches.
        for round in 0..6 {
            for (least, store) in least.iter_mut().zip([Store::Plain, Store::Rep]) {
                let time = time(store);
                if round > 0 {
                    *least = time.min(*least);
                }
            }
        }
        Some(least[1] * 100 < least[0] * (100 - MARGIN))
    };
    let find = || {
        if !Store::available().contains(&Store::Rep) {
            return None;
        }
        let won = STRING_SIZES.iter().rev();
        won.take_while(|size| wins(size) == Some(true))
            .last()
            .copied()
    };
    *FROM.get_or_init(find)
}

/// Where the two are compared. Larger buffers would take longer to make than all of these copies.
const STRING_SIZES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

/// A buffer of whole cache lines.
struct Lines(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

impl Lines {
    fn of(bytes: usize) -> Option<Lines> {
        let mut lines = Vec::new();
        let count = bytes / size_of::<Line>();
        lines.try_reserve_exact(count).ok()?;
        lines.resize(count, Line { _bytes: [1; 64] });
        Some(Lines(lines))
    }

    fn first(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

impl Tuning {
    /// Measures the candidates on this machine, interleaved, for about `budget` (but at least three
    /// rounds of each), and returns what won. Blocks, keeps all processors busy and needs 128 MiB.
    ///
    /// # Errors
    /// When there is no memory for the buffers.
    pub fn measure(budget: Duration) -> Result<Self, TryReserveError> {
        let mut bench = CopyBench::new(LARGEST)?;
        let ways = ways(transload_hal::processors());
        let sizes: Vec<usize> = std::iter::successors(Some(SMALLEST), |size| Some(size * 2))
            .take_while(|size| *size <= LARGEST)
            .collect();
        let share = budget / u32::try_from(sizes.len()).unwrap_or(1);
        let winners = sizes
            .into_iter()
            .map(|size| (size, fastest(&mut bench, size, &ways, share)));
        Ok(Self::from_winners(&winners.collect::<Vec<_>>()))
    }

    /// Bands out of the winner at each size, in rising order.
    fn from_winners(winners: &[(usize, Choice)]) -> Self {
        let mut bands: Vec<Band> = Vec::new();
        for (size, choice) in winners {
            let band = Band {
                from_bytes: *size,
                threads: choice.threads,
                store: choice.store,
            };
            let same = |last: &Band| last.threads == band.threads && last.store == band.store;
            if !bands.last().is_some_and(same) {
                bands.push(band);
            }
        }
        let wide = winners.iter().find(|(_, choice)| choice.threads > 1);
        let inline_below_bytes = wide.map_or(INLINE_LIMIT, |(size, _)| (*size).min(INLINE_LIMIT));
        Self {
            inline_below_bytes,
            bands,
        }
    }
}

/// The candidates, from the one that disturbs others least to the one that disturbs most.
fn ways(processors: u32) -> Vec<Choice> {
    let mut widths = vec![1];
    let mut width = 2;
    while width < processors {
        widths.push(width);
        width *= 2;
    }
    if processors > 1 {
        widths.push(processors);
    }
    let stores = Store::available();
    widths
        .into_iter()
        .flat_map(|threads| stores.iter().map(move |&store| Choice { threads, store }))
        .collect()
}

fn fastest(bench: &mut CopyBench, size: usize, ways: &[Choice], budget: Duration) -> Choice {
    const ROUNDS: std::ops::RangeInclusive<usize> = 3..=15;
    let turns = u32::try_from((1usize << 20).div_ceil(size)).unwrap_or(1);
    let mut samples = vec![Vec::new(); ways.len()];
    let begin = Instant::now();
    for round in 0..*ROUNDS.end() {
        if round >= *ROUNDS.start() && begin.elapsed() >= budget {
            break;
        }
        for (way, times) in ways.iter().zip(&mut samples) {
            times.push(bench.sample(size, *way, turns));
        }
    }
    let medians = samples.iter_mut().map(|times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    let mut best: Option<(Choice, Duration)> = None;
    for (way, median) in ways.iter().zip(medians) {
        let wins = |(_, time): (Choice, Duration)| median * 100 < time * (100 - MARGIN);
        if best.is_none_or(wins) {
            best = Some((*way, median));
        }
    }
    best.map_or(
        Choice {
            threads: 1,
            store: Store::Plain,
        },
        |(way, _)| way,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(threads: u32, store: Store) -> Choice {
        Choice { threads, store }
    }

    #[test]
    fn equal_neighbours_become_one_band() {
        let tuning = Tuning::from_winners(&[
            (1 << 18, choice(1, Store::Plain)),
            (1 << 19, choice(1, Store::Plain)),
            (1 << 20, choice(2, Store::Rep)),
            (1 << 21, choice(2, Store::Streaming)),
            (1 << 22, choice(2, Store::Streaming)),
        ]);
        let from: Vec<_> = tuning.bands.iter().map(|band| band.from_bytes).collect();
        assert_eq!(from, [1 << 18, 1 << 20, 1 << 21]);
        assert_eq!(tuning.inline_below_bytes, 1 << 20);
    }

    #[test]
    fn where_one_thread_always_wins_copies_stay_inline_up_to_the_limit_only() {
        let tuning = Tuning::from_winners(&[(1 << 18, choice(1, Store::Plain))]);
        assert_eq!(tuning.inline_below_bytes, INLINE_LIMIT);
    }

    #[test]
    fn candidates_cover_one_thread_and_all() {
        let widths: Vec<_> = ways(6).iter().map(|way| way.threads).collect();
        assert!([1, 2, 4, 6].iter().all(|width| widths.contains(width)));
        assert!(ways(1).iter().all(|way| way.threads == 1));
    }

    #[test]
    fn a_measurement_without_a_budget_still_yields_rising_bands() {
        let mut bench = CopyBench::new(1 << 20).unwrap();
        let ways = ways(2);
        let winner = fastest(&mut bench, 1 << 20, &ways, Duration::ZERO);
        assert!(ways.contains(&winner));
        assert!(bench.src.iter().zip(&bench.dst).all(|(a, b)| a == b));
    }
}
