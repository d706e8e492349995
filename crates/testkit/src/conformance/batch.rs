//! Independent copies that are submitted in one call.

use std::collections::HashSet;

use transload_hal::{Fence, Link, Op, SubmitError};

use super::bench::{
    Bench, Case, CaseError, CaseResult, arrow, copy, ensure, fail, inverse, nowhere,
};
use super::harness::posing_as;

/// More copies than the smallest batch of any backend.
const PIECES: u64 = 40;
const LEN: u64 = 64;
/// Apart from each other, so that no two of them touch one word.
const STEP: u64 = 128;

pub(super) fn cases(bench: &Bench<'_>) -> Vec<Case> {
    let on = |link: &Link| {
        let of = link.clone();
        Case::new("submit/each", arrow(link), move |bench| batch(bench, &of))
    };
    bench.links().iter().map(on).collect()
}

/// Each copy gets its own answer, in order. Each copy has a fence of its own unless it was done at once. Each copy
/// arrives even if another one is refused.
fn batch(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let len = PIECES * STEP;
    let src = bench.make(link.id.src, len)?;
    let dst = bench.make(link.id.dst, len)?;
    let payload = bench.pattern(len);
    let poison = inverse(&payload);
    bench.fill(&src, 0, &payload)?;
    bench.fill(&dst, 0, &poison)?;
    let stranger = posing_as(nowhere(), LEN);
    let refused = (PIECES / 3) as usize;
    let mut ops: Vec<Op<'_>> = (0..PIECES)
        .map(|i| copy((&src, i * STEP), (&dst, i * STEP), LEN))
        .collect();
    ops[refused] = copy((&src, 0), (&stranger, 0), LEN);
    let mut told: Vec<Result<Fence, SubmitError>> = Vec::new();
    let mut hear = |answer| told.push(answer);
    // SAFETY: operands lie within their buffers, which are kept until all fences have settled, and no copy touches
    // another's bytes.
    unsafe { bench.backend().submit_each(link.id, &ops, &mut hear) };
    let buffers = [&src, &dst, &stranger];
    let mut fences = Vec::new();
    for (index, answer) in told.iter().enumerate() {
        match answer {
            Ok(fence) => {
                bench.note(*fence);
                fences.push(*fence);
            }
            Err(SubmitError::Unsupported { .. }) if index != refused => {
                settle(bench, &fences, &buffers)?;
                return Err(CaseError::Skip(
                    "one of the copies is not for this link".into(),
                ));
            }
            Err(error) if index != refused => {
                settle(bench, &fences, &buffers)?;
                return fail(format!("copy {index} was refused: {error}"));
            }
            Err(_) => {}
        }
    }
    let open = fences.iter().filter(|fence| !fence.is_immediate());
    let distinct: HashSet<Fence> = open.clone().copied().collect();
    let all_distinct = distinct.len() == open.count();
    let count = (told.len(), fences.len());
    // In reverse order: waiting for one fence must not hide the others.
    fences.reverse();
    settle(bench, &fences, &buffers)?;
    ensure(all_distinct, || "two copies have one fence".into())?;
    ensure(count == (ops.len(), ops.len() - 1), || {
        format!(
            "of {} copies {} were answered, {} with a fence",
            ops.len(),
            count.0,
            count.1
        )
    })?;
    let mut wanted = poison;
    for (index, at) in (0..PIECES).map(|i| (i * STEP) as usize).enumerate() {
        if index != refused {
            let piece = at..at + LEN as usize;
            wanted[piece.clone()].copy_from_slice(&payload[piece]);
        }
    }
    bench.compare("the pieces", &bench.read(&dst, 0, len)?, &wanted)
}

fn settle(bench: &Bench<'_>, fences: &[Fence], buffers: &[&transload_hal::Buffer]) -> CaseResult {
    fences
        .iter()
        .try_for_each(|fence| bench.done(*fence, buffers))
}
