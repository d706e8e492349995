//! Copies whose end no thread waits for, and threads that wait for transfers behind such copies.

use std::sync::mpsc::channel;
use std::thread;

use transload::{Buffer, Request, Transfer, TransferManager};

use crate::cuda::machine::{assert_clean, at, manager, pattern, round};

const LEN: u64 = 50_000;
const PINNED: &str = "cpu:0/pinned";

struct Bench {
    manager: TransferManager,
    source: Buffer,
    far: Buffer,
    back: Buffer,
}

fn bench() -> Bench {
    let manager = manager("no-peer");
    // This round proves the links.
    round(&manager, 10, &[PINNED, "cuda:0", PINNED]);
    let source = at(&manager, PINNED, LEN);
    manager.copy_from_slice(&pattern(LEN, 1), &source).unwrap();
    let [far, back] = ["cuda:0", PINNED].map(|place| at(&manager, place, LEN));
    Bench {
        manager,
        source,
        far,
        back,
    }
}

impl Bench {
    fn up(&self) -> Transfer {
        self.manager.copy(&self.source, &self.far)
    }

    /// The copy down follows every copy up.
    fn down(&self) -> Transfer {
        self.manager.copy(&self.far, &self.back)
    }

    fn assert_arrived(&self) {
        assert!(*self.back.read().unwrap() == *pattern(LEN, 1));
    }
}

#[test]
fn what_stands_behind_a_copy_that_nobody_waits_for_is_done() {
    let bench = bench();
    let unheard = bench.up();
    bench.down().wait().unwrap();
    bench.assert_arrived();
    assert!(unheard.is_over());
}

#[test]
fn who_sleeps_already_hears_of_what_another_submits() {
    let bench = bench();
    let gate = bench.manager.event();
    let first = Request::new(&bench.source, &bench.far).after(&gate);
    let first = bench.manager.submit(&first);
    let down = bench.down();
    let (tell, told) = channel();
    thread::scope(|scope| {
        scope.spawn(move || tell.send(down.wait().map(|_| ())).unwrap());
        // The other thread must learn of this, whether or not it sleeps by now.
        gate.set();
        told.recv().unwrap().unwrap();
    });
    bench.assert_arrived();
    first.wait().unwrap();
}

#[test]
fn a_copy_that_is_only_looked_at_ends() {
    let bench = bench();
    let up = bench.up();
    while !up.is_over() {
        bench.manager.turn();
        thread::yield_now();
    }
    let down = bench.down();
    pollster::block_on(down).unwrap();
    bench.assert_arrived();
}

#[test]
fn copies_that_are_let_go_of_end() {
    let bench = bench();
    for _ in 0..10 {
        drop(bench.up());
        drop(bench.down());
    }
    bench.manager.wait_idle();
    bench.assert_arrived();
    drop(bench);
    assert_clean();
}

/// Threads that submit, wait, poll, await and drop in random order, over buffers that they share.
#[test]
fn threads_that_wait_in_every_way_all_hear() {
    let bench = bench();
    thread::scope(|scope| {
        for seed in 1..=4u64 {
            let bench = &bench;
            scope.spawn(move || {
                let mut held = Vec::new();
                for choice in pattern(400, seed) {
                    held.push(if choice & 8 == 0 {
                        bench.up()
                    } else {
                        bench.down()
                    });
                    let one = usize::from(choice) % held.len();
                    match choice & 7 {
                        0 | 1 => drop(held.swap_remove(one)),
                        2 => drop(held.swap_remove(one).wait().unwrap()),
                        3 => drop(pollster::block_on(held.swap_remove(one)).unwrap()),
                        4 => {
                            let one = held.swap_remove(one);
                            while !one.is_over() {
                                bench.manager.turn();
                                thread::yield_now();
                            }
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    bench.up().wait().unwrap();
    bench.down().wait().unwrap();
    bench.assert_arrived();
    drop(bench);
    assert_clean();
}
