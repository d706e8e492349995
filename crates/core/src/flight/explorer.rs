//! Every order of a flight's events, one state at a time.
//!
//! A breadth-first search over everything that can happen to a [`Flight`](super::Flight): each
//! operation under way succeeds, fails, is stopped half-way or refused, in any order; slots are granted one by one;
//! routes are found or not; checksums are equal or not; the owner cancels, the deadline passes, or
//! the owner goes away and hands in nothing. Beside the flight runs a [`model`] that knows only
//! what the flight's driver knows, and in every state the flight must keep its promises:
//!
//! - a slot serves one chunk at a time, is read only with exactly the bytes that the step before
//!   left in it, never returns under an operation, and returns exactly once before the end;
//! - transforms see every chunk of a leg once, in order, one at a time;
//! - `Done` only with every byte delivered and, where asked for, found equal; `Stopped` with as
//!   many leading bytes as did arrive; `Failed` only when no route was left;
//! - nothing is submitted after a failure, a stop or the end, and an overlapping payload that was
//!   touched is never tried again;
//! - it never waits for something that cannot come, and every path ends.
//!
//! `EXPLORE=full cargo test -p transload-core explorer` adds larger scenarios. With `--nocapture`
//! each scenario prints how many states it has.

mod model;
mod scenario;
mod search;
mod staging;

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use std::println;

use scenario::Scenario;
use search::explore;

use super::tests::{direct, lane, plan, staged, step};
use crate::{Cost, Lane, Method, Plan, Role, Step, StepKind};

const CHUNK: u64 = 16;

/// No byte, one, and a byte around each edge of up to four chunks.
const LENGTHS: [u64; 8] = [
    0,
    1,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    2 * CHUNK,
    4 * CHUNK - 1,
    4 * CHUNK,
];

/// The same with fewer, for what has many states.
const FEW_LENGTHS: [u64; 4] = [0, 1, CHUNK + 1, 4 * CHUNK - 1];

#[test]
fn direct_copies_keep_every_promise() {
    let states = explore_each(&LENGTHS, |len| {
        vec![
            scenario("direct, one at a time", len, &direct(1), &direct(2)),
            scenario("direct, two at a time", len, &direct(2), &direct(1)),
            scenario(
                "direct, larger chunks next",
                len,
                &direct(2),
                &chunks_of(24),
            ),
        ]
    });
    assert!(states >= 25_000, "only {states} states");
}

#[test]
fn staged_copies_keep_every_promise() {
    let states = explore_each(few_unless_full(), |len| {
        vec![
            scenario("staged, then direct", len, &one_ring(), &direct(1)),
            scenario("direct, then staged", len, &direct(1), &one_ring()),
            scenario("staged twice", len, &one_ring(), &one_ring()),
        ]
    });
    assert!(states >= 70_000, "only {states} states");
}

#[test]
fn copies_over_two_rings_keep_every_promise() {
    let mut states = explore_each(&FEW_LENGTHS, |len| {
        vec![scenario(
            "two rings, then direct",
            len,
            &two_rings(),
            &direct(1),
        )]
    });
    if full() {
        states += explore_each(&FEW_LENGTHS, |len| {
            vec![
                scenario("direct, then two rings", len, &direct(2), &two_rings()),
                scenario("two rings twice", len, &two_rings(), &two_rings()),
            ]
        });
    }
    assert!(states >= 150_000, "only {states} states");
}

#[test]
fn transforms_keep_every_promise() {
    let mut states = explore_each(few_unless_full(), |len| {
        vec![
            scenario("transformed", len, &transformed(), &direct(1)),
            scenario("direct, then transformed", len, &direct(1), &transformed()),
        ]
    });
    let lengths: &[u64] = if full() { &FEW_LENGTHS } else { &[CHUNK + 1] };
    states += explore_each(lengths, |len| {
        let (far, near) = (&transformed_behind_a_hop(), &direct(1));
        vec![scenario("transformed behind a hop", len, far, near)]
    });
    assert!(states >= 35_000, "only {states} states");
}

#[test]
fn verified_copies_keep_every_promise() {
    let mut states = explore_each(few_unless_full(), |len| {
        vec![
            scenario("read in place", len, &direct(2), &direct(1)).verified(&digest(2)),
            scenario("read over slots", len, &direct(1), &direct(1)).verified(&staged_digest()),
        ]
    });
    if full() {
        states += explore_each(&FEW_LENGTHS, |len| {
            let copy = scenario("staged, read over slots", len, &one_ring(), &one_ring());
            vec![copy.verified(&staged_digest())]
        });
    }
    assert!(states >= 55_000, "only {states} states");
}

#[test]
fn copies_over_two_lanes_keep_every_promise() {
    let states = explore_each(few_unless_full(), |len| {
        vec![
            scenario("two lanes", len, &two_lanes(), &direct(1)),
            scenario("direct, then two lanes", len, &direct(1), &two_lanes()),
        ]
    });
    assert!(states >= 40_000, "only {states} states");
}

#[test]
fn overlapping_copies_keep_every_promise() {
    let states = explore_each(&LENGTHS, |len| {
        let fits = len <= CHUNK;
        let mut scenarios = vec![
            scenario("overlapping", len, &direct(2), &direct(1)).in_place(true),
            scenario("overlapping, then staged", len, &direct(2), &one_ring()).in_place(fits),
            scenario("overlapping, then two lanes", len, &direct(2), &two_lanes()).in_place(false),
        ];
        if fits {
            let copy = scenario("overlapping, staged", len, &one_ring(), &direct(1));
            scenarios.push(copy.in_place(true));
        }
        scenarios
    });
    assert!(states >= 3_000, "only {states} states");
}

/// Explores scenarios for each length, prints each, and answers how many states they have.
fn explore_each(lengths: &[u64], scenarios: impl Fn(u64) -> Vec<Scenario>) -> usize {
    let mut states = 0;
    for scenario in lengths.iter().flat_map(|len| scenarios(*len)) {
        let explored = explore(&scenario);
        states += explored.states;
        println!(
            "{}: {} states, {} transitions, {} ends, {} events deep",
            scenario.title(),
            explored.states,
            explored.transitions,
            explored.ends,
            explored.depth
        );
    }
    states
}

fn few_unless_full() -> &'static [u64] {
    if full() { &LENGTHS } else { &FEW_LENGTHS }
}

fn full() -> bool {
    std::env::var("EXPLORE").is_ok_and(|wanted| wanted == "full")
}

fn scenario(name: &'static str, len: u64, first: &Arc<Plan>, second: &Arc<Plan>) -> Scenario {
    Scenario::new(name, len, first, second)
}

fn chunks_of(chunk_bytes: u64) -> Arc<Plan> {
    let steps = vec![step(Role::Src, Role::Dst, 0, Cost::ZERO)];
    let lane = Lane {
        chunk_bytes,
        ..lane(steps, 0, 2)
    };
    plan(Method::DirectCopy, vec![lane])
}

fn one_ring() -> Arc<Plan> {
    staged(2, Cost::ZERO, Cost::ZERO)
}

fn two_rings() -> Arc<Plan> {
    let steps = vec![
        step(Role::Src, Role::Slot(0), 0, Cost::ZERO),
        step(Role::Slot(0), Role::Slot(1), 1, Cost::ZERO),
        step(Role::Slot(1), Role::Dst, 2, Cost::ZERO),
    ];
    plan(Method::HostStaged, vec![lane(steps, 2, 1)])
}

fn transformed() -> Arc<Plan> {
    let steps = vec![
        step(Role::Src, Role::Slot(0), 0, Cost::ZERO),
        transform(Role::Slot(0)),
        step(Role::Slot(0), Role::Dst, 2, Cost::ZERO),
    ];
    plan(Method::HostStaged, vec![lane(steps, 2, 1)])
}

/// A transform in the second ring: a chunk that overtakes holds the slot that the older one needs
/// to be seen first.
fn transformed_behind_a_hop() -> Arc<Plan> {
    let steps = vec![
        step(Role::Src, Role::Slot(0), 0, Cost::ZERO),
        step(Role::Slot(0), Role::Slot(1), 1, Cost::ZERO),
        transform(Role::Slot(1)),
        step(Role::Slot(1), Role::Dst, 2, Cost::ZERO),
    ];
    plan(Method::HostStaged, vec![lane(steps, 2, 1)])
}

fn digest(depth: u16) -> Arc<Plan> {
    let steps = vec![transform(Role::Src)];
    plan(Method::DirectCopy, vec![lane(steps, 0, depth)])
}

fn staged_digest() -> Arc<Plan> {
    let steps = vec![
        step(Role::Src, Role::Slot(0), 0, Cost::ZERO),
        transform(Role::Slot(0)),
    ];
    plan(Method::HostStaged, vec![lane(steps, 2, 1)])
}

/// One lane in one pass, one over a ring with smaller chunks.
fn two_lanes() -> Arc<Plan> {
    let pass = vec![step(Role::Src, Role::Dst, 0, Cost::ZERO)];
    let hops = vec![
        step(Role::Src, Role::Slot(0), 1, Cost::ZERO),
        step(Role::Slot(0), Role::Dst, 2, Cost::ZERO),
    ];
    plan(Method::PeerToPeer, vec![lane(pass, 0, 2), lane(hops, 2, 1)])
}

fn transform(at: Role) -> Step {
    Step {
        kind: StepKind::Transform { at },
        ..step(Role::Src, Role::Dst, 3, Cost::ZERO)
    }
}
