//! Copies bring every byte and touch no other.

use transload_hal::{Buffer, Link, Op, Shape, Span};

use super::bench::{Bench, Case, CaseError, CaseResult, GUARD, arrow, copy, inverse, layout, skip};

pub(super) fn cases(bench: &Bench<'_>) -> Vec<Case> {
    let mut cases = Vec::new();
    for link in bench.links() {
        let on = |name, run: fn(&Bench<'_>, &Link) -> CaseResult| {
            let of = link.clone();
            Case::new(name, arrow(link), move |bench| run(bench, &of))
        };
        cases.push(on("copy/sizes", sizes));
        cases.push(on("copy/unaligned", unaligned));
        cases.push(on("copy/many-in-one-submission", many));
        cases.push(on("copy/pitched", pitched));
        if link.id.src == link.id.dst {
            cases.push(on("copy/overlapping", overlapping));
        }
    }
    cases
}

/// A source and a destination, large enough for anything up to `len` bytes at shifts below a guard.
struct Pair {
    src: Buffer,
    dst: Buffer,
}

impl Pair {
    fn new(bench: &Bench<'_>, link: &Link, len: u64) -> Result<Pair, CaseError> {
        Ok(Pair {
            src: bench.make(link.id.src, len + 3 * GUARD)?,
            dst: bench.make(link.id.dst, len + 3 * GUARD)?,
        })
    }

    /// Copies `len` bytes and checks both sides, guard bands included.
    fn check(&self, bench: &Bench<'_>, len: u64, src_at: u64, dst_at: u64) -> CaseResult {
        let Pair { src, dst } = self;
        let payload = bench.pattern(len);
        let mut wanted = bench.pattern(dst_at + len + GUARD);
        let inside = dst_at as usize..(dst_at + len) as usize;
        wanted[inside.clone()].copy_from_slice(&inverse(&payload));
        bench.fill(src, src_at, &payload)?;
        bench.fill(dst, 0, &wanted)?;
        let fence = bench.start(&[copy((src, src_at), (dst, dst_at), len)], &[])?;
        bench.done(fence, &[src, dst])?;
        wanted[inside].copy_from_slice(&payload);
        let seen = bench.read(dst, 0, wanted.len() as u64)?;
        let what = format!("{len} bytes from {src_at} to {dst_at}, destination and its guards");
        bench.compare(&what, &seen, &wanted)?;
        let kept = bench.read(src, src_at, len)?;
        bench.compare(
            &format!("{len} bytes from {src_at}, the source"),
            &kept,
            &payload,
        )
    }
}

fn sizes(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let sizes = bench.sizes(link.id.src, link.id.dst);
    let Some(&largest) = sizes.iter().max() else {
        return skip("no length fits the memories");
    };
    let pair = Pair::new(bench, link, largest)?;
    for len in sizes {
        pair.check(bench, len, GUARD, GUARD)?;
    }
    Ok(())
}

fn unaligned(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let lens = [1, 2, 5, 31, 64, 100, 4096, 4099];
    let pair = Pair::new(bench, link, 4099)?;
    for len in lens {
        for (src_shift, dst_shift) in [(1, 0), (0, 1), (1, 1), (3, 2), (7, 60), (63, 4)] {
            pair.check(bench, len, GUARD + src_shift, GUARD + dst_shift)?;
        }
    }
    Ok(())
}

fn many(bench: &Bench<'_>, link: &Link) -> CaseResult {
    const PIECES: u64 = 9;
    const LEN: u64 = 33;
    let len = PIECES * LEN;
    let src = bench.make(link.id.src, len)?;
    let dst = bench.make(link.id.dst, len)?;
    let payload = bench.pattern(len);
    let poison = inverse(&payload);
    bench.fill(&src, 0, &payload)?;
    bench.fill(&dst, 0, &poison)?;
    let ops: Vec<Op<'_>> = (0..PIECES)
        .rev()
        .map(|i| copy((&src, i * LEN), (&dst, i * LEN), LEN))
        .collect();
    let fence = bench.start(&ops, &[])?;
    bench.done(fence, &[&src, &dst])?;
    bench.compare("nine pieces", &bench.read(&dst, 0, len)?, &payload)
}

fn pitched(bench: &Bench<'_>, link: &Link) -> CaseResult {
    if !link.pitched {
        return skip("the link moves contiguous shapes alone");
    }
    let shape = |width, rows, pitch, planes, plane_pitch| {
        Shape::pitched_3d(width, rows, pitch, planes, plane_pitch)
            .map_err(|error| CaseError::Fail(error.to_string()))
    };
    let pairs = [
        (shape(1, 5, 3, 1, 0)?, shape(1, 5, 7, 1, 0)?),
        (shape(17, 9, 32, 1, 0)?, shape(17, 9, 17, 1, 0)?),
        (shape(16, 4, 16, 1, 0)?, shape(8, 8, 24, 1, 0)?),
        (shape(10, 3, 16, 4, 100)?, shape(10, 3, 11, 4, 64)?),
        (shape(100, 13, 256, 1, 0)?, shape(100, 13, 103, 1, 0)?),
        (shape(12, 1, 0, 5, 40)?, shape(60, 1, 0, 1, 0)?),
    ];
    for (from, to) in pairs {
        let payload = from.payload_bytes();
        for span in [
            Span::new(0, payload),
            Span::new(0, 0),
            Span::new(1, payload - 1),
            Span::new(payload / 3, payload / 2),
            Span::new(payload - 1, 1),
        ] {
            check_pitched(bench, link, from, to, span)?;
        }
    }
    Ok(())
}

fn check_pitched(bench: &Bench<'_>, link: &Link, from: Shape, to: Shape, span: Span) -> CaseResult {
    let (src_at, dst_at) = (5, GUARD + 3);
    let src = bench.make(link.id.src, src_at + from.extent_bytes())?;
    let dst = bench.make(link.id.dst, dst_at + to.extent_bytes() + GUARD)?;
    let bytes = bench.pattern(src.len());
    let mut wanted = bench.pattern(dst.len());
    let runs = || from.runs(src_at, &to, dst_at, span);
    for run in runs() {
        for i in 0..run.len_bytes {
            wanted[(run.other_offset + i) as usize] = !bytes[(run.offset + i) as usize];
        }
    }
    bench.fill(&src, 0, &bytes)?;
    bench.fill(&dst, 0, &wanted)?;
    let op = Op::Pitched {
        src: layout(&src, src_at, from),
        dst: layout(&dst, dst_at, to),
        span,
    };
    let fence = bench.start(&[op], &[])?;
    bench.done(fence, &[&src, &dst])?;
    for run in runs() {
        for i in 0..run.len_bytes {
            wanted[(run.other_offset + i) as usize] = bytes[(run.offset + i) as usize];
        }
    }
    let seen = bench.read(&dst, 0, dst.len())?;
    bench.compare(
        &format!("{from:?} to {to:?}, payload {span}"),
        &seen,
        &wanted,
    )
}

fn overlapping(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let memory = link.id.src;
    for (len, shift) in [
        (1u64, 1u64),
        (8, 1),
        (64, 63),
        (100, 7),
        (4097, 1),
        (4097, 4096),
        (5000, 64),
    ] {
        let whole = len + shift + 2 * GUARD;
        let buffer = bench.make(memory, whole)?;
        for (src, dst) in [
            (GUARD, GUARD + shift),
            (GUARD + shift, GUARD),
            (GUARD, GUARD),
        ] {
            let mut wanted = bench.pattern(whole);
            bench.fill(&buffer, 0, &wanted)?;
            // Two views of one storage, as two users of it would hold them.
            let (Some(from), Some(to)) = (buffer.slice(src, len), buffer.slice(dst, len)) else {
                return skip("a view of the buffer was not to be had");
            };
            let fence = bench.start(&[copy((&from, 0), (&to, 0), len)], &[])?;
            bench.done(fence, &[&buffer])?;
            wanted.copy_within(src as usize..(src + len) as usize, dst as usize);
            let seen = bench.read(&buffer, 0, whole)?;
            bench.compare(&format!("{len} bytes from {src} to {dst}"), &seen, &wanted)?;
        }
    }
    Ok(())
}
