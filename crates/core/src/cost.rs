//! Costs of copies, in integers, so that comparisons of plans and tests are exact.

mod through;

use alloc::vec::Vec;
use core::fmt;

pub use through::Timing;

/// `fixed_ns + bytes * fs_per_byte`: the α-β model of one engine moving bytes.
///
/// The slope is in femtoseconds per byte: 1 GB/s is 1 000 000, a PCIe 5 x16 link some 18 000, and
/// the 4 TB/s of on-device copies 250. In whole picoseconds that last one would round to nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub struct Cost {
    /// Nanoseconds that any copy takes, from submission to completion.
    pub fixed_ns: u64,
    /// Femtoseconds that each byte adds.
    pub fs_per_byte: u64,
}

impl Cost {
    /// Nothing at all.
    pub const ZERO: Cost = Cost::new(0, 0);

    /// `fixed_ns` nanoseconds and `fs_per_byte` femtoseconds a byte.
    pub const fn new(fixed_ns: u64, fs_per_byte: u64) -> Cost {
        Cost {
            fixed_ns,
            fs_per_byte,
        }
    }

    /// `fixed_ns` and a rate in bytes per second, rounded up to a femtosecond a byte. A rate of 0
    /// counts as 1.
    pub const fn from_rate(fixed_ns: u64, bytes_per_second: u64) -> Cost {
        const FS_PER_SECOND: u64 = 1_000_000_000_000_000;
        let rate = if bytes_per_second == 0 {
            1
        } else {
            bytes_per_second
        };
        Cost::new(fixed_ns, FS_PER_SECOND.div_ceil(rate))
    }

    /// Returns the nanoseconds for `bytes` bytes, rounded up; at most `u64::MAX`.
    pub const fn at(&self, bytes: u64) -> u64 {
        const FS_PER_NS: u64 = 1_000_000;
        // The planner asks thousands of times, and a 128-bit division costs as much as ten 64-bit ones.
        if let Some(product) = bytes.checked_mul(self.fs_per_byte) {
            return self.fixed_ns.saturating_add(product.div_ceil(FS_PER_NS));
        }
        let slope = (bytes as u128 * self.fs_per_byte as u128).div_ceil(FS_PER_NS as u128);
        let total = slope + self.fixed_ns as u128;
        if total > u64::MAX as u128 {
            u64::MAX
        } else {
            total as u64
        }
    }
}

/// One linear piece of a [`Curve`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// The first size that the piece holds for, in bytes.
    pub from_bytes: u64,
    /// The cost from there on.
    pub cost: Cost,
}

/// A cost as a function of size: linear pieces, each from its first size to the next one's.
///
/// Real copies are not straight lines (a host copy slows down past each cache); a measured link has
/// a piece for each stretch of sizes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Curve {
    pub(crate) pieces: Vec<Piece>,
    /// Whether caches hold the bytes of small copies ([`Curve::part_of`]).
    pub(crate) has_caches: bool,
}

/// Why the pieces do not form a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CurveError {
    /// No pieces, or the first does not start at 0.
    #[error("a cost curve starts with a piece from 0 bytes")]
    NoStart,
    /// A piece that does not start after the one before it.
    #[error(
        "piece {index} of a cost curve starts at {from_bytes} bytes, not after its predecessor"
    )]
    NotRising {
        /// Which piece.
        index: usize,
        /// Where it starts.
        from_bytes: u64,
    },
}

impl Curve {
    /// Makes a curve of several pieces.
    ///
    /// # Errors
    /// When the first piece does not start at 0 or the starts do not rise.
    pub fn new(pieces: Vec<Piece>) -> Result<Curve, CurveError> {
        if pieces.first().is_none_or(|first| first.from_bytes != 0) {
            return Err(CurveError::NoStart);
        }
        for (index, pair) in pieces.windows(2).enumerate() {
            if pair[1].from_bytes <= pair[0].from_bytes {
                return Err(CurveError::NotRising {
                    index: index + 1,
                    from_bytes: pair[1].from_bytes,
                });
            }
        }
        Ok(Curve {
            pieces,
            has_caches: false,
        })
    }

    /// The same curve where small copies are fast because caches hold their bytes ([`Curve::part_of`]).
    #[must_use]
    pub fn with_caches(mut self) -> Curve {
        self.has_caches = true;
        self
    }

    /// Returns the pieces, rising; the first starts at 0.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the piece that holds at `bytes`.
    pub fn cost_at(&self, bytes: u64) -> Cost {
        self.piece_at(bytes).0
    }

    /// Returns the cost that holds at `bytes`, and where the next piece starts.
    pub(crate) fn piece_at(&self, bytes: u64) -> (Cost, Option<u64>) {
        let after = self
            .pieces
            .partition_point(|piece| piece.from_bytes <= bytes);
        // The first piece starts at 0, so at least one starts at or below `bytes`.
        let cost = self.pieces[after.max(1) - 1].cost;
        (cost, self.pieces.get(after).map(|piece| piece.from_bytes))
    }

    /// Returns the nanoseconds for `bytes` bytes.
    pub fn at(&self, bytes: u64) -> u64 {
        self.cost_at(bytes).at(bytes)
    }

    /// Returns the nanoseconds for `bytes` bytes of a payload of `whole` bytes: as alone, but
    /// [where there are caches](Curve::with_caches) no faster for each byte than a copy of `whole` bytes. Caches hold the
    /// bytes of a small copy, and not those of a stream that is cut into small copies.
    pub fn part_of(&self, bytes: u64, whole: u64) -> u64 {
        let alone = self.cost_at(bytes);
        if !self.has_caches {
            return alone.at(bytes);
        }
        let rate = self.cost_at(whole).fs_per_byte;
        Cost::new(alone.fixed_ns, rate.max(alone.fs_per_byte)).at(bytes)
    }
}

impl From<Cost> for Curve {
    fn from(cost: Cost) -> Curve {
        Curve {
            pieces: alloc::vec![Piece {
                from_bytes: 0,
                cost,
            }],
            has_caches: false,
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns + {} fs/B", self.fixed_ns, self.fs_per_byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_round_up_and_saturate() {
        assert_eq!(Cost::new(10, 1).at(0), 10);
        assert_eq!(Cost::new(10, 1).at(1), 11);
        assert_eq!(Cost::from_rate(0, 1_000_000_000).at(16 << 20), 16 << 20);
        assert_eq!(Cost::new(1, u64::MAX).at(u64::MAX), u64::MAX);
        assert_eq!(Cost::from_rate(5, 0).at(1), 1_000_000_005);
    }

    #[test]
    fn a_curve_changes_exactly_at_its_breakpoints() {
        let curve = Curve::new(alloc::vec![
            Piece {
                from_bytes: 0,
                cost: Cost::new(5, 0)
            },
            Piece {
                from_bytes: 100,
                cost: Cost::new(9, 0)
            },
        ])
        .unwrap();
        assert_eq!((curve.at(0), curve.at(99), curve.at(100)), (5, 5, 9));
    }

    #[test]
    fn pieces_that_make_no_curve_are_refused() {
        let piece = |from_bytes| Piece {
            from_bytes,
            cost: Cost::ZERO,
        };
        assert_eq!(Curve::new(alloc::vec![]), Err(CurveError::NoStart));
        assert_eq!(Curve::new(alloc::vec![piece(1)]), Err(CurveError::NoStart));
        assert_eq!(
            Curve::new(alloc::vec![piece(0), piece(4), piece(4)]),
            Err(CurveError::NotRising {
                index: 2,
                from_bytes: 4
            })
        );
    }
}
