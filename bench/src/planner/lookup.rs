//! `planner/lookup`: the lookup of a cached plan, and of its part for a size.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use transload::{Backend, Method};
use transload_core::{Limits, PlanCache, PlanKey, Topology, plan};
use transload_host::Host;

use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, Rules};

const LIMIT_S: f64 = 50e-9;

/// A cache as full as that of a manager with the host alone, which knows all pairs of its memories.
pub(super) fn run(effort: Effort) -> Result<Outcome> {
    let mut contenders = vec![lookup("look-up")?, lookup("look-up, again")?];
    let rules = Rules {
        rounds: effort.rounds,
        sample: Duration::from_millis(1),
        warm: true,
    };
    let series = contest::run(&mut contenders, rules)?;
    let mut outcome = Outcome::new("planner/lookup", &series[0]);
    outcome.baselines.insert("again".into(), series[1].median());
    outcome.noise = series[0].difference(&series[1]);
    outcome.verified = contenders[0].verify()?;
    let verdict = Verdict::at_most("a look-up", outcome.transload_s, LIMIT_S, "s");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(outcome)
}

struct Lookup {
    name: &'static str,
    cache: PlanCache,
    keys: Vec<PlanKey>,
}

fn lookup(name: &'static str) -> Result<Box<dyn Contender>> {
    let mut machine = Topology::new();
    machine.add(Host::new().inventory())?;
    let mut cache = PlanCache::default();
    let mut keys = Vec::new();
    let memories = || machine.memories().iter().map(|memory| memory.id);
    for (src, dst) in memories().flat_map(|src| memories().map(move |dst| (src, dst))) {
        let key = PlanKey::copy(src, dst);
        let plans = plan(&machine, &key, &Limits::default(), &|_| None);
        cache.insert(key, Arc::new(plans.ok().context("every pair has a plan")?));
        keys.push(key);
    }
    Ok(Box::new(Lookup { name, cache, keys }))
}

impl Contender for Lookup {
    fn name(&self) -> &str {
        self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let mut keys = self.keys.iter().cycle();
        let begin = Instant::now();
        for turn in 0..turns {
            let key = keys.next().context("there are keys")?;
            let plans = self.cache.get(black_box(key)).context("it was kept")?;
            // Sizes from every range.
            black_box(plans.choose(black_box(u64::from(turn) << 8)));
        }
        Ok(begin.elapsed())
    }

    fn verify(&mut self) -> Result<bool> {
        let plans = self.cache.get(&self.keys[0]).context("it was kept")?;
        Ok(plans.choose(64).method == Method::DirectCopy)
    }
}
