//! Filling memory.

use crate::common;

use common::bytes::{Host, allocate, download, free, upload};
use common::work::{query, result, stream, synchronize};
use common::{GIGABYTE, advance, machine_in_context, now};
use transload_cuda::raw::{CUresult, CUstream};

const WRONG: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_VALUE);

#[test]
fn memory_is_filled_with_bytes() {
    let driver = machine_in_context(&GIGABYTE);
    let len = (1 << 17) + 12;
    let device = allocate(&driver, len);
    upload(&driver, device, &vec![9; len]);
    // SAFETY: the ranges are the memory's, here and below.
    unsafe { driver.cuMemsetD8_v2(device + 1, 0xab, 5) }.unwrap();
    let most = (1 << 17) + 1;
    // SAFETY: as above.
    unsafe { driver.cuMemsetD8_v2(device + 8, 0xcd, most) }.unwrap();
    let mut expected = vec![9; len];
    expected[1..6].fill(0xab);
    expected[8..8 + most].fill(0xcd);
    assert!(download(&driver, device, len) == expected);
}

#[test]
fn filling_is_ordered_and_takes_its_time() {
    let driver = machine_in_context(&GIGABYTE);
    let device = allocate(&driver, 1000);
    upload(&driver, device, &[1; 1000]);
    let made = stream(&driver, 1);
    let begun = now();
    // SAFETY: the ranges are the memory's, here and below.
    unsafe { driver.cuMemsetD8Async(device, 2, 1000, made) }.unwrap();
    // SAFETY: as above.
    unsafe { driver.cuMemsetD8Async(device, 3, 40, made) }.unwrap();
    advance(100);
    assert!(query(&driver, made).is_err());
    synchronize(&driver, made).unwrap();
    assert_eq!(now() - begun, 104);
    let mut expected = [2; 1000];
    expected[..40].fill(3);
    assert_eq!(download(&driver, device, 1000), expected);
}

#[test]
fn only_filling_memory_of_the_host_is_waited_for() {
    let driver = machine_in_context(&GIGABYTE);
    let device = allocate(&driver, 100);
    let pinned = Host::pinned(&driver, &[0; 100]);
    // SAFETY: the ranges are the memory's, here and below.
    unsafe { driver.cuMemsetD8_v2(device, 1, 100) }.unwrap();
    assert!(query(&driver, CUstream::NULL).is_err());
    synchronize(&driver, CUstream::NULL).unwrap();
    // SAFETY: as above.
    unsafe { driver.cuMemsetD8Async(pinned.address(), 1, 100, CUstream::NULL) }.unwrap();
    assert!(query(&driver, CUstream::NULL).is_err());
    assert_eq!(pinned.read(), [0; 100]);
    // SAFETY: as above.
    unsafe { driver.cuMemsetD8_v2(pinned.address(), 2, 100) }.unwrap();
    assert_eq!(query(&driver, CUstream::NULL), Ok(()));
    assert_eq!(pinned.read(), [2; 100]);
}

#[test]
fn what_is_filled_is_memory_that_devices_reach() {
    let driver = machine_in_context(&GIGABYTE);
    let device = allocate(&driver, 64);
    let gone = allocate(&driver, 64);
    free(&driver, gone);
    let local = Host::pageable(&[0; 64]).address();
    // SAFETY: the double refuses anything that is no memory.
    let bytes = |at, count| result(unsafe { driver.cuMemsetD8_v2(at, 0, count) });
    assert_eq!(bytes(device, 65), WRONG);
    assert_eq!(bytes(gone, 1), WRONG);
    assert_eq!(bytes(local, 1), WRONG);
    assert_eq!(bytes(device, usize::MAX), WRONG);
    assert_eq!(bytes(device, 0), Ok(()));
    assert_eq!(bytes(device, 64), Ok(()));
}
