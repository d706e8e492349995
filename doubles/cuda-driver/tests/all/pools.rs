//! Pools: their properties, their size, and access to them.

use crate::common;

use std::ptr;

use common::bytes::{copy, free, pattern, upload};
use common::pool::{
    NO_POOL, allocate, allocate_from, amount, create, current_pool, default_pool, destroy, on,
    set_amount, set_word, word,
};
use common::work::{result, stream, synchronize};
use common::{GIGABYTE, control, counter, enter, machine, machine_in_context};
use transload_cuda::raw::{
    CUdevice, CUmemAccess_flags as F, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPool_attribute as A,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream, Driver,
};

const WRONG: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
const NOT_SUPPORTED: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
const NO_DEVICE: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
/// Pools hold memory in steps of this.
const STEP: u64 = 2 << 20;

fn set_current(driver: &Driver, device: i32, pool: CUmemoryPool) -> Result<(), CUresult> {
    // SAFETY: the double refuses anything that is no pool.
    result(unsafe { driver.cuDeviceSetMemPool(CUdevice(device), pool) })
}

fn trim(driver: &Driver, pool: CUmemoryPool, keep: u64) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuMemPoolTrimTo(pool, keep as usize) })
}

fn grant(driver: &Driver, pool: CUmemoryPool, device: i32, flags: F) -> Result<(), CUresult> {
    let wish = CUmemAccessDesc {
        location: CUmemLocation::device(device),
        flags,
    };
    // SAFETY: the array has one entry.
    result(unsafe { driver.cuMemPoolSetAccess(pool, &raw const wish, 1) })
}

/// Reserved, the most that was, used, the most that was.
fn counts(driver: &Driver, pool: CUmemoryPool) -> [u64; 4] {
    [
        A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
        A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
        A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
        A::CU_MEMPOOL_ATTR_USED_MEM_HIGH,
    ]
    .map(|attribute| amount(driver, pool, attribute))
}

fn free_bytes(driver: &Driver) -> u64 {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the out-pointers are local variables.
    unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) }.unwrap();
    free as u64
}

#[test]
fn a_device_has_a_pool_and_may_have_another() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    let own = default_pool(&driver, 0);
    assert_eq!(
        (default_pool(&driver, 0), current_pool(&driver, 0)),
        (own, own)
    );
    assert_ne!(default_pool(&driver, 1), own);
    let made = create(&driver, &on(0)).unwrap();
    assert_eq!(
        set_current(&driver, 1, made),
        WRONG,
        "it is another device's"
    );
    assert_eq!(set_current(&driver, 2, made), NO_DEVICE);
    set_current(&driver, 0, made).unwrap();
    assert_eq!(
        (default_pool(&driver, 0), current_pool(&driver, 0)),
        (own, made)
    );
    assert_eq!(control("leaks").unwrap().lines().count(), 1);
    destroy(&driver, made).unwrap();
    assert_eq!(control("leaks").unwrap(), "");
    assert_eq!(current_pool(&driver, 0), own);
    assert_eq!(destroy(&driver, made), WRONG, "it is gone");
    assert_eq!(set_current(&driver, 0, made), WRONG);
    assert_eq!(destroy(&driver, own), WRONG, "it is the device's");
    assert_eq!(destroy(&driver, NO_POOL), WRONG);
    let mut pool = NO_POOL;
    // SAFETY: the out-pointer is a local variable.
    let none = unsafe { driver.cuDeviceGetMemPool(&raw mut pool, CUdevice(2)) };
    assert_eq!(result(none), NO_DEVICE);
}

#[test]
fn memory_outlives_its_pool() {
    let driver = machine_in_context(&[]);
    let stream = stream(&driver, 0);
    let pool = create(&driver, &on(0)).unwrap();
    let before = free_bytes(&driver);
    let [first, second] = [(); 2].map(|()| allocate_from(&driver, 100, pool, stream).unwrap());
    destroy(&driver, pool).unwrap();
    assert_eq!(allocate_from(&driver, 1, pool, stream).map(drop), WRONG);
    upload(&driver, first, &pattern(1, 100));
    assert_eq!(free_bytes(&driver), before - STEP);
    common::pool::free(&driver, first, stream).unwrap();
    free(&driver, second);
    synchronize(&driver, stream).unwrap();
    assert_eq!(free_bytes(&driver), before);
}

#[test]
fn what_is_held_and_used_is_counted() {
    let driver = machine_in_context(&[]);
    let stream = stream(&driver, 0);
    let pool = default_pool(&driver, 0);
    let all = free_bytes(&driver);
    assert_eq!(counts(&driver, pool), [0; 4]);
    let small = allocate(&driver, 1, stream).unwrap();
    let large = allocate(&driver, STEP as usize + 1, stream).unwrap();
    let used = 512 + STEP + 512;
    assert_eq!(counts(&driver, pool), [3 * STEP, 3 * STEP, used, used]);
    assert_eq!(free_bytes(&driver), all - 3 * STEP);
    common::pool::free(&driver, large, stream).unwrap();
    synchronize(&driver, stream).unwrap();
    assert_eq!(counts(&driver, pool), [STEP, 3 * STEP, 512, used]);
    assert_eq!(free_bytes(&driver), all - STEP);
    for attribute in [
        A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
        A::CU_MEMPOOL_ATTR_USED_MEM_HIGH,
    ] {
        assert_eq!(set_amount(&driver, pool, attribute, 1), WRONG);
        set_amount(&driver, pool, attribute, 0).unwrap();
    }
    assert_eq!(counts(&driver, pool), [STEP, STEP, 512, 512]);
    free(&driver, small);
    assert_eq!(counts(&driver, pool), [STEP, STEP, 0, 512]);
    assert_eq!(trim(&driver, pool, 0), Ok(()));
    assert_eq!(free_bytes(&driver), all);
}

#[test]
fn a_pool_keeps_as_much_as_it_is_told_to() {
    let driver = machine_in_context(&[]);
    let stream = stream(&driver, 0);
    let pool = default_pool(&driver, 0);
    let threshold = A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    assert_eq!(amount(&driver, pool, threshold), 0);
    set_amount(&driver, pool, threshold, 3 * STEP).unwrap();
    assert_eq!(amount(&driver, pool, threshold), 3 * STEP);
    let addresses = [(); 5].map(|()| allocate(&driver, STEP as usize, stream).unwrap());
    for address in addresses {
        common::pool::free(&driver, address, stream).unwrap();
    }
    assert_eq!(counts(&driver, pool)[0], 5 * STEP);
    // SAFETY: the call takes no arguments.
    unsafe { driver.cuCtxSynchronize() }.unwrap();
    assert_eq!(counts(&driver, pool)[0], 3 * STEP);
    trim(&driver, pool, 2 * STEP + 1).unwrap();
    assert_eq!(
        counts(&driver, pool)[0],
        3 * STEP,
        "one less would be too little"
    );
    trim(&driver, pool, STEP).unwrap();
    assert_eq!(counts(&driver, pool)[0], STEP);
    let held = allocate(&driver, 1, stream).unwrap();
    trim(&driver, pool, 0).unwrap();
    assert_eq!(counts(&driver, pool)[0], STEP, "it is in use");
    free(&driver, held);
    assert_eq!(trim(&driver, NO_POOL, 0), WRONG);
}

#[test]
fn a_pool_is_as_large_as_it_may_be() {
    let driver = machine_in_context(&[]);
    let wish = CUmemPoolProps {
        maxSize: STEP as usize + 1,
        ..on(0)
    };
    let pool = create(&driver, &wish).unwrap();
    let allocate = |bytes: u64| allocate_from(&driver, bytes as usize, pool, CUstream::NULL);
    assert_eq!(amount(&driver, pool, A(13)), 2 * STEP);
    let first = allocate(STEP).unwrap();
    allocate(STEP).unwrap();
    let out = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(allocate(1), out);
    free(&driver, first);
    assert_eq!(allocate(STEP + 1), out);
    allocate(STEP).unwrap();
}

#[test]
fn what_is_wished_for_is_modelled_or_refused() {
    use CUmemAllocationHandleType as T;
    let driver = machine(&[]);
    let with = |change: fn(&mut CUmemPoolProps)| {
        let mut wish = on(0);
        change(&mut wish);
        create(&driver, &wish).map(drop)
    };
    assert_eq!(with(|_| ()), Ok(()));
    assert_eq!(
        with(|wish| wish.handleTypes = T::CU_MEM_HANDLE_TYPE_NONE),
        Ok(())
    );
    assert_eq!(
        with(|wish| wish.handleTypes = T::CU_MEM_HANDLE_TYPE_FABRIC),
        NOT_SUPPORTED
    );
    assert_eq!(with(|wish| wish.handleTypes = T(64)), WRONG);
    let managed = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED;
    let mut wish = on(0);
    wish.allocType = managed;
    assert_eq!(create(&driver, &wish).map(drop), NOT_SUPPORTED);
    assert_eq!(with(|wish| wish.allocType = CUmemAllocationType(0)), WRONG);
    assert_eq!(with(|wish| wish.location = CUmemLocation::device(1)), WRONG);
    assert_eq!(
        with(|wish| wish.location = CUmemLocation::HOST),
        WRONG,
        "not for others"
    );
    let of_host = |wish: &mut CUmemPoolProps| {
        wish.location = CUmemLocation::HOST;
        wish.handleTypes = T::CU_MEM_HANDLE_TYPE_NONE;
    };
    assert_eq!(with(of_host), NOT_SUPPORTED);
    let current = |wish: &mut CUmemPoolProps| {
        wish.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    };
    assert_eq!(with(current), WRONG);
    assert_eq!(with(|wish| wish.usage = 2), NOT_SUPPORTED);
    assert_eq!(with(|wish| wish.reserved[53] = 1), WRONG);
    let mut pool = NO_POOL;
    // SAFETY: the double refuses a null pointer.
    let nothing = unsafe { driver.cuMemPoolCreate(&raw mut pool, ptr::null()) };
    assert_eq!(result(nothing), WRONG);
}

#[test]
fn a_pool_tells_what_it_is() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    let pool = create(&driver, &on(1)).unwrap();
    let own = default_pool(&driver, 1);
    let tells = |pool, number| word(&driver, pool, A(number));
    assert_eq!(
        tells(pool, 9),
        Ok(CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED.0)
    );
    assert_eq!((tells(pool, 10), tells(own, 10)), (Ok(1), Ok(0)));
    assert_eq!(tells(pool, 11), Ok(1));
    assert_eq!(
        tells(pool, 12),
        Ok(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE.0)
    );
    assert_eq!(tells(pool, 14), Ok(0));
    assert_eq!(tells(pool, 99).map(drop), WRONG);
    assert_eq!(tells(NO_POOL, 9).map(drop), WRONG);
    for number in 1..=3 {
        assert_eq!(tells(pool, number), Ok(1), "it is on at first");
        set_word(&driver, pool, A(number), 0);
        assert_eq!(tells(pool, number), Ok(0));
    }
    let held = A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    assert_eq!(
        set_amount(&driver, pool, held, 0),
        WRONG,
        "it is counted, not set"
    );
    // SAFETY: the double refuses a null pointer, here and below.
    let nowhere = unsafe { driver.cuMemPoolGetAttribute(pool, held, ptr::null_mut()) };
    assert_eq!(result(nowhere), WRONG);
    let threshold = A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: as above.
    let nothing = unsafe { driver.cuMemPoolSetAttribute(pool, threshold, ptr::null_mut()) };
    assert_eq!(result(nothing), WRONG);
}

#[test]
fn another_device_reaches_a_pool_that_it_was_given_access_to() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 1);
    let there = common::bytes::allocate(&driver, 100);
    enter(&driver, 0);
    let pool = default_pool(&driver, 0);
    let early = allocate(&driver, 100, CUstream::NULL).unwrap();
    let none = F::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    let both = F::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let copied = |from| {
        copy(&driver, there, from, 100, CUstream::NULL).unwrap();
        synchronize(&driver, CUstream::NULL).unwrap();
        (counter("peer-copies-direct"), counter("peer-copies-staged"))
    };
    assert_eq!(copied(early), (0, 1));
    grant(&driver, pool, 1, both).unwrap();
    assert_eq!(copied(early), (1, 1), "what was allocated before too");
    let late = allocate(&driver, 100, CUstream::NULL).unwrap();
    assert_eq!(copied(late), (2, 1));
    grant(&driver, pool, 1, none).unwrap();
    assert_eq!(copied(late), (2, 2));
    assert_eq!(grant(&driver, pool, 0, none), WRONG, "it is its own");
    let read = F::CU_MEM_ACCESS_FLAGS_PROT_READ;
    assert_eq!(grant(&driver, pool, 1, read), NOT_SUPPORTED);
    assert_eq!(grant(&driver, pool, 1, F(9)), WRONG);
    assert_eq!(grant(&driver, pool, 2, both), NO_DEVICE);
    assert_eq!(grant(&driver, NO_POOL, 1, both), WRONG);
    // SAFETY: the double refuses a null pointer.
    let nothing = unsafe { driver.cuMemPoolSetAccess(pool, ptr::null(), 1) };
    assert_eq!(result(nothing), WRONG);
}

#[test]
fn a_device_without_a_link_is_given_no_access() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    let pool = default_pool(&driver, 0);
    let both = F::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    assert_eq!(grant(&driver, pool, 1, both), NO_DEVICE);
    enter(&driver, 0);
    let own = allocate(&driver, 100, CUstream::NULL).unwrap();
    enter(&driver, 1);
    let there = common::bytes::allocate(&driver, 100);
    copy(&driver, there, own, 100, CUstream::NULL).unwrap();
    assert_eq!(counter("peer-copies-direct"), 0);
    assert_eq!(counter("peer-copies-staged"), 1);
}

#[test]
fn more_than_there_can_be_is_out_of_memory() {
    let driver = machine_in_context(&[]);
    // The pool must have a part to inspect.
    let address = allocate(&driver, 8, CUstream::NULL).unwrap();
    let out = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    for size in [1 << 40, usize::MAX / 2 + 1, usize::MAX - 511, usize::MAX] {
        assert_eq!(allocate(&driver, size, CUstream::NULL), out, "{size}");
    }
    free(&driver, address);
    assert_eq!(control("notes").unwrap(), "");
}
