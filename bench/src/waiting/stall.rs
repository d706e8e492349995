//! `waiting/stall-*`: the delay of other transfers' outcomes while one operation does not end.
//!
//! The operation lasts as long as the measurement. A manager without such an operation takes part in every round, so
//! that the machine's part of the delay can be subtracted from the library's.

// Only Linux has pages that block.
#[cfg(target_os = "linux")]
mod blocked;
mod held;
mod lateness;
mod scene;

use anyhow::Result;

use crate::case::{Case, Effort, Outcome, Verdict};
use crate::contest::Random;
use crate::series::Series;
use held::{HANDLES, Held, Operation};
use lateness::{KINDS, lateness};
use scene::Scene;

const LIMIT_S: f64 = 5e-3;

pub(super) fn cases() -> Vec<Case> {
    let stall = |word: &str, operations: &'static [(Operation, &'static str)]| {
        Case::where_possible(format!("waiting/stall-{word}"), move |name, effort| {
            let mut outcomes = Vec::new();
            for (operation, part) in operations {
                outcomes.extend(run(&format!("{name}{part}"), *operation, effort)?);
            }
            Ok(outcomes)
        })
    };
    vec![
        #[cfg(target_os = "linux")]
        stall("page", &[(Operation::Page, "")]),
        #[cfg(target_os = "linux")]
        stall("file", &[(Operation::File, "")]),
        #[cfg(target_os = "linux")]
        stall(
            "device",
            &[(Operation::Adapter, "/wgpu"), (Operation::Cuda, "/cuda")],
        ),
        stall("plain", &[(Operation::Plain, "")]),
    ]
}

fn run(name: &str, operation: Operation, effort: Effort) -> Result<Option<Outcome>> {
    let free = Scene::new();
    let mut random = Random(9);
    let mut late = [(); KINDS.len()].map(|()| Series::default());
    let mut usual = late.clone();
    let mut verified = true;
    // For each treatment of its handle: each makes another thread work on it.
    for handle in HANDLES {
        let scene = Scene::new();
        let Some(held) = Held::begin(operation, &scene, handle)? else {
            return Ok(None);
        };
        for _ in 0..effort.rounds {
            for (scene, series) in [(&scene, &mut late), (&free, &mut usual)] {
                let found = lateness(scene, &mut random)?;
                for (series, one) in series.iter_mut().zip(found) {
                    series.push(one.as_secs_f64());
                }
            }
        }
        verified &= held.finish(&scene)?;
    }
    let mut outcome = Outcome::new(name, &late[0]);
    outcome.verified = verified;
    let mut verdicts = Vec::new();
    for ((kind, late), usual) in KINDS.iter().zip(&late).zip(&usual) {
        let worst = |series: &Series| series.spread()[1];
        let medians = Verdict::at_most(format!("{kind}:"), late.median(), LIMIT_S, "s");
        verdicts.push(medians);
        let figures = [
            ("slowest", worst(late)),
            ("without a stall", usual.median()),
            ("without a stall, slowest", worst(usual)),
        ];
        for (what, figure) in figures {
            outcome.baselines.insert(format!("{kind}, {what}"), figure);
        }
    }
    let mut verdicts = verdicts.into_iter();
    outcome.verdict = verdicts.next();
    outcome.further = verdicts.collect();
    Ok(Some(outcome))
}
