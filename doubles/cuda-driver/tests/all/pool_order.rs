//! Memory that is allocated and freed in the order of streams.

use crate::common;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::bytes::{Host, copy, pattern};
use common::pool::{allocate, amount, default_pool, free, set_word};
use common::work::{launch, point, query, result, stream, synchronize, wait_event};
use common::{GIGABYTE, advance, control, counter, enter, machine, machine_in_context};
use transload_cuda::raw::{
    CUdeviceptr, CUmemPool_attribute as A, CUpointer_attribute, CUresult, CUstream, CUstream_flags,
    Driver,
};

const WRONG: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
const NOT_READY: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_NOT_READY);
/// Pools hold memory in steps of this.
const STEP: usize = 2 << 20;

fn apart(driver: &Driver) -> CUstream {
    stream(driver, CUstream_flags::CU_STREAM_NON_BLOCKING.0)
}

fn reserved(driver: &Driver) -> u64 {
    let pool = default_pool(driver, 0);
    amount(driver, pool, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
}

fn used(driver: &Driver) -> u64 {
    let pool = default_pool(driver, 0);
    amount(driver, pool, A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
}

fn free_bytes(driver: &Driver) -> usize {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the out-pointers are local variables.
    unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) }.unwrap();
    free
}

fn free_now(driver: &Driver, address: CUdeviceptr) -> Result<(), CUresult> {
    // SAFETY: the double refuses an address that is not allocated.
    result(unsafe { driver.cuMemFree_v2(address) })
}

#[test]
fn memory_is_there_at_once_and_gone_at_once() {
    let driver = machine_in_context(&[]);
    let stream = apart(&driver);
    let bytes = pattern(1, 1000);
    let (from, to) = (
        Host::pinned(&driver, &bytes),
        Host::pinned(&driver, &[0; 1000]),
    );
    let address = allocate(&driver, 1000, stream).unwrap();
    assert!(address.is_multiple_of(512));
    copy(&driver, address, from.address(), 1000, stream).unwrap();
    copy(&driver, to.address(), address, 1000, stream).unwrap();
    let beyond = copy(&driver, address, from.address(), 1001, stream);
    assert_eq!(beyond, WRONG);
    free(&driver, address, stream).unwrap();
    let late = copy(&driver, to.address(), address, 1000, stream);
    assert_eq!(
        late, WRONG,
        "it is freed, though the stream may not have come so far"
    );
    assert_eq!(free(&driver, address, stream), WRONG);
    assert_eq!(free_now(&driver, address), WRONG);
    synchronize(&driver, stream).unwrap();
    assert_eq!(to.read(), bytes);
    assert!(!control("leaks").unwrap().contains("Pool"));
}

#[test]
fn a_stream_uses_again_what_it_has_freed_and_in_order() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let stream = apart(&driver);
    let (first, second) = (pattern(1, STEP), pattern(2, STEP));
    let from = [&first, &second].map(|bytes| Host::pinned(&driver, bytes));
    let to = [(); 2].map(|()| Host::pinned(&driver, &vec![0; STEP]));
    let mut addresses = [0; 2];
    for turn in 0..2 {
        let address = allocate(&driver, STEP, stream).unwrap();
        copy(&driver, address, from[turn].address(), STEP, stream).unwrap();
        copy(&driver, to[turn].address(), address, STEP, stream).unwrap();
        free(&driver, address, stream).unwrap();
        addresses[turn] = address;
    }
    assert_eq!(reserved(&driver), STEP as u64, "it is the same memory");
    assert_ne!(addresses[0], addresses[1], "and another address");
    assert_eq!(used(&driver), STEP as u64, "the stream has not come so far");
    synchronize(&driver, stream).unwrap();
    assert!(to[0].read() == first && to[1].read() == second);
    assert_eq!((used(&driver), reserved(&driver)), (0, 0));
}

#[test]
fn another_stream_waits_for_what_it_uses_again() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let [first, second] = [apart(&driver), apart(&driver)];
    let bytes = pattern(1, STEP);
    let from = Host::pinned(&driver, &bytes);
    let to = Host::pinned(&driver, &vec![0; STEP]);
    let address = allocate(&driver, STEP, first).unwrap();
    copy(&driver, address, from.address(), STEP, first).unwrap();
    copy(&driver, to.address(), address, STEP, first).unwrap();
    free(&driver, address, first).unwrap();
    let again = allocate(&driver, STEP, second).unwrap();
    copy(&driver, again, to.address(), 1, second).unwrap();
    assert_eq!(reserved(&driver), STEP as u64);
    advance(2 * STEP as u64 - 1);
    assert_eq!(
        (query(&driver, first), query(&driver, second)),
        (NOT_READY, NOT_READY)
    );
    advance(1);
    assert_eq!(
        (query(&driver, first), query(&driver, second)),
        (Ok(()), NOT_READY)
    );
    advance(1);
    assert_eq!(query(&driver, second), Ok(()));
    assert_eq!(to.read(), bytes);
}

#[test]
fn a_pool_can_be_kept_from_using_memory_of_other_streams() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let pool = default_pool(&driver, 0);
    let set = |attribute, value| set_word(&driver, pool, attribute, value);
    let [first, second] = [apart(&driver), apart(&driver)];
    let from = Host::pinned(&driver, &pattern(1, STEP));
    let freed_after_a_copy = || {
        let address = allocate(&driver, STEP, first).unwrap();
        copy(&driver, address, from.address(), STEP, first).unwrap();
        free(&driver, address, first).unwrap();
    };
    set(A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    freed_after_a_copy();
    let more = allocate(&driver, STEP, second).unwrap();
    assert_eq!(reserved(&driver), 2 * STEP as u64, "it is not to wait");
    assert_eq!(query(&driver, second), Ok(()));
    // The free is done, without the host's knowing it.
    advance(STEP as u64);
    let again = allocate(&driver, STEP, second).unwrap();
    assert_eq!(reserved(&driver), 2 * STEP as u64, "it happened to be free");
    free(&driver, more, second).unwrap();
    free(&driver, again, second).unwrap();
    synchronize(&driver, second).unwrap();
    assert_eq!(reserved(&driver), 0);

    set(A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    freed_after_a_copy();
    advance(STEP as u64);
    allocate(&driver, STEP, second).unwrap();
    assert_eq!(
        reserved(&driver),
        2 * STEP as u64,
        "the host knows nothing of the free"
    );
    allocate(&driver, STEP, first).unwrap();
    assert_eq!(reserved(&driver), 2 * STEP as u64, "its own stream knows");
}

#[test]
fn memory_is_used_in_another_stream_behind_an_event() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let [first, second] = [apart(&driver), apart(&driver)];
    let bytes = pattern(1, 1000);
    let (from, to) = (
        Host::pinned(&driver, &bytes),
        Host::pinned(&driver, &[0; 1000]),
    );
    let address = allocate(&driver, 1000, first).unwrap();
    copy(&driver, address, from.address(), 1000, first).unwrap();
    let written = point(&driver, first);
    wait_event(&driver, second, written).unwrap();
    copy(&driver, to.address(), address, 1000, second).unwrap();
    free(&driver, address, second).unwrap();
    assert_eq!(used(&driver), 1024, "in steps of 512 bytes");
    advance(1999);
    assert_eq!(used(&driver), 1024);
    advance(1);
    assert_eq!(used(&driver), 0);
    assert_eq!(reserved(&driver), STEP as u64, "no call has synchronised");
    assert_eq!(to.read(), bytes);
}

#[test]
fn memory_of_a_pool_is_freed_at_once_without_waiting() {
    let driver = machine_in_context(&[("TRANSLOAD_DOUBLE_CLOCK", "virtual")]);
    let stream = apart(&driver);
    let address = allocate(&driver, STEP, stream).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let does = Arc::clone(&done);
    launch(&driver, stream, move || does.store(true, Ordering::Relaxed)).unwrap();
    free_now(&driver, address).unwrap();
    assert!(!done.load(Ordering::Relaxed));
    assert_eq!(used(&driver), 0);
    let other = apart(&driver);
    allocate(&driver, STEP, other).unwrap();
    assert_eq!(reserved(&driver), STEP as u64);
}

#[test]
fn other_memory_is_freed_in_order_too() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let stream = apart(&driver);
    let before = free_bytes(&driver);
    let address = common::bytes::allocate(&driver, 4096);
    let bytes = pattern(1, 4096);
    let (from, to) = (
        Host::pinned(&driver, &bytes),
        Host::pinned(&driver, &[0; 4096]),
    );
    copy(&driver, address, from.address(), 4096, stream).unwrap();
    copy(&driver, to.address(), address, 4096, stream).unwrap();
    free(&driver, address, stream).unwrap();
    assert_eq!(copy(&driver, to.address(), address, 1, stream), WRONG);
    assert_eq!(free_bytes(&driver), before - 4096);
    synchronize(&driver, stream).unwrap();
    assert_eq!(free_bytes(&driver), before);
    assert_eq!(to.read(), bytes);
    let pinned = Host::pinned(&driver, &[0]);
    assert_eq!(free(&driver, pinned.address(), stream), WRONG);
    assert_eq!(free(&driver, 0, stream), WRONG);
}

#[test]
fn what_cannot_be_allocated_is_refused() {
    let driver = machine_in_context(&[]);
    let stream = apart(&driver);
    let out = Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(allocate(&driver, 0, stream).map(drop), WRONG);
    assert_eq!(allocate(&driver, (1 << 30) + 1, stream), out);
    assert_eq!(allocate(&driver, usize::MAX, stream), out);
    let no_stream = CUstream(ptr::without_provenance_mut(4711));
    let invalid = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(allocate(&driver, 1, no_stream), invalid);
    let address = allocate(&driver, 1, stream).unwrap();
    assert_eq!(free(&driver, address, no_stream), invalid.map(drop));
    assert_eq!(free(&driver, address + 512, stream), WRONG);
    control("fault oom").unwrap();
    assert_eq!(allocate(&driver, 1, stream), out);
    assert_eq!(counter("allocations"), 1);
    // SAFETY: the double refuses a null pointer.
    let nowhere = result(unsafe { driver.cuMemAllocAsync(ptr::null_mut(), 1, stream) });
    assert_eq!(nowhere, WRONG);
    free(&driver, address, stream).unwrap();
    synchronize(&driver, stream).unwrap();
    // All of it, in one piece: nothing is left behind.
    allocate(&driver, 1 << 30, stream).unwrap();
    assert_eq!(allocate(&driver, 1, stream), out);
    let none = Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    // SAFETY: no context is current then.
    unsafe { driver.cuCtxSetCurrent(transload_cuda::raw::CUcontext::NULL) }.unwrap();
    assert_eq!(allocate(&driver, 1, CUstream::NULL), none);
}

#[test]
fn an_address_tells_its_pool() {
    let driver = machine_in_context(&[]);
    let address = allocate(&driver, 100, CUstream::NULL).unwrap();
    let mut pool = common::pool::NO_POOL;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    let place = (&raw mut pool).cast();
    // SAFETY: the place is one for a pool.
    unsafe { driver.cuPointerGetAttribute(place, attribute, address + 99) }.unwrap();
    assert_eq!(pool, default_pool(&driver, 0));
}
