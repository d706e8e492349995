//! By how much the measured times of a route differ from the predicted ones.

use alloc::vec::Vec;

/// What was predicted and what was measured for one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Compared {
    /// The payload in bytes, at least 1.
    pub bytes: u64,
    /// The predicted time in nanoseconds.
    pub predicted_ns: u64,
    /// The measured time in nanoseconds.
    pub ns: u64,
}

impl Compared {
    /// A prediction and its measurement.
    pub const fn new(bytes: u64, predicted_ns: u64, ns: u64) -> Compared {
        Compared {
            bytes,
            predicted_ns,
            ns,
        }
    }
}

/// Factors for predicted times of a route, by size. A factor holds around the size at which it was measured, to the
/// geometric means with its neighbours; the first and the last hold for all smaller and larger sizes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Correction {
    /// The first size, rising from 0, and the factor from there on in parts of [`Correction::ONE`].
    factors: Vec<(u64, u32)>,
}

impl Correction {
    /// The factor that changes nothing.
    pub const ONE: u32 = 1024;
    /// The largest factor. A larger difference is no inaccuracy of a model, and says nothing about other sizes.
    const MOST: u32 = 16 * Correction::ONE;

    /// Makes the factors of measurements, of which one counts for each size.
    pub fn new(measured: &[Compared]) -> Correction {
        let mut measured = measured.to_vec();
        measured.sort_by_key(|one| one.bytes);
        measured.dedup_by_key(|one| one.bytes);
        let mut factors: Vec<(u64, u32)> = Vec::with_capacity(measured.len());
        let mut before: Option<u64> = None;
        for one in measured {
            let from = before.map_or(0, |bytes| {
                let mean = (u128::from(bytes) * u128::from(one.bytes)).isqrt();
                u64::try_from(mean).unwrap_or(u64::MAX)
            });
            let factor = Correction::factor(one.predicted_ns, one.ns);
            match factors.last_mut() {
                // Two sizes so near that nothing lies between.
                Some((at, last)) if *at == from => *last = factor,
                _ => factors.push((from, factor)),
            }
            before = Some(one.bytes);
        }
        factors.dedup_by_key(|(_, factor)| *factor);
        if let [(_, Correction::ONE)] = factors[..] {
            factors.clear();
        }
        Correction { factors }
    }

    /// Returns the factor from a predicted to a measured time, within bounds.
    pub(crate) fn factor(predicted_ns: u64, ns: u64) -> u32 {
        let factor = u128::from(ns) * u128::from(Correction::ONE) / u128::from(predicted_ns.max(1));
        let factor = u32::try_from(factor).unwrap_or(u32::MAX);
        factor.clamp(Correction::ONE / 16, Correction::MOST)
    }

    /// Returns whether predictions stand as they are.
    pub fn is_none(&self) -> bool {
        self.factors.is_empty()
    }

    /// Returns the factor at a size, in parts of [`Correction::ONE`].
    pub fn at(&self, bytes: u64) -> u32 {
        let after = self.factors.partition_point(|(from, _)| *from <= bytes);
        let last = after.checked_sub(1).map(|at| self.factors[at].1);
        last.unwrap_or(Correction::ONE)
    }

    /// Returns the corrected time of a copy of `bytes` bytes.
    pub fn apply(&self, bytes: u64, ns: u64) -> u64 {
        match self.at(bytes) {
            Correction::ONE => ns,
            factor => scaled_ns(ns, factor.into(), Correction::ONE.into()),
        }
    }

    /// Returns the factors from the size `from` to before `until`, each with its first size.
    pub(crate) fn pieces(
        &self,
        from: u64,
        until: Option<u64>,
    ) -> impl Iterator<Item = (u64, u32)> + '_ {
        let later = self.factors.partition_point(|(at, _)| *at <= from);
        let later = self.factors[later..].iter().copied();
        let inside = move |at: u64| until.is_none_or(|until| at < until);
        core::iter::once((from, self.at(from))).chain(later.take_while(move |(at, _)| inside(*at)))
    }
}

/// Returns `part` of `whole` parts of a time, rounded down.
pub(crate) fn scaled_ns(ns: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(ns) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_holds_around_its_size() {
        let measured = [
            Compared::new(1 << 10, 100, 150),
            Compared::new(1 << 20, 1000, 1000),
            Compared::new(1 << 30, 1000, 500),
        ];
        let correction = Correction::new(&measured);
        let at = |bytes| correction.apply(bytes, 1000);
        assert_eq!([0, 1 << 10, (1 << 15) - 1].map(at), [1500; 3]);
        assert_eq!([1 << 15, 1 << 20, (1 << 25) - 1].map(at), [1000; 3]);
        assert_eq!([1 << 25, u64::MAX].map(at), [500; 2]);
        let pieces: Vec<_> = correction.pieces(1 << 20, Some(1 << 26)).collect();
        assert_eq!(pieces, [(1 << 20, 1024), (1 << 25, 512)]);
    }

    #[test]
    fn what_was_predicted_right_is_not_corrected_and_absurd_factors_are_bounded() {
        let right = [Compared::new(1, 7, 7), Compared::new(9, 8, 8)];
        assert!(Correction::new(&right).is_none() && Correction::new(&[]).is_none());
        assert_eq!(Correction::default().apply(5, u64::MAX), u64::MAX);
        let absurd = Correction::new(&[Compared::new(1, 0, u64::MAX)]);
        assert_eq!(absurd.apply(1, 10), 160);
        assert_eq!(
            Correction::new(&[Compared::new(1, u64::MAX, 0)]).apply(1, 160),
            10
        );
    }
}
