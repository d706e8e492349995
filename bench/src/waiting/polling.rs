//! `waiting/loop-*`: a loop that polls whether a copy is over and then sleeps, compared with `wait`.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::endpoints::Endpoints;
use super::pause::pause;
use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, Rules};
use crate::series::Series;
use crate::way::Way;

const TICK: Duration = Duration::from_millis(5);
/// How much longer than `wait` the loop may take, apart from its last sleep.
const FACTOR: f64 = 1.05;
/// Copies of this size take long, so few samples must be enough.
const ROUNDS: usize = 16;

pub(super) fn run(name: &str, endpoints: Endpoints, effort: Effort) -> Result<Outcome> {
    let endpoints = Rc::new(endpoints);
    let way = |name: &str, turn: fn(&Endpoints) -> Result<()>| {
        let [turned, poisoned, checked] = [(); 3].map(|()| Rc::clone(&endpoints));
        Way::boxed(
            name,
            move || turn(&turned),
            move || poisoned.poison(),
            move || checked.are_equal(),
        )
    };
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        way("loop", asked),
        way("wait", Endpoints::moved),
        way("wait, again", Endpoints::moved),
    ];
    let rules = Rules {
        rounds: effort.rounds.min(ROUNDS),
        sample: Duration::from_millis(1),
        warm: false,
    };
    let series = contest::run(&mut contenders, rules)?;
    let sleeps: Series = (0..2 * ROUNDS).map(|_| one_sleep()).collect();
    let mut outcome = Outcome::new(name, &series[0]);
    endpoints.describe(&mut outcome);
    for (contender, series) in contenders.iter().zip(&series).skip(1) {
        let name = contender.name().to_owned();
        outcome.baselines.insert(name, series.median());
    }
    let (asleep, tick) = (sleeps.median(), TICK.as_secs_f64());
    outcome.baselines.insert("sleep of 5 ms".into(), asleep);
    outcome.noise = series[1].difference(&series[2]);
    outcome.verified = true;
    for contender in &mut contenders {
        outcome.verified &= contender.verify()?;
    }
    // One sleep may begin just before the copy ends, and the system wakes the thread later than asked.
    let limit = series[1].median() * FACTOR + tick.max(asleep);
    let of = "a loop with sleeps of 5 ms:";
    let verdict = Verdict::at_most(of, series[0].median(), limit, "s");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(outcome)
}

/// Copies like a program that shows its progress.
fn asked(endpoints: &Endpoints) -> Result<()> {
    let transfer = endpoints.submit();
    while !transfer.is_over() {
        std::hint::black_box(transfer.progress());
        pause(TICK);
    }
    transfer.wait()?;
    Ok(())
}

fn one_sleep() -> f64 {
    let begin = Instant::now();
    pause(TICK);
    begin.elapsed().as_secs_f64()
}
