//! Memory of devices.

use crate::common;

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::work::{launch, stop, stream};
use common::{control, counter, machine_in_context, refused};
use transload_cuda::raw::{CUdevice, CUdeviceptr, CUresult, CUstream_flags, Driver};

fn allocate(driver: &Driver, bytes: usize) -> Result<CUdeviceptr, CUresult> {
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    let answer = unsafe { driver.cuMemAlloc_v2(&raw mut address, bytes) };
    answer
        .map(|()| address)
        .map_err(|error| error.result().unwrap())
}

fn free(driver: &Driver, address: CUdeviceptr) -> Result<(), CUresult> {
    // SAFETY: the double refuses an invalid address.
    let answer = unsafe { driver.cuMemFree_v2(address) };
    answer.map_err(|error| error.result().unwrap())
}

fn info(driver: &Driver) -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the out-pointers are local variables.
    unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) }.unwrap();
    (free, total)
}

#[test]
fn memory_is_counted_and_comes_back() {
    let driver = machine_in_context(&[]);
    let all = info(&driver);
    assert_eq!(all, (1 << 30, 1 << 30));
    let first = allocate(&driver, 1 << 20).unwrap();
    let second = allocate(&driver, 1).unwrap();
    assert!(first.is_multiple_of(512) && second.is_multiple_of(512));
    assert_eq!(info(&driver).0, (1 << 30) - (1 << 20) - 4096);
    assert_eq!(control("leaks").unwrap().lines().count(), 3);
    free(&driver, first).unwrap();
    free(&driver, second).unwrap();
    assert_eq!(info(&driver), all);
    assert_eq!(counter("allocations"), 2);
    assert_eq!(free(&driver, 0), Ok(()), "null is nothing");
}

#[test]
fn what_is_freed_twice_or_never_was_is_told() {
    let driver = machine_in_context(&[]);
    let wrong = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    let address = allocate(&driver, 4096).unwrap();
    assert_eq!(free(&driver, address + 1), wrong);
    free(&driver, address).unwrap();
    assert_eq!(free(&driver, address), wrong);
    let again = allocate(&driver, 4096).unwrap();
    assert_ne!(again, address, "an address is never used again");
}

#[test]
fn too_much_is_out_of_memory_and_takes_nothing() {
    let driver = machine_in_context(&[]);
    let all = info(&driver);
    let out = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(allocate(&driver, (1 << 30) + 1), out);
    assert_eq!(allocate(&driver, usize::MAX), out);
    assert_eq!(
        allocate(&driver, 0),
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    );
    let whole = allocate(&driver, 1 << 30).unwrap();
    assert_eq!(allocate(&driver, 1), out);
    free(&driver, whole).unwrap();
    control("fault oom@2").unwrap();
    let one = allocate(&driver, 1).unwrap();
    assert_eq!(allocate(&driver, 1), out);
    free(&driver, one).unwrap();
    assert_eq!(info(&driver), all);
}

#[test]
fn a_range_is_found_from_any_address_in_it() {
    let driver = machine_in_context(&[]);
    let address = allocate(&driver, 1000).unwrap();
    let range = |at| {
        let (mut base, mut size) = (0, 0);
        // SAFETY: the out-pointers are local variables.
        let answer = unsafe { driver.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, at) };
        answer.map(|()| (base, size))
    };
    assert_eq!(range(address + 999), Ok((address, 1000)));
    assert_eq!(
        refused(range(address + 1000).map(drop)),
        CUresult::CUDA_ERROR_NOT_FOUND
    );
}

#[test]
fn memory_needs_a_context_and_goes_with_its_own() {
    let driver = common::machine(&[]);
    let none = CUresult::CUDA_ERROR_INVALID_CONTEXT;
    assert_eq!(allocate(&driver, 1), Err(none));
    common::enter(&driver, 0);
    allocate(&driver, 1).unwrap();
    // SAFETY: no argument is a pointer.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) }.unwrap();
    assert_eq!(control("leaks").unwrap(), "");
    assert_eq!(
        allocate(&driver, 1),
        Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)
    );
}

/// In virtual time nothing happens before a thread waits.
#[test]
fn freeing_waits_for_work_under_way() {
    let driver = machine_in_context(&[("TRANSLOAD_DOUBLE_CLOCK", "virtual")]);
    let stream = stream(&driver, CUstream_flags::CU_STREAM_NON_BLOCKING.0);
    let address = allocate(&driver, 100).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let does = Arc::clone(&done);
    launch(&driver, stream, move || does.store(true, Ordering::Relaxed)).unwrap();
    assert!(!done.load(Ordering::Relaxed));
    free(&driver, address).unwrap();
    assert!(done.load(Ordering::Relaxed));
}

#[test]
fn freeing_does_not_wait_for_another_device() {
    let driver = machine_in_context(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    let go = stop(&driver, stream(&driver, 0));
    common::enter(&driver, 1);
    let address = allocate(&driver, 100).unwrap();
    free(&driver, address).unwrap();
    drop(go);
}

/// Runs in a process of its own, which it kills.
#[test]
fn a_host_that_touches_device_memory_dies() {
    const SIGSEGV: i32 = 11;
    if env::var_os("TOUCH_DEVICE_MEMORY").is_some() {
        let driver = machine_in_context(&[]);
        let address = allocate(&driver, 4096).unwrap();
        let pointer = ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: it is not safe: the process ends here.
        let byte = unsafe { pointer.read_volatile() };
        panic!("device memory was read: {byte}");
    }
    let status = Command::new(env::current_exe().unwrap())
        .args(["memory::a_host_that_touches_device_memory_dies", "--exact"])
        .env("TOUCH_DEVICE_MEMORY", "1")
        .output()
        .unwrap()
        .status;
    assert_eq!(status.signal(), Some(SIGSEGV), "{status}");
}
