//! `blocks/*`: blocks that lie anywhere in a pool, as in a key-value cache, gathered into one buffer. Transload's copy of
//! them is prepared once. The baselines are a loop of `memcpy` on one thread, with one copy to the adapter after it where
//! the buffer is an adapter's, and a batch of one request for each block.

use std::time::Duration;

use anyhow::Result;
use transload::{AllocSpec, Buffer, OnFailure, Region, Request, TransferManager};

use crate::case::{Case, Effort, Outcome, Verdict};
use crate::contest::{self, Contender, POISON, Random, Rules};
use crate::way::Way;
use crate::wgpu::gpu;

/// As many blocks as the caches of a few long sequences have.
const COUNT: usize = 15_000;
/// Larger blocks are fewer.
const MOST_BYTES: usize = 256 << 20;
const ROUNDS: usize = 30;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (word, block) in [("4KiB", 4 << 10), ("64KiB", 64 << 10)] {
        for (to, is_adapters) in [("heap", false), ("adapter", true)] {
            let name = format!("blocks/{to}-{word}");
            cases.push(Case::where_possible(name, move |name, effort| {
                run(name, block, is_adapters, effort)
            }));
        }
    }
    cases
}

fn run(name: &str, block: usize, is_adapters: bool, effort: Effort) -> Result<Vec<Outcome>> {
    let Some((manager, place)) = machine(is_adapters)? else {
        return Ok(Vec::new());
    };
    let count = COUNT.min(MOST_BYTES / block);
    let len = count * block;
    let mut bytes = vec![0u8; len / 3 * 4 / block * block];
    Random(7).fill(&mut bytes);
    let mut numbers: Vec<u32> = (0..(bytes.len() / block) as u32).collect();
    Random(9).shuffle(&mut numbers);
    numbers.truncate(count);
    let at = |number: &u32| *number as usize * block;
    let wanted: Vec<u8> = {
        numbers
            .iter()
            .flat_map(|number| &bytes[at(number)..][..block])
    }
    .copied()
    .collect();
    let pool = manager.adopt(bytes.clone())?;
    let dst = manager.allocate(place, AllocSpec::bytes(len as u64))?;

    let request = Request::new(Region::blocks(&pool, block as u64, &numbers)?, &dst);
    let prepared = manager.prepare(&request)?;
    let part = |of: &Buffer, at: usize| of.slice(at as u64..(at + block) as u64);
    let requests = numbers.iter().enumerate().map(|(place, number)| {
        Ok(Request::new(
            part(&pool, at(number))?,
            part(&dst, place * block)?,
        ))
    });
    let requests: Vec<Request> = requests.collect::<Result<_>>()?;

    let mut contenders = vec![way("transload", &manager, &dst, &wanted, move || {
        prepared.post().wait()?;
        Ok(())
    })];
    let own = manager.clone();
    contenders.push(way("batch", &manager, &dst, &wanted, move || {
        for result in own.copy_batch(&requests, OnFailure::GoOn)?.wait() {
            result?;
        }
        Ok(())
    }));
    let usual = match is_adapters {
        true => "memcpy, then one copy",
        false => "memcpy",
    };
    for name in [usual.to_owned(), format!("{usual}, again")] {
        let (bytes, numbers, dst, manager) =
            (bytes.clone(), numbers.clone(), dst.clone(), manager.clone());
        let staged = is_adapters
            .then(|| manager.adopt(vec![0u8; len]))
            .transpose()?;
        let turn = {
            let dst = dst.clone();
            let manager = manager.clone();
            move || {
                let mut into = staged.as_ref().unwrap_or(&dst).write()?;
                for (into, number) in into.chunks_exact_mut(block).zip(&numbers) {
                    into.copy_from_slice(&bytes[*number as usize * block..][..block]);
                }
                drop(into);
                if let Some(staged) = &staged {
                    manager.copy(staged, &dst).wait()?;
                }
                Ok(())
            }
        };
        contenders.push(way(&name, &manager, &dst, &wanted, turn));
    }
    let rules = Rules {
        rounds: effort.rounds.min(ROUNDS),
        sample: Duration::from_millis(1),
        warm: false,
    };
    let series = contest::run(&mut contenders, rules)?;
    let mut outcome = Outcome::new(name, &series[0]);
    (outcome.src, outcome.dst) = (
        Some(pool.memory().to_string()),
        Some(dst.memory().to_string()),
    );
    outcome.bytes = len as u64;
    outcome.verified = true;
    for contender in &mut contenders {
        outcome.verified &= contender.verify()?;
    }
    let median = |at: usize| series[at].median();
    let others = contenders.iter().enumerate().skip(1);
    outcome.baselines = others
        .map(|(at, other)| (other.name().to_owned(), median(at)))
        .collect();
    outcome.noise = (median(2) / median(3) - 1.0).abs();
    let of = format!("of the time of {usual}:");
    let verdict = Verdict::at_most(of, median(0) / median(2), 1.1, "");
    outcome.verdict = Some(verdict.unless_noisy(outcome.noise));
    Ok(vec![outcome])
}

/// A manager, and where the blocks go.
fn machine(is_adapters: bool) -> Result<Option<(TransferManager, transload::Place)>> {
    if is_adapters {
        let found = gpu::twice()?;
        return Ok(found.map(|(manager, opened, _)| (manager, opened.default_place())));
    }
    let manager = TransferManager::builder().host().build()?;
    Ok(Some((manager, "cpu:0".parse()?)))
}

fn way(
    name: &str,
    manager: &TransferManager,
    dst: &Buffer,
    wanted: &[u8],
    turn: impl FnMut() -> Result<()> + 'static,
) -> Box<dyn Contender> {
    let (own, spoilt, wanted) = (manager.clone(), dst.clone(), wanted.to_vec());
    let (manager, dst) = (manager.clone(), dst.clone());
    let poison = move || {
        own.copy_from_slice(&vec![POISON; spoilt.len() as usize], &spoilt)?;
        Ok(())
    };
    Way::boxed(name, turn, poison, move || {
        Ok(manager.read_to_vec(&dst)? == wanted)
    })
}
