//! `overhead/post-4KiB`: a prepared copy, posted and waited for, over the copy alone.

use std::time::{Duration, Instant};

use anyhow::Result;
use transload::{Buffer, Prepared, Request, TransferManager};

use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, POISON, Random, Rules};

const LEN: usize = 4 << 10;
const LIMIT_S: f64 = 500e-9;

pub(super) fn run(effort: Effort) -> Result<Outcome> {
    let post = Post::new()?;
    let (src, dst) = (post.src.clone(), post.dst.clone());
    let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(post)];
    for name in ["memcpy", "memcpy, again"] {
        let (src, dst) = (src.clone(), dst.clone());
        contenders.push(Box::new(Memcpy { name, src, dst }));
    }
    let rules = Rules {
        rounds: effort.rounds,
        sample: Duration::from_millis(1),
        warm: true,
    };
    let series = contest::run(&mut contenders, rules)?;
    let mut outcome = Outcome::new("overhead/post-4KiB", &series[0]);
    outcome.src = Some(src.memory().to_string());
    outcome.dst = Some(dst.memory().to_string());
    outcome.bytes = LEN as u64;
    for (contender, series) in contenders.iter().zip(&series).skip(1) {
        outcome
            .baselines
            .insert(contender.name().to_owned(), series.median());
    }
    outcome.noise = series[1].difference(&series[2]);
    outcome.verified = true;
    for contender in &mut contenders {
        outcome.verified &= contender.verify()?;
    }
    let over = series[0].median() - series[1].median();
    let verdict = Verdict::at_most("over the copy", over, LIMIT_S, "s");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(outcome)
}

/// A prepared 4 KiB copy; also what `overhead::features` times in two builds.
pub(super) struct Post {
    src: Buffer,
    dst: Buffer,
    prepared: Prepared,
}

impl Post {
    pub(super) fn new() -> Result<Post> {
        let manager = TransferManager::builder().host().build()?;
        let mut bytes = vec![0u8; LEN];
        Random(4).fill(&mut bytes);
        let src = manager.adopt(bytes)?;
        let dst = manager.adopt(vec![POISON; LEN])?;
        let prepared = manager.prepare(&Request::new(&src, &dst))?;
        Ok(Post { src, dst, prepared })
    }
}

impl Contender for Post {
    fn name(&self) -> &str {
        "post and wait"
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..turns {
            self.prepared.post().wait()?;
        }
        Ok(begin.elapsed())
    }

    fn verify(&mut self) -> Result<bool> {
        self.dst.write()?.fill(POISON);
        self.prepared.post().wait()?;
        Ok(*self.dst.read()? == *self.src.read()?)
    }
}

struct Memcpy {
    name: &'static str,
    src: Buffer,
    dst: Buffer,
}

impl Contender for Memcpy {
    fn name(&self) -> &str {
        self.name
    }

    fn sample(&mut self, turns: u32) -> Result<Duration> {
        let (src, mut dst) = (self.src.read()?, self.dst.write()?);
        let begin = Instant::now();
        for _ in 0..turns {
            std::hint::black_box(&mut *dst).copy_from_slice(std::hint::black_box(&src));
        }
        Ok(begin.elapsed())
    }

    fn verify(&mut self) -> Result<bool> {
        self.dst.write()?.fill(POISON);
        self.sample(1)?;
        Ok(*self.dst.read()? == *self.src.read()?)
    }
}
