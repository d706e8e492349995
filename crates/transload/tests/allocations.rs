//! In a steady state, moving bytes allocates nothing: neither on the calling thread nor on any other.

mod counted;
#[path = "all/fixture.rs"]
mod fixture;

use counted::{allocations, assert_allocates_nothing, start};
use fixture::{Fixture, Outcome, bytes, modes, place, without_peers};
use transload::{AllocSpec, Request, TransferManager};
use transload_testkit::sim::Completion;

fn every_way_to_copy(manager: &TransferManager, from: &str, to: &str, len: usize, label: &str) {
    let allocate = |at| {
        manager
            .allocate(place(at), AllocSpec::bytes(len as u64))
            .unwrap()
    };
    let (src, dst) = (allocate(from), allocate(to));
    let what = |call: &str| format!("{call} of {len} bytes from {from} to {to}, {label}");

    let prepared = manager.prepare(&Request::new(&src, &dst)).unwrap();
    assert_allocates_nothing(&what("Prepared::post"), || {
        prepared.post().wait().unwrap();
    });
    assert_allocates_nothing(&what("copy"), || {
        manager.copy(&src, &dst).wait().unwrap();
    });
    let verified = manager.prepare(&Request::new(&src, &dst).verify()).unwrap();
    assert_allocates_nothing(&what("verified copy"), || {
        verified.post().wait().unwrap();
    });
    let frame = bytes(len, 1);
    assert_allocates_nothing(&what("copy_from_slice"), || {
        manager.copy_from_slice(&frame, &dst).unwrap();
    });
    let mut out = vec![0; len];
    assert_allocates_nothing(&what("copy_into_slice"), || {
        manager.copy_into_slice(&src, &mut out).unwrap();
    });
    assert_allocates_nothing(&what("two copies at once"), || {
        let first = manager.copy(&src, &dst);
        let second = manager.copy(&src, &dst);
        second.wait().unwrap();
        first.wait().unwrap();
    });
    if src.read().is_ok() {
        assert_allocates_nothing(&what("read guard"), || {
            drop(src.read().unwrap());
        });
    }
}

#[test]
fn a_warm_manager_allocates_nothing() -> Outcome {
    start();
    let before = allocations();
    // Plans that are made anew, because a real copy's time has changed, are allocated.
    let manager = TransferManager::builder().host().learning(false).build()?;
    assert!(allocations() > before, "allocations are counted");
    // The host's threads start with their first work.
    let large = manager.allocate(place("cpu:0"), AllocSpec::bytes(64 << 20))?;
    let other = manager.allocate(place("cpu:0"), AllocSpec::bytes(64 << 20))?;
    for _ in 0..4 {
        let both = [&large, &other].map(|src| {
            let dst = if src.raw().same_storage(large.raw()) {
                &other
            } else {
                &large
            };
            manager.submit(&Request::new(src, dst).verify())
        });
        for transfer in both {
            transfer.wait()?;
        }
    }
    for len in [64, 4096, 100_000, 3 << 20] {
        every_way_to_copy(&manager, "cpu:0", "cpu:0", len, "host");
        every_way_to_copy(&manager, "cpu:0", "cpu:0/shared", len, "host");
    }
    for completion in modes() {
        let fixture = Fixture::new(&without_peers(2), completion, 256 << 10);
        let label = completion.to_string();
        for len in [64, 200_000] {
            every_way_to_copy(&fixture.manager, "sim:0", "sim:1", len, &label);
            every_way_to_copy(&fixture.manager, "cpu:0/pinned", "sim:1", len, &label);
        }
    }
    trials()
}

/// A manager that learns tries another route now and then. After the first time it has all that it needs for that, except
/// for the part of the report that tells of it.
fn trials() -> Outcome {
    let fixture = Fixture::new(&without_peers(1), Completion::Timed, 256 << 20);
    let (src, dst) = (
        fixture.empty("cpu:0/pageable", 8 << 20),
        fixture.empty("sim:0", 8 << 20),
    );
    let copy = || fixture.manager.copy(&src, &dst).wait().unwrap();
    let warm = (0..100).filter(|_| copy().tried().is_some()).count();
    let before = allocations();
    let tried = (0..200).filter(|_| copy().tried().is_some()).count();
    assert!(warm > 2 && tried > 5, "{warm} and {tried} trials");
    assert_eq!(allocations() - before, tried as u64);
    Ok(())
}
