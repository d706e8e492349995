//! Transfers take turns: one device, outcome or backend that misbehaves costs the other transfers nothing.
#![cfg(not(any(loom, transload_local)))]

use crate::plain;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use crate::fixture::{Fixture, bytes, without_peers};
use crate::plain::{Call, Telling};
use crate::within::within_limit;
use transload::hal::ErrorClass;
use transload::{
    Buffer, Event, OnFailure, Request, StagingBudget, Transfer, TransferError, TransferManager,
};
use transload_testkit::sim::{Completion, Rule, Script};

/// Staged copies between the first two devices stop answering on the way `from` → `to`.
fn silent_device(from: &'static str, to: &'static str) {
    within_limit(&format!("{from} to {to} is silent"), move || {
        let budget = Arc::new(StagingBudget::new(1 << 20));
        let silence = Rule::never_answer().over(from.parse().unwrap(), to.parse().unwrap());
        let script = Script::new().with(silence.always());
        let fixture = Fixture::scripted(&without_peers(4), Completion::Timed, &budget, script);
        let silent: Vec<(Transfer, Buffer, Buffer)> = (0..5)
            .map(|seed| {
                let src = fixture.filled("sim:0", &bytes(1 << 20, seed));
                let dst = fixture.empty("sim:1", 1 << 20);
                (fixture.manager.copy(&src, &dst), src, dst)
            })
            .collect();
        let wanted = bytes((1 << 20) + 3, 9);
        let src = fixture.filled("sim:2", &wanted);
        for _ in 0..3 {
            let dst = fixture.empty("sim:3", wanted.len());
            fixture.manager.copy(&src, &dst).wait().unwrap();
            assert!(fixture.bytes_of(&dst) == wanted);
            let back = fixture.empty("sim:2", wanted.len());
            pollster::block_on(fixture.manager.copy(&dst, &back)).unwrap();
            assert!(fixture.bytes_of(&back) == wanted);
        }
        assert!(budget.peak_bytes() <= budget.limit_bytes());
        // The operations end when the device is lost, and so do the transfers.
        fixture.sim.lose_device("sim:0".parse().unwrap());
        fixture.sim.lose_device("sim:1".parse().unwrap());
        for (transfer, _, _) in silent {
            transfer.wait().unwrap_err();
        }
        fixture.manager.wait_idle();
        fixture.manager.clear_cache();
        assert_eq!(budget.used_bytes(), 0);
    });
}

#[test]
fn a_device_that_takes_nothing_leaves_staging_to_others() {
    silent_device("cpu:0/pinned", "sim:1/device");
}

#[test]
fn a_device_that_gives_nothing_leaves_staging_to_others() {
    silent_device("sim:0/device", "cpu:0/pinned");
}

/// The lengths of copies that wait for one event, in the order in which their backend got them.
fn order_after(set: impl FnOnce(&Event) + Send + 'static) {
    within_limit("copies behind an event", move || {
        let (manager, desks) = plain::manager(&["plain"]);
        let gate = manager.event();
        let lens: Vec<u64> = (1..=8).map(|number| 1000 * (number * 5 % 9)).collect();
        for len in &lens {
            let [src, dst] = [7, 0].map(|byte| plain::filled(&manager, "plain", *len, byte));
            drop(manager.submit(&Request::new(&src, &dst).after(&gate)));
        }
        assert!(desks[0].submitted().is_empty());
        set(&gate);
        manager.wait_idle();
        assert_eq!(desks[0].submitted(), lens);
    });
}

#[test]
fn transfers_start_in_their_order_when_their_event_is_set() {
    order_after(Event::set);
}

#[test]
fn transfers_start_in_their_order_when_a_setter_sets_their_event() {
    order_after(|event| event.setter()());
}

/// The results of copies whose backend reports outcomes in this way.
fn results_of(telling: Telling) -> Vec<Result<(), TransferError>> {
    let (manager, desks) = plain::manager(&["plain"]);
    desks[0].tell(telling);
    let ends = [7, 0].map(|byte| plain::filled(&manager, "plain", 100, byte));
    let waited = manager.copy(&ends[0], &ends[1]).wait().map(drop);
    let awaited = pollster::block_on(manager.copy(&ends[0], &ends[1])).map(drop);
    desks[0].tell(Telling::Once);
    manager.wait_idle();
    vec![waited, awaited]
}

#[test]
fn the_first_outcome_of_a_fence_wins_when_it_is_done() {
    for early in [false, true] {
        within_limit(&format!("early: {early}"), move || {
            let results = results_of(Telling::DoneThenFailed { early });
            assert!(results.iter().all(Result::is_ok), "{results:?}");
        });
    }
}

#[test]
fn the_first_outcome_of_a_fence_wins_when_it_failed() {
    for early in [false, true] {
        within_limit(&format!("early: {early}"), move || {
            let results = results_of(Telling::FailedThenDone { early });
            // The second copy may find the link in quarantine.
            assert!(results.iter().all(Result::is_err), "{results:?}");
            let text = results[0].as_ref().unwrap_err().to_string();
            assert!(text.contains("told as failed"), "{text}");
        });
    }
}

/// A panic payload whose own drop panics, once.
struct Bomb(Arc<AtomicBool>);

impl Drop for Bomb {
    fn drop(&mut self) {
        if !self.0.swap(true, Ordering::SeqCst) {
            // `resume_unwind` skips the panic hook, whose output would look like a failure of the test.
            std::panic::resume_unwind(Box::new("the payload of a panic"));
        }
    }
}

/// The manager's thread works on a dropped transfer when its backend panics in `call`.
fn survives_a_bomb_in(call: Call) {
    within_limit(&format!("{call:?}"), move || {
        let (manager, desks) = plain::manager(&["brittle", "sound"]);
        let (gate, over) = (manager.event(), manager.event());
        let ends = [7, 0].map(|byte| plain::filled(&manager, "brittle", 100, byte));
        if call != Call::Submit {
            desks[0].stall(100);
        }
        let request = Request::new(&ends[0], &ends[1]).after(&gate).then(&over);
        drop(manager.submit(&request));
        let went_off = Arc::new(AtomicBool::new(false));
        let of_payload = Arc::clone(&went_off);
        desks[0].arm(call, move || Bomb(Arc::clone(&of_payload)));
        gate.setter()();
        // An engine may make none of these calls. The copy then succeeds.
        for looks in 0.. {
            if over.is_set() {
                break;
            }
            if looks == 200_000 {
                desks[0].release(100);
            }
            thread::yield_now();
        }
        // The manager's thread lives on.
        for _ in 0..3 {
            let ends = [7, 0].map(|byte| plain::filled(&manager, "sound", 100, byte));
            pollster::block_on(manager.copy(&ends[0], &ends[1])).unwrap();
            assert_eq!(*ends[1].read().unwrap(), [7; 100]);
            let src = manager.adopt(vec![7u8; 8 << 20]).unwrap();
            let dst = manager.adopt(vec![0u8; 8 << 20]).unwrap();
            pollster::block_on(manager.copy(&src, &dst)).unwrap();
            assert!(*dst.read().unwrap() == vec![7; 8 << 20]);
        }
        manager.wait_idle();
    });
}

#[test]
fn a_payload_that_panics_after_a_panic_in_submit_is_survived() {
    survives_a_bomb_in(Call::Submit);
}

#[test]
fn a_payload_that_panics_after_a_panic_in_pump_is_survived() {
    survives_a_bomb_in(Call::Pump);
}

#[test]
fn a_payload_that_panics_after_a_panic_in_wait_is_survived() {
    survives_a_bomb_in(Call::Wait);
}

/// Host memory of a manager of its own, with a read-only source.
fn host() -> (TransferManager, Buffer, Buffer) {
    let manager = TransferManager::builder().host().build().unwrap();
    let src = manager.adopt(&[7_u8; 100][..]).unwrap();
    let dst = manager.adopt(vec![0u8; 100]).unwrap();
    (manager, src, dst)
}

#[test]
fn a_refused_request_sets_its_events_and_its_follower_runs() {
    within_limit("the host", || {
        let (manager, src, dst) = host();
        let far = plain::manager(&["plain"]).0;
        let foreign = plain::filled(&far, "plain", 100, 0);
        let short = dst.slice(..99).unwrap();
        for request in [
            Request::new(&src, &short),
            Request::new(&dst, &src),
            Request::new(&src, &foreign),
        ] {
            let events = [manager.event(), manager.event()];
            let follower = Request::new(&src, &dst).after(&events[0]).after(&events[1]);
            let follower = manager.submit(&follower);
            let request = request.then(&events[0]).then(&events[1]);
            let refused = manager.submit(&request);
            assert!(refused.is_over());
            assert!(events.iter().all(Event::is_set));
            follower.wait().unwrap();
            assert_eq!(refused.wait().unwrap_err().class(), ErrorClass::Caller);
        }
    });
}

#[test]
fn a_request_without_a_route_sets_its_event() {
    within_limit("two backends", || {
        let (manager, _) = plain::manager(&["one", "two"]);
        let event = manager.event();
        let src = plain::filled(&manager, "one", 100, 7);
        let dst = plain::filled(&manager, "two", 100, 0);
        let refused = manager.submit(&Request::new(&src, &dst).then(&event));
        assert!(event.is_set());
        assert!(matches!(refused.wait(), Err(TransferError::NoRoute { .. })));
    });
}

/// A refused batch makes no transfer, so none is over: the program may correct the batch and submit it with the same
/// events.
#[test]
fn a_refused_batch_leaves_its_events_for_the_next_attempt() {
    within_limit("the host", || {
        let (manager, src, dst) = host();
        let event = manager.event();
        let good = Request::new(&src, &dst).then(&event);
        let bad = Request::new(&src, dst.slice(..99).unwrap()).then(&event);
        let error = manager
            .copy_batch(&[good.clone(), bad], OnFailure::GoOn)
            .unwrap_err();
        assert_eq!(error.index, 1);
        assert!(!event.is_set());
        let batch = manager.copy_batch(&[good], OnFailure::GoOn).unwrap();
        assert!(batch.wait().iter().all(Result::is_ok));
        assert!(event.is_set());
    });
}

const WAITERS: usize = 64;

#[test]
fn of_many_threads_that_wait_only_the_one_whose_transfer_is_over_returns() {
    within_limit("64 threads", || {
        let (manager, _) = plain::manager(&["plain"]);
        let (tell, told) = mpsc::channel();
        let returned = Arc::new(AtomicUsize::new(0));
        let gates: Vec<Event> = (0..WAITERS).map(|_| manager.event()).collect();
        for (number, gate) in gates.iter().enumerate() {
            let ends = [7, 0].map(|byte| plain::filled(&manager, "plain", 100, byte));
            let transfer = manager.submit(&Request::new(&ends[0], &ends[1]).after(gate));
            let (tell, returned) = (tell.clone(), Arc::clone(&returned));
            thread::spawn(move || {
                let result = transfer.wait();
                returned.fetch_add(1, Ordering::SeqCst);
                tell.send((number, result.is_ok())).unwrap();
            });
        }
        for step in 0..WAITERS {
            let number = step * 37 % WAITERS;
            match step % 2 {
                0 => gates[number].set(),
                _ => gates[number].setter()(),
            }
            assert_eq!(told.recv().unwrap(), (number, true));
            assert_eq!(returned.load(Ordering::SeqCst), step + 1);
        }
    });
}
