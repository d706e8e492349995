//! Samples of one contender.

/// Seconds for each operation, in the order of the rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    pub(crate) fn push(&mut self, seconds: f64) {
        self.0.push(seconds);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The middle sample, or the mean of the two; NaN when there are none.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// The least and the greatest sample.
    pub(crate) fn spread(&self) -> [f64; 2] {
        let least = self.0.iter().copied().fold(f64::NAN, f64::min);
        let greatest = self.0.iter().copied().fold(f64::NAN, f64::max);
        [least, greatest]
    }

    /// Every second sample: those of the even rounds, and those of the odd ones.
    pub(crate) fn halves(&self) -> [Series; 2] {
        let half = |parity: usize| Series(self.0.iter().skip(parity).step_by(2).copied().collect());
        [half(0), half(1)]
    }

    /// By how much the medians of two series differ, as a fraction of the smaller.
    pub(crate) fn difference(&self, other: &Series) -> f64 {
        let (a, b) = (self.median(), other.median());
        (a - b).abs() / a.min(b)
    }
}

impl FromIterator<f64> for Series {
    fn from_iter<T: IntoIterator<Item = f64>>(samples: T) -> Series {
        Series(samples.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_in_the_middle() {
        let of = |samples: &[f64]| Series::from_iter(samples.iter().copied()).median();
        assert_eq!(of(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(of(&[]).is_nan());
    }

    #[test]
    fn halves_take_every_second_round() {
        let series = Series::from_iter([1.0, 2.0, 3.0, 4.0, 5.0]);
        let [even, odd] = series.halves();
        assert_eq!(even.0, [1.0, 3.0, 5.0]);
        assert_eq!(odd.0, [2.0, 4.0]);
        assert_eq!(series.spread(), [1.0, 5.0]);
    }

    #[test]
    fn a_difference_is_a_fraction_of_the_smaller() {
        let (a, b) = (Series::from_iter([1.0]), Series::from_iter([1.5]));
        assert_eq!(a.difference(&b), 0.5);
        assert_eq!(b.difference(&a), 0.5);
    }
}
