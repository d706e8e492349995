//! A forked child has no driver: each of its calls returns an error, and none waits for a lock that a thread of the
//! parent held.

use crate::common;

use std::ffi::c_int;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Barrier};
use std::{fs, process, thread};

use common::bytes::{Host, allocate, copy};
use common::work::{launch, stream, synchronize};
use common::{control, enter, machine, refused};
use transload_cuda::raw::{CUcontext, CUdevice, CUresult, CallError, Driver};

/// Seconds after which a child that hangs is killed.
const TOO_LONG_S: u32 = 300;

/// Runs code in a child of this process, which exits with a number. Returns the number.
fn in_child(what: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the child runs the tested calls, for which the driver takes no lock, and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: nothing handles the signal, so it ends the child.
        unsafe { libc::alarm(TOO_LONG_S) };
        let told = what();
        // SAFETY: this runs the handlers of `atexit`, as the end of a C program does.
        unsafe { libc::exit(told) };
    }
    let mut status = 0;
    // SAFETY: the out-pointer is a local variable.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    assert!(libc::WIFEXITED(status), "the child was ended: {status:#x}");
    libc::WEXITSTATUS(status)
}

/// How many calls of several kinds answer anything but that the driver is not initialised.
fn others(driver: &Driver) -> c_int {
    let (mut address, mut count, mut context) = (0, 0, CUcontext::NULL);
    let not_initialised = |answer: Result<(), CallError>| {
        answer.is_err_and(|error| error.is(CUresult::CUDA_ERROR_NOT_INITIALIZED))
    };
    let answers = [
        // SAFETY: the places are ours, and nothing is written there, here and below.
        not_initialised(unsafe { driver.cuMemAlloc_v2(&raw mut address, 8) }),
        // SAFETY: as above.
        not_initialised(unsafe { driver.cuDeviceGetCount(&raw mut count) }),
        // SAFETY: as above.
        not_initialised(unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, CUdevice(0)) }),
        // SAFETY: as above.
        not_initialised(unsafe { driver.cuCtxSynchronize() }),
        // SAFETY: as above.
        not_initialised(unsafe { driver.cuInit(0) }),
        // SAFETY: as above; a version may always be asked for.
        unsafe { driver.cuDriverGetVersion(&raw mut count) }.is_ok(),
    ];
    answers.iter().filter(|is| !**is).count() as c_int
}

#[test]
fn a_child_has_no_driver_and_reports_nothing() {
    let name = format!("report-of-{}", process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let setting = path.to_str().unwrap();
    let driver = machine(&[("TRANSLOAD_DOUBLE_REPORT", setting)]);
    enter(&driver, 0);
    control("fault call=cuCtxSynchronize:999@1+").unwrap();
    assert_eq!(in_child(|| others(&driver)), 0);
    assert!(!path.exists(), "{}", fs::read_to_string(&path).unwrap());
    // SAFETY: the call takes no arguments. The parent goes on, fault and all.
    assert_eq!(refused(unsafe { driver.cuCtxSynchronize() }).0, 999);
}

#[test]
fn a_child_of_a_function_of_the_users_has_no_driver() {
    static TOLD: AtomicI32 = AtomicI32::new(-1);
    let driver = machine(&[]);
    enter(&driver, 0);
    let made = stream(&driver, 0);
    let own = driver.clone();
    let fork = move || TOLD.store(in_child(|| others(&own)), Ordering::Release);
    launch(&driver, made, fork).unwrap();
    synchronize(&driver, made).unwrap();
    assert_eq!(TOLD.load(Ordering::Acquire), 0);
}

#[test]
fn a_child_of_busy_threads_ends() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_REPORT", "-")]);
    let context = enter(&driver, 0);
    let done = Arc::new(AtomicBool::new(false));
    let begun = Arc::new(Barrier::new(5));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (driver, done, begun) = (driver.clone(), Arc::clone(&done), Arc::clone(&begun));
            let context = context.0.addr();
            thread::spawn(move || {
                let context = CUcontext(std::ptr::without_provenance_mut(context));
                // SAFETY: the context is the driver's.
                unsafe { driver.cuCtxSetCurrent(context) }.unwrap();
                let (device, made) = (allocate(&driver, 64), stream(&driver, 1));
                let pinned = Host::pinned(&driver, &[1; 64]);
                begun.wait();
                while !done.load(Ordering::Acquire) {
                    copy(&driver, device, pinned.address(), 64, made).unwrap();
                }
                synchronize(&driver, made).unwrap();
            })
        })
        .collect();
    begun.wait();
    for _ in 0..100 {
        assert_eq!(in_child(|| others(&driver)), 0);
    }
    done.store(true, Ordering::Release);
    for thread in threads {
        thread.join().unwrap();
    }
}
