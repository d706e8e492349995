//! `waiting/growth-*`: the cost of a copy next to many transfers that wait or have ended.

use std::sync::Arc;
use std::time::Instant as Clock;

use anyhow::Result;
use transload::{
    AllocSpec, Buffer, Instant, Place, Request, StagingBudget, Transfer, TransferManager,
};
use transload_testkit::sim::{Completion, Sim};
use transload_testkit::topology;

use super::beside;
use crate::case::{Effort, Outcome};
use crate::series::Series;

pub(super) const COUNTS: [usize; 6] = [10, 100, 1000, 10_000, 100_000, 1_000_000];

/// The length of each copy.
const LEN: usize = 64;

/// The length of each copy that wants a slot, the largest number of copies with a part of one, and the number of timed
/// copies.
const STAGED: u64 = 4 << 10;
const SLOTS: usize = 1024;
const SAMPLES: usize = 64;

/// The state of the other transfers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Others {
    /// Each waits for an event, and has a deadline.
    Wait,
    /// All but one with a deadline have ended.
    Ended,
}

pub(super) fn run(
    name: &str,
    count: usize,
    others: Others,
    effort: Effort,
) -> Result<Vec<Outcome>> {
    let crowd = Crowd::new(count, others)?;
    let told = format!("{count} others");
    let mut outcome = beside::run(name.to_owned(), &crowd.manager, &told, LEN, effort)?;
    outcome.verified &= crowd.finish()?;
    Ok(vec![outcome])
}

/// Transfers of a byte each, next to the measured copies.
struct Crowd {
    manager: TransferManager,
    dst: Buffer,
    /// The transfers that wait.
    held: Vec<Transfer>,
}

impl Crowd {
    fn new(count: usize, others: Others) -> Result<Crowd> {
        let manager = TransferManager::builder().host().build()?;
        let src = manager.adopt(vec![1u8; count])?;
        let dst = manager.adopt(vec![0u8; count])?;
        let gate = manager.event();
        let submit = |at: u64| {
            let request = Request::new(src.slice(at..=at)?, dst.slice(at..=at)?);
            Ok(manager.submit(&request.after(&gate).deadline(Instant(u64::MAX))))
        };
        let held = (0..count as u64).map(submit);
        let mut held = held.collect::<Result<Vec<Transfer>>>()?;
        if others == Others::Ended {
            gate.set();
            for transfer in held.drain(..) {
                transfer.wait()?;
            }
            let never = manager.event();
            let request = Request::new(src.slice(..1)?, dst.slice(..1)?).after(&never);
            held.push(manager.submit(&request.deadline(Instant(u64::MAX))));
        }
        Ok(Crowd { manager, dst, held })
    }

    /// Cancels the transfers that wait. Returns whether the bytes of the others arrived.
    fn finish(self) -> Result<bool> {
        let moved = if self.held.len() == 1 { 1 } else { 0 };
        for transfer in self.held {
            transfer.cancel();
        }
        Ok(self.dst.read()?.iter().all(|byte| *byte == moved))
    }
}

/// The time of submitting and cancelling a transfer behind `count` others that wait for staging slots. The machine is
/// simulated, and no bytes move meanwhile.
pub(super) fn queue(name: &str, count: usize) -> Result<Vec<Outcome>> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../topologies/workstation.toml"
    );
    let machine = topology::from_file(path)?;
    let sim = Sim::builder(&machine)
        .completion(Completion::Timed)
        .build()?;
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::new(sim.clone()))
        .staging(Arc::new(StagingBudget::new(1 << 20)))
        .build()?;
    let len = STAGED * (count as u64 + 1);
    let [src, dst] = ["sim:0", "sim:1"].map(|at| -> Result<Buffer> {
        let place: Place = at.parse()?;
        Ok(manager.allocate(place, AllocSpec::bytes(len))?)
    });
    let (src, dst) = (src?, dst?);
    let submit = |at: u64| {
        let range = at * STAGED..(at + 1) * STAGED;
        Ok(manager.copy(src.slice(range.clone())?, dst.slice(range)?))
    };
    let held = (0..count as u64).map(submit);
    let held = held.collect::<Result<Vec<Transfer>>>()?;
    let samples = (0..SAMPLES).map(|_| {
        let begin = Clock::now();
        submit(count as u64)?.cancel();
        Ok(begin.elapsed().as_secs_f64())
    });
    let samples = samples.collect::<Result<Series>>()?;
    let mut outcome = Outcome::new(name, &samples);
    let waiting = held.iter().filter(|transfer| !transfer.is_over());
    outcome.verified = waiting.count() + SLOTS >= count && sim.violations().is_empty();
    held.into_iter().for_each(|transfer| {
        transfer.cancel();
    });
    Ok(vec![outcome])
}
