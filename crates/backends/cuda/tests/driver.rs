//! Drivers that consist of functions of the program, and libraries that are no drivers.

use std::ffi::{c_int, c_uint};
use std::process::Command;
use std::{env, fs};

use transload_cuda::raw::{
    CUresult, CUstream, CallError, DRIVER_VARIABLE, Driver, LoadError, Source, Table, Version,
};

/// A driver of some version that gives one answer to every call.
mod answers {
    use super::{CUresult, c_int, c_uint};

    pub(crate) unsafe extern "C" fn init(_flags: c_uint) -> CUresult {
        CUresult::CUDA_SUCCESS
    }

    pub(crate) unsafe extern "C" fn stub(_flags: c_uint) -> CUresult {
        CUresult::CUDA_ERROR_STUB_LIBRARY
    }

    pub(crate) unsafe extern "C" fn version_12_2(version: *mut c_int) -> CUresult {
        // SAFETY: the caller passes a valid out-pointer.
        unsafe { version.write(12020) };
        CUresult::CUDA_SUCCESS
    }

    pub(crate) unsafe extern "C" fn unheard_of() -> CUresult {
        CUresult(4711)
    }
}

#[test]
fn two_drivers_of_rust_functions_stand_side_by_side() {
    let real = Table {
        cuInit: Some(answers::init),
        cuDriverGetVersion: Some(answers::version_12_2),
        cuCtxSynchronize: Some(answers::unheard_of),
        ..Table::EMPTY
    };
    let stub = Table {
        cuInit: Some(answers::stub),
        ..Table::EMPTY
    };
    // SAFETY: these functions touch no memory, so they have no promise to keep.
    let [real, stub] = [(real, "one"), (stub, "another")]
        .map(|(table, name)| unsafe { Driver::from_table(table, name) });
    assert_eq!(real.source(), &Source::Functions("one"));
    assert_eq!(real.version(), Version::new(12, 2));
    assert_eq!(stub.version(), Version(0));
    // SAFETY: no argument is a pointer.
    assert_eq!(unsafe { real.cuInit(0) }, Ok(()));
    // SAFETY: as above.
    let refused = unsafe { stub.cuInit(0) }.unwrap_err();
    assert!(refused.is(CUresult::CUDA_ERROR_STUB_LIBRARY));
    assert_eq!(
        refused.to_string(),
        "cuInit: CUDA_ERROR_STUB_LIBRARY (34): the library is the toolkit's stub for linking, not a driver"
    );
    // SAFETY: the call takes no arguments.
    let odd = unsafe { real.cuCtxSynchronize() }.unwrap_err();
    assert_eq!(odd.result(), Some(CUresult(4711)));
    assert_eq!(
        odd.to_string(),
        "cuCtxSynchronize: CUDA error 4711, which has no name here"
    );
}

#[test]
fn an_absent_function_is_an_answer_with_its_reason() {
    let table = Table {
        cuInit: Some(answers::init),
        cuDriverGetVersion: Some(answers::version_12_2),
        ..Table::EMPTY
    };
    // SAFETY: these functions keep their promises.
    let driver = unsafe { Driver::from_table(table, "a driver of 12.2") };
    // SAFETY: the call never reaches a function.
    let answer = unsafe { driver.cuStreamSynchronize(CUstream::NULL) };
    assert_eq!(
        answer,
        Err(CallError::Missing {
            function: "cuStreamSynchronize",
            since: Version::new(2, 0),
            driver: Version::new(12, 2),
        })
    );
    let missing: Vec<_> = driver.missing().collect();
    assert_eq!(missing.len(), Table::FUNCTIONS.len() - 2);
    let batch = missing
        .iter()
        .find(|function| function.name == "cuMemcpyBatchAsync")
        .unwrap();
    assert_eq!(batch.since, Version::new(12, 8));
}

#[test]
fn both_signatures_of_a_function_are_bound() {
    for name in [
        "cuMemPrefetchAsync",
        "cuMemAdvise",
        "cuMemcpyBatchAsync",
        "cuEventElapsedTime",
    ] {
        let since = |wanted: &str| {
            let found = Table::FUNCTIONS.iter().find(|of| of.name == wanted);
            found.unwrap_or_else(|| panic!("{wanted} is bound")).since
        };
        assert!(since(name) < since(&format!("{name}_v2")), "{name}");
    }
}

#[test]
fn a_library_that_is_not_there_is_told_by_name() {
    let error = Driver::load_from("/nowhere/libcuda.so.1").unwrap_err();
    let LoadError::Library { from_variable, .. } = &error else {
        panic!("{error}")
    };
    assert!(!from_variable);
    let shown = error.to_string();
    assert!(
        shown.starts_with("no CUDA driver: /nowhere/libcuda.so.1: "),
        "{shown}"
    );
    assert!(
        shown.contains("No such file") || cfg!(not(target_os = "linux")),
        "{shown}"
    );
    assert_eq!(shown.matches("libcuda.so.1").count(), 1, "{shown}");
}

#[test]
fn a_file_that_is_no_library_is_no_driver() {
    let path = env::temp_dir().join(format!("transload-no-library-{}", std::process::id()));
    fs::write(&path, b"not a library").unwrap();
    let error = Driver::load_from(&path).unwrap_err();
    fs::remove_file(&path).unwrap();
    assert!(matches!(error, LoadError::Library { .. }), "{error}");
}

/// The loader would open the pipe, and wait for its other end.
#[cfg(unix)]
#[test]
fn a_pipe_is_no_driver_and_is_refused_at_once() {
    use std::sync::mpsc;
    use std::time::Duration;
    let path = env::temp_dir().join(format!("transload-no-driver-{}", std::process::id()));
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let (give, take) = mpsc::channel();
    let at = path.clone();
    std::thread::spawn(move || give.send(Driver::load_from(at).map(drop)));
    let told = take.recv_timeout(Duration::from_secs(600));
    fs::remove_file(&path).unwrap();
    let error = told.expect("the loader waits for the pipe").unwrap_err();
    assert!(matches!(error, LoadError::NotRegular { .. }), "{error}");
    let sentence = format!("no CUDA driver: {} is not a regular file", path.display());
    assert_eq!(error.to_string(), sentence);
}

#[cfg(target_os = "linux")]
#[test]
fn a_library_that_is_no_driver_is_told_from_one() {
    let error = Driver::load_from("libc.so.6").unwrap_err();
    assert_eq!(error.to_string(), "no CUDA driver: libc.so.6 has no cuInit");
}

/// The variable belongs to the process, so the test sets it in a process of its own.
#[test]
fn the_variable_names_the_driver_and_is_told() {
    const INSIDE: &str = "the_variable_names_the_driver_inside";
    let run = |value: &str| {
        let output = Command::new(env::current_exe().unwrap())
            .args([INSIDE, "--exact", "--nocapture"])
            .env(DRIVER_VARIABLE, value)
            .env("TRANSLOAD_TEST_INSIDE", "1")
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let named = run("/nowhere/other.so");
    assert!(
        named.contains("no CUDA driver: /nowhere/other.so, which TRANSLOAD_CUDA_DRIVER names: "),
        "{named}"
    );
    #[cfg(target_os = "linux")]
    {
        let other = run("libc.so.6");
        let sentence = "libc.so.6, which TRANSLOAD_CUDA_DRIVER names, has no cuInit";
        assert!(other.contains(sentence), "{other}");
    }
    let empty = run("");
    assert!(
        !empty.contains("which TRANSLOAD_CUDA_DRIVER names"),
        "{empty}"
    );
}

#[test]
fn the_variable_names_the_driver_inside() {
    if env::var_os("TRANSLOAD_TEST_INSIDE").is_none() {
        return;
    }
    match Driver::load() {
        Ok(driver) => println!("loaded {}", driver.source()),
        Err(error) => println!("{error}"),
    }
}

#[test]
fn a_failed_call_is_told_once() {
    let (function, result) = ("cuMemAlloc_v2", CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let error = CallError::Failed { function, result };
    let whole = error.to_string();
    assert!(whole.contains(function) && whole.contains(&result.to_string()));
    // A program that prints an error and all of its sources would print the result twice.
    assert!(std::error::Error::source(&error).is_none());
}
