//! Many threads at once: on one manager, on several, and while managers go.
// That build has only one thread.
#![cfg(not(transload_local))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::fixture::{Fixture, Outcome, bytes, modes, place, without_peers};
use transload::{AllocSpec, Buffer, Request, StagingBudget, TransferManager};
use transload_testkit::sim::Completion;

const THREADS: u64 = 8;
const EACH: u64 = 4;

/// Each thread moves its own bytes there and back, with several transfers in flight at a time.
fn round_trips(manager: &TransferManager, len: usize, from: &str, to: &str) {
    thread::scope(|scope| {
        for t in 0..THREADS {
            scope.spawn(move || {
                let allocate = |at| {
                    manager
                        .allocate(place(at), AllocSpec::bytes(len as u64))
                        .unwrap()
                };
                let wanted: Vec<Vec<u8>> = (0..EACH).map(|i| bytes(len, t * EACH + i)).collect();
                let near: Vec<Buffer> = wanted
                    .iter()
                    .map(|wanted| {
                        let near = allocate(from);
                        manager.copy_from_slice(wanted, &near).unwrap();
                        near
                    })
                    .collect();
                let far: Vec<Buffer> = (0..EACH).map(|_| allocate(to)).collect();
                let there: Vec<_> = near
                    .iter()
                    .zip(&far)
                    .map(|(near, far)| manager.copy(near, far))
                    .collect();
                // Newest first: no thread may rely on the order in which others wait.
                for transfer in there.into_iter().rev() {
                    transfer.wait().unwrap();
                }
                for (far, wanted) in far.iter().zip(&wanted) {
                    let mut back = vec![0xEE; len];
                    manager.copy_into_slice(far, &mut back).unwrap();
                    assert!(back == *wanted, "thread {t}");
                }
            });
        }
    });
}

#[test]
fn thirty_two_transfers_from_eight_threads_arrive_on_the_sim() {
    for completion in modes() {
        let fixture = Fixture::new(&without_peers(2), completion, 256 << 10);
        round_trips(&fixture.manager, 200_003, "sim:0", "sim:1");
        assert!(fixture.sim.violations().is_empty(), "{completion}");
        let staging = fixture.manager.staging();
        assert!(staging.peak_bytes() <= staging.limit_bytes());
    }
}

#[test]
fn thirty_two_transfers_from_eight_threads_arrive_on_the_host() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    for len in [100, 70_000, (3 << 20) + 1] {
        round_trips(&manager, len, "cpu:0", "cpu:0/shared");
    }
    Ok(())
}

#[test]
fn writers_of_one_buffer_take_turns() -> Outcome {
    let manager = TransferManager::builder().host().build()?;
    let len = 1 << 20;
    let shared = manager.allocate(place("cpu:0/shared"), AllocSpec::bytes(len as u64))?;
    thread::scope(|scope| {
        for t in 0..THREADS {
            let (manager, shared) = (&manager, &shared);
            scope.spawn(move || {
                let src = manager.adopt(vec![t as u8 + 1; len]).unwrap();
                for _ in 0..EACH {
                    manager.copy(&src, shared).wait().unwrap();
                    // The last writer wrote all of the bytes.
                    let found = shared.read().unwrap();
                    assert!(found.iter().all(|byte| *byte == found[0]));
                }
            });
        }
    });
    Ok(())
}

#[test]
fn managers_that_share_a_budget_come_and_go() {
    let budget = Arc::new(StagingBudget::new(256 << 10));
    let moved = AtomicUsize::new(0);
    thread::scope(|scope| {
        for t in 0..THREADS {
            let (budget, moved) = (&budget, &moved);
            scope.spawn(move || {
                for i in 0..20 {
                    let fixture = Fixture::sharing(&without_peers(2), Completion::Timed, budget);
                    let wanted = bytes(150_000, t << 8 | i);
                    let src = fixture.filled("sim:0", &wanted);
                    let dst = fixture.empty("sim:1", wanted.len());
                    let transfer = fixture.manager.copy(&src, &dst);
                    match i % 3 {
                        // The manager goes first, then the buffers, then the transfer ends.
                        0 => {
                            let sim = fixture.sim.clone();
                            drop((fixture, src));
                            transfer.wait().unwrap();
                            let mut found = vec![0; wanted.len()];
                            sim.read(dst.raw(), 0, &mut found).unwrap();
                            assert!(found == wanted);
                        }
                        // All handles are dropped while the transfer is in flight.
                        1 => drop((transfer, src, dst, fixture)),
                        _ => {
                            transfer.wait().unwrap();
                            assert!(fixture.bytes_of(&dst) == wanted);
                        }
                    }
                    moved.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(moved.into_inner(), 8 * 20);
    assert!(budget.peak_bytes() <= budget.limit_bytes());
    // Transfers in flight live until they end, and then return all of their slots.
    while budget.used_bytes() > 0 {
        thread::yield_now();
    }
}

#[test]
fn one_thread_cancels_what_another_one_waits_behind() {
    let fixture = Fixture::new(&without_peers(2), Completion::Timed, 128 << 10);
    let (first, second) = (bytes(400_000, 1), bytes(400_000, 2));
    let sources = [
        fixture.filled("sim:0", &first),
        fixture.filled("sim:0", &second),
    ];
    let dst = fixture.empty("sim:1", first.len());
    for _ in 0..20 {
        let before = fixture.manager.submit(&Request::new(&sources[0], &dst));
        let after = fixture.manager.copy(&sources[1], &dst);
        thread::scope(|scope| {
            scope.spawn(move || before.cancel());
            scope.spawn(move || after.wait().unwrap());
        });
        assert!(fixture.bytes_of(&dst) == second);
    }
    assert!(fixture.sim.violations().is_empty());
}

#[test]
fn a_setter_wakes_the_thread_that_waits_and_the_managers_own() -> Outcome {
    let manager = TransferManager::discover()?;
    let wanted = bytes(70_000, 3);
    let src = manager.adopt(wanted.clone())?;
    let copies = [(); 2].map(|()| manager.adopt(vec![0u8; 70_000]).unwrap());
    let [waited, detached] = [(); 2].map(|()| manager.event());
    let over = manager.event();
    let transfer = manager.submit(&Request::new(&src, &copies[0]).after(&waited));
    drop(manager.submit(&Request::new(&src, &copies[1]).after(&detached).then(&over)));
    // Only the two setters make these transfers end.
    let waiter = thread::spawn(move || transfer.wait());
    for set in [waited.setter(), detached.setter()] {
        thread::spawn(set).join().unwrap();
    }
    waiter.join().unwrap()?;
    manager.wait_idle();
    assert!(over.is_set());
    for copy in &copies {
        assert!(*copy.read()? == *wanted);
    }
    Ok(())
}

#[test]
fn the_process_has_one_shared_manager() {
    let managers: Vec<&TransferManager> = thread::scope(|scope| {
        let asked: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| TransferManager::shared().unwrap()))
            .collect();
        asked
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(
        managers
            .iter()
            .all(|manager| std::ptr::eq(*manager, managers[0]))
    );
    round_trips(managers[0], 10_000, "cpu:0", "cpu:0");
}
