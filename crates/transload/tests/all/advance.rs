//! Submitted transfers advance whether their handles are held, dropped, polled or waited for.
#![cfg(not(any(loom, transload_local)))]

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use crate::routes::{
    MIB, Route, into_a_file, on_a_plain_backend, on_simulated_machines, on_the_host, out_of_a_file,
    routes,
};
use crate::within::within_limit;
use transload::{AllocSpec, OnFailure, Request, Transfer, TransferError};

/// Runs the case over each of the routes.
fn over_each(routes: Vec<Route>, case: fn(&Route)) {
    for route in routes {
        let name = route.name.clone();
        within_limit(&name, move || {
            case(&route);
            route.check();
        });
    }
}

/// Polls the transfer until it is over, without waiting.
fn watch(transfer: &Transfer) {
    while !transfer.is_over() {
        let _ = transfer.progress();
        thread::yield_now();
    }
}

fn watched(route: &Route) {
    let transfer = route.manager.submit(&route.request());
    watch(&transfer);
    transfer.wait().unwrap();
}

#[test]
fn a_progress_loop_ends_on_the_heap() {
    over_each(vec![on_the_host("cpu:0", 64 * MIB)], watched);
}

#[test]
fn a_progress_loop_ends_in_shared_memory() {
    over_each(vec![on_the_host("cpu:0/shared", 64 * MIB)], watched);
}

#[test]
fn a_progress_loop_ends_out_of_a_file() {
    over_each(vec![out_of_a_file()], watched);
}

#[test]
fn a_progress_loop_ends_into_a_file() {
    over_each(vec![into_a_file()], watched);
}

#[test]
fn a_progress_loop_ends_on_simulated_machines() {
    over_each(on_simulated_machines(), watched);
}

#[test]
fn a_progress_loop_ends_on_a_backend_with_every_default() {
    over_each(vec![on_a_plain_backend()], watched);
}

#[test]
fn an_event_is_set_without_a_wait() {
    over_each(routes(), |route| {
        let event = route.manager.event();
        let held = route.manager.submit(&route.request().then(&event));
        while !event.is_set() {
            thread::yield_now();
        }
        assert!(held.is_over());
        held.wait().unwrap();
    });
}

#[test]
fn a_transfer_completes_after_a_wait_that_ran_out() {
    for limit in [Duration::ZERO, Duration::from_nanos(1)] {
        for route in routes() {
            within_limit(&format!("{limit:?}, {}", route.name), move || {
                let event = route.manager.event();
                let mut held = route.manager.submit(&route.request().then(&event));
                let answer = held.wait_timeout(limit);
                while !event.is_set() {
                    thread::yield_now();
                }
                answer.unwrap_or_else(|| held.wait()).unwrap();
                route.check();
            });
        }
    }
}

#[test]
fn a_transfer_completes_after_a_single_poll() {
    over_each(routes(), |route| {
        let mut held = route.manager.submit(&route.request());
        let mut context = Context::from_waker(Waker::noop());
        if Pin::new(&mut held).poll(&mut context).is_pending() {
            watch(&held);
            held.wait().unwrap();
        }
    });
}

#[test]
fn a_transfer_is_over_before_the_wait_of_a_caller_that_was_busy() {
    over_each(routes(), |route| {
        let event = route.manager.event();
        let transfer = route.manager.submit(&route.request().then(&event));
        let (tell, told) = mpsc::channel();
        // The other thread lets the caller continue, and learns of the copy only by its event.
        thread::spawn(move || {
            while !event.is_set() {
                thread::yield_now();
            }
            tell.send(()).unwrap();
        });
        let mut work = 0_u64;
        while told.try_recv().is_err() {
            work = work.wrapping_mul(3).wrapping_add(1);
            thread::yield_now();
        }
        assert!(transfer.is_over(), "{work}");
        transfer.wait().unwrap();
    });
}

#[test]
fn a_dropped_batch_completes_and_sets_its_events() {
    over_each(routes(), |route| {
        let events: Vec<_> = (0..4).map(|_| route.manager.event()).collect();
        let len = route.src.len();
        let quarter = |number: u64| (number * len / 4)..((number + 1) * len / 4);
        let requests: Vec<Request> = (0..4)
            .zip(&events)
            .map(|(number, event)| {
                let [src, dst] =
                    [&route.src, &route.dst].map(|end| end.slice(quarter(number)).unwrap());
                Request::new(&src, &dst).then(event)
            })
            .collect();
        let batch = route.manager.copy_batch(&requests, OnFailure::GoOn);
        drop(batch.unwrap());
        while !events.iter().all(|event| event.is_set()) {
            thread::yield_now();
        }
    });
}

#[test]
fn a_setter_alone_starts_the_transfers_that_waited_for_its_event() {
    over_each(routes(), |route| {
        let gate = route.manager.event();
        let held = route.manager.submit(&route.request().after(&gate));
        assert!(!held.is_over());
        gate.setter()();
        watch(&held);
        held.wait().unwrap();
    });
}

#[test]
fn a_transfer_goes_on_that_was_started_by_a_thread_whose_own_is_over() {
    over_each(routes(), |route| {
        // Each copy is so small that it goes in one piece, and no other thread turns the engine to allocate slots.
        let small = || {
            let place = route.src.memory().into();
            let there = route.manager.allocate(place, AllocSpec::bytes(64));
            Request::new(route.src.slice(..64).unwrap(), there.unwrap())
        };
        // The manager's own thread may be awake by chance and do the turn instead.
        for _ in 0..20 {
            let (gate, done) = (route.manager.event(), route.manager.event());
            let held = small().after(&gate).then(&done);
            let held = route.manager.submit(&held);
            drop(route.manager.submit(&small().then(&gate)));
            while !done.is_set() {
                thread::yield_now();
            }
            held.wait().unwrap();
        }
        route.manager.submit(&route.request()).wait().unwrap();
    });
}

#[test]
fn a_transfer_behind_a_guard_completes_when_the_guard_is_dropped() {
    over_each(vec![on_the_host("cpu:0", 16 * MIB)], |route| {
        let guard = route.dst.read().unwrap();
        let held = route.manager.submit(&route.request());
        assert!(!held.is_over());
        drop(guard);
        watch(&held);
        held.wait().unwrap();
    });
}

#[test]
fn a_deadline_passes_without_a_wait() {
    within_limit("the host", || {
        let route = on_the_host("cpu:0", 1000);
        let (never, then) = (route.manager.event(), route.manager.event());
        let deadline = route.manager.now() + Duration::from_millis(1);
        let request = route.request().after(&never).then(&then).deadline(deadline);
        let held = route.manager.submit(&request);
        watch(&held);
        assert!(then.is_set());
        let error = held.wait().unwrap_err();
        assert_eq!(error, TransferError::Deadline { leading_bytes: 0 });
    });
}

const LARGE: usize = 256 * MIB;

/// A copy may end before a thread that shares its processors has looked often enough, so the test tries again.
#[test]
fn progress_of_a_large_heap_copy_rises_in_steps() {
    within_limit("the host", || {
        let route = on_the_host("cpu:0", LARGE);
        let steps = || {
            let transfer = route.manager.submit(&route.request());
            let mut seen = Vec::new();
            while !transfer.is_over() {
                if let Some((moved, all)) = transfer.progress() {
                    assert_eq!(all, LARGE as u64);
                    seen.push(moved);
                }
                thread::yield_now();
            }
            transfer.wait().unwrap();
            assert!(seen.is_sorted(), "{seen:?}");
            seen.dedup();
            seen.retain(|moved| (1..LARGE as u64).contains(moved));
            seen.len()
        };
        let found = (0..40).any(|_| steps() >= 4);
        assert!(found, "fewer than 4 steps between nothing and everything");
        route.check();
    });
}

/// The test searches for a deadline that passes in the middle of the copy, whatever the speed of the machine. It raises
/// the limit after a copy of which no byte arrived in time, and halves it after a copy that ended in time.
#[test]
fn a_deadline_in_the_middle_of_a_heap_copy_tells_the_leading_bytes() {
    within_limit("the host", || {
        let route = on_the_host("cpu:0", LARGE);
        let mut limit = Duration::from_micros(500);
        let leading = (0..100).find_map(|_| {
            let deadline = route.manager.now() + limit;
            let request = route.request().deadline(deadline);
            let result = route.manager.submit(&request).wait();
            route.manager.wait_idle();
            match result {
                Ok(_) => limit /= 2,
                Err(TransferError::Deadline { leading_bytes: 0 }) => limit = limit * 5 / 4,
                Err(TransferError::Deadline { leading_bytes }) => return Some(leading_bytes),
                Err(error) => panic!("{error}"),
            }
            None
        });
        let leading = leading.expect("every deadline told no byte") as usize;
        assert!(leading < LARGE);
        let found = route.dst.read().unwrap();
        assert!(found[..leading] == route.wanted[..leading]);
        drop(found);
        route.manager.submit(&route.request()).wait().unwrap();
        route.check();
    });
}
