//! Contenders that take turns, until a deadline.

use std::time::{Duration, Instant};

use anyhow::{Error, Result};

use crate::raw::memory::Random;
use crate::series::Series;

/// A contender, whose operations are timed.
pub(crate) trait Contender {
    /// Its name in the results.
    fn name(&self) -> &str;

    /// Does the operation `turns` times, back to back, and returns the total time. Work before and after is not timed.
    fn sample(&mut self, turns: u32) -> Result<Duration>;

    /// Poisons the destination, does the operation once, and checks every byte by another way than it was written.
    /// Returns true for an operation that moves no bytes.
    fn verify(&mut self) -> Result<bool>;
}

/// An error and its causes, each of them once: the driver's errors name the call as well as the result.
pub(crate) fn reason(error: &Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = text + ": " + &cause;
        }
    }
    text
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
    /// The end of the run.
    pub(crate) end: Instant,
}

/// The result of a contest.
pub(crate) struct Contest {
    /// One for each contender, in the order given.
    pub(crate) series: Vec<Series>,
    /// The number of operations of each contender in a sample.
    pub(crate) turns: Vec<u32>,
    /// The reason why there are fewer rounds than the rules demand.
    pub(crate) cut: Option<String>,
}

/// Runs all contenders once in each round, in an order that changes from round to round. Does not begin a round that
/// would not fit before the end, nor a contest that would not fit by its first samples.
pub(crate) fn run(contenders: &mut [Box<dyn Contender>], rules: Rules) -> Result<Contest> {
    let mut contest = Contest {
        series: vec![Series::default(); contenders.len()],
        turns: Vec::with_capacity(contenders.len()),
        cut: None,
    };
    let mut round = Duration::ZERO;
    for contender in &mut *contenders {
        let (turns, took) = turns_to_fill(&mut **contender, rules.sample)?;
        contest.turns.push(turns);
        round += took
            + if rules.warm {
                took / turns
            } else {
                Duration::ZERO
            };
    }
    let rounds = u32::try_from(rules.rounds).unwrap_or(u32::MAX);
    contest.cut = unfit(round.saturating_mul(rounds), rules.end);
    let mut order: Vec<usize> = (0..contenders.len()).collect();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for done in 0..rules.rounds {
        if contest.cut.is_some() {
            break;
        }
        // Not a rotation: that would give each contender the same neighbour every time.
        random.shuffle(&mut order);
        for &at in &order {
            if rules.warm {
                contenders[at].sample(1)?;
            }
            let turns = contest.turns[at];
            let took = contenders[at].sample(turns)?;
            contest.series[at]
                .0
                .push(took.as_secs_f64() / f64::from(turns));
        }
        let more = rules.rounds - done - 1;
        let late = if more > 0 {
            unfit(round, rules.end)
        } else {
            None
        };
        contest.cut =
            late.map(|why| format!("{why}, after {} of {} rounds", done + 1, rules.rounds));
    }
    Ok(contest)
}

/// The reason why work of that duration does not fit any more, if it does not.
pub(crate) fn unfit(needs: Duration, end: Instant) -> Option<String> {
    let left = end.saturating_duration_since(Instant::now());
    (needs > left).then(|| {
        let (needs, left) = (needs.as_secs_f64(), left.as_secs_f64());
        format!("it needs about {needs:.1} s, and {left:.1} s are left")
    })
}

/// The number of operations that fill a sample, and the time that they take with all untimed work. The untimed work may
/// take much longer than the operation, so it counts too, at a quarter.
fn turns_to_fill(contender: &mut dyn Contender, sample: Duration) -> Result<(u32, Duration)> {
    const MOST: u32 = 1 << 16;
    let mut turns = 1;
    contender.sample(turns)?;
    loop {
        let begin = Instant::now();
        let timed = contender.sample(turns)?;
        let took = begin.elapsed().max(timed);
        if turns >= MOST || timed >= sample || took / 4 >= sample {
            return Ok((turns, took));
        }
        turns *= 2;
    }
}

/// A contender of a few lines.
pub(crate) struct Way {
    name: String,
    prepare: Option<Step>,
    turn: Step,
    poison: Step,
    check: Check,
}

/// One step of a contender.
pub(crate) type Step = Box<dyn FnMut() -> Result<()>>;
/// Checks the result.
pub(crate) type Check = Box<dyn FnMut() -> Result<bool>>;

impl Way {
    /// `turn` does the operation once and returns when it is done; `poison` overwrites the destination before, and
    /// `check` checks every byte of it.
    pub(crate) fn boxed(
        name: impl Into<String>,
        turn: impl FnMut() -> Result<()> + 'static,
        poison: impl FnMut() -> Result<()> + 'static,
        check: impl FnMut() -> Result<bool> + 'static,
    ) -> Box<dyn Contender> {
        Box::new(Way {
            name: name.into(),
            prepare: None,
            turn: Box::new(turn),
            poison: Box::new(poison),
            check: Box::new(check),
        })
    }

    /// The same with an untimed step before each turn.
    pub(crate) fn prepared(
        name: impl Into<String>,
        prepare: impl FnMut() -> Result<()> + 'static,
        turn: impl FnMut() -> Result<()> + 'static,
        poison: impl FnMut() -> Result<()> + 'static,
        check: impl FnMut() -> Result<bool> + 'static,
    ) -> Box<dyn Contender> {
        Box::new(Way {
            name: name.into(),
            prepare: Some(Box::new(prepare)),
            turn: Box::new(turn),
            poison: Box::new(poison),
            check: Box::new(check),
        })
    }
}

impl Contender for Way {
    fn name(&self) -> &str {
        &self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let Some(prepare) = &mut self.prepare else {
            let begin = Instant::now();
            for _ in 0..turns {
                (self.turn)()?;
            }
            return Ok(begin.elapsed());
        };
        let mut took = Duration::ZERO;
        for _ in 0..turns {
            prepare()?;
            let begin = Instant::now();
            (self.turn)()?;
            took += begin.elapsed();
        }
        Ok(took)
    }

    fn verify(&mut self) -> Result<bool> {
        (self.poison)()?;
        if let Some(prepare) = &mut self.prepare {
            prepare()?;
        }
        (self.turn)()?;
        (self.check)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Duration, u32);

    impl Contender for Fixed {
        fn name(&self) -> &str {
            "fixed"
        }

        fn sample(&mut self, turns: u32) -> Result<Duration> {
            self.1 += 1;
            Ok(self.0 * turns)
        }

        fn verify(&mut self) -> Result<bool> {
            Ok(true)
        }
    }

    fn rules(left: Duration) -> Rules {
        Rules {
            rounds: 5,
            sample: Duration::from_micros(100),
            warm: true,
            end: Instant::now() + left,
        }
    }

    #[test]
    fn a_sample_is_the_time_of_one_operation() -> Result<()> {
        let us = Duration::from_micros;
        let mut contenders: Vec<Box<dyn Contender>> =
            vec![Box::new(Fixed(us(2), 0)), Box::new(Fixed(us(500), 0))];
        let contest = run(&mut contenders, rules(Duration::from_secs(3600)))?;
        assert_eq!(contest.cut, None);
        assert_eq!(contest.turns, [64, 1]);
        assert_eq!(contest.series[0].0.len(), 5);
        let median = |of: usize| contest.series[of].median().unwrap();
        assert!((median(0) - 2e-6).abs() < 1e-12);
        assert!((median(1) - 5e-4).abs() < 1e-12);
        Ok(())
    }

    /// The contender reports ten minutes, and takes no time.
    #[test]
    fn what_does_not_fit_is_not_begun() -> Result<()> {
        let mut contenders: Vec<Box<dyn Contender>> =
            vec![Box::new(Fixed(Duration::from_secs(600), 0))];
        let contest = run(&mut contenders, rules(Duration::from_secs(3600)))?;
        let why = contest.cut.unwrap();
        // Five rounds of ten minutes, each with an untimed operation.
        assert!(why.starts_with("it needs about 6000.0 s, and "), "{why}");
        assert!(contest.series[0].0.is_empty());
        Ok(())
    }

    #[test]
    fn what_is_prepared_comes_before_each_turn() -> Result<()> {
        use std::cell::RefCell;
        use std::rc::Rc;
        let done: Rc<RefCell<String>> = Rc::default();
        let step = |letter: char| {
            let done = Rc::clone(&done);
            move || {
                done.borrow_mut().push(letter);
                Ok(())
            }
        };
        let mut way = Way::prepared("way", step('p'), step('t'), step('x'), || Ok(true));
        way.sample(2)?;
        assert!(way.verify()?);
        assert_eq!(*done.borrow(), "ptptxpt");
        Ok(())
    }
}
