//! `waiting/threads-*`: the cost of threads that wait for transfers which cannot start, for another thread's copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use transload::{Buffer, Event, Request, TransferManager};

use super::beside;
use super::endpoints::payload;
use super::pause::pause;
use crate::case::{Effort, Outcome};
use crate::contest::POISON;

const LENS: [(&str, usize); 2] = [("4KiB", 4 << 10), ("4MiB", 4 << 20)];
/// The length of each held transfer.
const HELD: usize = 64;
/// A waiting thread calls a few functions deep.
const STACK: usize = 256 << 10;

pub(super) fn run(name: &str, count: usize, effort: Effort) -> Result<Vec<Outcome>> {
    let crowd = Crowd::new(count)?;
    let told = format!("{count} waiting threads");
    let outcomes = LENS.map(|(size, len)| {
        beside::run(format!("{name}/{size}"), &crowd.manager, &told, len, effort)
    });
    let mut outcomes = outcomes.into_iter().collect::<Result<Vec<Outcome>>>()?;
    let arrived = crowd.release()?;
    for outcome in &mut outcomes {
        outcome.verified &= arrived;
    }
    Ok(outcomes)
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
        // Each thread parks a few microseconds after it is counted.
        pause(Duration::from_millis(200));
        Ok(Crowd {
            manager,
            gate,
            src,
            dsts,
            threads,
        })
    }

    /// Releases the transfers. Returns whether all bytes arrived.
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
