//! The results of contests with usual code of wgpu users, and the verdicts on them.

use std::time::Duration;

use anyhow::Result;

use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, Rules};
use crate::series::Series;

/// From this size on caches keep nothing of the previous operation, and a few samples must be enough because an
/// operation takes long.
pub(super) const LARGE: usize = 64 << 20;
pub(super) const LARGE_ROUNDS: usize = 16;

/// Up to this size the fixed cost dominates.
pub(super) const SMALL: usize = 64 << 10;

pub(super) const TUTORIAL: &str = "tutorial";
pub(super) const REUSED: &str = "reused staging";
pub(super) const AGAIN: &str = "reused staging, again";
pub(super) const MEMCPY: &str = "memcpy";
pub(super) const ALLOCATED: &str = "transload, allocated";
pub(super) const FOREIGN: &str = "transload, foreign device";
pub(super) const MISALIGNED: &str = "transload, misaligned";

/// The results of a contest in which Transload was first.
pub(super) struct Results {
    pub(super) names: Vec<String>,
    pub(super) series: Vec<Series>,
    pub(super) verified: bool,
}

impl Results {
    pub(super) fn of(
        mut contenders: Vec<Box<dyn Contender>>,
        len: usize,
        effort: Effort,
    ) -> Result<Results> {
        let rounds = match len {
            len if len >= LARGE => effort.rounds.min(LARGE_ROUNDS),
            _ => effort.rounds,
        };
        let rules = Rules {
            rounds,
            sample: Duration::from_millis(1),
            warm: len < LARGE,
        };
        let series = contest::run(&mut contenders, rules)?;
        let mut verified = true;
        for contender in &mut contenders {
            let right = contender.verify()?;
            if !right {
                eprintln!("  {} moved other bytes", contender.name());
            }
            verified &= right;
        }
        let names = contenders.iter().map(|other| other.name().to_owned());
        Ok(Results {
            names: names.collect(),
            series,
            verified,
        })
    }

    /// The median of the contender called `name`; NaN if there is none.
    pub(super) fn median(&self, name: &str) -> f64 {
        let mut named = self.names.iter().zip(&self.series);
        let found = named.find(|(other, _)| *other == name);
        found.map_or(f64::NAN, |(_, series)| series.median())
    }

    /// Transload's time divided by that of `name`.
    pub(super) fn over(&self, name: &str) -> f64 {
        self.series[0].median() / self.median(name)
    }

    pub(super) fn outcome(&self, case: &str, len: usize, [src, dst]: [String; 2]) -> Outcome {
        let mut outcome = Outcome::new(case, &self.series[0]);
        outcome.src = Some(src);
        outcome.dst = Some(dst);
        outcome.bytes = len as u64;
        outcome.verified = self.verified;
        let others = self.names.iter().zip(&self.series).skip(1);
        outcome.baselines = others
            .map(|(name, series)| (name.clone(), series.median()))
            .collect();
        outcome.noise = (self.median(REUSED) / self.median(AGAIN) - 1.0).abs();
        outcome
    }

    /// The verdicts on copies between the heap and lavapipe.
    pub(super) fn verdicts(&self, len: usize, baselines: &[&str]) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        if len >= LARGE {
            let faster = 1.0 / self.over(TUTORIAL);
            verdicts.push(Verdict::at_least(
                "times the tutorial's rate:",
                faster,
                8.0,
                "",
            ));
            let of = "of memcpy's time:";
            verdicts.push(Verdict::at_most(of, self.over(MEMCPY), 1.1, ""));
            let allocated = self.median(ALLOCATED) / self.median(MEMCPY);
            let of = "allocated buffer, of memcpy's time:";
            verdicts.push(Verdict::at_most(of, allocated, 0.8, ""));
            let foreign = self.median(FOREIGN) / self.median(REUSED);
            let of = "foreign device, of reused staging's time:";
            verdicts.push(Verdict::at_most(of, foreign, 1.1, ""));
        }
        if len <= SMALL {
            let fastest = baselines.iter().map(|name| self.median(name));
            let fastest = fastest.fold(f64::INFINITY, f64::min);
            let of = "of the fastest baseline's time:";
            let ours = self.series[0].median();
            verdicts.push(Verdict::at_most(of, ours / fastest, 1.3, ""));
        }
        verdicts
    }
}

/// Gives an outcome its verdicts, unless the run was too noisy.
pub(super) fn judge(outcome: &mut Outcome, verdicts: Vec<Verdict>) {
    let noise = outcome.noise;
    let mut verdicts = verdicts
        .into_iter()
        .map(|verdict| verdict.unless_noisy(noise));
    outcome.verdict = verdicts.next();
    outcome.further = verdicts.collect();
}
