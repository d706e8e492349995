//! Fences settle once, and not before the bytes have arrived; waits return true answers.

use std::collections::HashMap;

use transload_hal::{Fence, Link, Waited};

use super::bench::{Bench, Case, CaseResult, NOW, arrow, copy, ensure, fail, inverse, skip};

pub(super) fn cases(bench: &Bench<'_>) -> Vec<Case> {
    let mut cases = Vec::new();
    for link in bench.links() {
        let on = |name, run: fn(&Bench<'_>, &Link) -> CaseResult| {
            let of = link.clone();
            Case::new(name, arrow(link), move |bench| run(bench, &of))
        };
        cases.push(on("fence/not-early", not_early));
        cases.push(on("fence/without-wait", without_wait));
        cases.push(on("wait/honest", honest));
        cases.push(on("buffer/dropped-after-settling", dropped));
        // In the build where backends may be single-threaded, threads share no backend.
        #[cfg(not(any(
            transload_local,
            all(target_family = "wasm", not(target_feature = "atomics"))
        )))]
        cases.push(on("submit/from-several-threads", threads));
    }
    cases
}

pub(super) fn closing_cases(_: &Bench<'_>) -> Vec<Case> {
    vec![
        Case::new("fence/exactly-once", "everything above", exactly_once),
        Case::new("fence/numbers-are-new", "everything above", numbers),
    ]
}

/// Looks right after each call that may report: the sooner the look, the surer it finds a fence that settles early.
fn not_early(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let sizes = bench.sizes(link.id.src, link.id.dst);
    let Some(&len) = sizes.iter().max() else {
        return skip("no length fits the memories");
    };
    let src = bench.make(link.id.src, len)?;
    let dst = bench.make(link.id.dst, len)?;
    let payload = bench.pattern(len);
    let poison = inverse(&payload);
    bench.fill(&src, 0, &payload)?;
    bench.fill(&dst, 0, &poison)?;
    let fence = bench.start(&[copy((&src, 0), (&dst, 0), len)], &[])?;
    for _ in 0..4 {
        if fence.is_immediate() || bench.heard.of(fence).is_some() {
            break;
        }
        bench.backend().pump();
    }
    bench.done(fence, &[&src, &dst])?;
    bench.compare("when it settled", &bench.read(&dst, 0, len)?, &payload)
}

/// Either pumping while time passes completes the operation, or `wait` does.
fn without_wait(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let src = bench.make(link.id.src, 4096)?;
    let dst = bench.make(link.id.dst, 4096)?;
    let fence = bench.start(&[copy((&src, 0), (&dst, 0), 4096)], &[])?;
    // A backend may choose to move nothing until a thread waits.
    for _ in 0..100 {
        if fence.is_immediate() || bench.heard.of(fence).is_some() {
            return bench.done(fence, &[&src, &dst]);
        }
        bench.harness.drive();
    }
    bench.done(fence, &[&src, &dst])?;
    skip("nothing settles unless a thread waits")
}

fn honest(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let src = bench.make(link.id.src, 4096)?;
    let dst = bench.make(link.id.dst, 4096)?;
    let payload = bench.pattern(4096);
    bench.fill(&src, 0, &payload)?;
    let fence = bench.start(&[copy((&src, 0), (&dst, 0), 4096)], &[])?;
    if fence.is_immediate() {
        let waited = bench.backend().wait(fence, NOW);
        return ensure(waited == Waited::Settled, || {
            "a wait for what was settled at once timed out".into()
        });
    }
    if bench.backend().wait(fence, NOW) == Waited::Settled {
        ensure(bench.heard.of(fence).is_some(), || {
            "wait says settled, and the sink heard nothing".into()
        })?;
    }
    bench.done(fence, &[&src, &dst])?;
    bench.compare("after the wait", &bench.read(&dst, 0, 4096)?, &payload)?;
    // The outcome reaches the sink before the fence settles, so the first of these may still have to wait.
    for limit in [bench.harness.patience(), NOW, NOW] {
        let waited = bench.backend().wait(fence, limit);
        ensure(waited == Waited::Settled, || {
            format!("a later wait for {fence:?} timed out")
        })?;
    }
    Ok(())
}

/// Each buffer is freed as soon as its fence has settled, and another one of the same size takes its place.
fn dropped(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let len = 4096;
    for _ in 0..16 {
        let src = bench.make(link.id.src, len)?;
        let dst = bench.make(link.id.dst, len)?;
        let payload = bench.pattern(len);
        bench.fill(&src, 0, &payload)?;
        let fence = bench.start(&[copy((&src, 0), (&dst, 0), len)], &[])?;
        bench.done(fence, &[&src, &dst])?;
        ensure(src.is_unique() && dst.is_unique(), || {
            "the backend holds a buffer after its fence settled".into()
        })?;
        drop(src);
        bench.compare("the destination", &bench.read(&dst, 0, len)?, &payload)?;
    }
    Ok(())
}

#[cfg(not(any(
    transload_local,
    all(target_family = "wasm", not(target_feature = "atomics"))
)))]
fn threads(bench: &Bench<'_>, link: &Link) -> CaseResult {
    use std::time::Duration;

    const THREADS: usize = 4;
    const LEN: u64 = 1500;
    let mut pairs = Vec::new();
    let mut payloads = Vec::new();
    for _ in 0..THREADS {
        let src = bench.make(link.id.src, LEN)?;
        let dst = bench.make(link.id.dst, LEN)?;
        let payload = bench.pattern(LEN);
        bench.fill(&src, 0, &payload)?;
        pairs.push((src, dst));
        payloads.push(payload);
    }
    let backend = bench.backend();
    let patience: Duration = bench.harness.patience();
    let results: Vec<Result<Fence, String>> = std::thread::scope(|scope| {
        let runs: Vec<_> = pairs
            .iter()
            .map(|(src, dst)| {
                scope.spawn(move || {
                    let ops = [copy((src, 0), (dst, 0), LEN)];
                    // SAFETY: each thread has buffers of its own, which are kept until the fence has settled or are
                    // leaked.
                    let fence = unsafe { backend.submit(None, &ops, &[]) };
                    let fence = fence.map_err(|error| error.to_string())?;
                    match backend.wait(fence, patience) {
                        Waited::Settled => Ok(fence),
                        Waited::TimedOut => Err(format!("{fence:?} did not settle")),
                    }
                })
            })
            .collect();
        let join = |run: std::thread::ScopedJoinHandle<'_, _>| {
            run.join()
                .unwrap_or_else(|_| Err("a thread panicked".into()))
        };
        runs.into_iter().map(join).collect()
    });
    for ((pair, payload), result) in pairs.iter().zip(&payloads).zip(results) {
        match result {
            Err(failure) => {
                for (src, dst) in &pairs {
                    bench.keep(&[src, dst]);
                }
                return fail(failure);
            }
            Ok(fence) => {
                bench.note(fence);
                bench.done(fence, &[])?;
                bench.compare("a thread's copy", &bench.read(&pair.1, 0, LEN)?, payload)?;
            }
        }
    }
    Ok(())
}

/// Every fence that `submit` returned was reported once, and no other fence was reported.
fn exactly_once(bench: &Bench<'_>) -> CaseResult {
    for _ in 0..4 {
        bench.harness.drive();
    }
    let mut told: HashMap<Fence, usize> = HashMap::new();
    for (fence, _) in bench.heard.all() {
        *told.entry(fence).or_default() += 1;
    }
    for fence in bench.given_out() {
        match told.remove(&fence) {
            Some(1) => {}
            Some(times) => return fail(format!("{fence:?} settled {times} times")),
            None => return fail(format!("{fence:?} never settled")),
        }
    }
    match told.keys().next() {
        None => Ok(()),
        Some(fence) => fail(format!(
            "the sink heard of {fence:?}, which `submit` never returned"
        )),
    }
}

fn numbers(bench: &Bench<'_>) -> CaseResult {
    let mut fences = bench.given_out();
    let backend = bench.inventory.backend;
    for fence in &fences {
        ensure(fence.backend() == backend, || {
            format!("{fence:?} is not of backend {backend}")
        })?;
    }
    fences.sort();
    let twice = fences.windows(2).find(|pair| pair[0] == pair[1]);
    twice.map_or(Ok(()), |pair| {
        fail(format!("{:?} was given out twice", pair[0]))
    })
}
