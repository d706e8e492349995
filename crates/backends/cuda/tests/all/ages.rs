//! The functions that the backend calls where a driver has several signatures of a function, or lacks it.

use crate::common;

use common::ages::{driver_of, table_of};
use common::assert_clean;
use common::faults::{Calls, calls};
use common::work::{Works, device, part, pattern, write};
use transload_cuda::raw::{Table, Version};
use transload_cuda::{Cuda, OpenError};
use transload_hal::{Backend, DeviceId, DeviceKind, MemoryKind, Op};

/// Uses memory, a hint and many small copies on a driver of that version. Returns the calls.
fn used(age: Version) -> Calls {
    let cuda = Cuda::with_driver(driver_of(age, &[])).unwrap();
    assert_eq!(cuda.driver().version(), age);
    let told = cuda.inventory().devices[0].driver.clone();
    assert_eq!(told, Some(format!("CUDA {age}")));
    let has_uuid = cuda.inventory().devices[0].uuid.is_some();
    assert_eq!(has_uuid, age >= Version::new(11, 4));
    let works = Works::new(cuda);
    let gpu = DeviceId::new(DeviceKind::CUDA, 0);
    let managed = works.allocate(gpu.memory(MemoryKind::Managed), 4096);
    works.run(&[Op::Prefetch {
        part: part(&managed, 0, 4096),
        to: gpu,
    }]);
    let bytes = pattern(1, 4000);
    let source = works.pinned(&[0; 4000]);
    write(&source, &bytes);
    let target = works.allocate(device(0), 4000);
    let piece = |index: u64| Op::Copy {
        src: part(&source, index * 100, 100),
        dst: part(&target, index * 100, 100),
    };
    works.run(&(0..40).map(piece).collect::<Vec<_>>());
    assert_eq!(works.download(&target), bytes);
    drop((managed, source, target, works));
    assert_clean();
    calls()
}

/// Asserts that, of the functions with several signatures, exactly these were called.
#[track_caller]
fn chosen(age: Version, expected: &[&str]) {
    const CHOICES: [&str; 6] = [
        "cuMemAlloc_v2",
        "cuMemAllocFromPoolAsync",
        "cuMemPrefetchAsync",
        "cuMemPrefetchAsync_v2",
        "cuMemcpyBatchAsync",
        "cuMemcpyBatchAsync_v2",
    ];
    let calls = used(age);
    let chosen: Vec<_> = CHOICES
        .into_iter()
        .filter(|name| calls.contains_key(*name))
        .collect();
    assert_eq!(chosen, expected);
    for function in Table::FUNCTIONS {
        let is_later = function.since > age;
        assert!(
            !is_later || !calls.contains_key(function.name),
            "{}",
            function.name
        );
    }
}

#[test]
fn without_pools_memory_is_the_drivers_own() {
    chosen(
        Version::new(11, 0),
        &["cuMemAlloc_v2", "cuMemPrefetchAsync"],
    );
}

#[test]
fn hints_name_a_device_until_12_2() {
    chosen(
        Version::new(11, 4),
        &["cuMemAllocFromPoolAsync", "cuMemPrefetchAsync"],
    );
}

#[test]
fn hints_name_a_place_from_12_2_on() {
    chosen(
        Version::new(12, 4),
        &["cuMemAllocFromPoolAsync", "cuMemPrefetchAsync_v2"],
    );
}

#[test]
fn batches_have_their_first_signature_until_13_0() {
    let first = [
        "cuMemAllocFromPoolAsync",
        "cuMemPrefetchAsync_v2",
        "cuMemcpyBatchAsync",
    ];
    chosen(Version::new(12, 9), &first);
}

#[test]
fn batches_have_their_second_signature_from_13_0_on() {
    let second = [
        "cuMemAllocFromPoolAsync",
        "cuMemPrefetchAsync_v2",
        "cuMemcpyBatchAsync_v2",
    ];
    chosen(Version::new(13, 0), &second);
}

#[test]
fn a_driver_that_is_too_old_is_told_with_what_it_lacks() {
    let age = Version::new(10, 2);
    assert!(!table_of(age).present().all(|is| is));
    let error = Cuda::with_driver(driver_of(age, &[])).unwrap_err();
    let OpenError::TooOld { driver, oldest, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((driver, oldest), (age, Version::new(11, 0)));
}
