//! The median of times, with a confidence interval.

/// The median of repeated times, with a confidence interval that assumes nothing about how times are
/// distributed.
///
/// The interval lies between two of the sorted times, the same number of places from either end. It
/// holds the true median unless more times than that fall on one side of it, which a fair coin's
/// binomial distribution gives exactly (W. J. Conover, *Practical Nonparametric Statistics*, 3rd ed.,
/// 1999, section 3.2). It is the narrowest such interval of at least 95 %. Fewer than 6 times have none; the interval is
/// their whole range then, with the confidence of that range.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Interval {
    /// The median in nanoseconds; of an even number of times the mean of both in the middle.
    pub median_ns: u64,
    /// Where the interval begins, in nanoseconds.
    pub low_ns: u64,
    /// Where it ends, in nanoseconds.
    pub high_ns: u64,
    /// The probability with which it holds the true median, of 1.
    pub confidence: f64,
    /// How many times there were.
    pub samples: u32,
}

/// The most samples: beyond them the interval narrows by less than a thirtieth of the spread. With so many, the
/// smallest probability, 2⁻¹⁰⁰⁰, is still a number.
pub(super) const MOST: u32 = 1000;

/// The usual confidence level.
const WANTED: f64 = 0.95;

impl Interval {
    /// Returns the median of times in nanoseconds, of which the first 1000 count; `None` when there are none.
    pub fn of(times_ns: &[u64]) -> Option<Interval> {
        let mut times = times_ns[..times_ns.len().min(MOST as usize)].to_vec();
        times.sort_unstable();
        let count = times.len();
        let (last, upper) = (count.checked_sub(1)?, times[count / 2]);
        let median_ns = match count % 2 {
            1 => upper,
            _ => times[count / 2 - 1].midpoint(upper),
        };
        let (from_end, confidence) = places(count);
        Some(Interval {
            median_ns,
            low_ns: times[from_end],
            high_ns: times[last - from_end],
            confidence,
            samples: count as u32,
        })
    }

    /// Returns whether the interval is one of 95 %, and reaches no further from the median than that part of it.
    pub(super) fn is_within(&self, part: f64) -> bool {
        self.confidence >= WANTED && self.spread() <= part
    }

    /// Returns the longer half of the interval as a part of the median.
    pub fn spread(&self) -> f64 {
        let (low, high) = (self.median_ns - self.low_ns, self.high_ns - self.median_ns);
        low.max(high) as f64 / self.median_ns.max(1) as f64
    }
}

/// Returns how many places from either end the interval of `count` times begins, and its confidence.
fn places(count: usize) -> (usize, f64) {
    // The probability that exactly `i` times lie below the median, and that at most so many do.
    let mut exactly = 0.5f64.powi(count as i32);
    let mut at_most = exactly;
    let mut found = (0, 1.0 - 2.0 * at_most);
    for i in 1..count.div_ceil(2) {
        exactly *= (count - i + 1) as f64 / i as f64;
        at_most += exactly;
        let confidence = 1.0 - 2.0 * at_most;
        if confidence < WANTED {
            break;
        }
        found = (i, confidence);
    }
    (found.0, found.1.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(Interval::of(&[]), None);
        assert_eq!(Interval::of(&[7]).unwrap().median_ns, 7);
        assert_eq!(Interval::of(&[9, 1, 4]).unwrap().median_ns, 4);
        assert_eq!(Interval::of(&[9, 1, 4, 6]).unwrap().median_ns, 5);
        let huge = [u64::MAX; 4];
        assert_eq!(Interval::of(&huge).unwrap().median_ns, u64::MAX);
    }

    #[test]
    fn intervals_are_those_of_the_published_tables() {
        // The places, counted from 1, and the confidence of the table of order statistics in
        // Conover (1999), A3, by the binomial distribution with p = 1/2.
        for (count, place, confidence) in [
            (6, 1, 0.9688),
            (9, 2, 0.9609),
            (10, 2, 0.9785),
            (20, 6, 0.9586),
            (50, 18, 0.9672),
        ] {
            let times: Vec<u64> = (1..=count).collect();
            let interval = Interval::of(&times).unwrap();
            assert_eq!(interval.low_ns, place, "{count}");
            assert_eq!(interval.high_ns, count + 1 - place, "{count}");
            assert!(
                (interval.confidence - confidence).abs() < 5e-5,
                "{interval:?}"
            );
        }
    }

    #[test]
    fn few_times_have_their_whole_range_and_say_how_little_it_is_worth() {
        for (count, confidence) in [(1, 0.0), (2, 0.5), (5, 0.9375)] {
            let times: Vec<u64> = (1..=count).collect();
            let interval = Interval::of(&times).unwrap();
            assert_eq!((interval.low_ns, interval.high_ns), (1, count));
            assert_eq!(interval.confidence, confidence);
        }
    }

    #[test]
    fn the_interval_of_many_times_is_exact_and_narrow() {
        let times: Vec<u64> = (0..2 * u64::from(MOST)).map(|i| 1_000_000 + i).collect();
        let interval = Interval::of(&times).unwrap();
        assert_eq!(interval.samples, MOST);
        // By the normal approximation it begins 0.98 √1000 = 31 places below the middle.
        assert_eq!(interval.median_ns - interval.low_ns, 31);
        assert!(interval.confidence >= 0.95 && interval.confidence < 0.96);
        assert!(interval.spread() < 1e-4);
    }
}
