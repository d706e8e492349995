//! Memory of a device, and copies. CUDA Driver API: Memory Management; for what is synchronous, API
//! Synchronization Behavior.

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{DriverError, result};
use transload_double_cudarc::{device, driver, failure, pattern};

#[test]
fn bytes_go_to_a_device_within_it_and_back() {
    let stream = device(0).new_stream().unwrap();
    for len in [1, 255, 4096, (1 << 20) + 3] {
        let sent = pattern(len, 1);
        let there = stream.clone_htod(&sent).unwrap();
        let beside = stream.clone_dtod(&there).unwrap();
        let back = stream.clone_dtoh(&beside).unwrap();
        stream.synchronize().unwrap();
        assert!(back == sent, "{len} bytes");
    }
}

#[test]
fn a_part_is_written_and_the_rest_stays() {
    let stream = device(0).default_stream();
    let mut whole = stream.clone_htod(&pattern(10_000, 2)).unwrap();
    let middle = pattern(777, 3);
    stream
        .memcpy_htod(&middle, &mut whole.slice_mut(5_001..5_778))
        .unwrap();
    let mut expected = pattern(10_000, 2);
    expected[5_001..5_778].copy_from_slice(&middle);
    assert!(stream.clone_dtoh(&whole).unwrap() == expected);
    let part = stream.clone_dtoh(&whole.slice(4_990..5_010)).unwrap();
    assert_eq!(part, expected[4_990..5_010]);
}

#[test]
fn memory_is_set() {
    let context = device(0);
    let stream = context.new_stream().unwrap();
    let mut words = stream.clone_htod(&vec![u32::MAX; 1000]).unwrap();
    stream.memset_zeros(&mut words.slice_mut(10..20)).unwrap();
    let back = stream.clone_dtoh(&words).unwrap();
    stream.synchronize().unwrap();
    for (index, word) in back.into_iter().enumerate() {
        assert_eq!(
            word,
            if (10..20).contains(&index) {
                0
            } else {
                u32::MAX
            }
        );
    }
    assert_eq!(
        stream
            .clone_dtoh(&stream.alloc_zeros::<u64>(9).unwrap())
            .unwrap(),
        [0; 9]
    );
}

#[test]
fn a_pageable_source_may_be_reused_at_once() {
    let stream = device(0).new_stream().unwrap();
    let mut source = pattern(4 << 20, 4);
    // SAFETY: all of it is written before it is read.
    let mut there = unsafe { stream.alloc::<u8>(source.len()) }.unwrap();
    stream.memcpy_htod(&source, &mut there).unwrap();
    source.fill(0);
    let back = stream.clone_dtoh(&there).unwrap();
    stream.synchronize().unwrap();
    assert!(back == pattern(4 << 20, 4));
}

#[test]
fn allocations_take_from_what_is_free() {
    let context = device(1);
    context.bind_to_thread().unwrap();
    let (before, total) = context.mem_get_info().unwrap();
    assert!(before <= total && total <= context.total_mem().unwrap());
    let address = allocate(64 << 20);
    let (within, _) = context.mem_get_info().unwrap();
    assert!(before - within >= 64 << 20, "{before} - {within}");
    let mut range = (0, 0);
    let asked = driver!(cuMemGetAddressRange_v2(
        &raw mut range.0,
        &raw mut range.1,
        address + 5
    ));
    assert_eq!(
        (asked, range),
        (CUresult::CUDA_SUCCESS, (address, 64 << 20))
    );
    free(address).unwrap();
    assert_eq!(context.mem_get_info().unwrap().0, before);
}

#[test]
fn what_cannot_be_allocated_is_told_apart() {
    let _context = device(0);
    let mut address = 0;
    let allocated = driver!(cuMemAlloc_v2(&raw mut address, 1 << 40));
    assert_eq!(allocated, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let allocated = driver!(cuMemAlloc_v2(&raw mut address, 0));
    assert_eq!(allocated, CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn memory_is_freed_once() {
    let _context = device(0);
    let address = allocate(1000);
    assert_eq!(
        failure(free(address + 256)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    free(address).unwrap();
    assert_eq!(failure(free(address)), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(
        failure(free(0xdead_0000)),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
fn a_copy_past_the_end_is_refused_and_moves_nothing() {
    let _context = device(0);
    let address = allocate(4096);
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let before = pattern(4096, 6);
    fill(address, &before).unwrap();
    assert_eq!(failure(fill(address, &pattern(5000, 5))), invalid);
    assert_eq!(failure(read(address + 1, 4096)), invalid);
    assert!(read(address, 4096).unwrap() == before);
    free(address).unwrap();
    assert_eq!(failure(read(address, 4096)), invalid);
}

#[test]
fn an_address_knows_what_it_is() {
    let _context = device(1);
    let address = allocate(4096);
    let ask = |attribute, at| {
        let mut number = 0_u32;
        let asked = driver!(cuPointerGetAttribute(
            (&raw mut number).cast(),
            attribute,
            at
        ));
        asked.result().map(|()| number)
    };
    let kind = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    assert_eq!(ask(kind, address + 100), Ok(device));
    let ordinal = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    assert_eq!(ask(ordinal, address), Ok(1));
    let pageable = [0_u8; 16];
    let foreign = ask(kind, pageable.as_ptr().expose_provenance() as u64);
    assert_eq!(failure(foreign), CUresult::CUDA_ERROR_INVALID_VALUE);
    free(address).unwrap();
}

fn allocate(bytes: usize) -> sys::CUdeviceptr {
    // SAFETY: what is allocated is written before it is read.
    unsafe { result::malloc_sync(bytes) }.unwrap()
}

fn fill(address: sys::CUdeviceptr, bytes: &[u8]) -> Result<(), DriverError> {
    // SAFETY: the source is read before this returns.
    unsafe { result::memcpy_htod_sync(address, bytes) }
}

fn read(address: sys::CUdeviceptr, len: usize) -> Result<Vec<u8>, DriverError> {
    let mut bytes = vec![0; len];
    // SAFETY: the place is written before this returns.
    unsafe { result::memcpy_dtoh_sync(&mut bytes, address) }.map(|()| bytes)
}

fn free(address: sys::CUdeviceptr) -> Result<(), DriverError> {
    // SAFETY: no work on it is under way; what is no allocation is refused.
    unsafe { result::free_sync(address) }
}
