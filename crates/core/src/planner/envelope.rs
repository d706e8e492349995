//! The lower envelope: the cheapest contender for each range of sizes.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Range;

use crate::estimate::Line;

/// A contender: straight lines by first size, which lie in a common arena, up to where it ends.
#[derive(Clone, Debug)]
pub(super) struct Contender<T> {
    pub(super) lines: Range<usize>,
    /// The first size at which it is absent; `None` where it is there for all sizes.
    pub(super) until: Option<u64>,
    pub(super) what: T,
}

/// Returns the cheapest contenders, as (first size, position among `contenders`, line), from the first size at which
/// any of them is there. Of two equal ones the earlier one counts as cheaper.
///
/// Between two neighbouring breakpoints (sizes where a line starts or a contender ends) all lines are straight. The
/// walk along their lower envelope goes from one crossing to the next: from the cheapest line at hand to the flatter
/// line that undercuts it first. Crossings are computed by integer division of exact numbers ([`Line`]), so each is the
/// very first size at which the next line wins.
pub(super) fn envelope<T>(
    contenders: &[Contender<T>],
    arena: &[(u64, Line)],
) -> Vec<(u64, usize, Line)> {
    let mut breaks: Vec<u64> = Vec::with_capacity(contenders.len() * 2);
    for contender in contenders {
        breaks.extend(arena[contender.lines.clone()].iter().map(|(from, _)| *from));
        breaks.extend(contender.until);
    }
    breaks.sort_unstable();
    breaks.dedup();

    let mut cheapest: Vec<(u64, usize, Line)> = Vec::new();
    let mut cursors: Vec<usize> = contenders.iter().map(|c| c.lines.start).collect();
    let mut active: Vec<(usize, Line)> = Vec::with_capacity(contenders.len());
    for (i, &from) in breaks.iter().enumerate() {
        active.clear();
        for (at, (contender, cursor)) in contenders.iter().zip(&mut cursors).enumerate() {
            while *cursor + 1 < contender.lines.end && arena[*cursor + 1].0 <= from {
                *cursor += 1;
            }
            let (start, line) = arena[*cursor];
            if start <= from && contender.until.is_none_or(|until| from < until) {
                active.push((at, line));
            }
        }
        walk(&active, from, breaks.get(i + 1).copied(), &mut cheapest);
    }
    cheapest
}

/// Walks along the lower envelope of lines from the size `from` to before `end`.
fn walk(
    active: &[(usize, Line)],
    from: u64,
    end: Option<u64>,
    cheapest: &mut Vec<(u64, usize, Line)>,
) {
    let mut at = from;
    let mut best: Option<(usize, Line)> = None;
    for &(rank, line) in active {
        // Ranks rise, so an equal one does not displace.
        if best.is_none_or(|(_, held)| line.cmp_at(held, at) == Ordering::Less) {
            best = Some((rank, line));
        }
    }
    while let Some((rank, line)) = best {
        if cheapest
            .last()
            .is_none_or(|last| (last.1, last.2) != (rank, line))
        {
            cheapest.push((at, rank, line));
        }
        best = None;
        let mut next = end;
        for &(other, flatter) in active {
            let Some(crossing) = flatter.undercuts(line, other < rank) else {
                continue;
            };
            // It did not win at `at`, so it crosses after that.
            if next.is_some_and(|next| crossing > next) || Some(crossing) == end {
                continue;
            }
            let earlier = next.is_none_or(|next| crossing < next);
            if earlier
                || best.is_none_or(|(_, held)| flatter.cmp_at(held, crossing) == Ordering::Less)
            {
                best = Some((other, flatter));
                next = Some(crossing);
            }
        }
        if let Some(next) = next {
            at = next;
        }
    }
}

/// Returns whether `a` is there and at most as high as `b` at every size that `b` is there for. Both start at one size
/// and lie in order.
pub(super) fn covers(
    a: &[(u64, Line)],
    a_until: Option<u64>,
    b: &[(u64, Line)],
    b_until: Option<u64>,
) -> bool {
    let outlasts = match (a_until, b_until) {
        (None, _) => true,
        (Some(a), Some(b)) => a >= b,
        (Some(_), None) => false,
    };
    if !outlasts || a[0].0 > b[0].0 {
        return false;
    }
    let (mut i, mut j) = (0, 0);
    let mut from = b[0].0;
    loop {
        while i + 1 < a.len() && a[i + 1].0 <= from {
            i += 1;
        }
        while j + 1 < b.len() && b[j + 1].0 <= from {
            j += 1;
        }
        let (low, high) = (a[i].1, b[j].1);
        let starts = [a.get(i + 1), b.get(j + 1)];
        let next = starts.into_iter().flatten().map(|(from, _)| *from).min();
        let end = match (next, b_until) {
            (Some(next), Some(until)) => Some(next.min(until)),
            (next, until) => next.or(until),
        };
        // Straight on both sides: no higher at both ends is no higher between them.
        let at_end = match end {
            Some(end) => low.cmp_at(high, end - 1),
            None => low.slope.cmp(&high.slope),
        };
        if low.cmp_at(high, from) == Ordering::Greater || at_end == Ordering::Greater {
            return false;
        }
        match next {
            Some(next) if b_until.is_none_or(|until| next < until) => from = next,
            _ => return true,
        }
    }
}
