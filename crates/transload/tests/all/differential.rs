//! The random differential test: four threads at once use all operations of the library at random, with two managers,
//! over all memories of this machine, and compare with plain arrays of bytes.
//!
//! `TRANSLOAD_SEED` repeats a run as far as threads allow. `TRANSLOAD_DIFFERENTIAL_SECONDS` sets its duration (default:
//! 20 s), of which the test of mapped memory takes a quarter. `TRANSLOAD_DIFFERENTIAL_MACHINE` selects one machine
//! alone (`Host`, `Adapters`, `Cuda` or `All`).
//!
//! One lock of the test gives each submission its place in the order of the model and of the engine. Calls that block
//! get their place by a claim instead: while such a call lasts, no thread submits work that conflicts with it. Waits,
//! guards and drops have no lock.
#![cfg(all(target_os = "linux", not(any(loom, transload_local))))]

use crate::adapter;
mod bytes;
mod copies;
mod ends;
mod exchange;
mod looks;
mod memory;
mod round;
mod tally;
mod words;
mod worker;
mod world;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::dice::Dice;
use round::{Machine, Mix};

/// The tests of one process run one after the other: each counts threads and descriptors of the process.
static ALONE: Mutex<()> = Mutex::new(());

fn seconds(default: u64) -> u64 {
    let set = std::env::var("TRANSLOAD_DIFFERENTIAL_SECONDS");
    set.map_or(default, |text| text.parse().unwrap())
}

pub(crate) fn seed() -> u64 {
    let set = std::env::var("TRANSLOAD_SEED");
    let now = || {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        since.as_nanos() as u64 >> 10 & 0xFFFF_FFFF
    };
    set.map_or_else(|_| now(), |text| text.parse().unwrap())
}

/// Runs rounds for so many seconds, and until they are enough.
fn run(machines: &[Machine], seconds: u64, mix: Mix, are_enough: impl Fn(usize) -> bool) {
    let _alone = tally::lock(&ALONE);
    tally::count_panics();
    let seed = seed();
    println!("TRANSLOAD_SEED={seed}");
    let _watchdog = tally::Watchdog::new(format!("seed {seed}"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut left = vec![ends::Left::default(); machines.len()];
    let mut rounds = 0;
    while (Instant::now() < end || !are_enough(rounds)) && !tally::has_failed() {
        let which = rounds % machines.len();
        let context = format!("seed {seed}, round {rounds}, {:?}", machines[which]);
        round::round(machines[which], mix, &mut dice, context.clone());
        left[which].compare(&context);
        rounds += 1;
    }
    assert!(!tally::has_failed(), "seed {seed}: a thread panicked");
    println!("seed {seed}: {rounds} rounds, {seconds} s");
}

#[test]
fn everything_at_once_agrees_with_plain_arrays() {
    let adapters = round::has_adapters();
    let mut machines = vec![Machine::Cuda, Machine::Host];
    if adapters {
        machines.extend([Machine::Adapters, Machine::All]);
    }
    let only = std::env::var("TRANSLOAD_DIFFERENTIAL_MACHINE");
    if let Ok(only) = &only {
        machines.retain(|machine| format!("{machine:?}") == *only);
    }
    // The other test takes the rest of the time.
    run(&machines, seconds(20) / 4 * 3, Mix::Everything, |rounds| {
        only.is_ok() || rounds >= MOST_ROUNDS || tally::summary(adapters).1.is_empty()
    });
    let (line, missing) = tally::summary(adapters);
    println!("{line}");
    assert!(
        only.is_ok() || missing.is_empty(),
        "these never happened: {missing:?}"
    );
    if !adapters {
        adapter::skip();
    }
}

/// What has not happened in so many rounds cannot happen.
const MOST_ROUNDS: usize = 1000;

/// A device writes whole words, and the host writes bytes.
#[test]
fn short_writes_to_mapped_memory_leave_their_words_alone() {
    if !round::has_mapped() {
        return adapter::skip();
    }
    run(
        &[Machine::Adapters],
        seconds(20) / 4,
        Mix::Words,
        |rounds| rounds >= 4,
    );
}
