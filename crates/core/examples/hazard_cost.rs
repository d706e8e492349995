//! What it costs to enter and leave the order with 0 to 10 000 other transfers alive.
//!
//! `cargo run --release -p transload-core --example hazard_cost`
//!
//! Each figure is the median of 31 batches, in nanoseconds for one transfer (two footprints) that
//! enters and leaves while that many others stay. Alone: it leaves before the next one enters; the
//! others are elsewhere in the same storage. Overtaken: two such transfers take turns, each entering
//! before the other leaves; the others are elsewhere, or they all read what these read, or one of
//! them covers the whole storage.

use std::hint::black_box;
use std::time::Instant;

use transload_core::{Footprint, Hazards, Shape, StorageId};

fn main() {
    println!("    live       alone   overtaken  shared source  one covers all");
    for live in [0, 1, 10, 100, 1_000, 10_000] {
        println!(
            "{live:>8}  {:>7} ns  {:>7} ns  {:>10} ns  {:>11} ns",
            measure(&elsewhere(live), false),
            measure(&elsewhere(live), true),
            measure(&reading_the_source(live), true),
            measure(&below_a_long_one(live), true),
        );
    }
}

const PAGE: u64 = 4096;

/// Where the measured transfer reads and writes: amid the others.
const SRC: u64 = 5_000 * 4 * PAGE;
const DST: u64 = 5_001 * 4 * PAGE;

fn elsewhere(live: u64) -> Vec<[Footprint; 2]> {
    // A stride that is prime to their number, so that they do not enter in order.
    (0..live)
        .map(|i| (i * 7919 % 10_007) * 4 * PAGE)
        .map(|at| {
            [
                bytes(at + PAGE, PAGE, false),
                bytes(at + 2 * PAGE, PAGE, true),
            ]
        })
        .collect()
}

fn reading_the_source(live: u64) -> Vec<[Footprint; 2]> {
    elsewhere(live)
        .into_iter()
        .map(|[_, dst]| [bytes(SRC, PAGE, false), dst])
        .collect()
}

fn below_a_long_one(live: u64) -> Vec<[Footprint; 2]> {
    let mut others = elsewhere(live);
    if let Some([src, _]) = others.first_mut() {
        *src = bytes(0, 1 << 40, false);
    }
    others
}

fn bytes(position: u64, len: u64, writes: bool) -> Footprint {
    Footprint::new(StorageId::Host, position, Shape::contiguous(len), writes)
        .expect("positions here end far below 2^64")
}

fn measure(others: &[[Footprint; 2]], overtaken: bool) -> u128 {
    const BATCH: u64 = 1_000;
    let mut hazards = Hazards::new();
    for other in others {
        hazards.enter(other);
    }
    let transfer = |slot: u64| {
        let shift = slot * PAGE;
        [bytes(SRC, PAGE, false), bytes(DST + shift, PAGE, true)]
    };
    let transfers = [transfer(0), transfer(1)];
    let mut waiting = None;
    let mut batches: Vec<u128> = (0..31)
        .map(|_| {
            let start = Instant::now();
            for i in 0..BATCH {
                let entered = hazards.enter(black_box(&transfers[i as usize % 2]));
                let leaving = if overtaken {
                    waiting.replace(entered.ticket)
                } else {
                    Some(entered.ticket)
                };
                if let Some(ticket) = leaving {
                    hazards.leave(ticket);
                    let mut looks = usize::MAX;
                    while let Some(freed) = hazards.poll_freed(&mut looks) {
                        black_box(freed);
                    }
                }
            }
            start.elapsed().as_nanos() / u128::from(BATCH)
        })
        .collect();
    batches.sort_unstable();
    batches[batches.len() / 2]
}
