//! Contenders that take turns.

use std::time::Duration;

use anyhow::Result;

use crate::series::Series;

/// A contender, whose operations are timed.
pub(crate) trait Contender {
    /// Its name in the results.
    fn name(&self) -> &str;

    /// Does the operation `turns` times, back to back, and returns the total time. Work before and
    /// after is not timed.
    fn sample(&mut self, turns: u32) -> Result<Duration>;

    /// Poisons the destination, does the operation once, and checks every byte by another way than it was written.
    /// Returns true for an operation that moves no bytes.
    fn verify(&mut self) -> Result<bool>;
}

/// The rules of a contest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Samples of each contender.
    pub(crate) rounds: usize,
    /// The least duration of one sample; short operations are repeated to fill it.
    pub(crate) sample: Duration,
    /// Whether each sample follows an untimed operation of the same contender. The sample then finds the caches and its
    /// threads in the contender's own state, and not in its neighbour's.
    pub(crate) warm: bool,
}

/// Runs all contenders once in each round, in an order that changes from round to round. Returns one series for each,
/// in the order given.
pub(crate) fn run(contenders: &mut [Box<dyn Contender>], rules: Rules) -> Result<Vec<Series>> {
    let mut turns = Vec::with_capacity(contenders.len());
    for contender in &mut *contenders {
        turns.push(turns_to_fill(&mut **contender, rules.sample)?);
    }
    let mut series = vec![Series::default(); contenders.len()];
    let mut order: Vec<usize> = (0..contenders.len()).collect();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for _ in 0..rules.rounds {
        // Not a rotation: that would give each contender the same neighbour every time.
        random.shuffle(&mut order);
        for &at in &order {
            if rules.warm {
                contenders[at].sample(1)?;
            }
            let took = contenders[at].sample(turns[at])?;
            series[at].push(took.as_secs_f64() / f64::from(turns[at]));
        }
    }
    Ok(series)
}

fn turns_to_fill(contender: &mut dyn Contender, sample: Duration) -> Result<u32> {
    const MOST: u32 = 1 << 20;
    let mut turns = 1;
    contender.sample(turns)?;
    while turns < MOST && contender.sample(turns)? < sample {
        turns *= 2;
    }
    Ok(turns)
}

/// A small generator (xorshift64*, Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled",
/// 2016): all runs get the same numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Fills `bytes` with random bytes, which do not resemble the poison.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    pub(crate) fn shuffle<T>(&mut self, order: &mut [T]) {
        for last in (1..order.len()).rev() {
            let other = self.next() % (last as u64 + 1);
            order.swap(last, other as usize);
        }
    }
}

/// The byte that fills destinations before a copy is verified.
pub(crate) const POISON: u8 = 0xA5;

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Duration, Vec<u32>);

    impl Contender for Fixed {
        fn name(&self) -> &str {
            "fixed"
        }

        fn sample(&mut self, turns: u32) -> Result<Duration> {
            self.1.push(turns);
            Ok(self.0 * turns)
        }

        fn verify(&mut self) -> Result<bool> {
            Ok(true)
        }
    }

    #[test]
    fn short_operations_are_repeated_and_long_ones_are_not() -> Result<()> {
        let us = Duration::from_micros;
        assert_eq!(turns_to_fill(&mut Fixed(us(1), Vec::new()), us(100))?, 128);
        assert_eq!(turns_to_fill(&mut Fixed(us(200), Vec::new()), us(100))?, 1);
        Ok(())
    }

    #[test]
    fn a_sample_is_the_time_of_one_operation() -> Result<()> {
        let us = Duration::from_micros;
        let mut contenders: Vec<Box<dyn Contender>> = vec![
            Box::new(Fixed(us(2), Vec::new())),
            Box::new(Fixed(us(500), Vec::new())),
        ];
        let rules = Rules {
            rounds: 5,
            sample: us(100),
            warm: true,
        };
        let series = run(&mut contenders, rules)?;
        assert_eq!(series[0].len(), 5);
        assert!((series[0].median() - 2e-6).abs() < 1e-12);
        assert!((series[1].median() - 5e-4).abs() < 1e-12);
        Ok(())
    }

    #[test]
    fn a_shuffled_order_keeps_everybody() {
        let mut order: Vec<usize> = (0..9).collect();
        let mut random = Random(1);
        random.shuffle(&mut order);
        order.sort_unstable();
        assert_eq!(order, (0..9).collect::<Vec<_>>());
    }
}
