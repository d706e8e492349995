//! Memory of the host that devices reach.

use crate::common;

use std::env;
use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::bytes::{self, Host, copy, download, pattern};
use common::work::{launch, stream};
use common::{GIGABYTE, control, counter, enter, machine, machine_in_context, now, refused};
use cuda::driver::cuMemAllocHost_v2;
use transload_cuda::raw::{
    CU_MEMHOSTALLOC, CU_MEMHOSTREGISTER, CUdevice, CUdriverProcAddressQueryResult, CUresult,
    CUstream, CUstream_flags, Driver,
};

const WRONG: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
const ALREADY: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
const NOT_REGISTERED: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);

fn allocate(driver: &Driver, bytes: usize, flags: u32) -> Result<*mut u8, CUresult> {
    let mut start: *mut c_void = ptr::null_mut();
    // SAFETY: the out-pointer is a local variable.
    let answer = unsafe { driver.cuMemHostAlloc(&raw mut start, bytes, flags) };
    let answer = answer.map(|()| start.cast());
    answer.map_err(|error| error.result().unwrap())
}

fn free(driver: &Driver, start: *mut u8) -> Result<(), CUresult> {
    // SAFETY: the double refuses an address that it cannot free.
    let answer = unsafe { driver.cuMemFreeHost(start.cast()) };
    answer.map_err(|error| error.result().unwrap())
}

fn register(driver: &Driver, start: *mut u8, bytes: usize, flags: u32) -> Result<(), CUresult> {
    // SAFETY: the memory outlives its registration, in every test.
    let answer = unsafe { driver.cuMemHostRegister_v2(start.cast(), bytes, flags) };
    answer.map_err(|error| error.result().unwrap())
}

fn unregister(driver: &Driver, start: *mut u8) -> Result<(), CUresult> {
    // SAFETY: the double refuses an address that is not registered.
    let answer = unsafe { driver.cuMemHostUnregister(start.cast()) };
    answer.map_err(|error| error.result().unwrap())
}

fn device_pointer(driver: &Driver, start: *mut u8) -> Result<u64, CUresult> {
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    let answer = unsafe { driver.cuMemHostGetDevicePointer_v2(&raw mut address, start.cast(), 0) };
    let answer = answer.map(|()| address);
    answer.map_err(|error| error.result().unwrap())
}

fn flags(driver: &Driver, start: *mut u8) -> Result<u32, CUresult> {
    let mut flags = 0;
    // SAFETY: the out-pointer is a local variable.
    let answer = unsafe { driver.cuMemHostGetFlags(&raw mut flags, start.cast()) };
    let answer = answer.map(|()| flags);
    answer.map_err(|error| error.result().unwrap())
}

#[test]
fn pinned_memory_is_the_hosts_and_has_one_address() {
    let driver = machine_in_context(&[]);
    let start = allocate(&driver, 4097, CU_MEMHOSTALLOC::WRITECOMBINED).unwrap();
    assert!(start.addr().is_multiple_of(4096));
    // SAFETY: the memory is the test's and has that length.
    let last = unsafe { start.add(4096) };
    // SAFETY: as above.
    unsafe { last.write(7) };
    assert_eq!(device_pointer(&driver, start), Ok(start.addr() as u64));
    assert_eq!(device_pointer(&driver, last), Ok(last.addr() as u64));
    assert_eq!(flags(&driver, last), Ok(CU_MEMHOSTALLOC::WRITECOMBINED));
    assert_eq!(
        control("leaks").unwrap().lines().last(),
        Some(format!("Pinned memory {start:p}, 4097 bytes").as_str())
    );
    free(&driver, start).unwrap();
    assert_eq!(free(&driver, start), WRONG, "it is freed already");
    assert_eq!(device_pointer(&driver, start).map(drop), WRONG);
    assert_eq!(flags(&driver, start).map(drop), WRONG);
}

#[test]
fn memory_that_is_not_to_be_had_is_refused() {
    let driver = machine_in_context(&[]);
    assert_eq!(allocate(&driver, 0, 0).map(drop), WRONG);
    assert_eq!(allocate(&driver, 1, 8).map(drop), WRONG, "no such flag");
    let out = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(allocate(&driver, usize::MAX / 2, 0), out);
    control("fault oom@2").unwrap();
    let start = allocate(&driver, 1, 0).unwrap();
    assert_eq!(allocate(&driver, 1, 0), out);
    free(&driver, start).unwrap();
    let null = ptr::null_mut();
    // SAFETY: the double refuses a null pointer.
    let nowhere = refused(unsafe { driver.cuMemHostAlloc(null, 1, 0) });
    assert_eq!(nowhere, CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn it_needs_a_context_and_goes_with_its_own() {
    let driver = machine(&[]);
    let none = Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(
        allocate(&driver, 1, 0),
        Err(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    );
    let mut bytes = [0; 8];
    assert_eq!(register(&driver, bytes.as_mut_ptr(), 8, 0), none);
    enter(&driver, 0);
    allocate(&driver, 1, 0).unwrap();
    register(&driver, bytes.as_mut_ptr(), 8, 0).unwrap();
    // SAFETY: no argument is a pointer.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) }.unwrap();
    assert_eq!(control("leaks").unwrap(), "");
    enter(&driver, 0);
    assert_eq!(unregister(&driver, bytes.as_mut_ptr()), NOT_REGISTERED);
}

#[test]
fn a_range_is_registered_once_at_a_time() {
    let driver = machine_in_context(&[]);
    let mut bytes = vec![0u8; 3000];
    let start = bytes.as_mut_ptr();
    // At any address, and of any length.
    let inner = start.wrapping_add(1001);
    register(&driver, inner, 999, CU_MEMHOSTREGISTER::PORTABLE).unwrap();
    assert_eq!(register(&driver, inner, 999, 0), ALREADY);
    assert_eq!(register(&driver, start, 1002, 0), ALREADY, "one byte of it");
    assert_eq!(register(&driver, start.wrapping_add(1999), 2, 0), ALREADY);
    register(&driver, start, 1001, 0).unwrap();
    register(&driver, start.wrapping_add(2000), 1000, 0).unwrap();
    assert_eq!(device_pointer(&driver, start), Ok(start.addr() as u64));
    assert_eq!(
        flags(&driver, start).map(drop),
        WRONG,
        "it was not allocated"
    );
    let within = start.wrapping_add(1);
    assert_eq!(
        unregister(&driver, within),
        NOT_REGISTERED,
        "not its first byte"
    );
    for base in [start, inner, start.wrapping_add(2000)] {
        unregister(&driver, base).unwrap();
        assert_eq!(unregister(&driver, base), NOT_REGISTERED);
    }
    assert_eq!(unregister(&driver, ptr::null_mut()), WRONG);
    assert_eq!(device_pointer(&driver, start).map(drop), WRONG);
    assert_eq!(
        (counter("registrations"), counter("unregistrations")),
        (3, 3)
    );
}

#[test]
fn only_memory_that_is_there_is_registered() {
    let driver = machine_in_context(&[]);
    let mut bytes = [0u8; 8];
    let start = bytes.as_mut_ptr();
    assert_eq!(register(&driver, start, 0, 0), WRONG);
    assert_eq!(register(&driver, start, 8, 16), WRONG, "no such flag");
    assert_eq!(register(&driver, start, usize::MAX, 0), WRONG);
    assert_eq!(register(&driver, ptr::null_mut(), 8, 0), WRONG);
    let unmapped = ptr::without_provenance_mut(4096);
    assert_eq!(register(&driver, unmapped, 8, 0), WRONG);
    let io = register(&driver, start, 8, CU_MEMHOSTREGISTER::IOMEMORY);
    assert_eq!(io, Err(CUresult::CUDA_ERROR_NOT_SUPPORTED));
    let text = "in read-only memory".as_ptr().cast_mut();
    assert_eq!(register(&driver, text, 19, 0), WRONG);
    register(&driver, text, 19, CU_MEMHOSTREGISTER::READ_ONLY).unwrap();
    unregister(&driver, text).unwrap();
    control("fault oom").unwrap();
    let out = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(register(&driver, start, 8, 0), out);
    register(&driver, start, 8, 0).unwrap();
    assert_eq!(counter("registrations"), 2, "those that succeeded");
}

#[test]
fn devices_do_not_write_what_they_may_only_read() {
    let driver = machine_in_context(&[]);
    let text = b"in read-only memory";
    let start = text.as_ptr().cast_mut();
    register(&driver, start, text.len(), CU_MEMHOSTREGISTER::READ_ONLY).unwrap();
    let at = start.addr() as u64;
    let on_device = bytes::allocate(&driver, text.len());
    copy(&driver, on_device, at, text.len(), CUstream::NULL).unwrap();
    assert_eq!(download(&driver, on_device, text.len()), text);
    let written = copy(&driver, at, on_device, text.len(), CUstream::NULL);
    assert_eq!(written, WRONG);
    unregister(&driver, start).unwrap();
}

#[test]
fn each_sort_of_memory_goes_as_it_came() {
    let driver = machine_in_context(&[]);
    let pinned = allocate(&driver, 100, 0).unwrap();
    let mut bytes = [0u8; 8];
    let registered = bytes.as_mut_ptr();
    register(&driver, registered, 8, 0).unwrap();
    let mut device = 0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuMemAlloc_v2(&raw mut device, 8) }.unwrap();
    let on_device = ptr::without_provenance_mut(device as usize);
    let free_device = |address| {
        // SAFETY: the double refuses an address that it cannot free.
        let answer = unsafe { driver.cuMemFree_v2(address) };
        answer.map_err(|error| error.result().unwrap())
    };
    assert_eq!(free_device(pinned.addr() as u64), WRONG);
    assert_eq!(free_device(registered.addr() as u64), WRONG);
    assert_eq!(free(&driver, registered), WRONG);
    assert_eq!(free(&driver, on_device), WRONG);
    assert_eq!(free(&driver, pinned.wrapping_add(1)), WRONG);
    assert_eq!(free(&driver, ptr::null_mut()), WRONG);
    assert_eq!(unregister(&driver, pinned), WRONG);
    assert_eq!(register(&driver, pinned, 8, 0), ALREADY, "it is pinned");
    assert_eq!(register(&driver, on_device, 8, 0), WRONG);
    assert_eq!(device_pointer(&driver, on_device).map(drop), WRONG);
    free(&driver, pinned).unwrap();
    unregister(&driver, registered).unwrap();
    free_device(device).unwrap();
    assert_eq!(control("leaks").unwrap().lines().count(), 1, "the context");
}

/// In virtual time nothing happens before a thread waits.
#[test]
fn freeing_and_unregistering_wait_for_work_under_way() {
    let driver = machine_in_context(&[("TRANSLOAD_DOUBLE_CLOCK", "virtual")]);
    let stream = stream(&driver, CUstream_flags::CU_STREAM_NON_BLOCKING.0);
    let done = Arc::new(AtomicUsize::new(0));
    let work = || {
        let done = Arc::clone(&done);
        launch(&driver, stream, move || {
            _ = done.fetch_add(1, Ordering::Relaxed)
        })
        .unwrap();
    };
    let pinned = allocate(&driver, 100, 0).unwrap();
    let mut bytes = [0u8; 8];
    register(&driver, bytes.as_mut_ptr(), 8, 0).unwrap();
    work();
    assert_eq!(done.load(Ordering::Relaxed), 0);
    free(&driver, pinned).unwrap();
    assert_eq!(done.load(Ordering::Relaxed), 1);
    work();
    unregister(&driver, bytes.as_mut_ptr()).unwrap();
    assert_eq!(done.load(Ordering::Relaxed), 2);
}

#[test]
fn unregistering_under_a_copy_waits_for_it_and_is_noted() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let bytes = pattern(1, 1000);
    let host = Host::pageable(&bytes);
    register(&driver, host.start, 1000, 0).unwrap();
    let on_device = bytes::allocate(&driver, 1000);
    let stream = stream(&driver, CUstream_flags::CU_STREAM_NON_BLOCKING.0);
    copy(&driver, on_device, host.address(), 1000, stream).unwrap();
    unregister(&driver, host.start).unwrap();
    assert_eq!(now(), 1000);
    let note = format!(
        "cuMemHostUnregister: copies use {:p}, 1000 bytes, and are under way",
        host.start
    );
    assert_eq!(control("notes").unwrap(), note);
    host.write(&[0; 1000]);
    assert_eq!(download(&driver, on_device, 1000), bytes);
}

/// A function that the binding has no use for is there for other clients.
#[test]
fn the_older_function_is_found_by_name() {
    let driver = machine_in_context(&[]);
    let mut found: *mut c_void = ptr::null_mut();
    let mut status = CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    let name = c"cuMemAllocHost".as_ptr();
    // SAFETY: the text ends with a zero, and the places are ours.
    unsafe { driver.cuGetProcAddress_v2(name, &raw mut found, 13000, 0, &raw mut status) }.unwrap();
    assert_eq!(found.addr(), cuMemAllocHost_v2 as *const () as usize);
    let mut start: *mut c_void = ptr::null_mut();
    // SAFETY: the out-pointer is a local variable.
    let answer = unsafe { cuMemAllocHost_v2(&raw mut start, 10) };
    assert_eq!(answer, CUresult::CUDA_SUCCESS);
    assert_eq!(flags(&driver, start.cast()), Ok(0));
    free(&driver, start.cast()).unwrap();
}

/// Runs in a process of its own, which it kills.
#[test]
fn a_host_that_touches_freed_memory_dies() {
    const SIGSEGV: i32 = 11;
    if env::var_os("TOUCH_FREED_MEMORY").is_some() {
        let driver = machine_in_context(&[]);
        let start = allocate(&driver, 1 << 20, 0).unwrap();
        free(&driver, start).unwrap();
        // SAFETY: it is not safe: the process ends here.
        let byte = unsafe { start.read_volatile() };
        panic!("freed memory was read: {byte}");
    }
    let status = Command::new(env::current_exe().unwrap())
        .args(["host::a_host_that_touches_freed_memory_dies", "--exact"])
        .env("TOUCH_FREED_MEMORY", "1")
        .output()
        .unwrap()
        .status;
    assert_eq!(status.signal(), Some(SIGSEGV), "{status}");
}
