//! `waiting/batch-*`: many small transfers at once, and the time of another thread's copy meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use transload::{Batch, Buffer, OnFailure, Request, TransferManager};

use super::endpoints::payload;
use crate::case::{Effort, Outcome, Verdict};
use crate::contest::POISON;
use crate::series::Series;

/// Bytes of each transfer.
const EACH: usize = 64;
const LIMIT_S: f64 = 5e-3;
/// A round of 100,000 transfers takes a fraction of a second.
const ROUNDS: usize = 10;

pub(super) fn run(name: &str, count: usize, effort: Effort) -> Result<Vec<Outcome>> {
    let scene = Scene::new(count)?;
    let rounds = effort.rounds.min(ROUNDS);
    let mut copied = Found::default();
    let mut set = Found::default();
    for _ in 0..rounds {
        let batch = || Ok(scene.manager.copy_batch(&scene.requests, OnFailure::GoOn)?);
        scene.dst.write()?.fill(POISON);
        copied.round(&scene, batch)?;
        // Before the transfers are submitted: they would hold up the guard.
        scene.dst.write()?.fill(POISON);
        let event = scene.manager.event();
        let after = |request: &Request| request.clone().after(&event);
        let held: Vec<Request> = scene.requests.iter().map(after).collect();
        let batch = scene.manager.copy_batch(&held, OnFailure::GoOn)?;
        set.round(&scene, || {
            event.set();
            Ok(batch)
        })?;
    }
    Ok(vec![
        copied.outcome(format!("{name}/copy_batch"), &scene),
        set.outcome(format!("{name}/event"), &scene),
    ])
}

/// The results of the rounds of one way.
#[derive(Default)]
struct Found {
    /// Seconds for each transfer.
    each: Series,
    /// The longest copy of another thread in each round.
    longest: Series,
    /// The same beside a thread that computes as long and uses no manager.
    beside: Series,
    /// Rounds in which a byte was wrong.
    wrong: usize,
}

impl Found {
    /// Times `begin` and the wait for its batch, and the other thread's copies from call to end.
    fn round(&mut self, scene: &Scene, begin: impl FnOnce() -> Result<Batch>) -> Result<()> {
        let other = Other::start(&scene.manager, EACH)?;
        let began = Instant::now();
        for result in begin()?.wait() {
            result?;
        }
        let took = began.elapsed();
        self.longest.push(other.stop()?.as_secs_f64());
        self.each
            .push(took.as_secs_f64() / scene.requests.len() as f64);
        self.wrong += usize::from(*scene.dst.read()? != *scene.src.read()?);

        let other = Other::start(&scene.manager, EACH)?;
        let began = Instant::now();
        while began.elapsed() < took {
            std::hint::spin_loop();
        }
        self.beside.push(other.stop()?.as_secs_f64());
        Ok(())
    }

    fn outcome(&self, name: String, scene: &Scene) -> Outcome {
        let mut outcome = Outcome::new(name, &self.each);
        outcome.src = Some(scene.src.memory().to_string());
        outcome.dst = Some(scene.dst.memory().to_string());
        outcome.bytes = EACH as u64;
        let alone = self.beside.median();
        let figures = [
            ("longest copy, worst round", self.longest.spread()[1]),
            ("longest copy beside work without a manager", alone),
            ("the same, worst round", self.beside.spread()[1]),
        ];
        outcome.baselines = figures.map(|(name, figure)| (name.into(), figure)).into();
        // A machine that delays the other thread even without a manager gets no verdict.
        outcome.noise = alone / LIMIT_S;
        outcome.verified = self.wrong == 0;
        let of = "longest copy of another thread:";
        let verdict = Verdict::at_most(of, self.longest.median(), LIMIT_S, "s");
        outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
        outcome
    }
}

/// One block for all sources, one for all destinations.
struct Scene {
    manager: TransferManager,
    src: Buffer,
    dst: Buffer,
    requests: Vec<Request>,
}

impl Scene {
    fn new(count: usize) -> Result<Scene> {
        let manager = TransferManager::builder().host().build()?;
        let len = count * EACH;
        let src = manager.adopt(payload(len))?;
        let dst = manager.adopt(vec![POISON; len])?;
        let request = |at: usize| {
            let part = at as u64..(at + EACH) as u64;
            Ok(Request::new(src.slice(part.clone())?, dst.slice(part)?))
        };
        let requests = (0..len).step_by(EACH).map(request).collect::<Result<_>>()?;
        Ok(Scene {
            manager,
            src,
            dst,
            requests,
        })
    }
}

/// Another thread that copies again and again.
pub(super) struct Other {
    must_stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Duration>>,
}

impl Other {
    /// Returns when the thread has copied once.
    pub(super) fn start(manager: &TransferManager, len: usize) -> Result<Other> {
        let src = manager.adopt(payload(len))?;
        let dst = manager.adopt(vec![POISON; len])?;
        let must_stop = Arc::new(AtomicBool::new(false));
        let (manager, stop) = (manager.clone(), Arc::clone(&must_stop));
        let (tell, told) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            manager.copy(&src, &dst).wait()?;
            let _ = tell.send(());
            let mut longest = Duration::ZERO;
            // At least once, however short the round is.
            loop {
                let begin = Instant::now();
                manager.copy(&src, &dst).wait()?;
                longest = longest.max(begin.elapsed());
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            anyhow::ensure!(
                *dst.read()? == *src.read()?,
                "another thread's bytes differ"
            );
            Ok(longest)
        });
        // An error means that the thread has failed; `stop` reports the error.
        let _ = told.recv();
        Ok(Other { must_stop, thread })
    }

    /// The longest copy.
    pub(super) fn stop(self) -> Result<Duration> {
        self.must_stop.store(true, Ordering::Relaxed);
        let joined = self.thread.join();
        joined.map_err(|_| anyhow!("the other thread panicked"))?
    }
}
