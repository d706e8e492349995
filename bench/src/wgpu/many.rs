//! `wgpu-many`: 32 uploads of 1 MiB at once, compared with the same uploads one after the other, and with one upload of
//! all the bytes.

use anyhow::{Context, Result};
use transload::{AllocSpec, Buffer, Transfer};

use super::gpu::{Gpu, moved, twice};
use super::results::{AGAIN, REUSED, Results, judge};
use crate::case::{Effort, Outcome, Verdict};
use crate::contest::Random;
use crate::way::Way;

const EACH: usize = 1 << 20;
const COUNT: usize = 32;
/// The same uploads, each waited for before the next.
const STREAM: &str = "one stream";

pub(super) fn run(case: &str, effort: Effort) -> Result<Option<Vec<Outcome>>> {
    let Some((manager, opened, _)) = twice()? else {
        return Ok(None);
    };
    let len = EACH * COUNT;
    let mut bytes = vec![0u8; len];
    Random(len as u64).fill(&mut bytes);
    let src = manager.adopt(bytes)?;
    let dst = manager.allocate(opened.default_place(), AllocSpec::bytes(len as u64))?;
    let native = dst
        .native::<wgpu::Buffer>()
        .context("no buffer of wgpu's")?;
    let native = native.clone();
    let parts = |of: &Buffer| -> Result<Vec<Buffer>> {
        let starts = (0..len as u64).step_by(EACH);
        starts
            .map(|at| Ok(of.slice(at..at + EACH as u64)?))
            .collect()
    };
    let pairs: Vec<(Buffer, Buffer)> = parts(&src)?.into_iter().zip(parts(&dst)?).collect();

    let turns = pairs.clone();
    let way = |name: &str, turn: Box<dyn FnMut() -> Result<()>>| {
        let poison = {
            let (gpu, native) = (opened.clone(), native.clone());
            move || gpu.spoil(&native)
        };
        let (gpu, native, src) = (opened.clone(), native.clone(), src.clone());
        Way::boxed(name, turn, poison, move || holds(&gpu, &native, &src))
    };
    let together = {
        let manager = manager.clone();
        move || {
            let submit = |(src, dst): &(Buffer, Buffer)| manager.copy(src, dst);
            let transfers: Vec<Transfer> = pairs.iter().map(submit).collect();
            for transfer in transfers {
                transfer.wait()?;
            }
            Ok(())
        }
    };
    let in_turn = {
        let manager = manager.clone();
        move || {
            for (src, dst) in &turns {
                manager.copy(src, dst).wait()?;
            }
            Ok(())
        }
    };
    let mut contenders = vec![
        way("transload", Box::new(together)),
        way(STREAM, Box::new(in_turn)),
    ];
    // The name of the baseline that takes part twice in the other cases.
    for name in [REUSED, AGAIN] {
        let (manager, src, dst) = (manager.clone(), src.clone(), dst.clone());
        let turn = move || moved(&manager, &src, &dst);
        contenders.push(way(name, Box::new(turn)));
    }
    let results = Results::of(contenders, len, effort)?;
    let ends = [src.memory().to_string(), dst.memory().to_string()];
    let mut outcome = results.outcome(case, len, ends);
    let rename = |outcome: &mut Outcome, from: &str, to: &str| {
        let median = outcome.baselines.remove(from).context("it took part")?;
        outcome.baselines.insert(to.into(), median);
        anyhow::Ok(())
    };
    rename(&mut outcome, REUSED, "one transfer")?;
    rename(&mut outcome, AGAIN, "one transfer, again")?;
    let faster = 1.0 / results.over(STREAM);
    let verdicts = vec![
        Verdict::at_least("times the rate of one stream:", faster, 1.0, ""),
        Verdict::at_most("of one transfer's time:", results.over(REUSED), 1.5, ""),
    ];
    judge(&mut outcome, verdicts);
    Ok(Some(vec![outcome]))
}

fn holds(gpu: &Gpu, native: &wgpu::Buffer, src: &Buffer) -> Result<bool> {
    gpu.holds(native, &src.read()?)
}
