//! `waiting/growth-chain-*`: copies of the same bytes behind one event, and the time of another thread's copy beside them.

use std::time::Instant as Clock;

use anyhow::Result;
use transload::{Buffer, Request, Transfer, TransferManager};

use super::batch::Other;
use super::endpoints::payload;
use crate::case::{Effort, Outcome, Verdict};
use crate::contest::POISON;
use crate::series::Series;

pub(super) const COUNTS: [usize; 6] = [10, 100, 1000, 10_000, 100_000, 1_000_000];

/// Bytes of each copy of a chain, and of another thread's.
const EACH: usize = 64;
const BESIDE: usize = 4 << 10;

/// As many posts are timed: the last ones of a chain.
const POSTS: usize = 64;

/// Copies of all rounds of a case: a chain of a million takes seconds.
const COPIES: usize = 1_000_000;

const LIMIT_S: f64 = 5e-3;

pub(super) fn run(name: &str, count: usize, effort: Effort) -> Result<Vec<Outcome>> {
    let scene = Scene::new()?;
    let rounds = effort.rounds.min(10).min(COPIES / count).max(1);
    let mut found = Found::default();
    for _ in 0..rounds {
        found.ended(&scene, count)?;
        found.cancelled(&scene, count)?;
    }
    Ok(found.outcomes(name))
}

/// Where all copies of all chains go.
struct Scene {
    manager: TransferManager,
    src: Buffer,
    dst: Buffer,
}

/// The results of all rounds.
#[derive(Default)]
struct Found {
    /// One of the last posts of a chain.
    post: Series,
    /// The call that starts a chain.
    set: Series,
    /// From that call to the end of the chain, for each copy.
    end: Series,
    /// The call that cancels a copy of a chain, in no order.
    cancel: Series,
    /// The longest copy of another thread: beside the posts, a chain that runs, and cancels.
    beside: [Series; 3],
    /// The same beside a thread that computes as long as a chain runs and uses no manager.
    alone: Series,
    is_wrong: bool,
}

impl Scene {
    fn new() -> Result<Scene> {
        let manager = TransferManager::builder().host().build()?;
        let src = manager.adopt(payload(EACH))?;
        let dst = manager.adopt(vec![POISON; EACH])?;
        Ok(Scene { manager, src, dst })
    }

    /// Submits `count` copies behind an event. Returns them, and the function that sets the event.
    fn chain(
        &self,
        count: usize,
        mut post: impl FnMut(f64),
    ) -> Result<(Vec<Transfer>, transload::Event)> {
        let gate = self.manager.event();
        let request = Request::new(&self.src, &self.dst);
        let copies = self.manager.prepare(&request)?;
        let mut transfers = Vec::with_capacity(count);
        transfers.push(self.manager.submit(&request.after(&gate)));
        for at in 1..count {
            let begin = Clock::now();
            transfers.push(copies.post());
            if at + POSTS >= count {
                post(begin.elapsed().as_secs_f64());
            }
        }
        Ok((transfers, gate))
    }
}

impl Found {
    /// A chain whose copies all end.
    fn ended(&mut self, scene: &Scene, count: usize) -> Result<()> {
        scene.dst.write()?.fill(POISON);
        let other = Other::start(&scene.manager, BESIDE)?;
        let (transfers, gate) = scene.chain(count, |seconds| self.post.push(seconds))?;
        self.beside[0].push(other.stop()?.as_secs_f64());

        let other = Other::start(&scene.manager, BESIDE)?;
        let begin = Clock::now();
        gate.set();
        self.set.push(begin.elapsed().as_secs_f64());
        for transfer in transfers {
            transfer.wait()?;
        }
        let took = begin.elapsed().as_secs_f64();
        self.beside[1].push(other.stop()?.as_secs_f64());
        self.end.push(took / count as f64);
        self.is_wrong |= *scene.dst.read()? != *scene.src.read()?;

        let other = Other::start(&scene.manager, BESIDE)?;
        let begin = Clock::now();
        while begin.elapsed().as_secs_f64() < took {
            std::hint::spin_loop();
        }
        self.alone.push(other.stop()?.as_secs_f64());
        Ok(())
    }

    /// A chain whose copies are cancelled, all but the first one.
    fn cancelled(&mut self, scene: &Scene, count: usize) -> Result<()> {
        scene.dst.write()?.fill(POISON);
        let (transfers, gate) = scene.chain(count, |_| ())?;
        let mut transfers: Vec<Option<Transfer>> = transfers.into_iter().map(Some).collect();
        let other = Other::start(&scene.manager, BESIDE)?;
        for at in 0..count {
            // 7,919 is a prime that divides no count.
            let at = at * 7919 % count;
            if let Some(transfer) = transfers[at].take_if(|_| at > 0) {
                let begin = Clock::now();
                let answer = transfer.cancel();
                self.cancel.push(begin.elapsed().as_secs_f64());
                self.is_wrong |= !matches!(answer, transload::Cancelled::NotStarted);
            }
        }
        self.beside[2].push(other.stop()?.as_secs_f64());
        gate.set();
        for transfer in transfers.into_iter().flatten() {
            transfer.wait()?;
        }
        self.is_wrong |= *scene.dst.read()? != *scene.src.read()?;
        Ok(())
    }

    fn outcomes(&self, name: &str) -> Vec<Outcome> {
        let outcome = |of: &str, series: &Series| {
            let mut outcome = Outcome::new(format!("{name}/{of}"), series);
            outcome.bytes = EACH as u64;
            outcome.verified = !self.is_wrong;
            outcome
        };
        let beside = |of: &str, series: &Series| {
            let mut outcome = outcome(of, series);
            outcome.bytes = BESIDE as u64;
            let alone = self.alone.median();
            let name = "longest copy beside work without a manager";
            outcome.baselines.insert(name.into(), alone);
            // A machine that delays the other thread even without a manager gets no verdict.
            outcome.noise = alone / LIMIT_S;
            let of = "longest copy of another thread:";
            let verdict = Verdict::at_most(of, series.median(), LIMIT_S, "s");
            outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
            outcome
        };
        let [posts, ends, cancels] = &self.beside;
        vec![
            outcome("post", &self.post),
            outcome("set", &self.set),
            outcome("end", &self.end),
            outcome("cancel", &self.cancel),
            beside("beside-posts", posts),
            beside("beside-ends", ends),
            beside("beside-cancels", cancels),
        ]
    }
}
