//! `staging/peak`: the most staging memory that 64 concurrent transfers hold.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use transload::{AllocSpec, Buffer, Place, Request, StagingBudget, Transfer, TransferManager};
use transload_host::Host;
use transload_testkit::sim::{Completion, Sim};
use transload_testkit::topology;

use crate::case::{Case, Effort, Outcome, Verdict};
use crate::contest::{POISON, Random};
use crate::series::Series;

const TRANSFERS: usize = 64;
const LEN: usize = 16 << 20;
/// The process's default, which has room for four whole payloads of the 64.
const BUDGET: u64 = transload::model::defaults::STAGING_BUDGET_BYTES;
/// Sources lie a page apart in one buffer, so that no two payloads are equal.
const STRIDE: usize = 4096;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("staging/peak-sim", on_the_sim),
        Case::new("staging/peak-host", on_the_host),
    ]
}

/// From one GPU to another that it cannot reach, by way of pinned host memory.
fn on_the_sim(_: Effort) -> Result<Outcome> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../topologies/workstation.toml"
    );
    let machine = topology::from_file(path)?;
    let sim = Sim::builder(&machine)
        .completion(Completion::Timed)
        .build()?;
    let budget = Arc::new(StagingBudget::new(BUDGET));
    let manager = TransferManager::builder()
        .clock(Arc::new(sim.clock()))
        .backend(Arc::new(sim.clone()))
        .staging(Arc::clone(&budget))
        .build()?;
    let bytes = payload();
    let src = manager.allocate(
        "sim:0".parse::<Place>()?,
        AllocSpec::bytes(bytes.len() as u64),
    )?;
    sim.write(src.raw(), 0, &bytes)?;
    let poison = vec![POISON; LEN];
    let mut dsts = Vec::with_capacity(TRANSFERS);
    for _ in 0..TRANSFERS {
        let dst = manager.allocate("sim:1".parse::<Place>()?, AllocSpec::bytes(LEN as u64))?;
        sim.write(dst.raw(), 0, &poison)?;
        dsts.push(dst);
    }
    let transfers = submit(&manager, &src, &dsts, false)?;
    let waited = finish(transfers)?;
    let mut verified = sim.violations().is_empty();
    let mut back = vec![0u8; LEN];
    for (i, dst) in dsts.iter().enumerate() {
        sim.read(dst.raw(), 0, &mut back)?;
        verified &= back == bytes[i * STRIDE..][..LEN];
    }
    // The memory that the simulated machine allocated outside the two GPUs: the slots alone.
    let on_host = sim.memory_use().into_iter();
    let seen: u64 = on_host
        .filter(|pool| pool.memory.device == transload::DeviceId::CPU0)
        .map(|pool| pool.peak_bytes)
        .sum();
    let peak = budget.peak_bytes().max(seen);
    ensure!(peak > 0, "the transfers were not staged");
    Ok(outcome(
        ("staging/peak-sim", &src, &dsts[0]),
        waited,
        peak,
        verified,
    ))
}

/// From a file to memory with verification, which reads the file again through slots.
fn on_the_host(_: Effort) -> Result<Outcome> {
    let budget = Arc::new(StagingBudget::new(BUDGET));
    let manager = TransferManager::builder()
        .backend(Arc::new(Host::new()))
        .staging(Arc::clone(&budget))
        .build()?;
    let bytes = payload();
    let path = std::env::temp_dir().join(format!("transload-bench-{}", std::process::id()));
    std::fs::write(&path, &bytes).with_context(|| path.display().to_string())?;
    let src = manager.open_file(&path);
    // An open file survives without a name, and a failure must not leave the name behind.
    std::fs::remove_file(&path)?;
    let src = src?;
    let mut dsts = Vec::with_capacity(TRANSFERS);
    for _ in 0..TRANSFERS {
        dsts.push(manager.adopt(vec![POISON; LEN])?);
    }
    let transfers = submit(&manager, &src, &dsts, true)?;
    let waited = finish(transfers)?;
    let mut verified = true;
    for (i, dst) in dsts.iter().enumerate() {
        verified &= *dst.read()? == bytes[i * STRIDE..][..LEN];
    }
    let peak = budget.peak_bytes();
    ensure!(peak > 0, "the transfers were not staged");
    Ok(outcome(
        ("staging/peak-host", &src, &dsts[0]),
        waited,
        peak,
        verified,
    ))
}

fn payload() -> Vec<u8> {
    let mut bytes = vec![0u8; LEN + (TRANSFERS - 1) * STRIDE];
    Random(64).fill(&mut bytes);
    bytes
}

/// Submits all transfers before it waits for any.
fn submit(
    manager: &TransferManager,
    src: &Buffer,
    dsts: &[Buffer],
    verify: bool,
) -> Result<(Instant, Vec<Transfer>)> {
    let begin = Instant::now();
    let mut transfers = Vec::with_capacity(dsts.len());
    for (i, dst) in dsts.iter().enumerate() {
        let at = (i * STRIDE) as u64;
        let request = Request::new(src.slice(at..at + LEN as u64)?, dst);
        let request = if verify { request.verify() } else { request };
        transfers.push(manager.submit(&request));
    }
    Ok((begin, transfers))
}

/// The time for each transfer, if they ran one after the other.
fn finish((begin, transfers): (Instant, Vec<Transfer>)) -> Result<Series> {
    let count = transfers.len() as f64;
    for transfer in transfers {
        transfer.wait()?;
    }
    Ok(Series::from_iter([begin.elapsed().as_secs_f64() / count]))
}

fn outcome(
    (case, src, dst): (&str, &Buffer, &Buffer),
    time: Series,
    peak: u64,
    verified: bool,
) -> Outcome {
    let mut outcome = Outcome::new(case, &time);
    outcome.src = Some(src.memory().to_string());
    outcome.dst = Some(dst.memory().to_string());
    outcome.bytes = LEN as u64;
    outcome.verified = verified;
    let of = format!("peak of {TRANSFERS} transfers");
    outcome.verdict = Some(Verdict::at_most(of, peak as f64, BUDGET as f64, "B"));
    outcome
}
