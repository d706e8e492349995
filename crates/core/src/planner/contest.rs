//! Finds the contender that wins each range of sizes.

use alloc::vec::Vec;

use super::envelope::{Contender, covers, envelope};
use super::lanes::{Bundle, bundles};
use super::pipeline::Tail;
use super::survey::{MIN_LOG2, Survey};
use crate::Correction;
use crate::estimate::Line;

/// A plan as numbers: enough to build it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Pick {
    /// One way with chunks of 2^`log2` bytes.
    One { way: usize, log2: u32 },
    /// Several ways at once.
    Several(Bundle),
}

impl Pick {
    /// Returns whether the pick moves bytes over the way.
    pub(super) fn takes(&self, way: usize) -> bool {
        match self {
            Pick::One { way: taken, .. } => *taken == way,
            Pick::Several(bundle) => bundle.strands.iter().any(|strand| strand.way == way),
        }
    }
}

/// A contender. The order is that of preference among equals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Bid {
    /// The way, in a single chunk.
    Whole { way: usize },
    /// The way, in chunks of 2^`log2` bytes.
    Chunked { way: usize, log2: u32 },
    /// The bundle of that number.
    Bundle(usize),
}

impl Bid {
    /// Bundles come last: they take more passes. Among chunks of one way smaller ones come first.
    fn rank(&self) -> (usize, u32) {
        match self {
            Bid::Whole { way } => (*way, 0),
            Bid::Chunked { way, log2 } => (*way, *log2),
            Bid::Bundle(at) => (usize::MAX, *at as u32),
        }
    }
}

/// Returns the winners by first size, the first of which is 0. Empty when no way can be taken.
pub(super) fn contest(survey: &Survey) -> Vec<(u64, Pick)> {
    let mut arena: Vec<(u64, Line)> = Vec::with_capacity(4 * survey.ways.len());
    let mut contenders = Vec::new();
    enter_wholes(survey, &mut arena, &mut contenders);
    enter_chunked(survey, &mut arena, &mut contenders);
    let bundles = bundles(survey);
    enter_bundles(survey, &bundles, &mut arena, &mut contenders);
    contenders.sort_unstable_by_key(|contender| contender.what.rank());

    let mut won: Vec<(u64, Bid)> = Vec::new();
    for (from, who, _) in envelope(&contenders, &arena) {
        let what = contenders[who].what;
        // A contender of several lines may win with one after the other.
        if won.last().is_none_or(|(_, last)| *last != what) {
            won.push((from, what));
        }
    }
    let mut picks: Vec<(u64, Pick)> = Vec::with_capacity(won.len());
    for (at, &(from, what)) in won.iter().enumerate() {
        let pick = match what {
            Bid::Whole { way } => {
                let log2 = whole_chunk(survey, way, won.get(at + 1).copied());
                Pick::One { way, log2 }
            }
            Bid::Chunked { way, log2 } => Pick::One { way, log2 },
            Bid::Bundle(at) => Pick::Several(bundles[at].clone()),
        };
        if picks.last().is_none_or(|(_, last)| *last != pick) {
            picks.push((from, pick));
        }
    }
    picks
}

/// Returns the winners among the chunk sizes of one way, by first size.
pub(super) fn alone(survey: &Survey, way: usize) -> Vec<(u64, Line)> {
    let mut arena = Vec::new();
    let mut contenders = Vec::new();
    if let Ok((smallest, largest)) = survey.ways[way].chunks {
        enter_whole(survey, way, largest, &mut arena, &mut contenders);
        for log2 in u32::from(smallest)..=u32::from(largest) {
            enter_tails(survey, (way, log2), &mut arena, &mut contenders);
        }
    }
    let won = envelope(&contenders, &arena);
    won.into_iter()
        .map(|(from, _, line)| (from, line))
        .collect()
}

/// Returns the cost of the way for `bytes` bytes with its best chunk, and the exponent of that chunk.
pub(super) fn best_chunk(survey: &Survey, way: usize, bytes: u64) -> Option<(Line, u32)> {
    let (smallest, largest) = survey.ways[way].chunks.ok()?;
    let mut best: Option<(Line, u32)> = None;
    let mut lines = Vec::new();
    for log2 in u32::from(smallest)..=u32::from(largest) {
        let line = if bytes < 1 << log2 {
            lines.clear();
            survey.head(&survey.ways[way], bytes + 1, &mut lines);
            lines.last().map(|(_, line)| *line)?
        } else {
            chunked(survey, way, log2, bytes).line(log2)
        };
        if best.is_none_or(|(held, _)| line.cmp_at(held, bytes).is_lt()) {
            best = Some((line, log2));
        }
    }
    let correction = survey.correction(&survey.ways[way]);
    let factor = correction.map_or(Correction::ONE, |of| of.at(bytes));
    match factor {
        Correction::ONE => best,
        _ => best.map(|(line, log2)| (line.scaled(factor), log2)),
    }
}

/// Returns the chunk size of a way that wins in one chunk until `end`: that of the next winner if this is the same way,
/// so that both are one plan; otherwise the smallest that is large enough, which holds the least staging.
fn whole_chunk(survey: &Survey, way: usize, end: Option<(u64, Bid)>) -> u32 {
    let (smallest, largest) = survey.ways[way]
        .chunks
        .unwrap_or((MIN_LOG2 as u8, MIN_LOG2 as u8));
    let (smallest, largest) = (u32::from(smallest), u32::from(largest));
    let Some((end, next)) = end else {
        return largest;
    };
    match next {
        Bid::Chunked { way: same, log2 } if same == way && end <= 1 << log2 => log2,
        _ => (smallest..largest)
            .find(|log2| end <= 1 << log2)
            .unwrap_or(largest),
    }
}

/// Enters each way in one chunk, except ways that an earlier one covers.
fn enter_wholes(
    survey: &Survey,
    arena: &mut Vec<(u64, Line)>,
    contenders: &mut Vec<Contender<Bid>>,
) {
    for (at, way) in survey.ways.iter().enumerate() {
        let Ok((_, largest)) = way.chunks else {
            continue;
        };
        enter_whole(survey, at, largest, arena, contenders);
        let Some((last, earlier)) = contenders.split_last() else {
            continue;
        };
        let mine = &arena[last.lines.clone()];
        let covered = |other: &Contender<Bid>| {
            covers(&arena[other.lines.clone()], other.until, mine, last.until)
        };
        if earlier.iter().any(covered) {
            arena.truncate(last.lines.start);
            contenders.pop();
        }
    }
}

fn enter_whole(
    survey: &Survey,
    way: usize,
    largest: u8,
    arena: &mut Vec<(u64, Line)>,
    contenders: &mut Vec<Contender<Bid>>,
) {
    let start = arena.len();
    let until = 1 << largest;
    survey.head(&survey.ways[way], until, arena);
    survey.correct(&survey.ways[way], start, arena);
    handicap(survey.ways[way].handicap, &mut arena[start..]);
    contenders.push(Contender {
        lines: start..arena.len(),
        until: Some(until),
        what: Bid::Whole { way },
    });
}

/// Enters each way in chunks of each size, except ways that lose to another one with the same chunk everywhere: both
/// their fixed cost and their period are no smaller.
fn enter_chunked(
    survey: &Survey,
    arena: &mut Vec<(u64, Line)>,
    contenders: &mut Vec<Contender<Bid>>,
) {
    let mut front: Vec<(Tail, usize)> = Vec::new();
    let sizes = survey.ways.iter().filter_map(|way| way.chunks.ok());
    let largest = sizes.map(|(_, largest)| u32::from(largest)).max();
    for log2 in MIN_LOG2..=largest.unwrap_or(0) {
        front.clear();
        for (at, way) in survey.ways.iter().enumerate() {
            let sizes = way
                .chunks
                .map(|(low, high)| u32::from(low)..=u32::from(high));
            if !sizes.is_ok_and(|sizes| sizes.contains(&log2)) {
                continue;
            }
            let is_one_line = survey.next_change(way, 1 << log2).is_none();
            if !is_one_line || way.correction.is_some() || way.handicap > 0 {
                enter_tails(survey, (at, log2), arena, contenders);
                continue;
            }
            let tail = chunked(survey, at, log2, 1 << log2);
            if front.iter().all(|(other, _)| !no_worse(*other, tail)) {
                front.retain(|(other, _)| !no_worse(tail, *other));
                front.push((tail, at));
            }
        }
        for (_, way) in &front {
            enter_tails(survey, (*way, log2), arena, contenders);
        }
    }
}

fn enter_bundles(
    survey: &Survey,
    bundles: &[Bundle],
    arena: &mut Vec<(u64, Line)>,
    contenders: &mut Vec<Contender<Bid>>,
) {
    for (at, bundle) in bundles.iter().enumerate() {
        // Several ways at once are less simple than one of them.
        let ways = bundle.strands.iter().map(|strand| &survey.ways[strand.way]);
        let doubt = ways.map(|way| survey.doubt(way)).max().unwrap_or(0);
        let mut lines = bundle.lines();
        handicap(doubt, &mut lines);
        enter(Bid::Bundle(at), &lines, arena, contenders);
    }
}

/// Has a contender appear slower by so many parts of 1024.
fn handicap(parts: u16, lines: &mut [(u64, Line)]) {
    if parts > 0 {
        let factor = Correction::ONE + u32::from(parts);
        for (_, line) in lines {
            *line = line.scaled(factor);
        }
    }
}

/// Enters a way in chunks of one size.
fn enter_tails(
    survey: &Survey,
    (way, log2): (usize, u32),
    arena: &mut Vec<(u64, Line)>,
    contenders: &mut Vec<Contender<Bid>>,
) {
    let start = arena.len();
    let of = &survey.ways[way];
    let slots = survey.slots(of, log2, survey.limits.staging_bytes);
    survey.tails(of, log2, slots, arena);
    survey.correct(of, start, arena);
    handicap(of.handicap, &mut arena[start..]);
    contenders.push(Contender {
        lines: start..arena.len(),
        until: None,
        what: Bid::Chunked { way, log2 },
    });
}

fn enter(
    what: Bid,
    lines: &[(u64, Line)],
    arena: &mut Vec<(u64, Line)>,
    contenders: &mut Vec<Contender<Bid>>,
) {
    let start = arena.len();
    arena.extend_from_slice(lines);
    contenders.push(Contender {
        lines: start..arena.len(),
        until: None,
        what,
    });
}

fn chunked(survey: &Survey, way: usize, log2: u32, whole: u64) -> Tail {
    let way = &survey.ways[way];
    let slots = survey.slots(way, log2, survey.limits.staging_bytes);
    survey.tail(way, log2, slots, whole)
}

fn no_worse(a: Tail, b: Tail) -> bool {
    a.fixed_ns <= b.fixed_ns && a.period_ns <= b.period_ns
}
