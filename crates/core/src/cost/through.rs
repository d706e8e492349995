//! A curve out of measured times.

use alloc::vec::Vec;

use super::{Cost, Curve, CurveError, Piece};

/// The time that a copy of one size took.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Timing {
    /// How many bytes were copied. At least 1.
    pub bytes: u64,
    /// How long it took, in nanoseconds.
    pub ns: u64,
}

impl Curve {
    /// Returns the curve through measured times, by rising size.
    ///
    /// It never falls: where a larger copy was measured to take less time than a smaller one, which
    /// noise does, neighbours are pooled to their mean until the times rise (isotonic regression by
    /// pooling adjacent violators; Ayer et al., "An empirical distribution function for sampling with
    /// incomplete information", Ann. Math. Statist. 26, 1955). Between two sizes it is the straight
    /// line; where that line would start below 0, because copies slow down with their size, it is a row
    /// of lines through the origin, one an octave at most, that meet it where they start. Below the
    /// first size the first line goes on, or the first time holds; beyond the last size, the rate that
    /// was measured there. It has [caches](Curve::with_caches).
    ///
    /// # Errors
    /// When there are no times, or the sizes do not rise from 1 on.
    pub fn through(timings: &[Timing]) -> Result<Curve, CurveError> {
        if timings.first().is_none_or(|first| first.bytes == 0) {
            return Err(CurveError::NoStart);
        }
        for (index, pair) in timings.windows(2).enumerate() {
            if pair[1].bytes <= pair[0].bytes {
                return Err(CurveError::NotRising {
                    index: index + 1,
                    from_bytes: pair[1].bytes,
                });
            }
        }
        let timings = rising(timings);
        let mut pieces = Vec::with_capacity(timings.len() + 1);
        for pair in timings.windows(2) {
            join(pair[0], pair[1], &mut pieces);
        }
        let last = timings[timings.len() - 1];
        push(last.bytes, through_origin(last), &mut pieces);
        if pieces[0].from_bytes > 0 {
            let flat = Cost::new(timings[0].ns, 0);
            pieces.insert(
                0,
                Piece {
                    from_bytes: 0,
                    cost: flat,
                },
            );
        }
        // Slopes are rounded, so that a line may start a hair below the end of the one before it.
        for at in 1..pieces.len() {
            let start = pieces[at].from_bytes;
            let before = pieces[at - 1].cost.at(start - 1);
            let cost = &mut pieces[at].cost;
            cost.fixed_ns += before.saturating_sub(cost.at(start));
        }
        Curve::new(pieces).map(Curve::with_caches)
    }
}

/// Returns the times, pooled until none is less than the one before it.
fn rising(timings: &[Timing]) -> Vec<Timing> {
    // The sum of each pool, and how many it holds.
    let mut pools: Vec<(u128, u128)> = Vec::with_capacity(timings.len());
    for timing in timings {
        let mut pool = (u128::from(timing.ns), 1);
        while let Some(&(sum, count)) = pools.last()
            && sum * pool.1 > pool.0 * count
        {
            pool = (pool.0 + sum, pool.1 + count);
            pools.pop();
        }
        pools.push(pool);
    }
    let means = pools.into_iter().flat_map(|(sum, count)| {
        let mean = u64::try_from(sum / count).unwrap_or(u64::MAX);
        (0..count).map(move |_| mean)
    });
    let sizes = timings.iter().map(|timing| timing.bytes);
    sizes
        .zip(means)
        .map(|(bytes, ns)| Timing { bytes, ns })
        .collect()
}

/// The pieces from one time to the next.
fn join(from: Timing, to: Timing, pieces: &mut Vec<Piece>) {
    let slope = per_byte(to.ns - from.ns, to.bytes - from.bytes);
    let rise = Cost::new(0, slope).at(from.bytes);
    if let Some(fixed_ns) = from.ns.checked_sub(rise) {
        // The first line goes on to 0.
        let start = if pieces.is_empty() { 0 } else { from.bytes };
        return push(start, Cost::new(fixed_ns, slope), pieces);
    }
    let mut at = from.bytes;
    while at < to.bytes {
        let ns = from
            .ns
            .saturating_add(Cost::new(0, slope).at(at - from.bytes));
        let cost = through_origin(Timing { bytes: at, ns });
        let steeper = |last: &Piece| cost.fs_per_byte > last.cost.fs_per_byte / 8 * 9;
        if at == from.bytes || pieces.last().is_none_or(steeper) {
            push(at, cost, pieces);
        }
        at = at.saturating_mul(2);
    }
}

fn push(from_bytes: u64, cost: Cost, pieces: &mut Vec<Piece>) {
    pieces.push(Piece { from_bytes, cost });
}

/// Returns the rate of one time, through the origin but for what rounding the slope leaves.
fn through_origin(timing: Timing) -> Cost {
    let slope = per_byte(timing.ns, timing.bytes);
    let rest_ns = timing.ns - Cost::new(0, slope).at(timing.bytes).min(timing.ns);
    Cost::new(rest_ns, slope)
}

fn per_byte(ns: u64, bytes: u64) -> u64 {
    let slope = u128::from(ns) * FS_PER_NS / u128::from(bytes.max(1));
    u64::try_from(slope).unwrap_or(u64::MAX)
}

const FS_PER_NS: u128 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn timings(pairs: &[(u64, u64)]) -> Vec<Timing> {
        let pairs = pairs.iter();
        pairs.map(|&(bytes, ns)| Timing { bytes, ns }).collect()
    }

    #[test]
    fn a_straight_line_is_found_again() {
        let line = Cost::new(6_000, 40_000);
        let sizes = [256u64, 4096, 65_536, 1 << 20, 16 << 20];
        let measured = sizes.map(|bytes| Timing {
            bytes,
            ns: line.at(bytes),
        });
        let curve = Curve::through(&measured).unwrap();
        for bytes in [
            0,
            1,
            255,
            256,
            257,
            10_000,
            1 << 19,
            1 << 20,
            16 << 20,
            1 << 30,
        ] {
            let (found, wanted) = (curve.at(bytes), line.at(bytes));
            let off = found.abs_diff(wanted);
            assert!(off <= 1 + wanted / 100, "{bytes}: {found} for {wanted}");
        }
    }

    #[test]
    fn measured_sizes_cost_what_was_measured() {
        let measured = timings(&[(256, 90), (4096, 100), (65_536, 10_000), (1 << 20, 90_000)]);
        let curve = Curve::through(&measured).unwrap();
        for timing in &measured {
            assert!(
                curve.at(timing.bytes).abs_diff(timing.ns) <= 1,
                "{timing:?}"
            );
        }
        // Twice the last size takes twice its time.
        assert_eq!(curve.at(2 << 20).abs_diff(180_000) / 10, 0);
    }

    #[test]
    fn a_larger_copy_never_costs_less() {
        let cases: [&[(u64, u64)]; 7] = [
            &[(4096, 10)],
            &[(4096, 0), (8192, 0)],
            &[(4096, 1000), (65_536, 500), (1 << 20, 400)],
            &[(4096, 1000), (65_536, 10), (1 << 20, 90_000)],
            &[(1, 1), (2, 1_000_000), (3, 1_000_000), (u64::MAX, u64::MAX)],
            &[
                (256, 50),
                (4096, 51),
                (65_536, 3),
                (1 << 20, 52),
                (16 << 20, 9_000_000),
            ],
            &[(100, 7), (101, 700_000), (1 << 40, 700_001)],
        ];
        for case in cases {
            let curve = Curve::through(&timings(case)).unwrap();
            let mut sizes: Vec<u64> = (0..64).map(|bit| 1u64 << bit).collect();
            sizes.extend(curve.pieces().iter().map(|piece| piece.from_bytes));
            let next: Vec<u64> = sizes
                .iter()
                .flat_map(|&at| [at.saturating_sub(1), at.saturating_add(1)])
                .collect();
            sizes.extend(next);
            sizes.sort_unstable();
            for pair in sizes.windows(2) {
                assert!(
                    curve.at(pair[0]) <= curve.at(pair[1]),
                    "{case:?} at {pair:?}: {curve:?}"
                );
            }
        }
    }

    #[test]
    fn pooled_times_are_means() {
        let pooled = rising(&timings(&[(1, 30), (2, 10), (3, 20), (4, 100)]));
        let times: Vec<u64> = pooled.iter().map(|timing| timing.ns).collect();
        assert_eq!(times, [20, 20, 20, 100]);
    }

    #[test]
    fn times_that_make_no_curve_are_refused() {
        assert_eq!(Curve::through(&[]), Err(CurveError::NoStart));
        assert_eq!(
            Curve::through(&timings(&[(0, 1)])),
            Err(CurveError::NoStart)
        );
        assert_eq!(
            Curve::through(&timings(&[(2, 1), (2, 1)])),
            Err(CurveError::NotRising {
                index: 1,
                from_bytes: 2
            })
        );
    }
}
