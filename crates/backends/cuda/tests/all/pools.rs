//! Device memory: from pools if the driver has them, else from the driver itself; and the backend's behaviour when
//! memory runs out.

use crate::common;

use common::work::{Works, copy, device, pattern, pinned};
use common::{assert_clean, backend, calls, control, counter, driver, machine};
use transload_cuda::Cuda;
use transload_cuda::raw::{
    CUmemPool_attribute, CUmemoryPool, CUpointer_attribute, Driver, Table, Version,
};
use transload_hal::{AllocError, AllocSpec, Backend, Buffer, ConnectError, ErrorClass, MemoryKind};

const MIB: u64 = 1 << 20;
/// The memory of the double's device of 1 GiB, and the part of it that a pool keeps.
const ALL: u64 = 1 << 30;
const KEPT: u64 = ALL / 32;

fn one_device() -> Works {
    Works::new(backend(&[]))
}

/// The memory that the pool of a buffer holds, used or not.
fn held(works: &Works, buffer: &Buffer) -> u64 {
    let pool = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    let pool = works.attribute(buffer, pool).unwrap();
    let pool = CUmemoryPool(std::ptr::with_exposed_provenance_mut(pool as usize));
    let mut held = 0u64;
    let asked = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    let place = (&raw mut held).cast();
    // SAFETY: the attribute is 64 bits long.
    unsafe {
        works
            .cuda
            .driver()
            .cuMemPoolGetAttribute(pool, asked, place)
    }
    .unwrap();
    held
}

#[test]
fn memory_that_was_freed_is_used_again() {
    let works = one_device();
    let first = works.allocate(device(0), MIB as usize);
    let held_by_one = held(&works, &first);
    let before = works.free_bytes();
    drop(first);
    for round in 0..20 {
        let again = works.allocate(device(0), MIB as usize);
        works.upload(&again, &pattern(round, MIB as usize));
        assert_eq!(works.download(&again), pattern(round, MIB as usize));
        assert_eq!(held(&works, &again), held_by_one);
        assert_eq!(works.free_bytes(), before);
    }
    assert_eq!((calls("cuMemAlloc_v2"), calls("cuMemFree_v2")), (0, 0));
    assert_eq!(calls("cuMemFreeAsync"), 21);
    drop(works);
    assert_clean();
}

#[test]
fn a_buffer_goes_while_the_device_is_busy_for_good() {
    let works = one_device();
    let (source, target) = (works.pinned(&[1; 64]), works.allocate(device(0), 64));
    let other = works.allocate(device(0), 64);
    control("fault stuck").unwrap();
    let stuck = works.submit(&[copy(&source, &target)]).unwrap();
    // The driver's own free would wait for the copy, and this test would not end.
    drop(other);
    let another = works.allocate(device(0), 64);
    drop(another);
    assert_eq!(calls("cuMemFreeAsync"), 2);
    assert!(!stuck.is_immediate());
    // The copy never ends, so it uses the buffers for ever.
    std::mem::forget((source, target));
}

/// Makes a device begin an operation that never ends, and drops memory that waits for that operation.
fn stick(works: &Works, number: u32) {
    let near = || works.allocate(pinned(), 100);
    let spec = AllocSpec::bytes(100).for_sharing();
    let own = works.cuda.allocate(device(number), &spec).unwrap();
    let (source, other) = (near(), near());
    let target = works.allocate(device(number), 100);
    control("fault stuck").unwrap();
    works.submit(&[copy(&source, &target)]).unwrap();
    drop((own, other));
    // The copy never ends, so it uses the buffers for ever.
    std::mem::forget((source, target));
}

#[test]
fn a_device_that_is_stuck_keeps_no_memory_of_another() {
    let works = Works::new(backend(&[("DEVICES", "2")]));
    stick(&works, 0);
    let spec = AllocSpec::bytes(ALL / 4 * 3).for_sharing();
    for _ in 0..3 {
        // Two buffers do not fit, so the one before must be freed.
        drop(works.cuda.allocate(device(1), &spec).unwrap());
    }
    drop(works);
}

#[test]
fn a_large_buffer_is_given_back_to_the_device_by_who_frees() {
    let works = one_device();
    let large = works.allocate(device(0), 2 * KEPT as usize);
    stick(&works, 0);
    // The thread that frees is stuck too; this thread is not.
    drop(large);
    assert_eq!((calls("cuMemFreeAsync"), calls("cuMemPoolTrimTo")), (1, 0));
}

#[test]
fn allocating_ends_when_every_lane_may_use_the_memory() {
    let works = one_device();
    let waits = calls("cuStreamSynchronize");
    let memory = [(); 3].map(|()| works.allocate(device(0), 4096));
    assert_eq!(calls("cuMemAllocFromPoolAsync"), 3);
    assert_eq!(calls("cuStreamSynchronize") - waits, 3);
    drop((memory, works));
    assert_clean();
}

#[test]
fn a_pool_keeps_a_32nd_of_the_memory_and_gives_that_up_on_demand() {
    let works = one_device();
    let used = works.allocate(device(0), 1);
    let in_use = held(&works, &used);
    assert_eq!(works.free_bytes(), ALL - in_use);
    // Drivers trim their pools whenever the host waits.
    let wait = || {
        // SAFETY: the call takes no arguments.
        let waited = works.beside(0, || unsafe { works.cuda.driver().cuCtxSynchronize() });
        waited.unwrap();
    };
    drop(works.allocate(device(0), 16 * MIB as usize));
    wait();
    assert_eq!(held(&works, &used), in_use + 16 * MIB);
    drop(works.allocate(device(0), 4 * KEPT as usize));
    wait();
    assert!((in_use..=KEPT).contains(&held(&works, &used)));
    let many: Vec<_> = (0..10)
        .map(|_| works.allocate(device(0), 8 * MIB as usize))
        .collect();
    assert!(held(&works, &used) > 2 * KEPT);
    drop(many);
    wait();
    assert!((in_use + 8 * MIB..=KEPT + 8 * MIB).contains(&held(&works, &used)));
    drop(works.allocate(device(0), 16 * MIB as usize));
    works.cuda.trim();
    assert_eq!(works.free_bytes(), ALL - in_use);
    drop((used, works));
    assert_clean();
}

#[test]
fn what_is_kept_is_given_up_before_memory_runs_out() {
    let works = one_device();
    drop(works.allocate(device(0), KEPT as usize));
    assert_eq!(works.free_bytes(), ALL - KEPT);
    // The driver itself finds too little memory, because of the memory that the pool keeps.
    let spec = AllocSpec::bytes(ALL).for_sharing();
    let whole = works.cuda.allocate(device(0), &spec).unwrap();
    assert_eq!((works.free_bytes(), calls("cuMemPoolTrimTo")), (0, 1));
    assert_eq!(calls("cuMemAlloc_v2"), 2);
    let refused = works.cuda.allocate(device(0), &AllocSpec::bytes(1));
    let Err(AllocError::OutOfMemory { fault, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(fault.class, ErrorClass::Exhausted);
    drop(whole);
    drop(works.allocate(device(0), ALL as usize));
    drop(works);
    assert_clean();
}

#[test]
fn what_is_kept_counts_as_available() {
    let works = one_device();
    let used = works.allocate(device(0), MIB as usize);
    let all_but_used = works.free_bytes();
    drop(works.allocate(device(0), KEPT as usize));
    assert!(works.free_bytes() < all_but_used);
    assert_eq!(works.cuda.available_bytes(device(0)), Some(all_but_used));
    let managed = device(0).device.memory(MemoryKind::Managed);
    assert_eq!(works.cuda.available_bytes(managed), None);
    drop((used, works));
    assert_clean();
}

#[test]
fn every_memory_of_a_device_is_asked_for_once_more() {
    let works = one_device();
    drop(works.allocate(device(0), 1));
    for kind in [MemoryKind::Device, MemoryKind::Managed] {
        let memory = device(0).device.memory(kind);
        let trimmed = calls("cuMemPoolTrimTo");
        control("fault oom").unwrap();
        drop(works.allocate(memory, 100));
        assert_eq!(calls("cuMemPoolTrimTo"), trimmed + 1, "{memory}");
        control("fault oom@1+").unwrap();
        let refused = works.cuda.allocate(memory, &AllocSpec::bytes(100));
        assert!(
            matches!(refused, Err(AllocError::OutOfMemory { .. })),
            "{refused:?}"
        );
        control("fault none").unwrap();
    }
    drop(works);
    assert_clean();
}

#[test]
fn what_is_to_be_given_out_is_the_drivers_own() {
    let works = one_device();
    let spec = AllocSpec::bytes(100);
    let capable = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    let plain = works.cuda.allocate(device(0), &spec).unwrap();
    assert_eq!(works.attribute(&plain, capable), Ok(0));
    let shareable = works.cuda.allocate(device(0), &spec.for_sharing()).unwrap();
    assert_eq!(works.attribute(&shareable, capable), Ok(1));
    drop((plain, shareable));
    assert_eq!((calls("cuMemFreeAsync"), calls("cuMemFree_v2")), (1, 1));
    drop(works);
    assert_clean();
}

/// Copies bytes to a device's memory and back; the driver itself allocates all of that memory.
fn works_without_pools(works: Works) {
    let buffer = works.allocate(device(0), 1000);
    works.upload(&buffer, &pattern(3, 1000));
    assert_eq!(works.download(&buffer), pattern(3, 1000));
    drop(buffer);
    assert_eq!((calls("cuMemAlloc_v2"), calls("cuMemFree_v2")), (1, 1));
    assert_eq!((calls("cuMemFreeAsync"), calls("cuMemPoolTrimTo")), (0, 0));
    drop(works);
    assert_clean();
}

#[test]
fn a_driver_from_before_pools_allocates_itself() {
    driver(&[("VERSION", "11.1")]);
    let mut table: Table = cuda::table();
    table.cuMemPoolCreate = None;
    table.cuMemPoolDestroy = None;
    table.cuMemPoolSetAttribute = None;
    table.cuMemPoolTrimTo = None;
    table.cuMemAllocFromPoolAsync = None;
    table.cuMemFreeAsync = None;
    // SAFETY: the functions are the double's, which stay loaded.
    let old = unsafe { Driver::from_table(table, "the double of 11.1") };
    assert_eq!(old.version(), Version::new(11, 1));
    works_without_pools(Works::new(Cuda::with_driver(old).unwrap()));
}

#[test]
fn a_driver_that_makes_no_pools_allocates_itself() {
    let works = one_device();
    control("fault call=cuMemPoolCreate:801").unwrap();
    works_without_pools(works);
}

#[test]
fn a_pool_that_cannot_be_told_what_to_keep_is_none() {
    let works = one_device();
    control("fault call=cuMemPoolSetAttribute:801").unwrap();
    works_without_pools(works);
    assert_eq!(calls("cuMemPoolDestroy"), 1);
}

#[test]
fn a_pool_that_gives_nothing_leaves_it_to_the_driver() {
    let works = one_device();
    control("fault call=cuMemAllocFromPoolAsync:801").unwrap();
    let buffer = works.allocate(device(0), 10);
    assert_eq!(calls("cuMemAlloc_v2"), 1);
    drop(buffer);
    assert_eq!((calls("cuMemFreeAsync"), calls("cuMemFree_v2")), (0, 1));
    drop(works);
    assert_clean();
}

#[test]
fn memory_that_does_not_come_to_pass_is_given_back() {
    let works = one_device();
    drop(works.allocate(device(0), 10));
    control("fault call=cuStreamSynchronize:999").unwrap();
    let from_driver = works.allocate(device(0), 10);
    assert_eq!(calls("cuMemAlloc_v2"), 1);
    control("fault call=cuMemFreeAsync:999").unwrap();
    drop(works.allocate(device(0), 10));
    drop((from_driver, works));
    assert_clean();
}

#[test]
fn memory_outlives_its_backend() {
    let works = one_device();
    let buffer = works.allocate(device(0), 10);
    drop(works);
    drop(buffer);
    assert_clean();
}

#[test]
fn peers_reach_what_a_pool_gave_out_before_and_after() {
    let works = Works::new(backend(&[("TOPOLOGY", &machine("pcie-peer"))]));
    let early = works.allocate(device(1), 500);
    works.cuda.connect(device(0), device(1)).unwrap();
    let late = works.allocate(device(1), 500);
    let source = works.allocate(device(0), 500);
    works.upload(&source, &pattern(9, 500));
    works.run(&[copy(&source, &early)]);
    works.run(&[copy(&early, &source)]);
    works.run(&[copy(&source, &late)]);
    assert_eq!(works.download(&early), pattern(9, 500));
    assert_eq!(works.download(&late), pattern(9, 500));
    let copies = (counter("peer-copies-direct"), counter("peer-copies-staged"));
    assert_eq!(copies, (3, 0));
    drop((early, late, source, works));
    assert_clean();
}

#[test]
fn peers_that_a_pool_does_not_admit_are_not_connected() {
    let works = Works::new(backend(&[("TOPOLOGY", &machine("pcie-peer"))]));
    let [source, target] = [0, 1].map(|number| works.allocate(device(number), 500));
    control("fault call=cuMemPoolSetAccess:801").unwrap();
    let refused = works.cuda.connect(device(0), device(1));
    let Err(ConnectError::Failed { fault, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(fault.class, ErrorClass::Unsupported);
    assert!(works.submit(&[copy(&source, &target)]).is_err());
    // The backend asks for the access again, and once it has it, the copy is direct.
    works.cuda.connect(device(0), device(1)).unwrap();
    works.run(&[copy(&source, &target)]);
    let copies = (counter("peer-copies-direct"), counter("peer-copies-staged"));
    assert_eq!(copies, (1, 0));
    drop((source, target, works));
    assert_clean();
}

#[test]
fn pinned_memory_takes_nothing_of_the_devices() {
    let works = one_device();
    drop(works.allocate(pinned(), 10));
    assert_eq!((calls("cuMemPoolCreate"), calls("cuMemAlloc_v2")), (0, 0));
    drop(works);
    assert_clean();
}
