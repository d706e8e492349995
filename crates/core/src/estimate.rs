//! The time that a plan is expected to take, as a function of size, without rounding.

use alloc::vec::Vec;
use core::cmp::Ordering;

use crate::{Correction, Cost, Curve};

/// An expected time as a function of size: straight lines, each from its first size to the next
/// one's.
///
/// Unlike a [`Curve`], whose slopes are whole femtoseconds a byte, the slope of a pipeline is the
/// time of one chunk spread over its bytes, which is no whole number of anything. Lines keep that
/// ratio exactly (chunks are powers of two), so that estimates are right to the nanosecond at any
/// number of chunks and the sizes at which two plans change places are exact.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Estimate {
    pieces: Vec<(u64, Line)>,
}

impl Estimate {
    /// Returns an estimate out of lines by first size, which rise; the first one's is taken as 0.
    pub(crate) fn new(pieces: Vec<(u64, Line)>) -> Estimate {
        debug_assert!(pieces.windows(2).all(|pair| pair[0].0 < pair[1].0));
        Estimate { pieces }
    }

    /// Returns the nanoseconds for `bytes` bytes, rounded up; at most `u64::MAX`.
    pub fn at(&self, bytes: u64) -> u64 {
        let after = self.pieces.partition_point(|(from, _)| *from <= bytes);
        self.pieces
            .get(after.max(1) - 1)
            .map_or(0, |(_, line)| line.at(bytes))
    }

    /// Returns where the lines start, in bytes. The first starts at 0.
    pub fn starts(&self) -> impl Iterator<Item = u64> + '_ {
        self.pieces.iter().map(|(from, _)| *from)
    }
}

impl From<&Curve> for Estimate {
    fn from(curve: &Curve) -> Estimate {
        let line = |piece: &crate::Piece| (piece.from_bytes, Line::from(piece.cost));
        Estimate::new(curve.pieces().iter().map(line).collect())
    }
}

impl From<Curve> for Estimate {
    fn from(curve: Curve) -> Estimate {
        Estimate::from(&curve)
    }
}

impl From<Cost> for Estimate {
    fn from(cost: Cost) -> Estimate {
        Estimate::new(alloc::vec![(0, Line::from(cost))])
    }
}

/// `fixed_ns + bytes * slope`.
///
/// The slope counts 2⁻³⁶ femtoseconds a byte. A chunk of 2ᵏ bytes that takes `t` nanoseconds has the
/// slope `t * 10⁶ / 2ᵏ` femtoseconds, a whole number of these for every `k` up to 32, with ten
/// bits left for a lane's share of the payload (10⁶ has six factors of two). The largest chunk has 2²⁸ bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Line {
    pub(crate) fixed_ns: u64,
    pub(crate) slope: u128,
}

impl Line {
    const BITS: u32 = 36;
    const FS_PER_NS: u128 = 1_000_000;
    const UNITS_PER_NS: u128 = Self::FS_PER_NS << Self::BITS;

    /// `fixed_ns`, and `chunk_ns` for each 2^`chunk_log2` bytes (at most 2³⁶).
    pub(crate) const fn per_chunk(fixed_ns: u64, chunk_ns: u64, chunk_log2: u32) -> Line {
        debug_assert!(chunk_log2 <= Self::BITS);
        Line {
            fixed_ns,
            slope: (chunk_ns as u128 * Self::FS_PER_NS) << (Self::BITS - chunk_log2),
        }
    }

    /// Both, one after the other.
    pub(crate) const fn then(self, other: Line) -> Line {
        Line {
            fixed_ns: self.fixed_ns.saturating_add(other.fixed_ns),
            slope: self.slope + other.slope,
        }
    }

    pub(crate) const fn at(self, bytes: u64) -> u64 {
        let Some(units) = self.slope.checked_mul(bytes as u128) else {
            return u64::MAX;
        };
        let total = units.div_ceil(Self::UNITS_PER_NS) + self.fixed_ns as u128;
        if total > u64::MAX as u128 {
            u64::MAX
        } else {
            total as u64
        }
    }

    /// The same with a [correction](crate::Correction)'s factor.
    pub(crate) const fn scaled(self, factor: u32) -> Line {
        let one = Correction::ONE as u128;
        let fixed = self.fixed_ns as u128 * factor as u128 / one;
        Line {
            fixed_ns: if fixed > u64::MAX as u128 {
                u64::MAX
            } else {
                fixed as u64
            },
            slope: (self.slope / one).saturating_mul(factor as u128),
        }
    }

    /// This for a lane that carries `share` of 1024 parts of a payload, as a function of the whole.
    pub(crate) const fn shared(self, share: u32) -> Line {
        Line {
            fixed_ns: self.fixed_ns,
            // Exact for slopes by the chunk, which have the ten bits to spare.
            slope: (self.slope >> 10) * share as u128,
        }
    }

    /// Returns whether `self` is lower than (`Less`), at, or above `other` at `bytes`, without rounding.
    pub(crate) fn cmp_at(self, other: Line, bytes: u64) -> Ordering {
        // What overflows is more than any fixed cost: 2^64 ns are less than 2^121 units.
        let steeper_by = self
            .slope
            .abs_diff(other.slope)
            .saturating_mul(u128::from(bytes));
        let higher_by = u128::from(self.fixed_ns.abs_diff(other.fixed_ns)) * Self::UNITS_PER_NS;
        match (self.slope >= other.slope, self.fixed_ns >= other.fixed_ns) {
            (true, true) => (steeper_by | higher_by).cmp(&0),
            (true, false) => steeper_by.cmp(&higher_by),
            (false, true) => higher_by.cmp(&steeper_by),
            (false, false) => Ordering::Less,
        }
    }

    /// Returns the first size at which `self`, the flatter one, is lower than `other`, or as low where `ties`
    /// says so; `None` when `self` is no flatter or there is none up to 2⁶⁴ - 1.
    pub(crate) const fn undercuts(self, other: Line, ties: bool) -> Option<u64> {
        if self.slope >= other.slope {
            return None;
        }
        if self.fixed_ns < other.fixed_ns {
            return Some(0);
        }
        let gap = (self.fixed_ns - other.fixed_ns) as u128 * Self::UNITS_PER_NS;
        let per_byte = other.slope - self.slope;
        let bytes = if ties {
            gap.div_ceil(per_byte)
        } else {
            gap / per_byte + 1
        };
        if bytes > u64::MAX as u128 {
            None
        } else {
            Some(bytes as u64)
        }
    }
}

impl From<Cost> for Line {
    fn from(cost: Cost) -> Line {
        Line {
            fixed_ns: cost.fixed_ns,
            slope: u128::from(cost.fs_per_byte) << Self::BITS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_by_the_chunk_is_exact_at_every_multiple() {
        // 65 537 ns for 64 KiB: no whole number of femtoseconds a byte.
        let line = Line::per_chunk(7, 65_537, 16);
        for n in [1u64, 2, 3, 1000, 1 << 30] {
            assert_eq!(line.at(n << 16), 7 + n * 65_537);
            assert_eq!(line.at((n << 16) + 1), 7 + n * 65_537 + 2);
        }
        let half = line.shared(512);
        assert_eq!(half.at(4 << 16), 7 + 2 * 65_537);
    }

    #[test]
    fn lines_change_places_exactly_where_one_undercuts_the_other() {
        let steep = Line::from(Cost::new(0, 1_000_000));
        let flat = Line::from(Cost::new(100, 500_000));
        assert_eq!(flat.undercuts(steep, true), Some(200));
        assert_eq!(flat.undercuts(steep, false), Some(201));
        assert_eq!(steep.undercuts(flat, true), None);
        let orders = [199, 200, 201].map(|bytes| flat.cmp_at(steep, bytes));
        assert_eq!(orders, [Ordering::Greater, Ordering::Equal, Ordering::Less]);
    }

    #[test]
    fn the_largest_figures_neither_wrap_nor_panic() {
        let worst = Line::per_chunk(u64::MAX, u64::MAX, 16).then(Cost::new(1, u64::MAX).into());
        assert_eq!(worst.at(u64::MAX), u64::MAX);
        let free = Line::default();
        assert_eq!(worst.cmp_at(free, u64::MAX), Ordering::Greater);
        assert_eq!(free.cmp_at(worst, 0), Ordering::Less);
        assert_eq!(free.undercuts(worst, false), Some(0));
        let barely = Line::from(Cost::new(u64::MAX, 0));
        assert_eq!(barely.undercuts(Cost::new(0, 1).into(), true), None);
    }

    #[test]
    fn an_estimate_out_of_a_curve_agrees_with_it() {
        let curve = Curve::new(alloc::vec![
            crate::Piece {
                from_bytes: 0,
                cost: Cost::new(10, 3),
            },
            crate::Piece {
                from_bytes: 1000,
                cost: Cost::new(20, 7_777_777),
            },
        ])
        .unwrap();
        let estimate = Estimate::from(&curve);
        for bytes in [0, 1, 999, 1000, 1001, 123_456_789] {
            assert_eq!(estimate.at(bytes), curve.at(bytes));
        }
    }
}
