//! What a manager that learns makes of its transfers, on a simulated machine whose links change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use transload::probe::ProbeOptions;
use transload::{
    Buffer, Clock, Instant, MemoryId, Method, Region, Report, Request, StagingBudget,
    TransferManager,
};
use transload_testkit::sim::{Completion, Rule, Sim, SimClock};
use transload_testkit::topology;

use super::fixture::{Fixture, bytes, without_peers};

const LEN: u64 = 8 << 20;
/// What a link's operation takes in addition when the link is slow: ten times as long as a chunk.
const SLOW_NS: u64 = 3_000_000;

/// The simulated machine's clock, and time in which the machine does nothing.
struct Idle {
    clock: SimClock,
    idle_ns: AtomicU64,
}

impl Clock for Idle {
    fn now(&self) -> Instant {
        Instant(self.clock.now_ns() + self.idle_ns.load(Ordering::Relaxed))
    }
}

struct Copies {
    fixture: Fixture,
    clock: Arc<Idle>,
    src: Buffer,
    dst: Buffer,
}

impl Copies {
    fn new(learning: bool) -> Copies {
        let machine = topology::from_str(&without_peers(1)).unwrap();
        let sim = Sim::builder(&machine).completion(Completion::Timed);
        let sim = sim.build().unwrap();
        let clock = Arc::new(Idle {
            clock: sim.clock(),
            idle_ns: AtomicU64::new(0),
        });
        let manager = TransferManager::builder()
            .clock(clock.clone())
            .backend(Arc::new(sim.clone()))
            .staging(Arc::new(StagingBudget::new(256 << 20)))
            .learning(learning)
            .build()
            .unwrap();
        let fixture = Fixture { sim, manager };
        let src = fixture.filled("cpu:0/pageable", &bytes(LEN as usize, 1));
        let dst = fixture.empty("sim:0", LEN as usize);
        Copies {
            fixture,
            clock,
            src,
            dst,
        }
    }

    fn copy(&self) -> Report {
        self.fixture
            .manager
            .copy(&self.src, &self.dst)
            .wait()
            .unwrap()
    }

    /// The staged route's first link becomes slow.
    fn slow_down(&self) {
        let memory = |name: &str| name.parse::<MemoryId>().unwrap();
        let (from, to) = (memory("cpu:0/pageable"), memory("cpu:0/pinned"));
        let rule = Rule::delay_ns(SLOW_NS).over(from, to).always();
        self.fixture.sim.add_rule(rule);
    }
}

/// The time by the simulated machine's clock.
fn ns(report: &Report) -> u64 {
    report.elapsed().as_nanos() as u64
}

#[test]
fn a_link_that_becomes_slow_is_left_within_20_transfers_and_found_again_within_200() {
    let copies = Copies::new(true);
    let fast = copies.copy();
    assert_eq!(fast.method(), Method::HostStaged);
    copies.slow_down();
    let slow = copies.copy();
    assert!(ns(&slow) > 2 * ns(&fast));
    // The direct link is the best way then: 8 GB/s.
    let direct_ns = LEN / 8;
    let left = (0..20).position(|_| ns(&copies.copy()) * 9 < direct_ns * 10);
    assert!(left.is_some_and(|after| after <= 5), "{left:?}");

    copies.fixture.sim.clear_rules();
    let is_fast =
        |report: &Report| report.method() == Method::HostStaged && ns(report) * 9 <= ns(&fast) * 10;
    let back = (0..200).position(|_| is_fast(&copies.copy()));
    assert!(back.is_some(), "the link was not found again");
    assert!(is_fast(&copies.copy()));
    assert_eq!(copies.fixture.bytes_of(&copies.dst), bytes(LEN as usize, 1));
}

#[test]
fn a_probe_that_had_no_time_for_any_link_leaves_a_manager_learning() {
    let copies = Copies::new(true);
    let mut options = ProbeOptions::quick();
    options.budget = Duration::ZERO;
    let found = copies.fixture.manager.probe(&options);
    assert!(found.profile.links().is_empty());
    let fast = copies.copy();
    copies.slow_down();
    let left = (0..20).position(|_| copies.copy().method() != fast.method());
    assert!(left.is_some(), "the slow link was not left");
}

#[test]
fn trials_are_reported_and_take_a_hundredth_of_the_time() {
    let copies = Copies::new(true);
    let (mut all_ns, mut tried) = (0, Vec::new());
    let expected = ns(&copies.copy());
    for _ in 0..400 {
        let report = copies.copy();
        all_ns += ns(&report);
        if let Some(trial) = report.tried() {
            assert!(trial.bytes < LEN && trial.ns > 0);
            tried.push(ns(&report).saturating_sub(expected));
        } else {
            assert_eq!(ns(&report), expected);
        }
    }
    assert!(!tried.is_empty());
    let lost_ns: u64 = tried.iter().sum();
    assert!(
        lost_ns * 100 <= all_ns,
        "{lost_ns} of {all_ns} ns in {} trials",
        tried.len()
    );
}

#[test]
fn a_transfer_with_a_deadline_tries_nothing_and_so_does_a_manager_that_is_told_not_to() {
    let copies = Copies::new(true);
    for _ in 0..200 {
        let request = Request::new(&copies.src, &copies.dst).deadline(Instant(u64::MAX));
        let report = copies.fixture.manager.submit(&request).wait().unwrap();
        assert!(report.tried().is_none());
    }
    let copies = Copies::new(false);
    copies.slow_down();
    let first = copies.copy();
    for _ in 0..100 {
        let report = copies.copy();
        assert!(report.tried().is_none());
        assert_eq!(report.plan(), first.plan());
    }
}

#[test]
fn what_nobody_waits_for_teaches_nothing() {
    let copies = Copies::new(true);
    let manager = &copies.fixture.manager;
    let predicted = || {
        let request = Request::new(&copies.src, &copies.dst);
        manager.explain(&request).unwrap().chosen.predicted_ns
    };
    let before = predicted();
    for _ in 0..20 {
        let posted = manager.copy(&copies.src, &copies.dst);
        copies
            .clock
            .idle_ns
            .fetch_add(100_000_000, Ordering::Relaxed);
        let report = posted.wait().unwrap();
        assert!(ns(&report) >= 100_000_000);
    }
    assert_eq!(predicted(), before);
    copies.slow_down();
    (0..5).for_each(|_| drop(copies.copy()));
    assert_ne!(predicted(), before);
    let request = Request::new(&copies.src, &copies.dst);
    let told = manager.explain(&request).unwrap();
    let mut ways = told.rejected.iter().chain([&told.chosen]);
    assert!(ways.any(|way| way.corrected), "{told}");
    let text = told.to_string();
    assert!(
        text.contains("default costs, corrected by what transfers took"),
        "{text}"
    );
}

#[test]
fn a_clock_that_steps_teaches_nothing_and_breaks_nothing() {
    let copies = Copies::new(true);
    let predicted = || {
        let request = Request::new(&copies.src, &copies.dst);
        let explained = copies.fixture.manager.explain(&request).unwrap();
        explained.chosen.predicted_ns
    };
    (0..10).for_each(|_| drop(copies.copy()));
    let before = predicted();
    // An hour forward, and back again, in every fourth copy while it is under way: the median stays.
    let hour_ns = 3_600_000_000_000;
    for round in 0..40 {
        let posted = copies.fixture.manager.copy(&copies.src, &copies.dst);
        match round % 8 {
            3 => drop(copies.clock.idle_ns.fetch_add(hour_ns, Ordering::Relaxed)),
            7 => drop(copies.clock.idle_ns.fetch_sub(hour_ns, Ordering::Relaxed)),
            _ => {}
        }
        posted.wait().unwrap();
    }
    assert_eq!(predicted(), before);
    assert_eq!(copies.fixture.bytes_of(&copies.dst), bytes(LEN as usize, 1));
}

#[test]
fn copies_of_many_pieces_teach_nothing_of_whole_ones() {
    let copies = Copies::new(true);
    let manager = &copies.fixture.manager;
    let numbers: Vec<u32> = (0..2048).rev().collect();
    let pool = Region::blocks(&copies.src, 4096, &numbers).unwrap();
    let blocks = || drop(manager.copy(pool.clone(), &copies.dst).wait().unwrap());
    let expected = ns(&copies.copy());
    for _ in 0..40 {
        blocks();
        let report = copies.copy();
        assert!(report.tried().is_some() || ns(&report) == expected);
    }
}
