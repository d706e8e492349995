//! Operations that never answer: no call hangs, and the engine frees no memory that a device may touch.

use std::time::Duration;

use transload::hal::ErrorClass;
use transload::{Cancelled, Request, TransferError};
use transload_core::schema::Machine;
use transload_testkit::sim::{Completion, Rule};

use crate::common::{Bench, come_to_rest, modes};
use crate::faults::scenarios::{DIRECT, PEER, STAGED, STAGED_TWICE, Scenario, ZERO_COPY};

#[test]
fn direct_plans_outlast_silence() {
    outlast(&DIRECT);
}

#[test]
fn zero_copy_plans_outlast_silence() {
    outlast(&ZERO_COPY);
}

#[test]
fn peer_plans_outlast_silence() {
    outlast(&PEER);
}

#[test]
fn staged_plans_outlast_silence() {
    outlast(&STAGED);
    outlast(&STAGED_TWICE);
}

/// The owner's reaction to a transfer that makes no progress.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Owner {
    Waits,
    Cancels,
    Drops,
    SetDeadline,
}

fn outlast(scenario: &Scenario) {
    let mut combinations = 0;
    for detour in [false, true] {
        let machine = scenario.machine(detour);
        for owner in [
            Owner::Waits,
            Owner::Cancels,
            Owner::Drops,
            Owner::SetDeadline,
        ] {
            for mode in modes() {
                let mut nth = 1;
                while fall_silent(scenario, &machine, mode, owner, nth) {
                    combinations += 1;
                    nth += 1;
                }
                assert!(nth > 1, "{}, {mode}: nothing fell silent", scenario.name);
            }
            assert!(fall_silent(scenario, &machine, Completion::Never, owner, 1));
            combinations += 1;
        }
    }
    println!(
        "{}: {combinations} combinations of silent operation, mode, routes and owner",
        scenario.name
    );
}

/// Makes the operation number `nth` never answer. Returns false when the transfer has no such operation.
fn fall_silent(
    scenario: &Scenario,
    machine: &Machine,
    mode: Completion,
    owner: Owner,
    nth: u64,
) -> bool {
    let context = (scenario.name, mode, owner, nth);
    let bench = scenario.bench(machine, mode);
    let (src, dst) = scenario.ends(&bench);
    bench.sim.add_rule(Rule::never_answer().nth(nth));
    let mut request = Request::new(src.region(), dst.region());
    if owner == Owner::SetDeadline {
        request = request.deadline(bench.manager.now().plus_ns(10_000_000));
    }
    let mut transfer = bench.manager.submit(&request);
    drop(request);
    if let Some(result) = transfer.wait_timeout(Duration::from_millis(5)) {
        assert!(result.is_ok(), "{context:?}: {result:?}");
        assert_eq!(bench.sim.script().rules()[0].fired(), 0, "{context:?}");
        return false;
    }
    let (done, all) = transfer.progress().unwrap();
    assert!(done <= all && all == scenario.len, "{context:?}");
    assert!(src.is_unchanged(&bench), "{context:?}");
    // A device may still write the memory, whether it is the user's or a proof's.
    let held = bench.sim.leaks();
    drop((src, dst));
    assert_eq!(
        bench.sim.leaks(),
        held,
        "{context:?}: freed under an operation"
    );
    match owner {
        Owner::Waits => {
            lose_everything(&bench);
            let error = transfer.wait().unwrap_err();
            assert_eq!(error.class(), ErrorClass::Lost, "{context:?}: {error}");
        }
        Owner::Cancels => {
            lose_everything(&bench);
            match transfer.cancel() {
                Cancelled::Stopped { leading_bytes } => assert!(leading_bytes < all),
                Cancelled::NotStarted => {}
                Cancelled::Finished(Err(error)) => {
                    assert_eq!(error.class(), ErrorClass::Lost, "{context:?}: {error}");
                }
                Cancelled::Finished(Ok(report)) => panic!("{context:?}: {report}"),
            }
        }
        Owner::Drops => {
            drop(transfer);
            assert!(
                bench.sim.leaks().len() >= held.len().min(1),
                "{context:?}: freed by its owner"
            );
            lose_everything(&bench);
        }
        Owner::SetDeadline => {
            let error = transfer.wait().unwrap_err();
            assert!(
                matches!(error, TransferError::Deadline { .. }),
                "{context:?}: {error}"
            );
            assert!(bench.now() >= 10_000_000, "{context:?}: before its time");
            assert!(
                !bench.sim.leaks().is_empty(),
                "{context:?}: freed too early"
            );
            lose_everything(&bench);
        }
    }
    let Bench {
        sim,
        manager,
        budget,
    } = bench;
    // The manager's own thread may be working on detached transfers.
    come_to_rest(&sim, &budget, &context, || {
        manager.turn();
        manager.clear_cache();
    });
    true
}

/// Removing a device settles the operations that it never answered.
fn lose_everything(bench: &Bench) {
    for device in bench.manager.devices() {
        assert!(bench.sim.lose_device(device.id));
    }
}
