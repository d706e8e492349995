//! Counts of durations in fixed buckets.

use alloc::boxed::Box;
use alloc::vec;

/// Buckets in each power of two.
const PER_OCTAVE: u64 = 16;

/// One for each value below [`PER_OCTAVE`], and 16 for each power of two from there to 2^63.
const BUCKETS: usize = 976;

/// How often durations of about so many nanoseconds were seen.
///
/// Below 32 every value has a bucket of its own; above, each power of two is cut into 16 equal
/// buckets, and a value is read back as the middle of its bucket: off by at most 1/32 of itself.
/// All of `u64` is covered, 0 too. Takes 7808 bytes, once and for all.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: Box<[u64]>,
    shortest: u64,
    longest: u64,
}

impl Histogram {
    pub(super) fn new() -> Histogram {
        Histogram {
            counts: vec![0; BUCKETS].into_boxed_slice(),
            shortest: u64::MAX,
            longest: 0,
        }
    }

    pub(super) fn record(&mut self, value: u64) {
        let count = &mut self.counts[bucket(value)];
        *count = count.saturating_add(1);
        self.shortest = self.shortest.min(value);
        self.longest = self.longest.max(value);
    }

    /// Adds what another one counted.
    pub(super) fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.shortest = self.shortest.min(other.shortest);
        self.longest = self.longest.max(other.longest);
    }

    /// Returns the smallest value that at least `percent` of 100 values do not exceed (the nearest rank);
    /// `None` when there are no values.
    pub(super) fn percentile(&self, percent: u8) -> Option<u64> {
        let total: u128 = self.counts.iter().map(|count| u128::from(*count)).sum();
        let rank = (total * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank {
                // The true value lies between these two as well, so this brings it only nearer.
                return Some(middle(index).clamp(self.shortest, self.longest));
            }
        }
        None
    }
}

fn bucket(value: u64) -> usize {
    let shift = octave(value);
    (u64::from(shift) * PER_OCTAVE + (value >> shift)) as usize
}

/// Returns the bits that a value has beyond what a bucket tells apart.
const fn octave(value: u64) -> u32 {
    (u64::BITS - PER_OCTAVE.trailing_zeros() - 1).saturating_sub(value.leading_zeros())
}

fn middle(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index / PER_OCTAVE).saturating_sub(1);
    let lowest = (index - shift * PER_OCTAVE) << shift;
    lowest + ((1 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Of all magnitudes alike.
    fn durations() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0u32..=64).prop_map(|(bits, shift)| bits.checked_shr(shift).unwrap_or(0))
    }

    fn is_near(seen: u64, exact: u64) -> bool {
        seen.abs_diff(exact) <= exact / 32
    }

    proptest! {
        #[test]
        fn percentiles_are_within_a_32nd_of_the_sorted_list_s(
            mut values in proptest::collection::vec(durations(), 1..300),
        ) {
            let mut histogram = Histogram::new();
            for value in &values {
                histogram.record(*value);
            }
            values.sort_unstable();
            for percent in [0, 1, 50, 90, 99, 100] {
                let rank = (values.len() * usize::from(percent)).div_ceil(100).max(1);
                let exact = values[rank - 1];
                let seen = histogram.percentile(percent).unwrap();
                prop_assert!(is_near(seen, exact), "p{percent}: {seen} for {exact}");
            }
        }

        #[test]
        fn a_merged_histogram_is_that_of_all_values(
            values in proptest::collection::vec((durations(), any::<bool>()), 0..100),
        ) {
            let (mut all, mut some, mut rest) =
                (Histogram::new(), Histogram::new(), Histogram::new());
            for (value, into_rest) in values {
                all.record(value);
                if into_rest { &mut rest } else { &mut some }.record(value);
            }
            some.merge(&rest);
            prop_assert_eq!(&some.counts, &all.counts);
            prop_assert_eq!((some.shortest, some.longest), (all.shortest, all.longest));
        }
    }

    #[test]
    fn each_value_falls_into_one_bucket_and_the_buckets_follow_each_other() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        let mut edges = Vec::new();
        for shift in 0..64 {
            edges.extend((0..16).map(|i: u64| (1u64 << shift) + (i << shift >> 4)));
        }
        for edge in edges {
            let (below, at) = (bucket(edge - 1), bucket(edge));
            assert!(at == below || at == below + 1, "{edge}");
            assert!(is_near(middle(at), edge) && is_near(middle(below), edge - 1));
        }
    }

    #[test]
    fn short_durations_are_exact_and_none_is_lost() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.percentile(50), None);
        for value in 0..32 {
            histogram.record(value);
            assert_eq!(histogram.percentile(100), Some(value));
        }
        assert_eq!(histogram.percentile(50), Some(15));
        assert_eq!(histogram.percentile(0), Some(0));
    }
}
