//! Shared parts of the tests: the double as a driver, and ways to control it.
#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod bytes;
pub(crate) mod pool;
pub(crate) mod work;

pub(crate) mod process;

use std::ffi::CString;

use cuda::{table, transload_double_control};
use transload_cuda::raw::{CUcontext, CUdevice, CUresult, CallError, Driver};

/// Settings for this process, which has one machine: a test that needs another one runs in a process of its own.
pub(crate) fn machine(settings: &[(&str, &str)]) -> Driver {
    for (name, value) in settings {
        control(&format!("set {name}={value}")).expect("the driver is not in use yet");
    }
    // SAFETY: the functions are the double's, which stay loaded.
    let driver = unsafe { Driver::from_table(table(), "the double") };
    // SAFETY: flags are zero.
    unsafe { driver.cuInit(0) }.expect("the machine is a machine");
    driver
}

/// As [`machine`], with the primary context of device 0 current.
pub(crate) fn machine_in_context(settings: &[(&str, &str)]) -> Driver {
    let driver = machine(settings);
    enter(&driver, 0);
    driver
}

/// Virtual time, on two devices whose links take a nanosecond for a byte: see `tests/machines/gigabyte.toml`.
pub(crate) const GIGABYTE: [(&str, &str); 2] = [
    ("TRANSLOAD_DOUBLE_CLOCK", "virtual"),
    (
        "TRANSLOAD_DOUBLE_TOPOLOGY",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/machines/gigabyte.toml"),
    ),
];

/// The same times, on a device that walks the host's page tables, and one that does not share managed memory with the
/// host: see `tests/machines/page-tables.toml`.
pub(crate) const PAGE_TABLES: [(&str, &str); 2] = [
    GIGABYTE[0],
    (
        "TRANSLOAD_DOUBLE_TOPOLOGY",
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/machines/page-tables.toml"
        ),
    ),
];

/// The modelled time.
pub(crate) fn now() -> u64 {
    control("now").unwrap().parse().unwrap()
}

/// Lets virtual time pass.
pub(crate) fn advance(ns: u64) {
    control(&format!("advance {ns}")).unwrap();
}

/// Makes the primary context of a device current on this thread.
pub(crate) fn enter(driver: &Driver, device: i32) -> CUcontext {
    let mut context = CUcontext::NULL;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, CUdevice(device)) }.unwrap();
    // SAFETY: the context is the driver's.
    unsafe { driver.cuCtxSetCurrent(context) }.unwrap();
    context
}

/// Has the double carry out a command.
pub(crate) fn control(command: &str) -> Result<String, String> {
    let command = CString::new(command).unwrap();
    let mut answer = vec![0u8; 1 << 16];
    // SAFETY: the text ends with a zero, and the buffer has the stated length.
    let length = unsafe {
        transload_double_control(command.as_ptr(), answer.as_mut_ptr().cast(), answer.len())
    };
    let kept = length.unsigned_abs() as usize;
    let text = String::from_utf8_lossy(&answer[..kept.min(answer.len() - 1)]).into_owned();
    if length < 0 { Err(text) } else { Ok(text) }
}

/// The value of one counter; 0 if it was never counted.
pub(crate) fn counter(name: &str) -> u64 {
    let counters = control("counters").unwrap();
    let line = counters
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map_or(0, |count| count.parse().unwrap())
}

/// The answer of a call that must fail.
#[track_caller]
pub(crate) fn refused(answer: Result<(), CallError>) -> CUresult {
    match answer {
        Ok(()) => panic!("it was not refused"),
        Err(error) => error.result().expect("the double has every function"),
    }
}
