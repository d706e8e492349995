//! Transforms see the bytes in place; hints change no bytes.

use std::sync::{Mutex, PoisonError};

use transload_hal::{Advice, ErrorClass, Fault, MemoryInfo, Op, Outcome, Span, Transform};

use super::bench::{Bench, Case, CaseResult, ensure, fail, part, skip};

pub(super) fn cases(bench: &Bench<'_>) -> Vec<Case> {
    let mut cases = Vec::new();
    for info in bench.memories() {
        let on = |name, run: fn(&Bench<'_>, &MemoryInfo) -> CaseResult| {
            let of = info.clone();
            Case::new(name, info.id, move |bench| run(bench, &of))
        };
        cases.push(on("transform/sees-the-bytes", sees));
        cases.push(on("transform/failure-is-told", failure));
        cases.push(on("hint/changes-nothing", hints));
        cases.push(on("map/host-finds-the-bytes", map));
    }
    cases
}

/// Records the bytes that it was shown.
#[derive(Default)]
struct Witness {
    shown: Mutex<Vec<(u64, Vec<u8>)>>,
    refuses: bool,
}

impl Transform for Witness {
    fn inspect(&self, bytes: &[u8], position: u64) -> Result<(), Fault> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.push((position, bytes.to_vec()));
        if self.refuses {
            return Err(Fault::new(ErrorClass::Failed, "the witness refuses"));
        }
        Ok(())
    }
}

fn addressable(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    if !info.host_addressable {
        return skip("transforms run over host-addressable memory");
    }
    if bench.inventory.transform.is_none() {
        return skip("the backend lists no engine that transforms");
    }
    Ok(())
}

fn sees(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    addressable(bench, info)?;
    let buffer = bench.make(info.id, 5000)?;
    let bytes = bench.pattern(5000);
    bench.fill(&buffer, 0, &bytes)?;
    for (offset, len, position) in [
        (0u64, 5000u64, 0u64),
        (3, 1, 77),
        (64, 4096, 1 << 40),
        (9, 0, 5),
    ] {
        // Leaked, so that an abandoned operation still finds it in place.
        let witness = Box::leak(Box::new(Witness::default()));
        let op = Op::Transform {
            at: part(&buffer, offset, len).into(),
            span: Span::new(0, len),
            transform: witness,
            position,
        };
        let fence = bench.start(&[op], &[])?;
        bench.done(fence, &[&buffer])?;
        let shown = witness.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = shown.iter().map(|(_, bytes)| bytes.len()).sum();
        ensure(total as u64 == len, || {
            format!("saw {total} of {len} bytes")
        })?;
        for (at, seen) in shown.iter() {
            ensure(*at >= position && at - position <= len, || {
                format!("shown position {at} for a part at {position}")
            })?;
            let from = (offset + (at - position)) as usize;
            bench.compare("what was shown", seen, &bytes[from..from + seen.len()])?;
        }
    }
    bench.compare("the buffer", &bench.read(&buffer, 0, 5000)?, &bytes)
}

fn failure(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    addressable(bench, info)?;
    let buffer = bench.make(info.id, 100)?;
    let witness = Box::leak(Box::new(Witness {
        refuses: true,
        ..Witness::default()
    }));
    let op = Op::Transform {
        at: part(&buffer, 0, 100).into(),
        span: Span::new(0, 100),
        transform: witness,
        position: 0,
    };
    let fence = bench.start(&[op], &[])?;
    match bench.outcome(fence, &[&buffer])? {
        Outcome::Failed(fault) => ensure(fault.message.contains("witness"), || {
            format!("another fault was told: {fault}")
        }),
        other => fail(format!("a refusing transform settled as {other:?}")),
    }
}

fn hints(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    let buffer = bench.make(info.id, 8192)?;
    let bytes = bench.pattern(8192);
    bench.fill(&buffer, 0, &bytes)?;
    let whole = part(&buffer, 0, 8192);
    let some = part(&buffer, 100, 3000);
    let advice = |advice| Op::Advise { part: some, advice };
    let ops = [
        Op::Prefetch {
            part: whole,
            to: info.id.device,
        },
        advice(Advice::Sequential),
        advice(Advice::WillNeed),
        // On anonymous memory a careless backend discards the bytes here.
        advice(Advice::DontNeed),
        Op::MakeVisible { part: whole },
    ];
    let mut taken = 0;
    for op in ops {
        let Ok(fence) = bench.submit(&[op], &[]) else {
            continue;
        };
        taken += 1;
        bench.done(fence, &[&buffer])?;
        bench.compare(&format!("{op:?}"), &bench.read(&buffer, 0, 8192)?, &bytes)?;
    }
    if taken == 0 {
        return skip("the backend takes no hints");
    }
    Ok(())
}

fn map(bench: &Bench<'_>, info: &MemoryInfo) -> CaseResult {
    if info.host_addressable {
        return skip("the host addresses this memory without mapping");
    }
    let buffer = bench.make(info.id, 256)?;
    let bytes = bench.pattern(256);
    bench.fill(&buffer, 0, &bytes)?;
    let fence = bench.start(&[Op::AcquireHost { buffer: &buffer }], &[])?;
    bench.done(fence, &[&buffer])?;
    let Some(span) = buffer.host(0, 256) else {
        return fail("mapped, and the host does not find it");
    };
    // SAFETY: the buffer is mapped and no operation uses it.
    let seen = unsafe { span.as_slice() }.to_vec();
    bench.compare("through the mapping", &seen, &bytes)?;
    let fence = bench.start(&[Op::ReleaseHost { buffer: &buffer }], &[])?;
    bench.done(fence, &[&buffer])?;
    ensure(buffer.host(0, 256).is_none(), || {
        "unmapped, and the host still finds it".into()
    })
}
