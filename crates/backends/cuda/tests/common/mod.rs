//! What the tests share: the backend over the double of the driver, and ways to tell the double things.
#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod ages;
pub(crate) mod faults;
pub(crate) mod user;
pub(crate) mod work;

use std::time::{Duration, Instant};

use transload_cuda::Cuda;
use transload_cuda::raw::Driver;

/// How long what threads have not given back is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The driver's double with settings for this process, which has one machine: a test that wants another is run in a
/// process of its own.
pub(crate) fn driver(settings: &[(&str, &str)]) -> Driver {
    for (name, value) in settings {
        control(&format!("set TRANSLOAD_DOUBLE_{name}={value}")).expect("it is not in use yet");
    }
    // SAFETY: the functions are the double's, which are there for good.
    unsafe { Driver::from_table(cuda::table(), "the double") }
}

/// The backend over such a driver.
pub(crate) fn backend(settings: &[(&str, &str)]) -> Cuda {
    Cuda::with_driver(driver(settings)).expect("the machine has devices")
}

/// A described machine of the double's.
pub(crate) fn machine(name: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("{root}/../../../doubles/cuda-driver/topologies/{name}.toml")
}

/// A machine of the double's own tests, where times are easily told.
pub(crate) fn made_up(name: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("{root}/../../../doubles/cuda-driver/tests/machines/{name}.toml")
}

/// The modelled time, in nanoseconds.
pub(crate) fn now() -> u64 {
    control("now").unwrap().parse().unwrap()
}

/// Has the double carry out a command.
pub(crate) fn control(command: &str) -> Result<String, String> {
    cuda::control(command)
}

/// The value of one counter; 0 if it was never counted.
pub(crate) fn counter(name: &str) -> u64 {
    let counters = control("counters").unwrap();
    let line = counters
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map_or(0, |count| count.parse().unwrap())
}

/// How often a function of the driver was called.
pub(crate) fn calls(function: &str) -> u64 {
    let calls = control("calls").unwrap();
    let line = calls
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{function} ")));
    line.map_or(0, |count| count.parse().unwrap())
}

/// Everything was given back, and nothing was done that a driver punishes later. A backend that goes while work is under
/// way leaves it to its own threads, which get a moment.
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
