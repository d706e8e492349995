//! Submissions happen whole or not at all, and after the fences that they name.

use transload_hal::{Fence, Link, MemoryId};

use super::bench::{Bench, Case, CaseResult, arrow, copy, ensure, fail, inverse, nowhere};
use super::harness::posing_as;

pub(super) fn cases(bench: &Bench<'_>) -> Vec<Case> {
    let mut cases = vec![Case::new("submit/nothing", "the backend", nothing)];
    for link in bench.links() {
        let on = |name, run: fn(&Bench<'_>, &Link) -> CaseResult| {
            let of = link.clone();
            Case::new(name, arrow(link), move |bench| run(bench, &of))
        };
        cases.push(on("submit/atomic", atomic));
        let back = |other: &&Link| other.id.src == link.id.dst && other.id.dst == link.id.src;
        if bench.links().iter().any(|other| back(&other)) {
            cases.push(on("order/chain", chain));
            cases.push(on("order/fan-in", fan_in));
        }
    }
    cases
}

fn nothing(bench: &Bench<'_>) -> CaseResult {
    let first = bench.start(&[], &[])?;
    let second = bench.start(&[], &[first])?;
    bench.done(second, &[])?;
    bench.done(first, &[])
}

/// If one operation of a submission cannot be executed, the submission does none of them.
fn atomic(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let src = bench.make(link.id.src, 64)?;
    let dst = bench.make(link.id.dst, 64)?;
    let payload = bench.pattern(64);
    let poison = inverse(&payload);
    bench.fill(&src, 0, &payload)?;
    bench.fill(&dst, 0, &poison)?;
    let stranger = posing_as(nowhere(), 64);
    let heard = bench.heard.all().len();
    let good = copy((&src, 0), (&dst, 0), 64);
    let bad = copy((&src, 0), (&stranger, 0), 64);
    for ops in [[good, bad], [bad, good]] {
        if let Ok(fence) = bench.submit(&ops, &[]) {
            bench.keep(&[&src, &dst, &stranger]);
            let _ = bench.outcome(fence, &[]);
            return fail("an operation into a memory of no backend was accepted");
        }
    }
    for _ in 0..3 {
        bench.harness.drive();
    }
    bench.compare("the destination", &bench.read(&dst, 0, 64)?, &poison)?;
    ensure(bench.heard.all().len() == heard, || {
        "the sink heard of a refused submission".into()
    })?;
    let fence = bench.start(&[copy((&src, 0), (&dst, 0), 64)], &[])?;
    bench.done(fence, &[&src, &dst])?;
    bench.compare("afterwards", &bench.read(&dst, 0, 64)?, &payload)
}

/// A payload goes back and forth between two memories. Each step waits for the one before it and is a little shorter,
/// so that a step that does not wait overtakes.
fn chain(bench: &Bench<'_>, link: &Link) -> CaseResult {
    const STEPS: u64 = 32;
    const LEN: u64 = 4000;
    const LESS: u64 = 100;
    let memory = |step: u64| -> MemoryId {
        if step.is_multiple_of(2) {
            link.id.src
        } else {
            link.id.dst
        }
    };
    let mut buffers = Vec::new();
    for step in 0..=STEPS {
        buffers.push(bench.make(memory(step), LEN)?);
    }
    let payload = bench.pattern(LEN);
    bench.fill(&buffers[0], 0, &payload)?;
    for buffer in &buffers[1..] {
        let poison = inverse(&payload);
        bench.fill(buffer, 0, &poison)?;
    }
    let all: Vec<_> = buffers.iter().collect();
    let mut fences: Vec<Fence> = Vec::new();
    for (step, pair) in buffers.windows(2).enumerate() {
        let len = LEN - LESS * step as u64;
        let after: Vec<Fence> = fences.last().copied().into_iter().collect();
        let started = bench.start(&[copy((&pair[0], 0), (&pair[1], 0), len)], &after);
        let fence = started.inspect_err(|_| bench.keep(&all))?;
        fences.push(fence);
    }
    for &fence in fences.iter().rev() {
        bench.done(fence, &all)?;
    }
    let Some(last) = buffers.last() else {
        return fail("no buffers");
    };
    let len = LEN - LESS * (STEPS - 1);
    let seen = bench.read(last, 0, len)?;
    bench.compare("at the end of the chain", &seen, &payload[..len as usize])
}

/// Pieces arrive by submissions of their own, and one more submission waits for all of them and copies them back.
fn fan_in(bench: &Bench<'_>, link: &Link) -> CaseResult {
    const PIECES: u64 = 8;
    const LEN: u64 = 257;
    let len = PIECES * LEN;
    let src = bench.make(link.id.src, len)?;
    let middle = bench.make(link.id.dst, len)?;
    let back = bench.make(link.id.src, len)?;
    let payload = bench.pattern(len);
    let poison = inverse(&payload);
    bench.fill(&src, 0, &payload)?;
    bench.fill(&middle, 0, &poison)?;
    bench.fill(&back, 0, &poison)?;
    let all = [&src, &middle, &back];
    let mut fences = Vec::new();
    for piece in 0..PIECES {
        let at = piece * LEN;
        let started = bench.start(&[copy((&src, at), (&middle, at), LEN)], &[]);
        fences.push(started.inspect_err(|_| bench.keep(&all))?);
    }
    let took = bench.start(&[copy((&middle, 0), (&back, 0), len)], &fences);
    let took = took.inspect_err(|_| bench.keep(&all))?;
    // A write that follows the read of the same bytes.
    let again = bench.start(&[copy((&src, 0), (&middle, 1), len - 1)], &[took]);
    let again = again.inspect_err(|_| bench.keep(&all))?;
    bench.done(again, &all)?;
    bench.done(took, &all)?;
    for fence in fences {
        bench.done(fence, &all)?;
    }
    bench.compare(
        "what all pieces became",
        &bench.read(&back, 0, len)?,
        &payload,
    )?;
    let shifted = bench.read(&middle, 1, len - 1)?;
    bench.compare("what came after", &shifted, &payload[..len as usize - 1])
}
