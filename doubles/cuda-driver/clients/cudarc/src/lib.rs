//! Shared parts of the tests of the double through cudarc.
//!
//! cudarc was made from NVIDIA's headers, independently of the double. It finds the double as it finds the real
//! library: by name, on the loader's path. `cargo xtask test --only clients` builds the double and sets that path. The
//! machine is `pcie-peer`, two devices that reach each other, unless a test asks for another one in [a process of its
//! own](in_own_process).

use std::env;
use std::ffi::{CString, c_char, c_int};
use std::fmt::Debug;
use std::process::Command;
use std::sync::{Arc, Once};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, DriverError};

/// Calls a function of the driver as cudarc declares it, and returns its answer.
///
/// Arguments are of the types that NVIDIA's reference gives, and places among them outlive the call. The test
/// keeps what they name for as long as work on it is under way.
#[macro_export]
macro_rules! driver {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        $crate::load();
        // SAFETY: as the macro's page says; the test that gives the arguments upholds it.
        unsafe { cudarc::driver::sys::$function($($argument),*) }
    }};
}

/// The primary context of a device of the double.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn device(ordinal: usize) -> Arc<CudaContext> {
    load();
    CudaContext::new(ordinal).expect("a context of the double")
}

/// What a call failed with.
///
/// # Panics
/// When it did not fail.
#[track_caller]
pub fn failure<T: Debug>(result: Result<T, DriverError>) -> CUresult {
    match result {
        Ok(value) => panic!("it succeeded, with {value:?}"),
        Err(DriverError(error)) => error,
    }
}

/// Bytes that differ from those of other seeds, and from shifted copies of themselves.
#[must_use]
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Returns true in the process that `test` asked for. In any other process it runs that process to its end: the test of
/// that name, in this program, with these variables.
///
/// # Panics
/// When the test failed there, or is not there.
#[must_use]
pub fn in_own_process(test: &str, variables: &[(&str, &str)]) -> bool {
    if env::var(OWN_PROCESS).is_ok_and(|name| name == test) {
        return true;
    }
    let program = env::current_exe().expect("this program has a path");
    let output = Command::new(program)
        .args([test, "--exact", "--nocapture"])
        .envs(variables.iter().copied())
        .env(OWN_PROCESS, test)
        .output()
        .expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{test} in a process of its own: {}\n{text}{told}",
        output.status
    );
    false
}

/// Sends the double a command, and returns its answer.
///
/// # Panics
/// When it refuses.
pub fn control(command: &str) -> String {
    load();
    ask(command)
}

/// A counter of the double; 0 if the double never counted it.
#[must_use]
pub fn counter(name: &str) -> u64 {
    let counters = control("counters");
    let mut lines = counters.lines().filter_map(|line| line.rsplit_once(' '));
    let found = lines.find(|(of, _)| *of == name);
    found.map_or(0, |(_, count)| {
        count.parse().expect("a counter is a number")
    })
}

/// Makes sure that cudarc's driver is the double, and selects the machine.
pub fn load() {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        let machine = env::var(MACHINE).unwrap_or_else(|_| "pcie-peer".to_owned());
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../topologies");
        ask(&format!(
            "set TRANSLOAD_DOUBLE_TOPOLOGY={folder}/{machine}.toml"
        ));
    });
}

fn ask(command: &str) -> String {
    type Control = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> c_int;
    // SAFETY: loading runs the library's constructors; it is the double, which has none, or this ends below.
    let library = unsafe { sys::culib() };
    // SAFETY: only the double exports this name, and this is the function's type there.
    let control = unsafe { library.get::<Control>("transload_double_control") };
    let control = control.expect("the libcuda on the loader's path is not the double");
    let command = CString::new(command).expect("a command holds no zero");
    let mut answer = vec![0_u8; 1 << 16];
    // SAFETY: the command ends with a zero, and the answer has room for as much as is said.
    let length = unsafe { control(command.as_ptr(), answer.as_mut_ptr().cast(), answer.len()) };
    let end = answer.iter().position(|&byte| byte == 0).unwrap_or(0);
    let answer = String::from_utf8_lossy(&answer[..end]).into_owned();
    assert!(length >= 0, "{command:?}: {answer}");
    answer
}

/// The machine that the double poses as, a file of its `topologies` without `.toml`.
pub const MACHINE: &str = "TRANSLOAD_CLIENT_MACHINE";

/// The test for which this process was started.
const OWN_PROCESS: &str = "TRANSLOAD_CLIENT_TEST";
