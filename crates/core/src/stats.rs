//! Statistics of transfers: counts, rates and latencies for each path, method and size class.

mod histogram;
mod snapshot;
mod table;

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::{MemoryId, Method};
use histogram::Histogram;

pub use snapshot::{ClassStats, Figures, PathStats, Snapshot};

/// How one transfer ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sample {
    /// Where the bytes came from.
    pub src: MemoryId,
    /// Where they went.
    pub dst: MemoryId,
    /// How they moved, or would have.
    pub method: Method,
    /// The payload in bytes.
    pub bytes: u64,
    /// From the first operation's submission to the last one's completion, in nanoseconds. A clock
    /// that did not move in between is no reason to leave the sample out.
    pub duration_ns: u64,
    /// The routes that were given up before this one.
    pub fallbacks: u32,
    /// Whether the transfer failed. Of a failed transfer only the failure and the fallbacks count: the bytes that it
    /// moved and its duration tell nothing about the path.
    pub failed: bool,
}

/// Counts transfers by source, destination, method and size.
///
/// Size classes are fixed: 0 bytes, 1, 2-3, 4-7, and so on, each up to the next power of two, the
/// last one from 2^63. Durations are kept as counts in fixed buckets, none is left out however
/// short, and the percentiles that come back are off by at most 1/32 of themselves (exact below 32
/// ns).
///
/// # Memory
/// 0.6 kB for each path and 7.9 kB for each size class that was seen on it, allocated when a sample
/// is the first of its path or class; other samples allocate nothing. No more than a fixed number of
/// paths are told apart ([`Stats::MAX_PATHS`] by default); what moves on any further one is counted
/// under *other*. Counters stop at `u64::MAX`.
#[derive(Clone, Debug)]
pub struct Stats {
    paths: Vec<(Key, Path)>,
    /// Where each path lies in `paths`.
    places: HashMap<Key, usize>,
    /// The place of the path that was used last: a program's next copy often takes the same path.
    last: usize,
    other: Option<Path>,
    max_paths: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Key {
    src: MemoryId,
    dst: MemoryId,
    method: Method,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats::new()
    }
}

impl Stats {
    /// How many paths are told apart unless [`Stats::with_max_paths`] says otherwise: a box of 8
    /// devices that all reach each other and the host by two methods has 162.
    pub const MAX_PATHS: usize = 256;

    /// Nothing counted so far, nothing allocated.
    pub fn new() -> Stats {
        Stats::with_max_paths(Stats::MAX_PATHS)
    }

    /// The same with another bound on the number of paths; 0 counts everything under *other*.
    pub fn with_max_paths(max_paths: usize) -> Stats {
        Stats {
            paths: Vec::new(),
            places: HashMap::new(),
            last: 0,
            other: None,
            max_paths,
        }
    }

    /// Counts a transfer that has ended.
    pub fn record(&mut self, sample: &Sample) {
        self.path(Key {
            src: sample.src,
            dst: sample.dst,
            method: sample.method,
        })
        .record(sample);
    }

    /// What was counted since the start or the last reset, in the order of source, destination and
    /// method.
    pub fn snapshot(&self) -> Snapshot {
        let mut paths: Vec<&(Key, Path)> = self.paths.iter().collect();
        paths.sort_unstable_by_key(|(key, _)| *key);
        Snapshot {
            paths: paths
                .into_iter()
                .map(|(key, path)| PathStats {
                    src: key.src,
                    dst: key.dst,
                    method: key.method,
                    total: path.total(),
                    classes: path.classes(),
                })
                .collect(),
            other: self.other.as_ref().map(Path::total),
        }
    }

    /// Forgets everything and frees it; the bound on paths stays.
    pub fn reset(&mut self) {
        *self = Stats::with_max_paths(self.max_paths);
    }

    fn path(&mut self, key: Key) -> &mut Path {
        let is_last = self
            .paths
            .get(self.last)
            .is_some_and(|(last, _)| *last == key);
        if !is_last {
            match self.places.get(&key) {
                Some(place) => self.last = *place,
                None if self.paths.len() < self.max_paths => {
                    self.last = self.paths.len();
                    self.places.insert(key, self.last);
                    self.paths.push((key, Path::new()));
                }
                None => return self.other.get_or_insert_with(Path::new),
            }
        }
        &mut self.paths[self.last].1
    }
}

/// One class for each number of significant bits that a size can have.
const CLASSES: usize = u64::BITS as usize + 1;

#[derive(Clone, Debug)]
struct Path {
    classes: Box<[Option<Box<Class>>; CLASSES]>,
}

#[derive(Clone, Debug)]
struct Class {
    counters: Counters,
    durations: Histogram,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    transfers: u64,
    bytes: u64,
    busy_ns: u64,
    failures: u64,
    fallbacks: u64,
    best: Rate,
}

/// Bytes over nanoseconds, kept as a fraction: comparing takes two multiplications where a rate in
/// bytes per second takes a division.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    bytes: u64,
    ns: u64,
}

impl Path {
    fn new() -> Path {
        Path {
            classes: Box::new([const { None }; CLASSES]),
        }
    }

    fn record(&mut self, sample: &Sample) {
        self.classes[class_of(sample.bytes)]
            .get_or_insert_with(|| Box::new(Class::new()))
            .record(sample);
    }

    fn classes(&self) -> Vec<ClassStats> {
        let seen = self.classes.iter().enumerate();
        seen.filter_map(|(index, class)| {
            let (from_bytes, to_bytes) = class_bounds(index);
            class.as_ref().map(|class| ClassStats {
                from_bytes,
                to_bytes,
                figures: class.figures(),
            })
        })
        .collect()
    }

    fn total(&self) -> Figures {
        let mut total = Class::new();
        for class in self.classes.iter().flatten() {
            total.counters.merge(&class.counters);
            total.durations.merge(&class.durations);
        }
        total.figures()
    }
}

impl Class {
    fn new() -> Class {
        Class {
            counters: Counters::default(),
            durations: Histogram::new(),
        }
    }

    fn record(&mut self, sample: &Sample) {
        let fallbacks = u64::from(sample.fallbacks);
        self.counters.merge(&if sample.failed {
            Counters {
                failures: 1,
                fallbacks,
                ..Counters::default()
            }
        } else {
            self.durations.record(sample.duration_ns);
            Counters {
                transfers: 1,
                bytes: sample.bytes,
                busy_ns: sample.duration_ns,
                failures: 0,
                fallbacks,
                best: Rate {
                    bytes: sample.bytes,
                    ns: sample.duration_ns.max(1),
                },
            }
        });
    }

    fn figures(&self) -> Figures {
        let counters = &self.counters;
        let mean = Rate {
            bytes: counters.bytes,
            ns: counters.busy_ns.max(1),
        };
        let any = counters.transfers > 0;
        Figures {
            transfers: counters.transfers,
            bytes: counters.bytes,
            busy_ns: counters.busy_ns,
            failures: counters.failures,
            fallbacks: counters.fallbacks,
            mean_bytes_per_s: any.then(|| mean.bytes_per_s()),
            best_bytes_per_s: any.then(|| counters.best.bytes_per_s()),
            p50_ns: self.durations.percentile(50),
            p99_ns: self.durations.percentile(99),
        }
    }
}

impl Counters {
    fn merge(&mut self, more: &Counters) {
        self.transfers = self.transfers.saturating_add(more.transfers);
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.busy_ns = self.busy_ns.saturating_add(more.busy_ns);
        self.failures = self.failures.saturating_add(more.failures);
        self.fallbacks = self.fallbacks.saturating_add(more.fallbacks);
        if more.best.exceeds(&self.best) {
            self.best = more.best;
        }
    }
}

impl Rate {
    /// Returns whether this is the higher rate. Any exceeds the default, 0 bytes in 0 ns, which stands for
    /// no rate, unless it is 0 itself.
    fn exceeds(&self, other: &Rate) -> bool {
        let cross = |bytes: u64, ns: u64| u128::from(bytes) * u128::from(ns);
        cross(self.bytes, other.ns.max(1)) > cross(other.bytes, self.ns)
    }

    fn bytes_per_s(&self) -> u64 {
        let scaled = u128::from(self.bytes) * 1_000_000_000;
        u64::try_from(scaled / u128::from(self.ns.max(1))).unwrap_or(u64::MAX)
    }
}

const fn class_of(bytes: u64) -> usize {
    (u64::BITS - bytes.leading_zeros()) as usize
}

/// Returns the smallest and the largest size of a class.
const fn class_bounds(class: usize) -> (u64, u64) {
    if class == 0 {
        return (0, 0);
    }
    let from = 1 << (class - 1);
    (from, from + (from - 1))
}

#[cfg(test)]
mod tests;
