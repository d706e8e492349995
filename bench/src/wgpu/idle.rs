//! `wgpu-idle`: how often any thread of the process woke up in 5 s after work.

use anyhow::Result;
use transload::AllocSpec;

use super::gpu::twice;
use crate::case::Outcome;
use crate::quiet;

pub(super) fn run(case: &str) -> Result<Option<Vec<Outcome>>> {
    let Some((manager, opened, foreign)) = twice()? else {
        return Ok(None);
    };
    const LEN: usize = 1 << 20;
    let src = manager.adopt(vec![7u8; LEN])?;
    let back = manager.adopt(vec![0u8; LEN])?;
    for gpu in [&opened, &foreign] {
        let there = manager.allocate(gpu.default_place(), AllocSpec::bytes(LEN as u64))?;
        for _ in 0..100 {
            manager.copy(&src, &there).wait()?;
            // A detached transfer and a future make the manager's own thread work, too.
            drop(manager.copy(&src, &there));
            pollster::block_on(manager.copy(&there, &back))?;
        }
    }
    manager.wait_idle();
    let verified = *back.read()? == *src.read()?;
    let outcome = quiet::watch(case)?;
    Ok(outcome.map(|outcome| {
        vec![Outcome {
            verified,
            ..outcome
        }]
    }))
}
