//! Work that fails or never ends, and its effect on other work.

use crate::common;

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use common::bytes::{Host, allocate, copy, download, pattern, uploaded};
use common::work::{
    event_query, event_synchronize, launch, point, query, result, stream, synchronize, wait_event,
};
use common::{GIGABYTE, advance, control, enter, machine, now};
use transload_cuda::raw::{CUdevice, CUresult, CUstream};

const LEN: usize = 1000;
const NOT_READY: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_NOT_READY);

#[test]
fn an_error_of_the_device_comes_with_its_work_and_stays() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let bytes = pattern(1, LEN);
    let [first, second, third] = [0; 3].map(|_| Host::pinned(&driver, &[0; LEN]));
    let src = uploaded(&driver, &bytes);
    let [made, beside] = [0; 2].map(|_| stream(&driver, 1));
    control("fault ecc@2").unwrap();
    for host in [first, second, third] {
        copy(&driver, host.address(), src, LEN, made).unwrap();
    }
    let end = point(&driver, made);
    advance(LEN as u64);
    assert_eq!(event_query(&driver, end), NOT_READY);
    advance(LEN as u64);
    let ecc = Err(CUresult::CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_eq!(event_query(&driver, end), ecc);
    assert_eq!(event_synchronize(&driver, end), ecc);
    assert_eq!(synchronize(&driver, made), ecc);
    assert_eq!(query(&driver, beside), ecc, "of the whole context");
    assert_eq!(copy(&driver, first.address(), src, LEN, beside), ecc);
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    let allocated = result(unsafe { driver.cuMemAlloc_v2(&raw mut address, 8) });
    assert_eq!(allocated, ecc);
    advance(10 * LEN as u64);
    assert!(first.read() == bytes, "it was done before");
    assert_eq!(second.read(), [0; LEN]);
    assert_eq!(third.read(), [0; LEN], "nothing is done after");
    enter(&driver, 1);
    let other = uploaded(&driver, &bytes);
    assert!(download(&driver, other, LEN) == bytes, "another context");
    // SAFETY: the call takes no pointer.
    unsafe { driver.cuDevicePrimaryCtxReset_v2(CUdevice(0)) }.unwrap();
    enter(&driver, 0);
    let again = uploaded(&driver, &bytes);
    assert!(download(&driver, again, LEN) == bytes, "a new context");
}

#[test]
fn a_synchronous_copy_tells_the_error_of_its_work() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let src = allocate(&driver, LEN);
    control("fault async=719@1").unwrap();
    let host = Host::pageable(&[0; LEN]);
    // SAFETY: the buffer has that length.
    let answer = result(unsafe { driver.cuMemcpyDtoH_v2(host.start.cast(), src, LEN) });
    assert_eq!(answer, Err(CUresult::CUDA_ERROR_LAUNCH_FAILED));
}

#[test]
fn after_an_error_callbacks_hear_of_it_and_functions_are_not_called() {
    static HEARD: Mutex<Vec<CUresult>> = Mutex::new(Vec::new());
    unsafe extern "C" fn hear(_: CUstream, status: CUresult, _: *mut c_void) {
        HEARD.lock().unwrap().push(status);
    }
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let [src, dst] = [0; 2].map(|_| allocate(&driver, LEN));
    let made = stream(&driver, 0);
    let called = Arc::new(AtomicBool::new(false));
    control("fault async=999@1").unwrap();
    copy(&driver, dst, src, LEN, made).unwrap();
    let tell = Arc::clone(&called);
    launch(&driver, made, move || tell.store(true, Ordering::Release)).unwrap();
    // SAFETY: the function looks into nothing.
    unsafe { driver.cuStreamAddCallback(made, Some(hear), std::ptr::null_mut(), 0) }.unwrap();
    let unknown = CUresult::CUDA_ERROR_UNKNOWN;
    assert_eq!(synchronize(&driver, made), Err(unknown));
    assert_eq!(*HEARD.lock().unwrap(), [unknown]);
    assert!(!called.load(Ordering::Acquire));
}

#[test]
fn work_that_never_ends_holds_up_its_stream_and_what_waits_for_it() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let bytes = pattern(1, LEN);
    let src = uploaded(&driver, &bytes);
    let [stuck_dst, dst] = [0; 2].map(|_| Host::pinned(&driver, &[0; LEN]));
    let [made, beside, waiting] = [0; 3].map(|_| stream(&driver, 1));
    control("fault stuck").unwrap();
    copy(&driver, stuck_dst.address(), src, LEN, made).unwrap();
    let never = point(&driver, made);
    wait_event(&driver, waiting, never).unwrap();
    copy(&driver, dst.address(), src, LEN, beside).unwrap();
    assert_eq!(synchronize(&driver, beside), Ok(()), "the link is free");
    assert!(dst.read() == bytes);
    advance(1 << 50);
    assert_eq!(query(&driver, made), NOT_READY);
    assert_eq!(event_query(&driver, never), NOT_READY);
    assert_eq!(query(&driver, waiting), NOT_READY);
    assert_eq!(stuck_dst.read(), [0; LEN]);
    assert!(now() >= 1 << 50);
}
