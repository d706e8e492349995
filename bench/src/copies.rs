//! `host-host`: copies between two vectors, from 64 B to 512 MiB.

mod contenders;
mod python;

use std::time::Duration;

use anyhow::{Context, Result};
use transload::{ByteSize, TransferManager};

use crate::case::{Case, Effort, Outcome, Verdict};
use crate::contest::{self, Contender, Random, Rules};
use crate::raw::stream;
use crate::series::Series;
use contenders::{Bytes, Engine, Safe, SliceCopy, Team};
use python::{Library, Python};

/// From one cache line to far past any cache.
const SIZES: [usize; 10] = [
    64,
    512,
    4 << 10,
    32 << 10,
    256 << 10,
    1 << 20,
    2 << 20,
    16 << 20,
    128 << 20,
    512 << 20,
];
const QUICK_SIZES: [usize; 5] = [64, 4 << 10, 1 << 20, 16 << 20, 128 << 20];

/// From this size on copies are compared with the ceiling.
const HELD_FROM: usize = 1 << 20;
/// The share of the ceiling's rate that Transload must reach.
const SHARE: f64 = 0.95;
/// The limit for a 64 B copy is memcpy plus this.
const SMALL: usize = 64;
const SMALL_OVERHEAD_S: f64 = 1e-6;

/// From this size on, a neighbour's leftovers in the caches do not matter, and an operation takes too long to do each
/// one twice.
const COLD_FROM: usize = 64 << 20;

/// The best of these ways is the ceiling. The first one takes part twice for the noise, and so does the first one with
/// several threads.
const CEILING: [&str; 4] = [
    "1 × plain",
    "1 × streaming",
    "all × plain",
    "all × streaming",
];
const AGAIN: [&str; 2] = ["1 × plain, again", "all × plain, again"];

pub(crate) fn cases(effort: Effort) -> Vec<Case> {
    let sizes = if effort.quick {
        &QUICK_SIZES[..]
    } else {
        &SIZES
    };
    let case = |len: &usize| {
        let len = *len;
        Case::new(name(len), move |effort| copies(len, effort))
    };
    sizes.iter().map(case).collect()
}

fn name(len: usize) -> String {
    let text = match len {
        len if len >= 1 << 20 => format!("{}MiB", len >> 20),
        len if len >= 1 << 10 => format!("{}KiB", len >> 10),
        len => format!("{len}B"),
    };
    format!("host-host/{text}")
}

fn copies(len: usize, effort: Effort) -> Result<Outcome> {
    let manager = TransferManager::builder().host().build()?;
    let mut filled = vec![0u8; len];
    Random(len as u64).fill(&mut filled);
    let src = manager.adopt(filled)?;
    let dst = manager.adopt(vec![contest::POISON; len])?;
    let bytes = Bytes {
        src: src.clone(),
        dst: dst.clone(),
    };
    let team = Team::new()?;
    let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(Engine {
        manager: manager.clone(),
        src: src.clone(),
        dst: dst.clone(),
    })];
    let mut enter = |name: &str, copy: SliceCopy| {
        contenders.push(Box::new(Safe {
            name: name.to_owned(),
            bytes: bytes.clone(),
            copy,
        }));
    };
    let plain = |dst: &mut [u8], src: &[u8]| dst.copy_from_slice(src);
    for name in [CEILING[0], AGAIN[0]] {
        enter(name, Box::new(plain));
    }
    enter("rayon", Box::new(contenders::rayon_chunks));
    for name in [CEILING[2], AGAIN[1]] {
        let team = team.clone();
        enter(name, Box::new(move |dst, src| team.copy(dst, src, plain)));
    }
    if stream::is_available() {
        enter(CEILING[1], Box::new(stream::copy));
        enter(
            CEILING[3],
            Box::new(move |dst, src| team.copy(dst, src, stream::copy)),
        );
    }
    let (libraries, absent) = Python::start(len);
    contenders.extend(libraries.into_iter().map(boxed));
    let rules = Rules {
        rounds: effort.rounds,
        sample: Duration::from_micros(300),
        warm: len < COLD_FROM,
    };
    let series = contest::run(&mut contenders, rules)?;
    let mut verified = true;
    for contender in &mut contenders {
        verified &= contender.verify()?;
    }
    let named = |name: &str| -> Option<&Series> {
        let at = contenders.iter().position(|other| other.name() == name)?;
        series.get(at)
    };
    let mut outcome = Outcome::new(name(len), &series[0]);
    outcome.src = Some(src.memory().to_string());
    outcome.dst = Some(dst.memory().to_string());
    outcome.bytes = len as u64;
    outcome.verified = verified;
    let others = contenders.iter().zip(&series).skip(1);
    outcome.baselines = others
        .map(|(other, series)| (other.name().to_owned(), series.median()))
        .collect();
    outcome.absent = absent;
    outcome.noise = noise(&named, len);
    outcome.verdict = match len {
        SMALL => {
            let memcpy = named(CEILING[0]).context("memcpy took part")?;
            let over = series[0].median() - memcpy.median();
            Some(Verdict::at_most("over memcpy", over, SMALL_OVERHEAD_S, "s"))
        }
        _ if len >= HELD_FROM => {
            let ways = CEILING
                .into_iter()
                .filter_map(|way| Some((way, named(way)?)));
            share_of_ceiling(&series[0], ways)
        }
        _ => None,
    }
    .map(|verdict| verdict.unless_noisy(outcome.noise));
    debug_assert_eq!(ByteSize(outcome.bytes).0, len as u64);
    Ok(outcome)
}

fn boxed(library: Library) -> Box<dyn Contender> {
    Box::new(library)
}

/// The difference between the two runs of a baseline: of memcpy and, for copies that are compared with the ceiling of
/// all cores, of that baseline too.
fn noise<'a>(named: &impl Fn(&str) -> Option<&'a Series>, len: usize) -> f64 {
    let pairs = [(CEILING[0], AGAIN[0]), (CEILING[2], AGAIN[1])];
    let taken = if len < HELD_FROM { 1 } else { 2 };
    let differences = pairs.into_iter().take(taken).map(|(one, again)| {
        named(one)
            .zip(named(again))
            .map_or(f64::NAN, |(one, again)| one.difference(again))
    });
    differences.fold(0.0, f64::max)
}

/// The best way is the one with the least median over the even rounds; it and Transload are then compared over the odd
/// ones. The best of several noisy medians of the same rounds would be too good.
fn share_of_ceiling<'a>(
    transload: &Series,
    ways: impl Iterator<Item = (&'a str, &'a Series)>,
) -> Option<Verdict> {
    let halves = ways.map(|(way, series)| (way, series.halves()));
    let (way, [_, scored]) =
        halves.min_by(|(_, a), (_, b)| a[0].median().total_cmp(&b[0].median()))?;
    let [_, ours] = transload.halves();
    let share = scored.median() / ours.median();
    Some(Verdict::at_least(
        format!("of the ceiling ({way})"),
        share,
        SHARE,
        "",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_is_picked_on_one_half_and_scored_on_the_other() {
        let of = |samples: [f64; 4]| Series::from_iter(samples);
        // In the even rounds `a` is faster; in the odd rounds it is not.
        let (a, b) = (of([1.0, 4.0, 1.0, 4.0]), of([2.0, 2.0, 2.0, 2.0]));
        let ours = of([9.0, 5.0, 9.0, 5.0]);
        let verdict = share_of_ceiling(&ours, [("a", &a), ("b", &b)].into_iter()).unwrap();
        assert_eq!(verdict.value, 0.8);
        assert_eq!(verdict.holds, Some(false));
        assert!(verdict.of.contains('a'));
    }

    #[test]
    fn sizes_are_named_as_people_say_them() {
        assert_eq!(name(64), "host-host/64B");
        assert_eq!(name(32 << 10), "host-host/32KiB");
        assert_eq!(name(512 << 20), "host-host/512MiB");
    }
}
