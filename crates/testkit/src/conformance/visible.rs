//! After `Visible` a device has finished its work on its memory, and the host sees its writes.

use transload_hal::{HostSpan, Link, Op};

use super::bench::{Bench, Case, CaseResult, copy, fail, inverse, part, skip};

/// Long enough that the device is still working when the case asks.
const LEN: u64 = 300_000;

pub(super) fn cases(bench: &Bench<'_>) -> Vec<Case> {
    // `Visible` does not cover the writes of other engines to that memory.
    let hidden =
        |link: &&Link| link.id.dst.kind.is_hidden() && link.id.engine.device == link.id.dst.device;
    let links = bench.links().iter().filter(hidden);
    let on = |link: &Link| {
        let of = link.clone();
        let subject = format!("{} → {}", link.id.src, link.id.dst);
        let name = "visible/waits-for-the-device";
        Case::new(name, subject, move |bench| waits(bench, &of))
    };
    links.map(on).collect()
}

/// The case passes no fence, like a caller that does not know the device's work.
fn waits(bench: &Bench<'_>, link: &Link) -> CaseResult {
    let src = bench.make(link.id.src, LEN)?;
    let dst = bench.make(link.id.dst, LEN)?;
    let Some(span) = dst.host(0, LEN) else {
        return skip("the host does not address this memory");
    };
    let payload = bench.pattern(LEN);
    bench.fill(&src, 0, &payload)?;
    bench.fill(&dst, 0, &inverse(&payload))?;
    let all = [&src, &dst];
    let under_way = bench.start(&[copy((&src, 0), (&dst, 0), LEN)], &[])?;
    let op = Op::MakeVisible {
        part: part(&dst, 0, LEN),
    };
    let asked = bench.submit(&[op], &[]);
    let asked = asked.or_else(|error| {
        bench.keep(&all);
        fail(format!("the device was not asked: {error}"))
    })?;
    bench.done(asked, &all)?;
    let mut seen = vec![0; LEN as usize];
    // SAFETY: the buffer is alive. If the device still writes, the case fails at the comparison.
    unsafe { span.copy_to(HostSpan::of_mut(&mut seen)) };
    bench.done(under_way, &all)?;
    bench.compare("what was made visible", &seen, &payload)
}
