//! How wide a copy runs and how it stores, by size: plain data, with defaults and a measurement.

use crate::caches::Caches;
use crate::raw::Store;

mod live;
mod measure;

pub(crate) use live::Live;
pub use measure::CopyBench;

/// How copies of each size are done on one machine.
///
/// The defaults come from tables that `examples/kernels.rs` prints (an AMD EPYC with 2 cores, and a Xeon
/// with 2): one size's winner is another's loser and it depends on the machine, so [`Tuning::measure`]
/// replaces them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// Copies of fewer bytes run on the submitting thread, before `submit` returns, and are touched by no
    /// lock and no other thread.
    pub inline_below_bytes: usize,
    /// The bands, by rising `from_bytes`. A copy belongs to the last band that starts at or below its
    /// size; below the first it is plain, on one thread. The width counts only for copies that are not
    /// inline.
    pub bands: Vec<Band>,
}

/// The settings of copies from one size up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Band {
    /// Smallest copy of the band, in bytes, what is in flight beside it included.
    pub from_bytes: usize,
    /// Most threads that work on one copy.
    pub threads: u32,
    /// How they store.
    pub store: Store,
}

/// The settings of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// Most threads that work on it, at least 1.
    pub threads: u32,
    /// How they store.
    pub store: Store,
}

impl Default for Tuning {
    /// The defaults for this machine's processors and caches. The first call in a process takes some 0.1 ms to find the
    /// size from which this processor's string moves are faster than a loop: 4 KiB on a Xeon, where they take half the
    /// time of a loop at 512 KiB, and no size below 2 MiB on the EPYC.
    fn default() -> Self {
        let threads = transload_hal::processors();
        let mut tuning = Self::for_machine(Caches::detect(), threads, Store::available());
        if let Some(from_bytes) = measure::strings_win_from()
            && tuning
                .bands
                .first()
                .is_none_or(|first| from_bytes < first.from_bytes)
        {
            tuning
                .bands
                .insert(0, Band::new(from_bytes, threads, Store::Rep));
        }
        tuning
    }
}

impl Band {
    /// The settings of copies from `from_bytes` up: at most `threads` threads on one copy, which store by `store`.
    #[must_use]
    pub const fn new(from_bytes: usize, threads: u32, store: Store) -> Self {
        Self {
            from_bytes,
            threads,
            store,
        }
    }
}

impl Choice {
    /// At most `threads` threads, which store by `store`.
    #[must_use]
    pub const fn new(threads: u32, store: Store) -> Self {
        Self { threads, store }
    }
}

impl Tuning {
    /// Copies below `inline_below_bytes` run on the submitting thread; `bands` are sorted by rising `from_bytes`.
    #[must_use]
    pub const fn new(inline_below_bytes: usize, bands: Vec<Band>) -> Self {
        Self {
            inline_below_bytes,
            bands,
        }
    }

    /// Default values as a function of the machine; `threads` are all processors that may be used,
    /// `stores` the kinds that differ there.
    ///
    /// - Below 2 MiB one thread is done before another has woken, by plain stores: 1 MiB takes 22 µs at
    ///   45 GB/s, and a thread that sleeps on a virtual machine 30 to 70 µs to begin. Two that are awake
    ///   take 15 µs there, and 29 when they are not at their best: too little to gain for so small a copy.
    /// - From there on all threads, still through the caches: what stays there is read back sooner than
    ///   what was streamed past them. By string moves where the processor has fast ones: on the EPYC with
    ///   both cores, 79 to 76 GB/s at 1 MiB, 89 to 69 at 4 MiB, 70 to 55 at 8 MiB.
    /// - From 3/8 of the last-level cache on all threads stream: source and destination together fill
    ///   three quarters of it, the rest is other people's. On the EPYC (32 MiB) plain stores won at
    ///   8 MiB, 70 to 27 GB/s, and lost at 16 MiB, 20 to 26.
    #[must_use]
    pub fn for_machine(caches: Caches, threads: u32, stores: &[Store]) -> Self {
        let has = |store| stores.contains(&store);
        let cached = if has(Store::Rep) {
            Store::Rep
        } else {
            Store::Plain
        };
        let uncached = if has(Store::Streaming) {
            Store::Streaming
        } else {
            cached
        };
        let inline_below_bytes = 2 << 20;
        let streams_from = (caches.last_bytes / 8 * 3).max(2 * inline_below_bytes);
        let bands = vec![
            Band {
                from_bytes: inline_below_bytes,
                threads,
                store: cached,
            },
            Band {
                from_bytes: streams_from,
                threads,
                store: uncached,
            },
        ];
        Self {
            inline_below_bytes,
            bands,
        }
    }

    /// Returns the settings for a copy of `len_bytes` while `in_flight_bytes` of other copies are under way.
    ///
    /// Bytes in flight count for the band, because together they fill the caches as one copy of the sum would. They do
    /// not count for inline copies, whose bytes are few and wanted soon. The pool decides how many threads the copy
    /// gets: it shares them among the jobs in flight.
    #[must_use]
    pub fn choose(&self, len_bytes: usize, in_flight_bytes: usize) -> Choice {
        let is_inline = len_bytes < self.inline_below_bytes;
        let total = if is_inline {
            len_bytes
        } else {
            len_bytes.saturating_add(in_flight_bytes)
        };
        let band = self
            .bands
            .iter()
            .rev()
            .find(|band| band.from_bytes <= total);
        match band {
            Some(band) if is_inline => Choice {
                threads: 1,
                store: band.store,
            },
            Some(band) => Choice {
                threads: band.threads.max(1),
                store: band.store,
            },
            None => Choice {
                threads: 1,
                store: Store::Plain,
            },
        }
    }

    /// The most threads that any band uses, at least 1.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.bands
            .iter()
            .map(|band| band.threads)
            .max()
            .unwrap_or(1)
            .max(1)
    }
}

/// Bytes of a piece of a copy that `threads` threads share.
///
/// A late thread must find something left, and no thread shall wait long for the last piece, so there are
/// eight for each; between 64 KiB, below which taking a piece would show, and 1 MiB. A copy that is stopped ends
/// with the pieces that run, so their size bounds how long that takes: 1 MiB is 0.1 ms at 10 GB/s, and 2 ms at 0.5 GB/s.
///
/// Larger pieces gain next to nothing. On an AMD EPYC with 2 cores, medians of 31 interleaved copies, 4 MiB and
/// 1 MiB: 1 GiB of the heap 51.7 and 51.3 ms, a file of 1 GiB to the heap 63.3 and 64.2 ms.
#[must_use]
pub fn piece_bytes(len_bytes: usize, threads: u32) -> usize {
    const PAGE: usize = 4096;
    let pieces = threads.max(1) as usize * 8;
    len_bytes
        .div_ceil(pieces)
        .next_multiple_of(PAGE)
        .clamp(64 << 10, 1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuning() -> Tuning {
        let caches = Caches {
            l2_bytes: 1 << 20,
            last_bytes: 32 << 20,
        };
        Tuning::for_machine(caches, 4, &[Store::Plain, Store::Rep, Store::Streaming])
    }

    #[test]
    fn a_copy_belongs_to_the_last_band_that_starts_at_or_below_it() {
        let tuning = tuning();
        let choose = |len| tuning.choose(len, 0);
        assert_eq!(
            choose((2 << 20) - 1),
            Choice {
                threads: 1,
                store: Store::Plain
            }
        );
        assert_eq!(
            choose(2 << 20),
            Choice {
                threads: 4,
                store: Store::Rep
            }
        );
        assert_eq!(
            choose((12 << 20) - 1),
            Choice {
                threads: 4,
                store: Store::Rep
            }
        );
        assert_eq!(
            choose(12 << 20),
            Choice {
                threads: 4,
                store: Store::Streaming
            }
        );
        assert_eq!(
            choose(usize::MAX),
            Choice {
                threads: 4,
                store: Store::Streaming
            }
        );
    }

    #[test]
    fn what_is_in_flight_counts_for_the_store_kind_but_small_copies_stay_inline() {
        let tuning = tuning();
        assert_eq!(tuning.choose(2 << 20, 16 << 20).store, Store::Streaming);
        assert_eq!(tuning.choose(64, 16 << 20), tuning.choose(64, 0));
        assert_eq!(tuning.choose(64, usize::MAX).threads, 1);
    }

    #[test]
    fn without_bands_or_kinds_everything_is_plain_on_one_thread() {
        let none = Tuning {
            inline_below_bytes: 0,
            bands: Vec::new(),
        };
        assert_eq!(
            none.choose(1 << 30, 0),
            Choice {
                threads: 1,
                store: Store::Plain
            }
        );
        let plain = Tuning::for_machine(Caches::ASSUMED, 2, &[Store::Plain]);
        assert_eq!(
            plain.choose(1 << 30, 0),
            Choice {
                threads: 2,
                store: Store::Plain
            }
        );
    }

    #[test]
    fn pieces_are_whole_pages_within_their_bounds() {
        assert_eq!(piece_bytes(1, 1), 64 << 10);
        assert_eq!(piece_bytes(4 << 20, 2), 256 << 10);
        assert_eq!(piece_bytes((1 << 20) + 1, 2) % 4096, 0);
        assert_eq!(piece_bytes(usize::MAX / 2, 2), 1 << 20);
    }
}
