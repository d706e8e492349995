//! Every fault of the double, at every step of every method. Each ends in a typed error or in success, never in a hang.
//! Bytes that are reported as moved have moved, and no other byte was written. Nothing leaks. The backend goes on
//! unless a device is lost; it reports the loss once, and for every later call on that device.
#![cfg(all(target_os = "linux", not(transload_local)))]

#[path = "../all/common/mod.rs"]
mod common;
mod memory;
mod run;
mod scenarios;
mod silence;
mod trial;

use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc;
use std::thread;

use common::ages::AGES;
use common::control;
use common::faults::{self, Calls};
use transload_cuda::raw::{CUresult, Version};
use trial::{HANG, Scenario, clean_run, of_age, suffer};

const SCENARIOS: [Scenario; 6] = [
    scenarios::round_trip,
    scenarios::shapes,
    scenarios::pieces,
    scenarios::peers,
    scenarios::managed,
    scenarios::exchange,
];

const NEWEST: Version = AGES[AGES.len() - 1];

/// Runs the faults one after the other, and fails with a list of all errors.
fn sweep(scenario: Scenario, lines: Vec<String>, may_lose: bool) {
    let count = lines.len();
    assert!(count > 0, "there are faults to suffer");
    let mut wrong = Vec::new();
    for line in lines {
        let (tell, told) = mpsc::channel();
        let suffered = line.clone();
        let thread = thread::spawn(move || {
            let crimes =
                panic::catch_unwind(AssertUnwindSafe(|| suffer(scenario, &suffered, may_lose)));
            // The send fails only after the waiting test has given up.
            let _ = tell.send(crimes.unwrap_or_else(|_| vec!["a panic".into()]));
        });
        match told.recv_timeout(HANG) {
            Ok(crimes) => wrong.extend(crimes.into_iter().map(|crime| format!("{line}: {crime}"))),
            Err(_) => panic!("{line}: it hangs\n{}", wrong.join("\n")),
        }
        thread.join().unwrap();
    }
    assert!(wrong.is_empty(), "of {count} faults:\n{}", wrong.join("\n"));
    assert_eq!(control("notes").unwrap(), "");
}

/// The faults that `of` makes from the calls of a scenario, for each scenario.
fn sweep_all(age: Version, may_lose: bool, of: impl Fn(&Calls) -> Vec<String>) {
    of_age(age);
    for scenario in SCENARIOS {
        sweep(scenario, of(&clean_run(scenario)), may_lose);
    }
}

/// The number of a device's operations in a scenario; a batch counts as one.
fn operations(calls: &Calls) -> u64 {
    let copies = calls
        .iter()
        .filter(|(name, _)| name.starts_with("cuMemcpy"));
    copies.map(|(_, count)| count).sum()
}

/// Each call of a scenario fails once, with results that leave the context intact.
fn each_call_fails(scenario: Scenario) {
    of_age(NEWEST);
    let calls = clean_run(scenario);
    sweep(
        scenario,
        faults::of_calls(&calls, &faults::PASSING, 4),
        false,
    );
}

#[test]
fn each_call_of_a_round_trip_fails_once() {
    each_call_fails(scenarios::round_trip);
}

#[test]
fn each_call_of_shapes_fails_once() {
    each_call_fails(scenarios::shapes);
}

#[test]
fn each_call_of_pieces_fails_once() {
    each_call_fails(scenarios::pieces);
}

#[test]
fn each_call_between_peers_fails_once() {
    each_call_fails(scenarios::peers);
}

#[test]
fn each_call_for_managed_memory_fails_once() {
    each_call_fails(scenarios::managed);
}

#[test]
fn each_call_fails_once_on_the_oldest_driver() {
    sweep_all(AGES[0], false, |calls| {
        faults::of_calls(calls, &faults::PASSING[..2], 2)
    });
}

#[test]
fn each_function_fails_for_good() {
    let results = [CUresult::CUDA_ERROR_UNKNOWN];
    sweep_all(NEWEST, true, |calls| {
        faults::of_calls_for_good(calls, &results)
    });
}

/// The driver says so once, and the next call succeeds: the backend loses nothing by it.
#[test]
fn each_call_says_that_cuda_has_ended() {
    sweep_all(NEWEST, false, |calls| {
        faults::of_calls(calls, &faults::ENDS, 4)
    });
}

#[test]
fn memory_runs_out_at_each_allocation() {
    sweep_all(NEWEST, false, |_| faults::of_memory(8));
}

/// The same; each copy of a batch counts as one.
fn operations_of_batches(calls: &Calls) -> u64 {
    let batches = calls
        .iter()
        .filter(|(name, _)| name.starts_with("cuMemcpyBatch"));
    let batches: u64 = batches.map(|(_, count)| count).sum();
    operations(calls) + batches * (scenarios::PIECES - 1)
}

#[test]
fn each_operation_ruins_its_context() {
    sweep_all(NEWEST, true, |calls| {
        faults::of_ruin(operations_of_batches(calls), &faults::RUINS)
    });
}
