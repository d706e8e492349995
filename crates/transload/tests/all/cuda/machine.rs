//! A manager over the double, and ways to inspect both.

use std::sync::Arc;

pub(crate) use cuda::control;
use transload::{AllocSpec, Buffer, Builder, Report, Request, TransferManager};
use transload_cuda::Cuda;
use transload_cuda::raw::{Driver, Table};

/// The host and the devices of a machine that the double describes. A process has one machine, so each test has a
/// process of its own.
pub(crate) fn manager(topology: &str) -> TransferManager {
    with_settings(&[("TOPOLOGY", &described(topology))])
}

/// The path of the double's description of a machine.
pub(crate) fn described(topology: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("{root}/../../doubles/cuda-driver/topologies/{topology}.toml")
}

/// The same with settings for the double.
pub(crate) fn with_settings(settings: &[(&str, &str)]) -> TransferManager {
    builder(settings).build().unwrap()
}

/// The same as a builder.
pub(crate) fn builder(settings: &[(&str, &str)]) -> Builder {
    over(double(settings))
}

fn over(driver: Driver) -> Builder {
    let devices = Cuda::with_driver(driver).expect("the machine has devices");
    TransferManager::builder().host().backend(Arc::new(devices))
}

/// The double as a driver, with settings for this process.
pub(crate) fn double(settings: &[(&str, &str)]) -> Driver {
    for (name, value) in settings {
        control(&format!("set TRANSLOAD_DOUBLE_{name}={value}")).expect("it is not in use yet");
    }
    // SAFETY: the functions are the double's, which stay loaded.
    unsafe { Driver::from_table(cuda::table(), "the double") }
}

/// The file of a machine that the double's own tests use, and whose modelled times are simple.
pub(crate) fn made_up(name: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("{root}/../../doubles/cuda-driver/tests/machines/{name}.toml")
}

/// The host and the devices of a driver that is made of the double's functions, some of which the test replaces.
pub(crate) fn with_table(table: Table) -> TransferManager {
    // SAFETY: the functions are the double's or the test's, which stay loaded.
    let driver = unsafe { Driver::from_table(table, "the double") };
    over(driver).build().unwrap()
}

/// The value of one of the double's counters; 0 if the double never counted it.
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

/// Asserts that all resources are free once all threads have let go, of which the manager's own may be the last, and
/// that the double saw no misuse of the driver.
pub(crate) fn assert_clean() {
    while !control("leaks").unwrap().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(control("notes").unwrap(), "", "noted");
}

/// Bytes without a short period.
pub(crate) fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn at(manager: &TransferManager, place: &str, len: u64) -> Buffer {
    manager
        .allocate(place.parse().unwrap(), AllocSpec::bytes(len))
        .unwrap()
}

/// Sends bytes over the places and back to the host, compares the bytes, and returns the reports of the hops.
pub(crate) fn round(manager: &TransferManager, len: u64, places: &[&str]) -> Vec<Report> {
    let sent = pattern(len, len + 1);
    let mut from = manager.adopt(sent.clone()).unwrap();
    let mut reports = Vec::new();
    for place in places {
        let to = at(manager, place, len);
        reports.push(manager.submit(&Request::new(&from, &to)).wait().unwrap());
        from = to;
    }
    let back = manager.adopt(vec![0xA5u8; len as usize]).unwrap();
    reports.push(manager.copy(&from, &back).wait().unwrap());
    assert!(
        *back.read().unwrap() == *sent,
        "{len} bytes over {places:?}"
    );
    reports
}
