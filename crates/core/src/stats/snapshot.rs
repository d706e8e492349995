//! The statistics at one moment.

use alloc::vec::Vec;

use crate::{MemoryId, Method};

/// All counts so far. Displays as a table; serialises with the feature `serde`, memories and methods as text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// The paths that transfers took, in the order of source, destination and method.
    pub paths: Vec<PathStats>,
    /// Every path beyond the bound together; `None` where the bound was not reached.
    pub other: Option<Figures>,
}

/// One source, destination and method.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PathStats {
    /// Where the bytes came from.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
    pub src: MemoryId,
    /// Where they went.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
    pub dst: MemoryId,
    /// How they moved.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
    pub method: Method,
    /// All size classes together. Its percentiles are those of all durations.
    pub total: Figures,
    /// The size classes that were seen, rising.
    pub classes: Vec<ClassStats>,
}

/// One size class of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ClassStats {
    /// The smallest size in the class, in bytes.
    pub from_bytes: u64,
    /// The largest size in the class, in bytes.
    pub to_bytes: u64,
    /// The counts.
    pub figures: Figures,
}

/// The counts of some transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Figures {
    /// Transfers whose bytes arrived.
    pub transfers: u64,
    /// The bytes that they moved.
    pub bytes: u64,
    /// The sum of their durations, in nanoseconds: transfers that ran at the same time count each.
    pub busy_ns: u64,
    /// Transfers whose bytes did not arrive. They count only here and in `fallbacks`.
    pub failures: u64,
    /// The routes that were given up before one worked or none was left.
    pub fallbacks: u64,
    /// `bytes` over `busy_ns`, rounded down: the rate that transfers got, which is less than that of the link where
    /// several shared it. A time of 0 ns counts as 1 ns. `None` without transfers.
    pub mean_bytes_per_s: Option<u64>,
    /// The rate of the fastest transfer by itself. A duration of 0 ns counts as 1 ns. `None` without
    /// transfers.
    pub best_bytes_per_s: Option<u64>,
    /// The median duration (nearest rank) in nanoseconds, off by at most 1/32 of itself. `None`
    /// without transfers.
    pub p50_ns: Option<u64>,
    /// The duration that 99 of 100 transfers do not exceed, with the precision of the median.
    pub p99_ns: Option<u64>,
}

#[cfg(feature = "serde")]
fn as_text<T: core::fmt::Display, S: serde::Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
