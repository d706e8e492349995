//! `planner/cold`: the time of making a plan that is not in the cache.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use transload::{Backend, MemoryId, MemoryKind};
use transload_core::{Limits, PlanKey, Topology, plan};
use transload_testkit::sim::Sim;
use transload_testkit::topology;

use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, Rules};

const LIMIT_S: f64 = 100e-6;

/// Makes plans for every pair of memories; the slowest pair is compared with the limit.
pub(super) fn run(effort: Effort) -> Result<Outcome> {
    let machine = eight_gpus()?;
    let memories: Vec<MemoryId> = machine.memories().iter().map(|memory| memory.id).collect();
    let pairs = memories
        .iter()
        .flat_map(|src| memories.iter().map(move |dst| (*src, *dst)));
    let keys: Vec<PlanKey> = pairs
        .filter(|(src, dst)| {
            src != dst && src.kind != MemoryKind::File && dst.kind != MemoryKind::File
        })
        .map(|(src, dst)| PlanKey::copy(src, dst))
        .filter(|key| plan(&machine, key, &Limits::default(), &|_| None).is_ok())
        .collect();
    let slowest = slowest(&machine, &keys).context("the machine has links")?;
    let planning = |name: &str| -> Box<dyn Contender> {
        Box::new(Planning {
            name: name.to_owned(),
            machine: machine.clone(),
            key: slowest,
        })
    };
    let mut contenders = vec![planning("cold"), planning("cold, again")];
    let rules = Rules {
        rounds: effort.rounds,
        sample: Duration::from_millis(2),
        warm: true,
    };
    let series = contest::run(&mut contenders, rules)?;
    let mut outcome = Outcome::new("planner/cold", &series[0]);
    outcome.src = Some(slowest.src.to_string());
    outcome.dst = Some(slowest.dst.to_string());
    outcome.baselines.insert("again".into(), series[1].median());
    outcome.noise = series[0].difference(&series[1]);
    outcome.verified = contenders[0].verify()?;
    let of = format!("slowest of {} pairs", keys.len());
    let verdict = Verdict::at_most(of, outcome.transload_s, LIMIT_S, "s");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(outcome)
}

/// The pair whose plan takes longest, by the least of several times each.
fn slowest(machine: &Topology, keys: &[PlanKey]) -> Option<PlanKey> {
    let took = |key: &PlanKey| {
        let once = |_| {
            let begin = Instant::now();
            let plans = plan(black_box(machine), key, &Limits::default(), &|_| None);
            let took = begin.elapsed();
            drop(black_box(plans));
            took
        };
        (0..20).map(once).min()
    };
    keys.iter().copied().max_by_key(|key| took(key))
}

fn eight_gpus() -> Result<Topology> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/eight-gpu.toml");
    let sim = Sim::new(&topology::from_file(path)?)?;
    let mut machine = Topology::new();
    machine.add(sim.inventory())?;
    Ok(machine)
}

struct Planning {
    name: String,
    machine: Topology,
    key: PlanKey,
}

impl Contender for Planning {
    fn name(&self) -> &str {
        &self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..turns {
            let plans = plan(
                black_box(&self.machine),
                black_box(&self.key),
                &Limits::default(),
                &|_| None,
            );
            black_box(&plans);
        }
        Ok(begin.elapsed())
    }

    fn verify(&mut self) -> Result<bool> {
        match plan(&self.machine, &self.key, &Limits::default(), &|_| None) {
            Ok(plans) => Ok(!plans.ranges().is_empty()),
            Err(error) => bail!("{error}"),
        }
    }
}
