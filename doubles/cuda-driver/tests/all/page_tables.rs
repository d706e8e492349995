//! Devices that reach the host's memory in other ways than most: by the host's page tables, and never at one time with
//! the host.

use crate::common;

use std::ptr;

use common::bytes::{allocate, copy, download, free, pattern};
use common::work::{query, result, stream, synchronize};
use common::{PAGE_TABLES, advance, counter, enter, machine, now};
use transload_cuda::raw::{
    CUdevice, CUdevice_attribute as A, CUmem_advise as Advice, CUmemAttach_flags, CUresult,
    CUstream, Driver,
};

const LEN: usize = 1 << 20;
const NOT_READY: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_NOT_READY);
const NO_DEVICE: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_DEVICE);

fn attribute(driver: &Driver, device: i32, asked: A) -> i32 {
    let mut value = -7;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuDeviceGetAttribute(&raw mut value, asked, CUdevice(device)) }.unwrap();
    value
}

#[test]
fn attributes_say_what_the_description_says() {
    let driver = machine(&PAGE_TABLES);
    let of = |asked| [0, 1].map(|device| attribute(&driver, device, asked));
    assert_eq!(of(A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS), [1, 0]);
    assert_eq!(
        of(A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES),
        [1, 0]
    );
    assert_eq!(of(A::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS), [1, 0]);
    assert_eq!(of(A::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY), [1, 1]);
}

/// The call returns at once, and the bytes are read and written at the end of their time.
#[test]
fn pageable_memory_is_not_staged_by_a_device_that_walks_the_page_tables() {
    let driver = machine(&PAGE_TABLES);
    enter(&driver, 0);
    let stream = stream(&driver, 1);
    let (early, late) = (pattern(1, LEN), pattern(2, LEN));
    let mut host = early.clone();
    let device = allocate(&driver, LEN);
    let start = host.as_mut_ptr();
    let address = start.expose_provenance() as u64;
    copy(&driver, device, address, LEN, stream).unwrap();
    assert_eq!(now(), 0);
    assert_eq!(query(&driver, stream), NOT_READY);
    // SAFETY: both are so long, and no code reads the destination before time passes.
    unsafe { ptr::copy_nonoverlapping(late.as_ptr(), start, LEN) };
    advance(2 * LEN as u64 - 1);
    assert_eq!(query(&driver, stream), NOT_READY);
    advance(1);
    assert_eq!(query(&driver, stream), Ok(()));
    // SAFETY: as above.
    unsafe { ptr::copy_nonoverlapping(early.as_ptr(), start, LEN) };
    let begun = now();
    copy(&driver, address, device, LEN, stream).unwrap();
    assert_eq!(now(), begun, "nor does the way back wait");
    assert!(host == early, "nothing has arrived");
    synchronize(&driver, stream).unwrap();
    assert!(
        host == late,
        "what was there at the end went there and back"
    );
    assert_eq!(counter("pageable-copies-staged"), 0);
    assert_eq!(counter("bytes pageable -> device 0"), LEN as u64);
}

#[test]
fn synchronous_copies_wait_on_such_a_device_as_with_pinned_memory() {
    let driver = machine(&PAGE_TABLES);
    enter(&driver, 0);
    let bytes = pattern(3, LEN);
    let device = allocate(&driver, LEN);
    // SAFETY: both are so long.
    unsafe { driver.cuMemcpyHtoD_v2(device, bytes.as_ptr().cast(), LEN) }.unwrap();
    assert_eq!(now(), 2 * LEN as u64);
    assert!(download(&driver, device, LEN) == bytes);
}

#[test]
fn another_device_of_the_machine_still_stages() {
    let driver = machine(&PAGE_TABLES);
    enter(&driver, 1);
    let stream = stream(&driver, 1);
    let early = pattern(1, LEN);
    let mut host = early.clone();
    let device = allocate(&driver, LEN);
    let address = host.as_mut_ptr().expose_provenance() as u64;
    copy(&driver, device, address, LEN, stream).unwrap();
    host.fill(0);
    synchronize(&driver, stream).unwrap();
    assert!(download(&driver, device, LEN) == early);
    assert!(counter("pageable-copies-staged") > 0);
}

#[test]
fn a_device_that_does_not_share_managed_memory_is_not_prefetched_to() {
    let driver = machine(&PAGE_TABLES);
    enter(&driver, 0);
    let flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuMemAllocManaged(&raw mut address, LEN, flags) }.unwrap();
    let prefetch = |device, stream| {
        // SAFETY: no argument is a pointer that is looked into, here and below.
        result(unsafe { driver.cuMemPrefetchAsync(address, LEN, CUdevice(device), stream) })
    };
    let host = CUdevice::CU_DEVICE_CPU.0;
    assert_eq!(prefetch(1, CUstream::NULL), NO_DEVICE);
    assert_eq!(prefetch(0, CUstream::NULL), Ok(()));
    let advise = |advice, device| {
        // SAFETY: as above.
        result(unsafe { driver.cuMemAdvise(address, LEN, advice, CUdevice(device)) })
    };
    for advice in [
        Advice::CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
        Advice::CU_MEM_ADVISE_SET_ACCESSED_BY,
    ] {
        assert_eq!(advise(advice, 1), NO_DEVICE);
        assert_eq!(advise(advice, 0), Ok(()));
        assert_eq!(advise(advice, host), Ok(()));
    }
    // Nor are its streams for prefetching, wherever to.
    enter(&driver, 1);
    let of_the_other = stream(&driver, 1);
    assert_eq!(prefetch(host, of_the_other), NO_DEVICE);
    free(&driver, address);
}
