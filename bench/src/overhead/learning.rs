//! `overhead/learning-64B`: a small copy of a manager that learns, over that of one that does not.

use std::time::{Duration, Instant};

use anyhow::Result;
use transload::{Buffer, TransferManager};

use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, POISON, Random, Rules};

const LEN: usize = 64;
const LIMIT_S: f64 = 5e-9;

pub(super) fn run(effort: Effort) -> Result<Outcome> {
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    for (name, learns) in [
        ("learning", true),
        ("not learning", false),
        ("not learning, again", false),
    ] {
        contenders.push(Box::new(Copies::new(name, learns)?));
    }
    let rules = Rules {
        rounds: effort.rounds,
        sample: Duration::from_millis(5),
        warm: true,
    };
    let series = contest::run(&mut contenders, rules)?;
    let mut outcome = Outcome::new("overhead/learning-64B", &series[0]);
    outcome.bytes = LEN as u64;
    for (contender, series) in contenders.iter().zip(&series).skip(1) {
        let name = contender.name().to_owned();
        outcome.baselines.insert(name, series.median());
    }
    outcome.noise = series[1].difference(&series[2]);
    outcome.verified = true;
    for contender in &mut contenders {
        outcome.verified &= contender.verify()?;
    }
    let without = series[1].median().min(series[2].median());
    let over = series[0].median() - without;
    let verdict = Verdict::at_most("over a manager that does not learn", over, LIMIT_S, "s");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(outcome)
}

struct Copies {
    name: &'static str,
    manager: TransferManager,
    src: Buffer,
    dst: Buffer,
}

impl Copies {
    fn new(name: &'static str, learns: bool) -> Result<Copies> {
        let manager = TransferManager::builder().host().learning(learns).build()?;
        let mut bytes = vec![0u8; LEN];
        Random(4).fill(&mut bytes);
        let src = manager.adopt(bytes)?;
        let dst = manager.adopt(vec![POISON; LEN])?;
        Ok(Copies {
            name,
            manager,
            src,
            dst,
        })
    }
}

impl Contender for Copies {
    fn name(&self) -> &str {
        self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..turns {
            self.manager.copy(&self.src, &self.dst).wait()?;
        }
        Ok(begin.elapsed())
    }

    fn verify(&mut self) -> Result<bool> {
        self.dst.write()?.fill(POISON);
        self.sample(1)?;
        Ok(*self.dst.read()? == *self.src.read()?)
    }
}
