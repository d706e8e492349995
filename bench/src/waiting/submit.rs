//! `waiting/submit-*`: the time until `copy` returns.

use std::time::Instant;

use anyhow::Result;

use super::endpoints::Endpoints;
use crate::case::{Effort, Outcome, Verdict};
use crate::series::Series;

const LIMIT_S: f64 = 100e-6;
/// Up to this size many samples cost little.
const SMALL: usize = 1 << 20;
const MANY: usize = 20;

pub(super) fn run(name: &str, endpoints: Endpoints, effort: Effort) -> Result<Outcome> {
    // The first copy of a pair chooses a plan and touches the pages.
    endpoints.moved()?;
    let rounds = match endpoints.len() {
        len if len <= SMALL => effort.rounds * MANY,
        _ => effort.rounds,
    };
    let (mut submitted, mut over) = (Series::default(), Series::default());
    for _ in 0..rounds {
        let begin = Instant::now();
        let transfer = endpoints.submit();
        submitted.push(begin.elapsed().as_secs_f64());
        transfer.wait()?;
        over.push(begin.elapsed().as_secs_f64());
    }
    let mut outcome = Outcome::new(name, &submitted);
    endpoints.describe(&mut outcome);
    // The median is the time of the call, which moves no bytes: a rate of it would mean nothing.
    outcome.bytes = 0;
    outcome
        .baselines
        .insert("copy and wait".into(), over.median());
    endpoints.poison()?;
    endpoints.moved()?;
    outcome.verified = endpoints.are_equal()?;
    let median = submitted.median();
    let verdict = Verdict::at_most("until `copy` returns:", median, LIMIT_S, "s");
    outcome.verdict = Some(verdict);
    Ok(outcome)
}
