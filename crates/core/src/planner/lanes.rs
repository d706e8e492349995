//! Several links at once: pipelines that share no engine, side by side.

use alloc::vec::Vec;

use super::pipeline::Tail;
use super::survey::{MIN_LOG2, Survey};
use super::way::{Act, Way, same};
use super::{Limits, Purpose};
use crate::estimate::Line;

/// One pipeline of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Strand {
    pub(super) way: usize,
    pub(super) chunk_log2: u32,
    pub(super) slots: u16,
    /// Its part of the payload, out of [`Bundle::SHARES`].
    pub(super) share: u32,
    /// Its time as a function of the whole payload's size.
    pub(super) line: Line,
}

/// Several pipelines side by side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Bundle {
    pub(super) strands: Vec<Strand>,
    /// The smallest payload, in bytes, in which every part has a chunk.
    pub(super) from_bytes: u64,
}

impl Bundle {
    /// What the shares add up to.
    pub(super) const SHARES: u32 = 1024;

    /// Returns the time as a function of the payload's size: at each size that of the last to end, which is
    /// one strand for smaller and another for larger payloads.
    pub(super) fn lines(&self) -> Vec<(u64, Line)> {
        let mut lines: Vec<(u64, Line)> = Vec::with_capacity(self.strands.len());
        let mut from = self.from_bytes;
        let highest = |from| {
            let all = self.strands.iter().map(|strand| strand.line);
            // Of two that meet the steeper one is ahead from there on.
            all.max_by(|a, b| a.cmp_at(*b, from).then(a.slope.cmp(&b.slope)))
        };
        while let Some(line) = highest(from) {
            lines.push((from, line));
            let steeper = self
                .strands
                .iter()
                .filter(|strand| strand.line.slope > line.slope);
            // Where this one is no longer above: there the steeper one takes over.
            let crossing = steeper
                .filter_map(|strand| line.undercuts(strand.line, false))
                .min();
            match crossing {
                Some(crossing) => from = crossing,
                None => break,
            }
        }
        lines
    }
}

/// Chunk sizes that bundles are tried with, as exponents: smaller ones divide a payload more evenly,
/// larger ones cost less. A factor of four apart, the loss against the best one between is small.
const CHUNKS_LOG2: [u32; 5] = [18, 20, 22, 24, 26];

/// Returns every bundle that is worth comparing: the ways with the best rates that share no engine, two to
/// four of them.
///
/// Greedy: the way with the best rate first, then the next best one whose engines are all free. Rates
/// are what counts, since a bundle pays only where a payload is many chunks long.
pub(super) fn bundles(survey: &Survey) -> Vec<Bundle> {
    let most = usize::from(survey.limits.lanes.min(Limits::MAX_LANES));
    let mut bundles = Vec::new();
    // A transform sees a payload in order, which pipelines side by side cannot keep.
    if most < 2 || survey.key.purpose != Purpose::Copy {
        return bundles;
    }
    let disjoint = fastest_disjoint(survey, most);
    for count in 2..=disjoint.len() {
        let budget = survey.limits.staging_bytes / count as u64;
        for largest in CHUNKS_LOG2 {
            bundles.extend(bundle(survey, &disjoint[..count], largest, budget));
        }
    }
    bundles
}

/// Up to `most` ways that share no engine, by rate with the largest chunk, equal ones in order.
fn fastest_disjoint(survey: &Survey, most: usize) -> Vec<usize> {
    let mut rates: Vec<(Line, usize)> = Vec::with_capacity(survey.ways.len());
    for (at, way) in survey.ways.iter().enumerate() {
        // Where links do not predict a route, they do not predict it beside others either.
        if way.correction.is_some() {
            continue;
        }
        if let Ok((_, log2)) = way.chunks {
            let log2 = u32::from(log2);
            let slots = survey.slots(way, log2, survey.limits.staging_bytes);
            rates.push((survey.tail(way, log2, slots, u64::MAX).line(log2), at));
        }
    }
    let mut chosen: Vec<usize> = Vec::with_capacity(most);
    while chosen.len() < most {
        let free = rates.iter().filter(|(_, at)| {
            let way = &survey.ways[*at];
            chosen
                .iter()
                .all(|other| !share_engine(survey, way, &survey.ways[*other]))
        });
        // The first of equal ones.
        match free.min_by_key(|(line, _)| line.slope) {
            Some((_, at)) => chosen.push(*at),
            None => break,
        }
    }
    chosen
}

fn share_engine(survey: &Survey, a: &Way, b: &Way) -> bool {
    let engine = |act: &Act| match act {
        Act::Copy(hop) => survey.hops[usize::from(*hop)].link.id.engine,
        Act::Transform(by) => survey.transformers[usize::from(*by)].0.engine,
        Act::MakeVisible(end) => survey.owner(*end).engine,
    };
    let waits = |act: &Act| matches!(act, Act::MakeVisible(_));
    let shares = |act: &Act| {
        b.acts()
            .iter()
            .any(|other| match (engine(act), engine(other)) {
                // A device makes visible once all of its engines are done.
                (one, two) if waits(act) || waits(other) => one.device == two.device,
                (one, two) => same(one, two),
            })
    };
    let load = |way: &Way| way.acts().iter().map(|act| survey.host_load(*act)).max();
    // Two that keep the host busy take from each other what they have.
    let exceed = load(a).unwrap_or(0) + load(b).unwrap_or(0) > 1024;
    exceed || a.acts().iter().any(shares)
}

/// Returns the ways at once, with chunks of at most 2^`largest` bytes and `budget` bytes of staging each.
///
/// Shares are in proportion to the rates, so that all end at about the same time; the payload takes
/// as long as the last of them. `None` where a way has no room, or is too slow for a share of its own.
fn bundle(survey: &Survey, ways: &[usize], largest: u32, budget: u64) -> Option<Bundle> {
    let mut tails: Vec<(u32, u16, Tail)> = Vec::with_capacity(ways.len());
    for at in ways {
        let way = &survey.ways[*at];
        let (smallest, most) = way.chunks.ok()?;
        // One step alone may be cut finer than it need be.
        let smallest = if way.rings() == 0 {
            MIN_LOG2
        } else {
            u32::from(smallest)
        };
        let sizes = smallest..=largest.min(u32::from(most));
        // Under a tight budget a smaller chunk with more slots can be the faster one.
        let fitting = sizes.filter_map(|log2| match survey.slots(way, log2, budget) {
            0 => None,
            slots => Some((log2, slots, survey.tail(way, log2, slots, u64::MAX))),
        });
        tails.push(fitting.min_by_key(|(log2, _, tail)| tail.line(*log2).slope)?);
    }
    let shares = shares(&tails)?;
    let mut strands = Vec::with_capacity(ways.len());
    let mut from_bytes = 0;
    let mut before: Option<u32> = None;
    for ((way, (log2, slots, tail)), share) in ways.iter().zip(tails).zip(shares) {
        // Parts end at whole chunks, so this one may take over up to a chunk of its predecessor.
        let more = match before {
            Some(before) if before > log2 => tail.period_ns.saturating_mul(1 << (before - log2)),
            Some(before) => tail.period_ns.div_ceil(1 << (log2 - before)),
            None => 0,
        };
        let fixed_ns = tail.fixed_ns.saturating_add(more);
        strands.push(Strand {
            way: *way,
            chunk_log2: log2,
            slots,
            share,
            line: Line::per_chunk(fixed_ns, tail.period_ns, log2).shared(share),
        });
        // And it may lose a chunk to its successor: with two, one is left.
        let two_chunks = 2u64 << log2;
        from_bytes =
            from_bytes.max((two_chunks * u64::from(Bundle::SHARES)).div_ceil(u64::from(share)));
        before = Some(log2);
    }
    Some(Bundle {
        strands,
        from_bytes,
    })
}

/// Returns the parts of [`Bundle::SHARES`] that each way gets, in proportion to its rate; what division
/// leaves over goes to the first, the fastest one.
fn shares(tails: &[(u32, u16, Tail)]) -> Option<Vec<u32>> {
    const ONE: u128 = 1 << 112;
    let rate = |(log2, _, tail): &(u32, u16, Tail)| ONE / tail.line(*log2).slope.max(1);
    let total: u128 = tails.iter().map(rate).fold(0, u128::saturating_add);
    let mut shares = Vec::with_capacity(tails.len());
    for tail in tails {
        let share = rate(tail) * u128::from(Bundle::SHARES) / total.max(1);
        if share == 0 {
            return None;
        }
        shares.push(share as u32);
    }
    let given: u32 = shares.iter().sum();
    shares[0] += Bundle::SHARES - given;
    Some(shares)
}
