//! Shared parts of the tests: the backend over the double of the driver, and ways to control the double.
#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod ages;
pub(crate) mod faults;
pub(crate) mod own;
pub(crate) mod streams;
pub(crate) mod user;
pub(crate) mod work;

use std::time::{Duration, Instant};

use transload_cuda::Cuda;
use transload_cuda::raw::Driver;

/// The limit of a wait for threads that have not freed their resources.
const PATIENCE: Duration = Duration::from_secs(300);

/// The driver's double with settings for this process. A process has one machine: a test that needs another machine
/// runs in a process of its own.
pub(crate) fn driver(settings: &[(&str, &str)]) -> Driver {
    for (name, value) in settings {
        control(&format!("set TRANSLOAD_DOUBLE_{name}={value}")).expect("it is not in use yet");
    }
    // SAFETY: the functions are the double's, which stay loaded.
    unsafe { Driver::from_table(cuda::table(), "the double") }
}

/// The backend over such a driver.
pub(crate) fn backend(settings: &[(&str, &str)]) -> Cuda {
    Cuda::with_driver(driver(settings)).expect("the machine has devices")
}

/// The path of a machine description of the double.
pub(crate) fn machine(name: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("{root}/../../../doubles/cuda-driver/topologies/{name}.toml")
}

/// The path of a machine of the double's own tests, with simple times.
pub(crate) fn made_up(name: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("{root}/../../../doubles/cuda-driver/tests/machines/{name}.toml")
}

/// The modelled time, in nanoseconds.
pub(crate) fn now() -> u64 {
    control("now").unwrap().parse().unwrap()
}

/// Makes the double execute a command.
pub(crate) fn control(command: &str) -> Result<String, String> {
    cuda::control(command)
}

/// The value of a counter; 0 if the double never counted it.
pub(crate) fn counter(name: &str) -> u64 {
    let counters = control("counters").unwrap();
    let line = counters
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map_or(0, |count| count.parse().unwrap())
}

/// The number of calls of a function of the driver.
pub(crate) fn calls(function: &str) -> u64 {
    let calls = control("calls").unwrap();
    let line = calls
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{function} ")));
    line.map_or(0, |count| count.parse().unwrap())
}

/// Asserts that all resources were freed, and that the double saw no misuse of the driver. A backend that is dropped
/// with work in flight leaves the work to its own threads, which get a moment.
pub(crate) fn assert_clean() {
    let begun = Instant::now();
    let leaks = loop {
        let leaks = control("leaks").unwrap();
        if leaks.is_empty() || begun.elapsed() > PATIENCE {
            break leaks;
        }
        std::thread::yield_now();
    };
    assert_eq!(leaks, "", "not given back");
    assert_eq!(control("notes").unwrap(), "", "noted");
}
