//! Random transfers among this process and three machines that fail: they agree with plain memory.
//!
//! In each round some transfers are submitted of bytes that overlap, so that their order matters, with deadlines and
//! cancels, and meanwhile a machine stands still, ends and comes back, or the way to it is held up, slowed down or cut. Then
//! all have ended in bounded time, those among machines without trouble well, and each buffer has exactly the bytes of the
//! model; the others name a machine in trouble.
//!
//! `PROPTEST_CASES` sets the number of transfers, and `TRANSLOAD_SEED` repeats a run as far as time allows.

mod bytes;
mod machine;
mod proxy;
mod round;
mod trouble;
mod watchdog;
mod world;

use std::env;
use std::fmt::Debug;

use crate::dice::Dice;
use world::World;

/// As many as take a few seconds.
const TRANSFERS: usize = 60;

#[test]
fn transfers_among_machines_that_fail_agree_with_plain_memory() {
    let set = env::var("PROPTEST_CASES");
    let transfers = set.map_or(TRANSFERS, |text| text.parse().unwrap());
    let seed = crate::differential::seed();
    println!("TRANSLOAD_SEED={seed}");
    let dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut world = World::new(dice, seed);
    while world.submitted() < transfers {
        world.round();
    }
    world.end(transfers);
}

fn pick<T: Copy + Debug>(dice: &mut Dice, all: &[T]) -> T {
    all[dice.below(all.len() as u64) as usize]
}
