//! Submissions that wait for each other on the device, of which some fail.

use crate::common;

use common::engine::{allocate, manager, paged, read};
use common::hal::{Bench, fill};
use common::{assert_clean, metal, pattern, seen};
use transload::Method;
use transload_hal::Outcome;
use transload_metal_double::{Device, fault, hold, release};

const LEN: usize = 4096;

#[test]
fn what_follows_in_the_same_lane_goes_on() {
    let bench = Bench::new(metal(vec![Device::unified()]));
    let src = bench.buffer("metal:0/mapped", LEN);
    let [a, b] = ["metal:0/device"; 2].map(|place| bench.buffer(place, LEN));
    fill(&src, &pattern(LEN));
    hold();
    fault("blit=internal").unwrap();
    let first = bench.copy(&src, &a, &[]).unwrap();
    let second = bench.copy(&src, &b, &[first]).unwrap();
    release();
    assert!(matches!(bench.outcome(first), Outcome::Failed(_)));
    assert_eq!(bench.outcome(second), Outcome::Done);
    drop((src, a, b, bench));
    assert_clean();
}

#[test]
fn what_waits_for_what_waits_for_commands_that_fail_goes_on() {
    let bench = Bench::new(metal(vec![Device::unified()]));
    let [src, back] = ["metal:0/mapped"; 2].map(|place| bench.buffer(place, LEN));
    let device = bench.buffer("metal:0/device", LEN);
    fill(&src, &pattern(LEN));
    hold();
    fault("blit=internal").unwrap();
    // In, out, and in again, the last of them behind the first one in its queue.
    let first = bench.copy(&src, &device, &[]).unwrap();
    let between = bench.copy(&device, &back, &[first]).unwrap();
    let last = bench.copy(&src, &device, &[between]).unwrap();
    release();
    assert!(matches!(bench.outcome(first), Outcome::Failed(_)));
    assert_eq!(bench.outcome(between), Outcome::Done);
    assert_eq!(bench.outcome(last), Outcome::Done);
    let after = bench.copy(&device, &back, &[]).unwrap();
    assert_eq!(bench.outcome(after), Outcome::Done);
    assert_eq!(seen(&back), pattern(LEN));
    drop((src, back, device, bench));
    assert_clean();
}

#[test]
fn a_look_at_managed_memory_goes_on_behind_one_that_fails() {
    let manager = manager(vec![Device::discrete()]);
    let bytes = pattern(LEN);
    let device = allocate(&manager, "metal:0", LEN);
    manager.copy_from_slice(&bytes, &device).unwrap();
    let managed = [(); 2].map(|()| allocate(&manager, "metal:0/managed", LEN));
    let back = [(); 2].map(|()| manager.adopt(vec![0u8; LEN]).unwrap());
    for managed in &managed {
        manager.copy(&device, managed).wait().unwrap();
    }
    hold();
    fault("blit=internal").unwrap();
    let looks = [0, 1].map(|at| manager.copy(&managed[at], &back[at]));
    release();
    let [first, second] = looks.map(transload::Transfer::wait);
    // It went another way.
    assert!(!first.unwrap().fallbacks().is_empty());
    assert!(second.unwrap().fallbacks().is_empty());
    for back in &back {
        assert_eq!(read(&manager, back), bytes);
    }
    drop((managed, device, back, manager));
    assert_clean();
}

#[test]
fn a_way_is_proven_though_the_only_other_one_has_just_failed() {
    let manager = manager(vec![Device::unified()]);
    let bytes = pattern(LEN);
    let (host, device) = (
        paged(&manager, &bytes),
        allocate(&manager, "metal:0/device", LEN),
    );
    fault("blit=internal").unwrap();
    // A copy of so few bytes is staged first, and then made in place.
    let report = manager.copy(&host, &device).wait().unwrap();
    assert_eq!(report.method(), Method::ZeroCopy);
    assert_eq!(report.fallbacks().len(), 1);
    assert_eq!(read(&manager, &device), bytes);
    drop((host, device, manager));
    assert_clean();
}
