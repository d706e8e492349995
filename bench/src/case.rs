//! Benchmarks and their outcomes.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use crate::series::Series;

/// One benchmark.
pub(crate) struct Case {
    /// The name that `--case` matches.
    pub(crate) name: String,
    /// Runs it. Blocks for seconds.
    pub(crate) run: Box<dyn Fn(Effort) -> Result<Vec<Outcome>>>,
}

impl Case {
    pub(crate) fn new(
        name: impl Into<String>,
        run: impl Fn(Effort) -> Result<Outcome> + 'static,
    ) -> Case {
        Case {
            name: name.into(),
            run: Box::new(move |effort| run(effort).map(|outcome| vec![outcome])),
        }
    }

    /// A case that reports when this machine has nothing to measure.
    pub(crate) fn where_possible(
        name: String,
        run: impl Fn(&str, Effort) -> Result<Vec<Outcome>> + 'static,
    ) -> Case {
        let of = name.clone();
        Case {
            name,
            run: Box::new(move |effort| {
                let outcomes = run(&of, effort)?;
                if outcomes.is_empty() {
                    eprintln!("  skipped: this machine lacks what it needs");
                }
                Ok(outcomes)
            }),
        }
    }
}

/// How much work goes into a case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) quick: bool,
    /// Samples of each contender. The number is even, so that both halves have the same number; a half of the full
    /// effort still has more than 15, and so has the whole of the quick one.
    pub(crate) rounds: usize,
}

impl Effort {
    pub(crate) fn new(quick: bool, rounds: Option<u16>) -> Effort {
        let usual = if quick { 16 } else { 40 };
        let rounds = rounds.map_or(usual, usize::from).next_multiple_of(2);
        Effort { quick, rounds }
    }
}

/// The outcome of a case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) case: String,
    /// The place of the bytes; absent if no bytes moved.
    pub(crate) src: Option<String>,
    pub(crate) dst: Option<String>,
    pub(crate) bytes: u64,
    /// Median of the samples of Transload.
    pub(crate) transload_s: f64,
    /// The fastest and the slowest of them.
    pub(crate) spread_s: [f64; 2],
    /// Medians of the others.
    pub(crate) baselines: BTreeMap<String, f64>,
    /// Absent baselines, with the reasons.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) absent: BTreeMap<String, String>,
    /// By how much two runs of one baseline differed, as a fraction.
    pub(crate) noise: f64,
    /// Whether every byte that any contender moved was correct.
    pub(crate) verified: bool,
    /// Samples of each contender.
    pub(crate) samples: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<Verdict>,
    /// More figures of the same run that have limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) further: Vec<Verdict>,
    /// The figures of the planner's choices; they stand in the document beside the results.
    #[cfg(not(any(target_family = "wasm", transload_local)))]
    #[serde(skip)]
    pub(crate) regret: Option<crate::planner::regret::Summary>,
}

/// A figure and its limit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    /// The name of the figure.
    pub(crate) of: String,
    pub(crate) value: f64,
    pub(crate) limit: f64,
    pub(crate) unit: &'static str,
    /// Whether the value must not be below the limit; otherwise it must not be above.
    pub(crate) at_least: bool,
    /// `None` if the run was too noisy to decide.
    pub(crate) holds: Option<bool>,
}

/// Above this difference between two runs of one baseline there is no verdict.
pub(crate) const MOST_NOISE: f64 = 0.05;

impl Verdict {
    /// `value`, which the promise says is at most `limit`.
    pub(crate) fn at_most(
        of: impl Into<String>,
        value: f64,
        limit: f64,
        unit: &'static str,
    ) -> Verdict {
        Verdict {
            of: of.into(),
            value,
            limit,
            unit,
            at_least: false,
            holds: Some(value <= limit),
        }
    }

    /// `value`, which the promise says is at least `limit`.
    pub(crate) fn at_least(
        of: impl Into<String>,
        value: f64,
        limit: f64,
        unit: &'static str,
    ) -> Verdict {
        Verdict {
            at_least: true,
            holds: Some(value >= limit),
            ..Verdict::at_most(of, value, limit, unit)
        }
    }

    /// Withdraws the verdict where `noise` is too high.
    pub(crate) fn unless_noisy(mut self, noise: f64) -> Verdict {
        // A NaN counts as too much noise.
        if !matches!(noise.partial_cmp(&MOST_NOISE), Some(order) if order.is_le()) {
            self.holds = None;
        }
        self
    }
}

impl Outcome {
    /// An outcome with Transload's samples and no baseline.
    pub(crate) fn new(case: impl Into<String>, transload: &Series) -> Outcome {
        Outcome {
            case: case.into(),
            src: None,
            dst: None,
            bytes: 0,
            transload_s: transload.median(),
            spread_s: transload.spread(),
            baselines: BTreeMap::new(),
            absent: BTreeMap::new(),
            noise: 0.0,
            verified: false,
            samples: transload.len(),
            verdict: None,
            further: Vec::new(),
            #[cfg(not(any(target_family = "wasm", transload_local)))]
            regret: None,
        }
    }

    /// Whether a limit was missed, or a byte was wrong.
    pub(crate) fn misses(&self) -> bool {
        let broken = |verdict: &Verdict| verdict.holds == Some(false);
        !self.verified || self.verdicts().any(broken)
    }

    /// All verdicts of the outcome.
    pub(crate) fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.verdict.iter().chain(&self.further)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_withdraws_a_verdict_and_nothing_else_does() {
        let verdict = Verdict::at_most("time", 2.0, 1.0, "s");
        assert_eq!(verdict.clone().unless_noisy(0.05).holds, Some(false));
        assert_eq!(verdict.clone().unless_noisy(0.051).holds, None);
        assert_eq!(verdict.unless_noisy(f64::NAN).holds, None);
        assert_eq!(Verdict::at_least("rate", 1.0, 1.0, "").holds, Some(true));
    }
}
