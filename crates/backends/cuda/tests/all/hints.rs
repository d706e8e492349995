//! Hints about managed memory, for drivers of every version, and for every answer of the driver.

use crate::common;

use std::ffi::c_void;

use common::work::{Works, device, managed, part, pattern, pinned, whole, write};
use common::{assert_clean, calls, control, counter, driver, made_up};
use transload_cuda::Cuda;
use transload_cuda::raw::{CUmem_range_attribute as Range, Driver, Table};
use transload_hal::{Advice, Buffer, DeviceId, DeviceKind, ErrorClass, Op, Outcome};

const LEN: usize = 1 << 20;
const HOST: i32 = -1;
const NOWHERE: i32 = -2;

fn cuda(number: u32) -> DeviceId {
    DeviceId::new(DeviceKind::CUDA, number)
}

/// A backend over a driver of that version.
fn works(age: impl FnOnce(&mut Table)) -> Works {
    let machine = made_up("gigabyte");
    // The settings belong to the process, and must be made first.
    drop(driver(&[("TOPOLOGY", &machine)]));
    let mut table = cuda::table();
    age(&mut table);
    // SAFETY: the functions are the double's, which stay loaded.
    let driver = unsafe { Driver::from_table(table, "the double, downgraded") };
    Works::new(Cuda::with_driver(driver).unwrap())
}

fn before_12_2(table: &mut Table) {
    table.cuMemPrefetchAsync_v2 = None;
    table.cuMemAdvise_v2 = None;
}

fn without_the_first(table: &mut Table) {
    table.cuMemPrefetchAsync = None;
    table.cuMemAdvise = None;
}

fn without_any(table: &mut Table) {
    before_12_2(table);
    without_the_first(table);
}

fn prefetch(buffer: &Buffer, to: DeviceId) -> Op<'_> {
    Op::Prefetch {
        part: whole(buffer),
        to,
    }
}

fn advise(buffer: &Buffer, advice: Advice) -> Op<'_> {
    Op::Advise {
        part: whole(buffer),
        advice,
    }
}

/// The driver's record for the whole of a buffer.
fn range_attribute(works: &Works, buffer: &Buffer, attribute: Range) -> i32 {
    let mut value = -77i32;
    let (place, len): (*mut c_void, _) = ((&raw mut value).cast(), buffer.len() as usize);
    let driver = works.cuda.driver();
    // SAFETY: the out-pointer is a local variable.
    let asked = unsafe {
        driver.cuMemRangeGetAttribute(place, size_of::<i32>(), attribute, buffer.position(), len)
    };
    asked.unwrap();
    value
}

/// Bytes move to the place of the hint, in either signature of the function.
fn prefetches(works: &Works, function: &str, other: &str) {
    let last = |buffer| {
        range_attribute(
            works,
            buffer,
            Range::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
        )
    };
    let buffer = works.allocate(managed(0), LEN);
    let bytes = pattern(5, LEN);
    write(&buffer, &bytes);
    assert_eq!(last(&buffer), NOWHERE);
    for (to, place) in [(cuda(0), 0), (cuda(1), 1), (DeviceId::CPU0, HOST)] {
        works.run(&[prefetch(&buffer, to)]);
        assert_eq!(last(&buffer), place);
    }
    assert_eq!(counter("bytes pinned -> device 0"), LEN as u64);
    assert_eq!(counter("bytes device 1 -> pinned"), LEN as u64);
    assert_eq!((calls(function), calls(other)), (3, 0));
    assert!(common::work::read(&buffer) == bytes);
}

#[test]
fn a_new_driver_is_told_where_to_in_the_new_signature() {
    let works = works(|_| {});
    prefetches(&works, "cuMemPrefetchAsync_v2", "cuMemPrefetchAsync");
    drop(works);
    assert_clean();
}

#[test]
fn a_driver_before_12_2_is_told_where_to_in_the_first_signature() {
    let works = works(before_12_2);
    prefetches(&works, "cuMemPrefetchAsync", "cuMemPrefetchAsync_v2");
    drop(works);
    assert_clean();
}

#[test]
fn a_driver_that_forgot_the_first_signature_is_told_in_the_second() {
    let works = works(without_the_first);
    prefetches(&works, "cuMemPrefetchAsync_v2", "cuMemPrefetchAsync");
    drop(works);
    assert_clean();
}

/// The driver keeps each piece of advice, and its counterpart takes it back.
fn advises(works: &Works, function: &str, other: &str) {
    let buffer = works.allocate(managed(0), LEN);
    let read_mostly = Range::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
    let preferred = Range::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION;
    let accessed_by = Range::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    for (advice, attribute, value) in [
        (Advice::MostlyRead, read_mostly, 1),
        (Advice::NotMostlyRead, read_mostly, 0),
        (Advice::KeptAt(cuda(1)), preferred, 1),
        (Advice::KeptAt(DeviceId::CPU0), preferred, HOST),
        (Advice::KeptAnywhere, preferred, NOWHERE),
        (Advice::UsedBy(cuda(1)), accessed_by, 1),
        (Advice::NotUsedBy(cuda(1)), accessed_by, NOWHERE),
        (Advice::UsedBy(DeviceId::CPU0), accessed_by, HOST),
    ] {
        works.run(&[advise(&buffer, advice)]);
        assert_eq!(
            range_attribute(works, &buffer, attribute),
            value,
            "{advice:?}"
        );
    }
    assert_eq!((calls(function), calls(other)), (8, 0));
    // Advice about pageable memory, or for devices of other kinds, does nothing.
    let elsewhere = DeviceId::new(DeviceKind::WGPU, 0);
    for advice in [
        Advice::Sequential,
        Advice::Random,
        Advice::WillNeed,
        Advice::DontNeed,
        Advice::KeptAt(elsewhere),
        Advice::UsedBy(elsewhere),
        Advice::NotUsedBy(cuda(9)),
    ] {
        works.run(&[advise(&buffer, advice)]);
    }
    assert_eq!(calls(function), 8);
}

#[test]
fn a_new_driver_is_advised_in_the_new_signature() {
    let works = works(|_| {});
    advises(&works, "cuMemAdvise_v2", "cuMemAdvise");
    drop(works);
    assert_clean();
}

#[test]
fn a_driver_before_12_2_is_advised_in_the_first_signature() {
    let works = works(before_12_2);
    advises(&works, "cuMemAdvise", "cuMemAdvise_v2");
    drop(works);
    assert_clean();
}

#[test]
fn a_part_is_advised_by_itself() {
    let works = works(|_| {});
    let buffer = works.allocate(managed(0), LEN);
    let half = LEN as u64 / 2;
    works.run(&[Op::Advise {
        part: part(&buffer, half, half),
        advice: Advice::MostlyRead,
    }]);
    let mostly =
        |part: &Buffer| range_attribute(&works, part, Range::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY);
    assert_eq!(mostly(&buffer), 0);
    assert_eq!(mostly(&buffer.slice(half, half).unwrap()), 1);
    assert_eq!(mostly(&buffer.slice(0, half).unwrap()), 0);
    drop(buffer);
    drop(works);
    assert_clean();
}

#[test]
fn what_the_driver_refuses_or_lacks_is_no_error() {
    let works = works(|_| {});
    let buffer = works.allocate(managed(0), LEN);
    let ops = [
        prefetch(&buffer, cuda(1)),
        advise(&buffer, Advice::MostlyRead),
    ];
    for (op, function) in ops.iter().zip(["cuMemPrefetchAsync_v2", "cuMemAdvise_v2"]) {
        // Out of memory, an invalid device, not supported, and an unknown number.
        for result in [2, 101, 801, 4711] {
            control(&format!("fault call={function}:{result}")).unwrap();
            works.run(&[*op]);
        }
        assert_eq!(calls(function), 4);
    }
    let mostly = range_attribute(&works, &buffer, Range::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY);
    assert_eq!(mostly, 0, "it was refused");
    drop(buffer);
    drop(works);
    assert_clean();
}

#[test]
fn a_driver_without_hints_is_told_none() {
    let works = works(without_any);
    let buffer = works.allocate(managed(0), LEN);
    works.run(&[prefetch(&buffer, cuda(0))]);
    works.run(&[advise(&buffer, Advice::MostlyRead)]);
    drop(buffer);
    drop(works);
    assert_clean();
}

#[test]
fn memory_that_does_not_move_is_left_where_it_is() {
    let works = works(|_| {});
    for memory in [device(0), pinned()] {
        let buffer = works.allocate(memory, LEN);
        works.run(&[prefetch(&buffer, cuda(1))]);
        works.run(&[advise(&buffer, Advice::KeptAt(cuda(1)))]);
    }
    assert_eq!(calls("cuMemPrefetchAsync_v2") + calls("cuMemAdvise_v2"), 0);
    drop(works);
    assert_clean();
}

#[test]
fn a_lost_device_takes_no_hints() {
    let works = works(|_| {});
    let buffer = works.allocate(managed(0), LEN);
    control("fault ecc").unwrap();
    let first = works.submit(&[prefetch(&buffer, cuda(0))]);
    let lost = |outcome| match outcome {
        Outcome::Lost(fault) => fault.class == ErrorClass::Lost,
        _ => false,
    };
    assert!(first.map_or(true, |fence| lost(works.outcome(fence))));
    let refused = works.submit(&[advise(&buffer, Advice::MostlyRead)]);
    let fault = refused.unwrap_err().into_fault();
    assert_eq!(fault.class, ErrorClass::Lost, "{fault}");
}
