//! `overhead/allocations-*`: with a cached plan no thread of the process allocates.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use transload::{AllocSpec, Buffer, Place, Prepared, Request, TransferManager};
use transload_testkit::sim::{Completion, Sim};
use transload_testkit::topology;

use crate::case::{Effort, Outcome, Verdict};
use crate::contest::{POISON, Random};
use crate::raw::counting::allocations;
use crate::series::Series;

/// Copied inline, by the pool, and in several chunks.
const LENS: [usize; 3] = [4 << 10, 2 << 20, 80 << 20];
/// Transfers of each length in one round.
const TURNS: usize = 8;
/// Uncounted rounds at the start: threads start and lists grow in the first ones.
const WARM: usize = 4;

/// Adopted vectors on the real machine.
pub(super) fn on_the_host(effort: Effort) -> Result<Outcome> {
    let manager = TransferManager::builder().host().build()?;
    let pairs = LENS.map(|len| {
        let mut bytes = vec![0u8; len];
        Random(len as u64).fill(&mut bytes);
        anyhow::Ok((manager.adopt(bytes)?, manager.adopt(vec![POISON; len])?))
    });
    let pairs = pairs.into_iter().collect::<Result<Vec<_>>>()?;
    let equal = |src: &Buffer, dst: &Buffer| Ok(*src.read()? == *dst.read()?);
    count("overhead/allocations-host", &manager, &pairs, effort, equal)
}

/// Between two GPUs that reach each other, and two that do not, of simulated machines.
pub(super) fn on_the_sim(effort: Effort) -> Result<Outcome> {
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
        .build()?;
    let pairs = LENS.map(|len| {
        let spec = AllocSpec::bytes(len as u64);
        let src = manager.allocate("sim:0".parse::<Place>()?, spec)?;
        let mut bytes = vec![0u8; len];
        Random(len as u64).fill(&mut bytes);
        sim.write(src.raw(), 0, &bytes)?;
        anyhow::Ok((src, manager.allocate("sim:1".parse::<Place>()?, spec)?))
    });
    let pairs = pairs.into_iter().collect::<Result<Vec<_>>>()?;
    let equal = |src: &Buffer, dst: &Buffer| {
        let read = |buffer: &Buffer| -> Result<Vec<u8>> {
            let mut bytes = vec![0u8; buffer.len() as usize];
            sim.read(buffer.raw(), 0, &mut bytes)?;
            Ok(bytes)
        };
        Ok(read(src)? == read(dst)?)
    };
    count("overhead/allocations-sim", &manager, &pairs, effort, equal)
}

fn count(
    case: &str,
    manager: &TransferManager,
    pairs: &[(Buffer, Buffer)],
    effort: Effort,
    equal: impl Fn(&Buffer, &Buffer) -> Result<bool>,
) -> Result<Outcome> {
    let prepare = |(src, dst): &(Buffer, Buffer)| manager.prepare(&Request::new(src, dst));
    let prepared = pairs.iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..WARM {
        round(manager, pairs, &prepared)?;
    }
    let mut times = Series::default();
    let mut fewest = u64::MAX;
    for _ in 0..effort.rounds {
        let before = allocations();
        let begin = Instant::now();
        round(manager, pairs, &prepared)?;
        let took = begin.elapsed();
        // The system decides which round first needs a second thread, and so starts it: the promise covers the rounds
        // after that.
        fewest = fewest.min(allocations() - before);
        times.push(took.as_secs_f64() / (pairs.len() * TURNS * 2) as f64);
    }
    let mut outcome = Outcome::new(case, &times);
    let (src, dst) = pairs.first().context("there are pairs")?;
    outcome.src = Some(src.memory().to_string());
    outcome.dst = Some(dst.memory().to_string());
    outcome.bytes = LENS.iter().sum::<usize>() as u64;
    outcome.verified = true;
    for (src, dst) in pairs {
        outcome.verified &= equal(src, dst)?;
    }
    let of = format!("in {} transfers", pairs.len() * TURNS * 2);
    outcome.verdict = Some(Verdict::at_most(of, fewest as f64, 0.0, "allocations"));
    Ok(outcome)
}

/// Each copy as a prepared one and as an ordinary one, several in flight at once.
fn round(
    manager: &TransferManager,
    pairs: &[(Buffer, Buffer)],
    prepared: &[Prepared],
) -> Result<()> {
    for (post, (src, dst)) in prepared.iter().zip(pairs) {
        for _ in 0..TURNS {
            let first = post.post();
            let second = manager.copy(src, dst);
            first.wait()?;
            second.wait()?;
        }
    }
    Ok(())
}
