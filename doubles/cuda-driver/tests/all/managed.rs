//! Managed memory, and hints about it.

use crate::common;

use std::ffi::c_void;
use std::ptr;

use common::bytes::{Host, allocate, copy, free, pattern};
use common::work::{query, result, stream, synchronize};
use common::{GIGABYTE, control, counter, enter, machine, machine_in_context, now};
use transload_cuda::raw::{
    CUdevice, CUdeviceptr, CUmem_advise as Advice, CUmem_range_attribute as A, CUmemAttach_flags,
    CUmemLocation, CUmemLocationType, CUpointer_attribute, CUresult, CUstream, CUstream_flags,
    Driver,
};

const PAGE: u64 = 4096;
const CPU: CUdevice = CUdevice::CU_DEVICE_CPU;
const NOWHERE: i32 = CUdevice::CU_DEVICE_INVALID.0;
const GLOBAL: u32 = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
const WRONG: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
const NO_DEVICE: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
const NOT_SUPPORTED: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);

fn managed(driver: &Driver, bytes: u64, flags: u32) -> Result<CUdeviceptr, CUresult> {
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    let answer = unsafe { driver.cuMemAllocManaged(&raw mut address, bytes as usize, flags) };
    result(answer).map(|()| address)
}

fn prefetch(
    driver: &Driver,
    at: CUdeviceptr,
    bytes: u64,
    to: CUdevice,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: no argument is a pointer that is looked into, here and below.
    result(unsafe { driver.cuMemPrefetchAsync(at, bytes as usize, to, stream) })
}

fn prefetch_to(
    driver: &Driver,
    at: CUdeviceptr,
    bytes: u64,
    to: CUmemLocation,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuMemPrefetchAsync_v2(at, bytes as usize, to, 0, stream) })
}

fn advise(
    driver: &Driver,
    at: CUdeviceptr,
    bytes: u64,
    advice: Advice,
    device: CUdevice,
) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuMemAdvise(at, bytes as usize, advice, device) })
}

fn advise_at(
    driver: &Driver,
    at: CUdeviceptr,
    bytes: u64,
    advice: Advice,
    location: CUmemLocation,
) -> Result<(), CUresult> {
    // SAFETY: as above.
    result(unsafe { driver.cuMemAdvise_v2(at, bytes as usize, advice, location) })
}

/// As many numbers as the array holds.
fn ask<const N: usize>(
    driver: &Driver,
    attribute: A,
    at: CUdeviceptr,
    bytes: u64,
) -> Result<[i32; N], CUresult> {
    let mut values = [-77; N];
    let place: *mut c_void = values.as_mut_ptr().cast();
    // SAFETY: the array has the stated length.
    let answer = unsafe {
        driver.cuMemRangeGetAttribute(place, size_of_val(&values), attribute, at, bytes as usize)
    };
    result(answer).map(|()| values)
}

fn node(id: i32) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA,
        id,
    }
}

#[test]
fn the_host_touches_it_and_copies_take_it() {
    let driver = machine_in_context(&[]);
    let bytes = pattern(1, 5000);
    let address = managed(&driver, 5000, GLOBAL).unwrap();
    let start = ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the memory is the test's and has that length.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start, 5000) };
    let on_device = allocate(&driver, 5000);
    let back = Host::pinned(&driver, &[0; 5000]);
    copy(&driver, on_device, address, 5000, CUstream::NULL).unwrap();
    copy(&driver, back.address(), on_device, 5000, CUstream::NULL).unwrap();
    synchronize(&driver, CUstream::NULL).unwrap();
    assert_eq!(back.read(), bytes);
    let mut is_managed = 7u32;
    let place = (&raw mut is_managed).cast();
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuPointerGetAttribute(place, attribute, address + 4999) }.unwrap();
    assert_eq!(is_managed, 1);
}

#[test]
fn it_is_of_no_device_and_goes_as_devices_memory_does() {
    let driver = machine_in_context(&[]);
    let (mut before, mut after, mut total) = (0, 0, 0);
    // SAFETY: the out-pointers here and below are local variables.
    unsafe { driver.cuMemGetInfo_v2(&raw mut before, &raw mut total) }.unwrap();
    // More than the device has.
    let address = managed(&driver, 2 << 30, GLOBAL).unwrap();
    // SAFETY: as above.
    unsafe { driver.cuMemGetInfo_v2(&raw mut after, &raw mut total) }.unwrap();
    assert_eq!(before, after);
    assert_eq!(counter("allocations"), 1);
    assert!(control("leaks").unwrap().contains("Managed memory"));
    free(&driver, address);
    // SAFETY: the double refuses an address that is already freed.
    assert_eq!(result(unsafe { driver.cuMemFree_v2(address) }), WRONG);
    assert_eq!(managed(&driver, 0, GLOBAL).map(drop), WRONG);
    let single = CUmemAttach_flags::CU_MEM_ATTACH_SINGLE.0;
    for flags in [0, GLOBAL | 2, single, 8] {
        assert_eq!(managed(&driver, 1, flags).map(drop), WRONG, "{flags}");
    }
    let of_host = managed(&driver, 1, CUmemAttach_flags::CU_MEM_ATTACH_HOST.0);
    free(&driver, of_host.unwrap());
    control("fault oom").unwrap();
    let out = managed(&driver, 1, GLOBAL);
    assert_eq!(out, Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
}

#[test]
fn prefetching_takes_the_time_of_each_link_and_is_counted() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let stream = stream(&driver, CUstream_flags::CU_STREAM_NON_BLOCKING.0);
    let address = managed(&driver, 4 * PAGE, GLOBAL).unwrap();
    let done = |expected: u64| {
        let start = now();
        let asked = query(&driver, stream);
        let under_way = if expected == 0 {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_NOT_READY)
        };
        assert_eq!(asked, under_way);
        synchronize(&driver, stream).unwrap();
        assert_eq!(now() - start, expected);
    };
    // Two pages are touched by two bytes.
    prefetch(&driver, address + PAGE - 1, 2, CUdevice(0), stream).unwrap();
    done(2 * PAGE);
    assert_eq!(counter("bytes pinned -> device 0"), 2 * PAGE);
    prefetch(&driver, address, 2 * PAGE, CUdevice(0), stream).unwrap();
    done(0);
    // Two from the host and two from the other device, over a link each, twice as fast.
    prefetch(&driver, address, 4 * PAGE, CUdevice(1), stream).unwrap();
    done(2 * PAGE + PAGE);
    assert_eq!(counter("bytes pinned -> device 1"), 2 * PAGE);
    assert_eq!(counter("bytes device 0 -> device 1"), 2 * PAGE);
    prefetch_to(&driver, address, 4 * PAGE, node(0), stream).unwrap();
    done(4 * PAGE);
    assert_eq!(counter("bytes device 1 -> pinned"), 4 * PAGE);
    prefetch(&driver, address, 4 * PAGE, CPU, stream).unwrap();
    done(0);
}

#[test]
fn prefetching_wants_managed_memory_and_a_place() {
    let driver = machine_in_context(&[]);
    let address = managed(&driver, PAGE, GLOBAL).unwrap();
    let to = |location| prefetch_to(&driver, address, PAGE, location, CUstream::NULL);
    let device = CUdevice(0);
    assert_eq!(prefetch(&driver, address, 0, device, CUstream::NULL), WRONG);
    assert_eq!(
        prefetch(&driver, address, PAGE + 1, device, CUstream::NULL),
        WRONG
    );
    assert_eq!(
        prefetch(&driver, address + 1, PAGE, device, CUstream::NULL),
        WRONG
    );
    assert_eq!(
        prefetch(&driver, address, u64::MAX, device, CUstream::NULL),
        WRONG
    );
    assert_eq!(
        prefetch(&driver, address, PAGE, CUdevice(1), CUstream::NULL),
        NO_DEVICE
    );
    assert_eq!(
        prefetch(&driver, address, PAGE, CUdevice(-2), CUstream::NULL),
        NO_DEVICE
    );
    assert_eq!(to(CUmemLocation::device(1)), NO_DEVICE);
    assert_eq!(to(node(1)), WRONG, "there is no such node");
    assert_eq!(to(CUmemLocation::default()), WRONG);
    let current = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    assert_eq!(
        to(CUmemLocation {
            type_: current,
            id: 0
        }),
        NOT_SUPPORTED
    );
    let other = allocate(&driver, PAGE as usize);
    assert_eq!(
        prefetch(&driver, other, PAGE, device, CUstream::NULL),
        WRONG
    );
    let pinned = Host::pinned(&driver, &[0; PAGE as usize]);
    assert_eq!(
        prefetch(&driver, pinned.address(), PAGE, device, CUstream::NULL),
        WRONG
    );
    // SAFETY: no argument is looked into.
    let flags =
        unsafe { driver.cuMemPrefetchAsync_v2(address, 1, CUmemLocation::HOST, 1, CUstream::NULL) };
    assert_eq!(result(flags), WRONG);
    let no_stream = CUstream(ptr::without_provenance_mut(4711));
    let invalid = prefetch(&driver, address, PAGE, device, no_stream);
    assert_eq!(invalid, Err(CUresult::CUDA_ERROR_INVALID_HANDLE));
    let none = ask(
        &driver,
        A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
        address,
        PAGE,
    );
    assert_eq!(none, Ok([NOWHERE]), "nothing was prefetched");
    free(&driver, address);
    assert_eq!(
        prefetch(&driver, address, PAGE, device, CUstream::NULL),
        WRONG
    );
}

#[test]
fn advice_is_kept_by_page_and_told_of_ranges() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    enter(&driver, 0);
    let address = managed(&driver, 3 * PAGE, GLOBAL).unwrap();
    let read_mostly = |at, bytes| {
        ask(
            &driver,
            A::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
            address + at,
            bytes,
        )
    };
    let set = |at, bytes, advice, device| advise(&driver, address + at, bytes, advice, device);
    // Of this advice the device means nothing.
    set(
        PAGE + 7,
        1,
        Advice::CU_MEM_ADVISE_SET_READ_MOSTLY,
        CUdevice(99),
    )
    .unwrap();
    assert_eq!(read_mostly(PAGE, PAGE), Ok([1]));
    assert_eq!(read_mostly(PAGE - 1, 2), Ok([0]));
    set(0, 3 * PAGE, Advice::CU_MEM_ADVISE_UNSET_READ_MOSTLY, CPU).unwrap();
    assert_eq!(read_mostly(PAGE, 1), Ok([0]));

    let preferred = A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION;
    let prefer = Advice::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    assert_eq!(ask(&driver, preferred, address, 1), Ok([NOWHERE]));
    set(0, PAGE, prefer, CUdevice(1)).unwrap();
    set(PAGE, PAGE, prefer, CPU).unwrap();
    advise_at(&driver, address + 2 * PAGE, PAGE, prefer, node(0)).unwrap();
    let at = |page: u64| {
        let at = address + page * PAGE;
        let word = |attribute| ask::<1>(&driver, attribute, at, PAGE).unwrap()[0];
        (word(preferred), word(A(5)), word(A(6)))
    };
    let location = |of: CUmemLocation| of.type_.0 as i32;
    assert_eq!(at(0), (1, location(CUmemLocation::device(1)), 1));
    assert_eq!((at(1).0, at(1).1), (-1, location(CUmemLocation::HOST)));
    assert_eq!(at(2), (-1, location(node(0)), 0));
    assert_eq!(ask(&driver, preferred, address, 2 * PAGE), Ok([NOWHERE]));
    let kind = ask(&driver, A(5), address, 2 * PAGE);
    assert_eq!(kind, Ok([0]), "they differ");
    set(
        0,
        PAGE,
        Advice::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
        CUdevice(99),
    )
    .unwrap();
    assert_eq!(at(0).0, NOWHERE);

    let users = A::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    let used_by = Advice::CU_MEM_ADVISE_SET_ACCESSED_BY;
    set(0, 2 * PAGE, used_by, CUdevice(1)).unwrap();
    set(0, PAGE, used_by, CPU).unwrap();
    set(0, PAGE, used_by, CUdevice(0)).unwrap();
    assert_eq!(ask(&driver, users, address, 1), Ok([-1, 0, 1, NOWHERE]));
    assert_eq!(
        ask(&driver, users, address, 1),
        Ok([-1, 0]),
        "as many as fit"
    );
    assert_eq!(ask(&driver, users, address, 2 * PAGE), Ok([1, NOWHERE]));
    assert_eq!(ask(&driver, users, address, 3 * PAGE), Ok([NOWHERE]));
    set(
        0,
        PAGE,
        Advice::CU_MEM_ADVISE_UNSET_ACCESSED_BY,
        CUdevice(1),
    )
    .unwrap();
    assert_eq!(ask(&driver, users, address, 1), Ok([-1, 0, NOWHERE]));
}

#[test]
fn the_last_place_is_told_at_once() {
    let driver = machine(&GIGABYTE);
    enter(&driver, 0);
    let address = managed(&driver, 2 * PAGE, GLOBAL).unwrap();
    let last = A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
    prefetch(&driver, address, PAGE, CUdevice(1), CUstream::NULL).unwrap();
    assert_eq!(ask(&driver, last, address, PAGE), Ok([1]));
    assert_eq!(ask(&driver, last, address, 2 * PAGE), Ok([NOWHERE]));
    let kind = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE.0 as i32;
    assert_eq!(ask(&driver, A(7), address, PAGE), Ok([kind]));
    assert_eq!(ask(&driver, A(8), address, PAGE), Ok([1]));
    assert_eq!(
        query(&driver, CUstream::NULL),
        Err(CUresult::CUDA_ERROR_NOT_READY)
    );
}

#[test]
fn advice_and_questions_that_mean_nothing_are_refused() {
    let driver = machine_in_context(&[]);
    let address = managed(&driver, PAGE, GLOBAL).unwrap();
    let prefer = Advice::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    let used_by = Advice::CU_MEM_ADVISE_SET_ACCESSED_BY;
    assert_eq!(advise(&driver, address, 0, prefer, CPU), WRONG);
    assert_eq!(advise(&driver, address, PAGE + 1, prefer, CPU), WRONG);
    assert_eq!(advise(&driver, address, PAGE, Advice(7), CPU), WRONG);
    assert_eq!(
        advise(&driver, address, PAGE, prefer, CUdevice(1)),
        NO_DEVICE
    );
    assert_eq!(
        advise(&driver, address, PAGE, used_by, CUdevice(-2)),
        NO_DEVICE
    );
    let of_node = advise_at(&driver, address, PAGE, used_by, node(0));
    assert_eq!(of_node, WRONG, "users are devices and the host");
    assert_eq!(advise_at(&driver, address, PAGE, prefer, node(3)), WRONG);
    let current = CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,
        id: 0,
    };
    assert_eq!(
        advise_at(&driver, address, PAGE, prefer, current),
        NOT_SUPPORTED
    );
    assert_eq!(advise_at(&driver, address, PAGE, used_by, current), WRONG);
    let other = allocate(&driver, PAGE as usize);
    assert_eq!(advise(&driver, other, PAGE, prefer, CPU), WRONG);
    let bytes = [0u8; 8];
    let local = bytes.as_ptr().addr() as u64;
    assert_eq!(advise(&driver, local, 8, prefer, CPU), WRONG);
    let read_mostly = A::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
    assert_eq!(ask::<1>(&driver, read_mostly, other, PAGE).map(drop), WRONG);
    assert_eq!(ask::<1>(&driver, A(9), address, PAGE).map(drop), WRONG);
    assert_eq!(
        ask::<2>(&driver, read_mostly, address, PAGE).map(drop),
        WRONG,
        "it is one"
    );
    assert_eq!(
        ask::<0>(&driver, read_mostly, address, PAGE).map(drop),
        WRONG
    );
    assert_eq!(ask::<1>(&driver, read_mostly, address, 0).map(drop), WRONG);
}

#[test]
fn memory_is_attached_as_a_whole() {
    let driver = machine_in_context(&[]);
    let own = stream(&driver, 0);
    let address = managed(&driver, 100, GLOBAL).unwrap();
    let attach = |stream, at, len, flags: u32| {
        // SAFETY: no argument is looked into.
        result(unsafe { driver.cuStreamAttachMemAsync(stream, at, len, flags) })
    };
    let single = CUmemAttach_flags::CU_MEM_ATTACH_SINGLE.0;
    assert_eq!(attach(own, address, 0, single), Ok(()));
    assert_eq!(attach(own, address, 100, GLOBAL), Ok(()));
    assert_eq!(attach(CUstream::NULL, address, 0, GLOBAL), Ok(()));
    let invalid = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(attach(CUstream::NULL, address, 0, single), invalid);
    assert_eq!(
        attach(
            CUstream(ptr::without_provenance_mut(4711)),
            address,
            0,
            GLOBAL
        ),
        invalid
    );
    assert_eq!(attach(own, address, 99, GLOBAL), WRONG);
    assert_eq!(attach(own, address + 1, 0, GLOBAL), WRONG);
    assert_eq!(attach(own, address, 0, 3), WRONG);
    assert_eq!(attach(own, allocate(&driver, 8), 8, GLOBAL), WRONG);
    let bytes = [0u8; 8];
    let pageable = attach(own, bytes.as_ptr().addr() as u64, 8, GLOBAL);
    assert_eq!(pageable, NOT_SUPPORTED);
    synchronize(&driver, own).unwrap();
}
