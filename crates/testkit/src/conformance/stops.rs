//! Progress never exceeds the payload, and stopped operations report the true number of moved bytes.

use transload_hal::{Buffer, Fence, Link, Outcome};

use super::bench::{
    Bench, Case, CaseError, CaseResult, GUARD, arrow, copy, ensure, fail, inverse, skip,
};

pub(super) fn cases(bench: &Bench<'_>) -> Vec<Case> {
    let mut cases = Vec::new();
    for link in bench.links() {
        let on = |name, run: fn(&Bench<'_>, &Link) -> CaseResult| {
            let of = link.clone();
            Case::new(name, arrow(link), move |bench| run(bench, &of))
        };
        cases.push(on("copy/progress", progress));
        cases.push(on("copy/stopped", truthful));
        cases.push(on("copy/stopped-before-its-start", before_the_start));
    }
    cases
}

/// A copy of the harness's largest length, between guard bands.
struct Copy {
    src: Buffer,
    dst: Buffer,
    len: u64,
    payload: Vec<u8>,
}

impl Copy {
    fn new(bench: &Bench<'_>, link: &Link) -> Result<Copy, CaseError> {
        let sizes = bench.sizes(link.id.src, link.id.dst);
        let Some(&len) = sizes.iter().max() else {
            return skip("no length fits the memories");
        };
        let src = bench.make(link.id.src, len)?;
        let dst = bench.make(link.id.dst, len + 2 * GUARD)?;
        let payload = bench.pattern(len);
        bench.fill(&src, 0, &payload)?;
        let copy = Copy {
            src,
            dst,
            len,
            payload,
        };
        bench.fill(&copy.dst, 0, &copy.poison())?;
        Ok(copy)
    }

    /// The bytes of the destination before the copy, none of which is right by chance.
    fn poison(&self) -> Vec<u8> {
        let guard = [0xA5; GUARD as usize];
        [&guard[..], &inverse(&self.payload), &guard].concat()
    }

    fn start(&self, bench: &Bench<'_>, after: &[Fence]) -> Result<Fence, CaseError> {
        let op = copy((&self.src, 0), (&self.dst, GUARD), self.len);
        bench.start(&[op], after)
    }

    /// Waits, and compares the arrived bytes with the outcome; the backend reported `known` bytes before.
    fn check(&self, bench: &Bench<'_>, fence: Fence, known: u64) -> CaseResult {
        let leading = match bench.outcome(fence, &[&self.src, &self.dst])? {
            Outcome::Done => self.len,
            Outcome::Stopped { leading_bytes } => leading_bytes,
            other => return fail(format!("{fence:?} settled as {other:?}")),
        };
        ensure(known <= leading && leading <= self.len, || {
            let len = self.len;
            format!("{known} leading bytes were known, then {leading} of {len} had moved")
        })?;
        let bytes = bench.read(&self.dst, 0, self.len + 2 * GUARD)?;
        let poison = self.poison();
        let (first, last) = (GUARD as usize, (GUARD + self.len) as usize);
        let until = first + leading as usize;
        bench.compare("before", &bytes[..first], &poison[..first])?;
        bench.compare("behind", &bytes[last..], &poison[last..])?;
        let led = &self.payload[..leading as usize];
        bench.compare("the leading bytes", &bytes[first..until], led)?;
        let source = bench.read(&self.src, 0, self.len)?;
        bench.compare("the source", &source, &self.payload)
    }
}

fn progress(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let copy = Copy::new(bench, link)?;
    let backend = bench.backend();
    let within = |fence, when: &str| {
        let moved = backend.progress(fence);
        ensure(moved <= copy.len, || {
            format!("{moved} of {} bytes {when}", copy.len)
        })
    };
    let fence = copy.start(bench, &[])?;
    for _ in 0..100 {
        within(fence, "moved so far")?;
        if fence.is_immediate() || bench.heard.of(fence).is_some() {
            break;
        }
        bench.harness.drive();
    }
    copy.check(bench, fence, 0)?;
    within(fence, "had moved when it had settled")?;
    bench.done(fence, &[])
}

fn truthful(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let backend = bench.backend();
    // The stop comes at once, and after some time.
    for looks in [0, 1, 8] {
        let copy = Copy::new(bench, link)?;
        let fence = copy.start(bench, &[])?;
        for _ in 0..looks {
            bench.harness.drive();
        }
        let known = backend.stop(fence);
        let again = backend.stop(fence);
        copy.check(bench, fence, known.max(again))?;
        ensure(backend.stop(fence) == 0, || {
            format!("{fence:?} has settled, and bytes of it are known still")
        })?;
    }
    Ok(())
}

/// An operation that waits for a stopped copy starts all the same, and an independent operation is not stopped.
fn before_the_start(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let [first, second, third] = [(); 3].map(|()| Copy::new(bench, link));
    let (first, second, third) = (first?, second?, third?);
    let before = first.start(bench, &[])?;
    let stopped = second.start(bench, &[before])?;
    let after = third.start(bench, &[stopped])?;
    let known = bench.backend().stop(stopped);
    second.check(bench, stopped, known)?;
    for (copy, fence) in [(&first, before), (&third, after)] {
        bench.done(fence, &[&copy.src, &copy.dst])?;
        copy.check(bench, fence, 0)?;
    }
    Ok(())
}
