//! `waiting/idle-host`: how often any thread of the process wakes up in 5 s after work on the host.

use anyhow::Result;
use transload::TransferManager;

use super::endpoints::payload;
use crate::case::Outcome;
use crate::quiet;

/// Copied by the submitting thread, and by the pool.
const LENS: [usize; 2] = [4 << 10, 8 << 20];

pub(super) fn run(case: &str) -> Result<Vec<Outcome>> {
    let manager = TransferManager::builder().host().build()?;
    let mut verified = true;
    for len in LENS {
        let src = manager.adopt(payload(len))?;
        let there = manager.adopt(vec![0u8; len])?;
        let back = manager.adopt(vec![0u8; len])?;
        for _ in 0..100 {
            manager.copy(&src, &there).wait()?;
            // A detached transfer and a future make the manager's own thread work, too.
            drop(manager.copy(&src, &there));
            pollster::block_on(manager.copy(&there, &back))?;
        }
        manager.wait_idle();
        verified &= *back.read()? == *src.read()?;
    }
    let outcome = quiet::watch(case)?;
    let outcome = outcome.map(|outcome| Outcome {
        verified,
        ..outcome
    });
    Ok(outcome.into_iter().collect())
}
