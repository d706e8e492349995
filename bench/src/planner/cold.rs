//! `planner/cold`: the time of making a plan that is not in the cache.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use transload::{Backend, MemoryId};
use transload_core::{
    Compared, Correction, Curve, Limits, LinkId, PlanKey, Timing, Topology, plan,
};
use transload_testkit::sim::Sim;
use transload_testkit::topology;

use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, Random, Rules};

const LIMIT_S: f64 = 100e-6;

/// Makes plans with the costs of the description, each a straight line.
pub(super) fn with_default_costs(effort: Effort) -> Result<Outcome> {
    let machine = eight_gpus()?;
    let keys = keys(&machine);
    slowest_of("planner/cold-defaults", machine, &keys, LIMIT_S, effort)
}

/// Makes plans with costs such as a profile has: a curve through ten timings for each link, with its uncertainty, and
/// corrections of the routes that are chosen for three sizes.
pub(super) fn with_curves(effort: Effort) -> Result<Outcome> {
    let mut machine = eight_gpus()?;
    let keys = keys(&machine);
    let mut random = Random(8);
    let mut about = |ns: u64| ns * (95 + random.next() % 11) / 100;
    let links: Vec<(LinkId, Curve)> = { machine.links().iter() }
        .map(|link| (link.id, link.cost.clone()))
        .collect();
    for (id, cost) in links {
        let sizes = (8..=26).step_by(2).map(|log2| 1 << log2);
        let timing = |bytes| Timing {
            bytes,
            ns: about(cost.at(bytes)),
        };
        let timings: Vec<Timing> = sizes.map(timing).collect();
        machine.set_cost(id, Curve::through(&timings)?, 51);
    }
    for key in &keys {
        let plans = plan(&machine, key, &Limits::default(), &|_| None)?;
        let sizes = [1 << 12, 1 << 20, 1 << 26];
        let compared = sizes.map(|bytes| Compared::new(bytes, 100, about(100)));
        for bytes in sizes {
            let route = plans.choose(bytes).links().collect();
            machine.set_correction(route, Correction::new(&compared));
        }
    }
    slowest_of("planner/cold", machine, &keys, LIMIT_S, effort)
}

/// Every pair of memories, without files.
fn keys(machine: &Topology) -> Vec<PlanKey> {
    let memories: Vec<MemoryId> = machine.memories().iter().map(|memory| memory.id).collect();
    let pairs = memories
        .iter()
        .flat_map(|src| memories.iter().map(move |dst| (*src, *dst)));
    pairs
        .filter(|(src, dst)| src != dst && !src.kind.is_file() && !dst.kind.is_file())
        .map(|(src, dst)| PlanKey::copy(src, dst))
        .filter(|key| plan(machine, key, &Limits::default(), &|_| None).is_ok())
        .collect()
}

/// Makes plans for all keys; the time of the slowest one is compared with the limit.
pub(super) fn slowest_of(
    case: &str,
    machine: Topology,
    keys: &[PlanKey],
    limit_s: f64,
    effort: Effort,
) -> Result<Outcome> {
    let machine = Arc::new(machine);
    let slowest = slowest(&machine, keys).context("the machine has links")?;
    let planning = |name: &str| -> Box<dyn Contender> {
        Box::new(Planning {
            name: name.to_owned(),
            machine: Arc::clone(&machine),
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
    let mut outcome = Outcome::new(case, &series[0]);
    outcome.src = Some(slowest.src.to_string());
    outcome.dst = Some(slowest.dst.to_string());
    outcome.baselines.insert("again".into(), series[1].median());
    outcome.noise = series[0].difference(&series[1]);
    outcome.verified = contenders[0].verify()?;
    let of = format!("slowest of {} pairs", keys.len());
    let verdict = Verdict::at_most(of, outcome.transload_s, limit_s, "s");
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
    machine: Arc<Topology>,
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
                black_box(&*self.machine),
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
