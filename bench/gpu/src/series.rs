//! Samples of one contender.

use serde::Serialize;

/// Seconds for each operation, in the order of the rounds.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Series(pub(crate) Vec<f64>);

impl Series {
    /// The middle sample, or the mean of the two; none where there is no sample.
    pub(crate) fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => None,
            count if count % 2 == 1 => Some(sorted[middle]),
            _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        }
    }

    /// The least and the greatest sample.
    pub(crate) fn spread(&self) -> Option<[f64; 2]> {
        let least = self.0.iter().copied().min_by(f64::total_cmp)?;
        let greatest = self.0.iter().copied().max_by(f64::total_cmp)?;
        Some([least, greatest])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_in_the_middle_and_a_spread_holds_all() {
        let of = |samples: &[f64]| Series(samples.to_vec());
        assert_eq!(of(&[3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
        assert_eq!(of(&[3.0, 1.0, 2.0]).spread(), Some([1.0, 3.0]));
        assert_eq!((of(&[]).median(), of(&[]).spread()), (None, None));
    }
}
