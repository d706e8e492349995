//! `cuda/submit-4KiB`: the cost of submitting a copy, beyond the driver's calls that it makes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use transload::{AllocSpec, Buffer, Prepared, Request, TransferManager};
use transload_cuda::Cuda;

use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, POISON, Random, Rules};
use crate::raw::driver::MACHINE;
use crate::raw::driver::{Bare, double};

const LEN: usize = 4 << 10;
const LIMIT_S: f64 = 2e-6;

pub(super) fn run(effort: Effort) -> Result<Outcome> {
    let post = Post::new()?;
    let (src, dst) = (post.src.memory().to_string(), post.dst.memory().to_string());
    let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(post)];
    for name in ["driver", "driver, again"] {
        let bare = Bare::new(double(MACHINE), LEN)?;
        contenders.push(Box::new(Calls { name, bare }));
    }
    let rules = Rules {
        rounds: effort.rounds,
        sample: Duration::from_micros(500),
        warm: true,
    };
    let series = contest::run(&mut contenders, rules)?;
    let mut outcome = Outcome::new("cuda/submit-4KiB", &series[0]);
    (outcome.src, outcome.dst) = (Some(src), Some(dst));
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
    let over = series[0].median() - series[1].median();
    let verdict = Verdict::at_most("over the driver's calls", over, LIMIT_S, "s");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(outcome)
}

/// A prepared copy out of pinned memory. Only the submission is timed.
struct Post {
    src: Buffer,
    dst: Buffer,
    prepared: Prepared,
    manager: TransferManager,
}

impl Post {
    fn new() -> Result<Post> {
        let devices = Cuda::with_driver(double(MACHINE))?;
        let builder = TransferManager::builder().host();
        let manager = builder.backend(Arc::new(devices)).build()?;
        let mut bytes = vec![0u8; LEN];
        Random(4).fill(&mut bytes);
        let spec = AllocSpec::bytes(LEN as u64);
        let src = manager.allocate("cpu:0/pinned".parse()?, spec)?;
        let dst = manager.allocate("cuda:0".parse()?, spec)?;
        manager.copy_from_slice(&bytes, &src)?;
        let prepared = manager.prepare(&Request::new(&src, &dst))?;
        Ok(Post {
            src,
            dst,
            prepared,
            manager,
        })
    }
}

impl Contender for Post {
    fn name(&self) -> &str {
        "transload"
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let mut spent = Duration::ZERO;
        for _ in 0..turns {
            let begin = Instant::now();
            let posted = self.prepared.post();
            spent += begin.elapsed();
            posted.wait()?;
        }
        Ok(spent)
    }

    fn verify(&mut self) -> Result<bool> {
        self.manager.copy_from_slice(&[POISON; LEN], &self.dst)?;
        self.prepared.post().wait()?;
        let mut found = [[0; LEN]; 2];
        self.manager.copy_into_slice(&self.src, &mut found[0])?;
        self.manager.copy_into_slice(&self.dst, &mut found[1])?;
        Ok(found[0] == found[1])
    }
}

/// A copy, and an event after it.
struct Calls {
    name: &'static str,
    bare: Bare,
}

impl Contender for Calls {
    fn name(&self) -> &str {
        self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let mut spent = Duration::ZERO;
        for _ in 0..turns {
            let begin = Instant::now();
            self.bare.up(0, LEN)?;
            self.bare.record()?;
            spent += begin.elapsed();
            self.bare.wait()?;
        }
        Ok(spent)
    }

    fn verify(&mut self) -> Result<bool> {
        let mut bytes = vec![0u8; LEN];
        Random(9).fill(&mut bytes);
        self.bare.write(&bytes)?;
        self.bare.up(0, LEN)?;
        self.bare.wait()?;
        self.bare.write(&[POISON; LEN])?;
        self.bare.down(0, LEN)?;
        self.bare.wait()?;
        Ok(self.bare.read() == bytes)
    }
}
