//! Operations that never end. A driver call that waits for one never returns, so each test has a process of its own.

use std::env;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::faults;
use crate::run::{Run, attach};
use crate::trial::{HANG, clean_run, of_age, open};
use crate::{NEWEST, SCENARIOS, operations, scenarios};

/// Names the scenario, and the number of the silent operation.
const INSIDE: &str = "TRANSLOAD_TEST_SILENCE";

/// The line that a process prints at its end.
const SURVIVED: &str = "all went on";

/// The limit of a wait for an operation that never ends. A process that is slow finds more operations missing, and no
/// other error.
const PATIENCE: Duration = Duration::from_millis(50);

#[test]
fn each_operation_never_ends() {
    of_age(NEWEST);
    let mut wrong = Vec::new();
    for (number, scenario) in SCENARIOS.into_iter().enumerate() {
        for turn in 1..=operations(&clean_run(scenario)) {
            if let Err(why) = inside(&format!("{number} {turn}")) {
                wrong.push(format!("scenario {number}, operation {turn}: {why}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs a process for one case.
fn inside(which: &str) -> Result<(), String> {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["silence::inside_a_process", "--exact", "--nocapture"])
        .env(INSIDE, which)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (tell, told) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        // A process whose output cannot be read has not survived.
        let _ = stdout.read_to_string(&mut text);
        let _ = tell.send(text);
    });
    let text = told.recv_timeout(HANG);
    if text.is_err() {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    reader.join().unwrap();
    match text {
        Ok(text) if status.success() && text.contains(SURVIVED) => Ok(()),
        Ok(text) => Err(format!("{status}: {text}")),
        Err(_) => Err("it hangs".into()),
    }
}

#[test]
fn inside_a_process() {
    let Ok(which) = env::var(INSIDE) else {
        return;
    };
    let (number, turn) = which.split_once(' ').unwrap();
    of_age(NEWEST);
    let cuda = open().unwrap();
    let sink = attach(&cuda);
    faults::order(&format!("stuck@{turn}"));
    let mut run = Run::new(&cuda, &sink, PATIENCE);
    SCENARIOS[number.parse::<usize>().unwrap()](&mut run);
    assert!(run.unsettled > 0, "all of it ended");
    assert!(run.crimes.is_empty(), "{:?}", run.crimes);
    assert!(run.troubles.is_empty(), "{:?}", run.troubles);
    for memory in &run.memories {
        let bytes = memory.read(&cuda).unwrap();
        assert_eq!(memory.wrong(&bytes), None);
    }
    let mut beside = Run::new(&cuda, &sink, HANG);
    let uses_both = run
        .memories
        .iter()
        .any(|of| of.buffer.memory().device.index == 1);
    if !uses_both {
        // The fault does not affect the other device.
        scenarios::elsewhere(&mut beside);
        assert_eq!(beside.unsettled, 0);
        assert!(beside.troubles.is_empty(), "{:?}", beside.troubles);
    }
    // Freeing memory that a device may use means waiting for the device (CUDA Driver API, Memory Management,
    // cuMemFree).
    for run in [&mut run, &mut beside] {
        std::mem::forget(std::mem::take(&mut run.memories));
    }
    drop((run, beside));
    drop((cuda, sink));
    // A backend that opens the devices again does not wait either: it has streams of its own.
    let again = open().unwrap();
    let sink = attach(&again);
    let mut run = Run::new(&again, &sink, HANG);
    scenarios::elsewhere(&mut run);
    assert!(run.troubles.is_empty() && run.unsettled == 0);
    std::mem::forget(std::mem::take(&mut run.memories));
    println!("{SURVIVED}");
}
