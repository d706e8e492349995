//! `waiting/threads-*`: what threads that wait for transfers which cannot start cost another thread's copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use transload::{Buffer, Event, Request, TransferManager};

use super::ends::payload;
use super::pause::pause;
use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{self, Contender, POISON, Rules};
use crate::way::Way;

const LENS: [(&str, usize); 2] = [("4KiB", 4 << 10), ("4MiB", 4 << 20)];
/// Informs: no promise of the library has this number.
const LIMIT: f64 = 1.5;
/// The length of each transfer that is waited for.
const HELD: usize = 64;
/// A waiting thread calls a few functions deep.
const STACK: usize = 256 << 10;

pub(super) fn run(name: &str, count: usize, effort: Effort) -> Result<Vec<Outcome>> {
    let crowd = Crowd::new(count)?;
    let alone = TransferManager::builder().host().build()?;
    let outcomes = LENS.map(|(size, len)| {
        let mut contenders = vec![
            copies("beside waiting threads", &crowd.manager, len)?,
            copies("alone", &alone, len)?,
            copies("alone, again", &alone, len)?,
        ];
        let rules = Rules {
            rounds: effort.rounds,
            sample: Duration::from_millis(1),
            warm: true,
        };
        let series = contest::run(&mut contenders, rules)?;
        let mut outcome = Outcome::new(format!("{name}/{size}"), &series[0]);
        outcome.bytes = len as u64;
        for (contender, series) in contenders.iter().zip(&series).skip(1) {
            let name = contender.name().to_owned();
            outcome.baselines.insert(name, series.median());
        }
        outcome.noise = series[1].difference(&series[2]);
        outcome.verified = true;
        for contender in &mut contenders {
            outcome.verified &= contender.verify()?;
        }
        let ratio = series[0].median() / series[1].median();
        let of = format!("of the time without {count} waiting threads:");
        let verdict = Verdict::at_most(of, ratio, LIMIT, "");
        outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
        Ok(outcome)
    });
    let mut outcomes = outcomes.into_iter().collect::<Result<Vec<Outcome>>>()?;
    let arrived = crowd.release()?;
    for outcome in &mut outcomes {
        outcome.verified &= arrived;
    }
    Ok(outcomes)
}

/// Copies of that length, each waited for.
fn copies(name: &str, manager: &TransferManager, len: usize) -> Result<Box<dyn Contender>> {
    let src = manager.adopt(payload(len))?;
    let dst = manager.adopt(vec![POISON; len])?;
    let (poisoned, checked, manager) = (dst.clone(), dst.clone(), manager.clone());
    let turn = move || {
        manager.copy(&src, &dst).wait()?;
        Ok(())
    };
    let poison = move || {
        poisoned.write()?.fill(POISON);
        Ok(())
    };
    let check = move || Ok(*checked.read()? == *payload(len));
    Ok(Way::boxed(name, turn, poison, check))
}

/// Threads that each wait for a transfer of their own.
struct Crowd {
    manager: TransferManager,
    gate: Event,
    src: Buffer,
    dsts: Vec<Buffer>,
    threads: Vec<JoinHandle<bool>>,
}

impl Crowd {
    fn new(count: usize) -> Result<Crowd> {
        let manager = TransferManager::builder().host().build()?;
        let gate = manager.event();
        let src = manager.adopt(payload(HELD))?;
        let waiting = Arc::new(AtomicUsize::new(0));
        let (mut dsts, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let dst = manager.adopt(vec![POISON; HELD])?;
            let transfer = manager.submit(&Request::new(&src, &dst).after(&gate));
            dsts.push(dst);
            let waiting = Arc::clone(&waiting);
            let thread = thread::Builder::new().stack_size(STACK).spawn(move || {
                waiting.fetch_add(1, Ordering::SeqCst);
                transfer.wait().is_ok()
            });
            threads.push(thread?);
        }
        while waiting.load(Ordering::SeqCst) < count {
            thread::yield_now();
        }
        // From the count to the park each thread has a few microseconds to go.
        pause(Duration::from_millis(200));
        Ok(Crowd {
            manager,
            gate,
            src,
            dsts,
            threads,
        })
    }

    /// Lets the transfers go. Answers whether all bytes arrived.
    fn release(self) -> Result<bool> {
        self.gate.set();
        let mut arrived = true;
        for thread in self.threads {
            arrived &= thread
                .join()
                .map_err(|_| anyhow!("a waiting thread panicked"))?;
        }
        for dst in &self.dsts {
            arrived &= *dst.read()? == *self.src.read()?;
        }
        Ok(arrived)
    }
}
