//! Whole transfers while the driver fails at each of its calls. Each transfer arrives, by another route where one
//! exists, or ends in an error of a class. A transfer that reports success has moved every byte. The manager goes on.
#![cfg(all(target_os = "linux", not(any(loom, transload_local))))]

#[path = "../../../backends/cuda/tests/all/common/faults.rs"]
#[allow(dead_code, reason = "the backend's own sweep uses the rest")]
mod faults;
mod journey;

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use cuda::control;
use faults::Calls;
use journey::Journey;
use transload::TransferManager;
use transload::hal::ErrorClass;
use transload_cuda::raw::{CUresult, Driver};
use transload_cuda::{Cuda, OpenError};

/// The limit for a single fault on any machine: a run that takes longer counts as hanging.
const HANG: Duration = Duration::from_secs(600);

/// The results of a sweep.
#[derive(Default)]
struct Tally {
    wrong: Vec<String>,
    /// Transfers that arrived by a detour, and steps that failed.
    detours: usize,
    troubles: usize,
}

fn settle_machine(topology: &str) {
    let root = env!("CARGO_MANIFEST_DIR");
    let file = format!("{root}/../../doubles/cuda-driver/topologies/{topology}.toml");
    control(&format!("set TRANSLOAD_DOUBLE_TOPOLOGY={file}")).unwrap();
}

fn manager() -> Result<TransferManager, OpenError> {
    // SAFETY: the functions are the double's, which stay loaded.
    let driver = unsafe { Driver::from_table(cuda::table(), "the double") };
    let devices = Arc::new(Cuda::with_driver(driver)?);
    let builder = TransferManager::builder().host().backend(devices);
    Ok(builder.build().unwrap())
}

fn leaks() -> Vec<String> {
    let text = control("leaks").unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The calls of a run without a fault.
fn clean_run() -> Calls {
    let manager = manager().unwrap();
    let before = faults::calls();
    let mut journey = Journey::go(&manager);
    let calls = faults::calls_since(&before);
    journey.look(&manager, false);
    assert!(journey.troubles.is_empty(), "{:?}", journey.troubles);
    assert!(journey.crimes.is_empty(), "{:?}", journey.crimes);
    assert!(journey.detours.is_empty(), "{:?}", journey.detours);
    drop((journey, manager));
    assert_eq!(leaks(), [""; 0]);
    calls
}

/// Runs the journey with one fault, which strikes when the devices are open. The backend's own tests cover a driver
/// that does not start.
fn suffer(line: &str, may_lose: bool) -> Tally {
    let leaks_before = leaks();
    let manager = manager().unwrap();
    faults::order(line);
    let mut first = Journey::go(&manager);
    faults::take_back();
    // The manager must try again at once the links that rest because of the fault.
    manager.clear_cache();
    first.look(&manager, may_lose);
    let is_lost = first
        .troubles
        .iter()
        .any(|trouble| trouble.class == ErrorClass::Lost);
    let mut tally = Tally {
        wrong: std::mem::take(&mut first.crimes),
        detours: first.detours.len(),
        troubles: first.troubles.len(),
    };
    let say = |what: String, tally: &mut Tally| tally.wrong.push(what);
    for trouble in &first.troubles {
        let named = trouble.text.contains("cuda:") || trouble.text.contains("cpu:");
        if !named {
            say(format!("names nothing: {}", trouble.text), &mut tally);
        }
        if trouble.class == ErrorClass::Caller {
            say(format!("blames the caller: {}", trouble.text), &mut tally);
        }
        let told = trouble.text.matches(" is lost: ").count();
        if told > 1 {
            say(
                format!("says {told} times that it is lost: {}", trouble.text),
                &mut tally,
            );
        }
    }
    drop(first);
    if is_lost && !may_lose {
        say("a device is lost for no reason".into(), &mut tally);
    }
    if !is_lost {
        let mut then = Journey::go(&manager);
        then.look(&manager, may_lose);
        tally.wrong.append(&mut then.crimes);
        let excused = |text: &str| may_lose && text.contains("is lost: ");
        let then_wrong = then
            .troubles
            .iter()
            .filter(|trouble| !excused(&trouble.text));
        tally
            .wrong
            .extend(then_wrong.map(|trouble| format!("afterwards: {}", trouble.text)));
    }
    drop(manager);
    let new_leaks = || {
        let mut new = leaks();
        // Memory of a pool outlives a lost context: only that context could free it.
        new.retain(|leak| !(leaks_before.contains(leak) || may_lose && leak.starts_with("Pool ")));
        new
    };
    // One of the manager's own threads may be the last to let go.
    let is_clean = (0..1_000_000).any(|_| {
        thread::yield_now();
        new_leaks().is_empty()
    });
    if !is_clean {
        let leaked = new_leaks().into_iter();
        tally
            .wrong
            .extend(leaked.map(|leak| format!("leak: {leak}")));
    }
    tally
}

fn sweep(lines: Vec<String>, may_lose: bool) -> Tally {
    let count = lines.len();
    let mut all = Tally::default();
    for line in lines {
        let (tell, told) = mpsc::channel();
        let suffered = line.clone();
        let thread = thread::spawn(move || {
            let tally = panic::catch_unwind(AssertUnwindSafe(|| suffer(&suffered, may_lose)));
            let panicked = |_| Tally {
                wrong: vec!["a panic".into()],
                ..Tally::default()
            };
            // The send fails only after the waiting test has given up.
            let _ = tell.send(tally.unwrap_or_else(panicked));
        });
        let Ok(tally) = told.recv_timeout(HANG) else {
            panic!("{line}: it hangs\n{}", all.wrong.join("\n"));
        };
        thread.join().unwrap();
        all.wrong.extend(
            tally
                .wrong
                .into_iter()
                .map(|what| format!("{line}: {what}")),
        );
        all.detours += tally.detours;
        all.troubles += tally.troubles;
    }
    assert!(
        all.wrong.is_empty(),
        "of {count} faults:\n{}",
        all.wrong.join("\n")
    );
    assert_eq!(control("notes").unwrap(), "");
    println!(
        "{count} faults, {} detours, {} troubles",
        all.detours, all.troubles
    );
    all
}

/// Every call fails with a result that names no cause. The calls that push and pop a context are left out: the backend
/// makes them around every other call.
fn each_call(calls: &Calls) -> Vec<String> {
    let mut rest = calls.clone();
    rest.retain(|name, _| !name.starts_with("cuCtxP"));
    faults::of_calls(&rest, &[CUresult::CUDA_ERROR_UNKNOWN], u64::MAX)
}

#[test]
fn each_call_fails_once_where_there_are_other_routes() {
    settle_machine("pcie-peer");
    let calls = clean_run();
    let mut lines = each_call(&calls);
    lines.extend(faults::of_calls(&calls, &faults::PASSING, 1));
    let all = sweep(lines, false);
    // The engine gets round a single failure, unless no other route exists, as for an allocation.
    assert!(all.detours > 0);
    assert!(all.troubles > 0);
}

#[test]
fn each_call_fails_once_where_devices_do_not_reach_each_other() {
    settle_machine("no-peer");
    let calls = clean_run();
    let all = sweep(each_call(&calls), false);
    assert!(all.troubles > 0);
}

#[test]
fn each_function_fails_for_good() {
    settle_machine("pcie-peer");
    let calls = clean_run();
    let results = [CUresult::CUDA_ERROR_UNKNOWN];
    let all = sweep(faults::of_calls_for_good(&calls, &results), true);
    assert!(all.troubles > 0);
}

#[test]
fn memory_runs_out_at_each_allocation() {
    settle_machine("pcie-peer");
    clean_run();
    let all = sweep(faults::of_memory(12), false);
    assert!(all.troubles > 0);
}

#[test]
fn each_operation_ruins_its_context() {
    settle_machine("pcie-peer");
    clean_run();
    let all = sweep(faults::of_ruin(40, &faults::RUINS), true);
    assert!(all.troubles > 0);
}
