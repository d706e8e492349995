//! Many copies in one submission: in one driver call if that is faster and the driver has the call, else one by one.

use crate::common;

use common::work::{Works, copy, device, part, pattern, pinned, read, write};
use common::{assert_clean, backend, calls, control, driver, machine};
use transload_cuda::Cuda;
use transload_cuda::raw::{CUdevice, CUdevice_attribute, CUresult, Driver, Table};
use transload_hal::Shape;
use transload_hal::{
    Access, Backend, Buffer, EngineId, Fence, Layout, LinkId, Op, Outcome, Span, SubmitError,
};

const BATCH: &str = "cuMemcpyBatchAsync_v2";

fn one_device() -> Works {
    Works::new(backend(&[]))
}

/// The backend over the double with some functions changed.
fn with_table(change: impl FnOnce(&mut Table)) -> Works {
    driver(&[]);
    let mut table: Table = cuda::table();
    change(&mut table);
    // SAFETY: the functions are the double's, or behave like those.
    let driver = unsafe { Driver::from_table(table, "the double, changed") };
    Works::new(Cuda::with_driver(driver).unwrap())
}

/// Copies of `len` bytes each, from every second place of the one buffer to places in reverse order of the other.
fn scattered<'a>(from: &'a Buffer, to: &'a Buffer, count: u64, len: u64) -> Vec<Op<'a>> {
    let one = |number: u64| Op::Copy {
        src: part(from, number * 2 * len, len),
        dst: part(to, (count - 1 - number) * len, len),
    };
    (0..count).map(one).collect()
}

/// The bytes at the destination of these copies.
fn gathered(bytes: &[u8], count: usize, len: usize) -> Vec<u8> {
    let places = (0..count).rev();
    let chunks = places.map(|number| &bytes[number * 2 * len..][..len]);
    chunks.flatten().copied().collect()
}

/// Copies blocks to a device, within it, and back, and compares the bytes.
fn round_trip(works: &Works, seed: u8, count: usize, len: usize) {
    let bytes = pattern(seed, 2 * count * len);
    let source = works.pinned(&bytes);
    let [first, second] = [(); 2].map(|()| works.allocate(device(0), 2 * count * len));
    works.upload(&second, &bytes);
    let back = works.allocate(pinned(), count * len);
    works.run(&scattered(&source, &first, count as u64, len as u64));
    let expected = gathered(&bytes, count, len);
    assert_eq!(works.download(&first)[..count * len], expected);
    works.run(&scattered(&second, &first, count as u64, len as u64));
    assert_eq!(works.download(&first)[..count * len], expected);
    works.run(&scattered(&second, &back, count as u64, len as u64));
    assert_eq!(read(&back), expected);
}

#[test]
fn many_small_copies_are_ordered_in_one_call() {
    let works = one_device();
    round_trip(&works, 1, 100, 300);
    assert_eq!(calls(BATCH), 3);
    // The counts of the test's own single copies.
    assert_eq!(
        (calls("cuMemcpyHtoDAsync_v2"), calls("cuMemcpyDtoHAsync_v2")),
        (1, 2)
    );
    assert_eq!(calls("cuMemcpyDtoDAsync_v2"), 0);
    drop(works);
    assert_clean();
}

#[test]
fn ten_thousand_copies_take_ten_calls() {
    let works = one_device();
    let bytes = pattern(5, 2 * 10_000 * 16);
    let (source, target) = (works.pinned(&bytes), works.allocate(device(0), 10_000 * 16));
    works.run(&scattered(&source, &target, 10_000, 16));
    assert_eq!(calls(BATCH), 10);
    assert_eq!(works.download(&target), gathered(&bytes, 10_000, 16));
    drop((source, target, works));
    assert_clean();
}

#[test]
fn few_copies_and_large_ones_are_ordered_one_by_one() {
    let works = one_device();
    round_trip(&works, 2, 15, 300);
    round_trip(&works, 3, 16, (128 << 10) + 1);
    assert_eq!(calls(BATCH), 0);
    round_trip(&works, 4, 16, 128 << 10);
    assert_eq!(calls(BATCH), 3);
    drop(works);
    assert_clean();
}

#[test]
fn a_driver_of_before_cuda_13_has_the_older_call() {
    let works = with_table(|table| table.cuMemcpyBatchAsync_v2 = None);
    round_trip(&works, 6, 40, 1000);
    assert_eq!((calls(BATCH), calls("cuMemcpyBatchAsync")), (0, 3));
    drop(works);
    assert_clean();
}

#[test]
fn a_driver_without_batches_copies_one_by_one() {
    let works = with_table(|table| {
        table.cuMemcpyBatchAsync = None;
        table.cuMemcpyBatchAsync_v2 = None;
    });
    round_trip(&works, 7, 40, 1000);
    assert_eq!(calls("cuMemcpyDtoDAsync_v2"), 40);
    drop(works);
    assert_clean();
}

/// Under WSL, devices have other addresses for host memory.
#[test]
fn devices_with_addresses_of_their_own_get_no_batches() {
    unsafe extern "C" fn other_addresses(
        value: *mut i32,
        attribute: CUdevice_attribute,
        device: CUdevice,
    ) -> CUresult {
        let asked = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        if attribute == asked {
            // SAFETY: the caller passes a valid out-pointer.
            unsafe { value.write(0) };
            return CUresult::CUDA_SUCCESS;
        }
        let of_the_double = cuda::table().cuDeviceGetAttribute.unwrap();
        // SAFETY: the arguments are the caller's, who keeps the promise.
        unsafe { of_the_double(value, attribute, device) }
    }
    let works = with_table(|table| table.cuDeviceGetAttribute = Some(other_addresses));
    round_trip(&works, 8, 40, 1000);
    assert_eq!(calls(BATCH), 0);
    drop(works);
    assert_clean();
}

#[test]
fn a_driver_that_refuses_a_batch_is_asked_for_none_again() {
    for (result, seed) in [(801, 1), (1, 2)] {
        let works = one_device();
        let asked = calls(BATCH);
        control(&format!("fault call={BATCH}:{result}")).unwrap();
        let bytes = pattern(seed, 2 * 40 * 100);
        let (source, target) = (works.pinned(&bytes), works.allocate(device(0), 40 * 100));
        for _ in 0..3 {
            works.run(&scattered(&source, &target, 40, 100));
            assert_eq!(works.download(&target), gathered(&bytes, 40, 100));
            write(&source, &bytes);
        }
        assert_eq!(calls(BATCH) - asked, 1, "{result}");
        drop((source, target, works));
        assert_clean();
    }
}

#[test]
fn a_batch_is_not_to_blame_for_copies_that_fail_one_by_one_too() {
    let works = one_device();
    let bytes = pattern(1, 2 * 40 * 100);
    let (source, target) = (works.pinned(&bytes), works.allocate(device(0), 40 * 100));
    control(&format!("fault call={BATCH}:1;call=cuMemcpyHtoDAsync_v2:1")).unwrap();
    // The driver does not report how much of a refused batch has begun, so the backend does not report a refusal.
    let fence = works.submit(&scattered(&source, &target, 40, 100)).unwrap();
    let outcome = works.outcome(fence);
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    // The backend discards the copies that it had gathered then, and still makes batches.
    works.run(&[copy(
        &source.slice(0, 1).unwrap(),
        &target.slice(0, 1).unwrap(),
    )]);
    assert_eq!(calls("cuMemcpyHtoDAsync_v2"), 2);
    works.run(&scattered(&source, &target, 40, 100));
    assert_eq!(calls(BATCH), 2);
    assert_eq!(works.download(&target), gathered(&bytes, 40, 100));
    drop((source, target, works));
    assert_clean();
}

#[test]
fn a_batch_that_fails_is_a_submission_that_fails() {
    let works = one_device();
    let bytes = pattern(1, 2 * 40 * 100);
    let (source, target) = (works.pinned(&bytes), works.allocate(device(0), 40 * 100));
    control(&format!("fault call={BATCH}:999")).unwrap();
    // The submission is not refused, since some of the copies may have begun.
    let fence = works.submit(&scattered(&source, &target, 40, 100)).unwrap();
    let outcome = works.outcome(fence);
    let Outcome::Failed(fault) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(fault.message.contains(BATCH), "{fault}");
    assert_eq!(calls("cuMemcpyHtoDAsync_v2"), 0);
    works.run(&scattered(&source, &target, 40, 100));
    assert_eq!(works.download(&target), gathered(&bytes, 40, 100));
    drop((source, target, works));
    assert_clean();
}

#[test]
fn a_copy_onto_itself_is_done_beside_a_batch() {
    let works = one_device();
    let bytes = pattern(1, 2 * 40 * 100);
    let (source, target) = (works.pinned(&bytes), works.allocate(device(0), 40 * 100));
    let moved = works.allocate(device(0), 5000);
    works.upload(&moved, &pattern(4, 5000));
    let inner = works.allocate(device(0), 2 * 40 * 100);
    works.upload(&inner, &bytes);
    let mut ops = scattered(&inner, &target, 40, 100);
    let overlapping = Op::Copy {
        src: part(&moved, 0, 4000),
        dst: part(&moved, 1000, 4000),
    };
    ops.insert(20, overlapping);
    works.run(&ops);
    assert_eq!(calls(BATCH), 1);
    assert_eq!(works.download(&target), gathered(&bytes, 40, 100));
    let mut expected = pattern(4, 5000);
    expected.copy_within(..4000, 1000);
    assert_eq!(works.download(&moved), expected);
    drop((source, target, moved, inner, works));
    assert_clean();
}

#[test]
fn rows_that_the_driver_does_not_take_at_once_are_a_batch() {
    let works = one_device();
    let bytes = pattern(9, 50 * 64);
    let (source, target) = (works.pinned(&bytes), works.allocate(device(0), 50 * 24));
    let strided = Layout {
        buffer: &source,
        offset: 8,
        shape: Shape::pitched(24, 50, 64).unwrap(),
    };
    let packed = Layout {
        buffer: &target,
        offset: 0,
        shape: Shape::contiguous(50 * 24),
    };
    control("fault call=cuMemcpy2DAsync_v2:1").unwrap();
    works.run(&[Op::Pitched {
        src: strided,
        dst: packed,
        span: Span::new(0, 50 * 24),
    }]);
    assert_eq!((calls("cuMemcpy2DAsync_v2"), calls(BATCH)), (1, 1));
    let rows = (0..50).flat_map(|row| bytes[row * 64 + 8..][..24].iter().copied());
    assert_eq!(works.download(&target), rows.collect::<Vec<_>>());
    drop((source, target, works));
    assert_clean();
}

/// Submits copies in one call. Returns their fences, in order.
fn submit_each(works: &Works, ops: &[Op<'_>]) -> Vec<Result<Fence, SubmitError>> {
    let link = LinkId {
        src: pinned(),
        dst: device(0),
        engine: EngineId {
            device: device(0).device,
            index: 0,
        },
        access: Access::Import,
    };
    let mut told = Vec::new();
    // SAFETY: tests keep their buffers until their submissions are over.
    unsafe {
        works
            .cuda
            .submit_each(link, ops, &mut |fence| told.push(fence))
    };
    told
}

#[test]
fn small_copies_that_are_handed_over_at_once_have_fences_and_share_an_event() {
    let works = one_device();
    let bytes = pattern(3, 2 * 40 * 100);
    let (source, target) = (works.pinned(&bytes), works.allocate(device(0), 40 * 100));
    let events = calls("cuEventRecord");
    let fences: Vec<_> = submit_each(&works, &scattered(&source, &target, 40, 100));
    assert_eq!((calls(BATCH), calls("cuEventRecord") - events), (1, 1));
    let fences: Vec<_> = fences.into_iter().map(Result::unwrap).collect();
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]));
    // Waiting for any one of the copies completes all of them.
    for fence in [&fences[20], &fences[39], &fences[0]] {
        assert_eq!(works.outcome(*fence), Outcome::Done);
    }
    for fence in &fences {
        assert_eq!(works.outcome(*fence), Outcome::Done);
    }
    let next = works.submit(&[copy(
        &source.slice(0, 1).unwrap(),
        &target.slice(0, 1).unwrap(),
    )]);
    let next = next.unwrap();
    assert!(fences[39] < next);
    assert_eq!(works.outcome(next), Outcome::Done);
    let mut expected = gathered(&bytes, 40, 100);
    expected[0] = bytes[0];
    assert_eq!(works.download(&target), expected);
    drop((source, target, works));
    assert_clean();
}

/// Copies of `len` bytes each from the one buffer to the same places of the other.
fn in_place<'a>(from: &'a Buffer, to: &'a Buffer, places: &[u64], len: u64) -> Vec<Op<'a>> {
    let one = |place: &u64| Op::Copy {
        src: part(from, place * len, len),
        dst: part(to, place * len, len),
    };
    places.iter().map(one).collect()
}

#[test]
fn small_copies_that_go_on_where_others_end_are_one() {
    const SINGLE: &str = "cuMemcpyHtoDAsync_v2";
    let works = one_device();
    let bytes = pattern(5, 64 * 100);
    let source = works.pinned(&bytes);
    let target = works.allocate(device(0), bytes.len());
    works.upload(&target, &vec![0; bytes.len()]);
    let before = [SINGLE, BATCH, "cuEventRecord"].map(calls);
    // Two runs with a gap between them, and one that goes backwards.
    let places: Vec<u64> = (0..20).chain(24..30).chain([41, 40]).collect();
    let fences = submit_each(&works, &in_place(&source, &target, &places, 100));
    let after = [SINGLE, BATCH, "cuEventRecord"].map(calls);
    let counts: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
    assert_eq!(counts, [4, 0, 1]);
    assert_eq!(fences.len(), places.len());
    for fence in fences {
        assert_eq!(works.outcome(fence.unwrap()), Outcome::Done);
    }
    let mut expected = vec![0; bytes.len()];
    for place in places {
        let at = place as usize * 100..(place as usize + 1) * 100;
        expected[at.clone()].copy_from_slice(&bytes[at]);
    }
    assert_eq!(works.download(&target), expected);
    drop((source, target, works));
    assert_clean();
}

#[test]
fn copies_into_different_allocations_stay_apart() {
    let works = one_device();
    let bytes = pattern(6, 4 * 512);
    let source = works.pinned(&bytes);
    let targets: Vec<Buffer> = (0..4).map(|_| works.allocate(device(0), 512)).collect();
    let before = calls("cuMemcpyHtoDAsync_v2");
    let ops: Vec<Op<'_>> = targets
        .iter()
        .zip(0..)
        .map(|(target, number)| Op::Copy {
            src: part(&source, number * 512, 512),
            dst: part(target, 0, 512),
        })
        .collect();
    for fence in submit_each(&works, &ops) {
        assert_eq!(works.outcome(fence.unwrap()), Outcome::Done);
    }
    assert_eq!(calls("cuMemcpyHtoDAsync_v2") - before, 4);
    for (target, sent) in targets.iter().zip(bytes.chunks(512)) {
        assert_eq!(works.download(target), sent);
    }
    drop((source, targets, works));
    assert_clean();
}

#[test]
fn who_comes_after_one_of_several_comes_after_all_of_them() {
    let works = Works::new(backend(&[("TOPOLOGY", &machine("no-peer"))]));
    let len = 64 << 10;
    let bytes = pattern(3, 2 * 40 * len);
    let (source, target) = (works.pinned(&bytes), works.allocate(device(0), 40 * len));
    let behind = works.allocate(device(0), 40 * len);
    for round in 0..10 {
        works.upload(&target, &vec![round; 40 * len]);
        let fences = submit_each(&works, &scattered(&source, &target, 40, len as u64));
        let middle = fences.into_iter().nth(20).unwrap().unwrap();
        // This submission is another lane's.
        // SAFETY: the buffers are kept until it is over.
        let next = unsafe {
            works
                .cuda
                .submit(None, &[copy(&target, &behind)], &[middle])
        };
        assert_eq!(works.outcome(next.unwrap()), Outcome::Done);
        assert!(
            works.download(&behind) == gathered(&bytes, 40, len),
            "{round}"
        );
    }
    drop((source, target, behind, works));
    assert_clean();
}

#[test]
fn large_copies_and_strangers_among_them_stand_alone() {
    let works = one_device();
    let large = (128 << 10) + 1;
    let bytes = pattern(4, 60_000);
    let (source, target) = (works.pinned(&bytes), works.allocate(device(0), 30_000));
    let (long, far) = (
        works.pinned(&pattern(5, large)),
        works.allocate(device(0), large),
    );
    let mut ops = scattered(&source, &target, 30, 1000);
    ops.insert(10, copy(&long, &far));
    // This copy does not use that link.
    ops.insert(21, copy(&far, &long));
    let events = calls("cuEventRecord");
    let told = submit_each(&works, &ops);
    assert!(
        matches!(told[21], Err(SubmitError::Unsupported { .. })),
        "{:?}",
        told[21]
    );
    assert_eq!(
        calls("cuEventRecord") - events,
        4,
        "three groups, and the large one"
    );
    for (index, fence) in told
        .into_iter()
        .enumerate()
        .filter(|(index, _)| *index != 21)
    {
        assert_eq!(works.outcome(fence.unwrap()), Outcome::Done, "{index}");
    }
    assert_eq!(works.download(&target), gathered(&bytes, 30, 1000));
    assert_eq!(works.download(&far), pattern(5, large));
    drop((source, target, long, far, works));
    assert_clean();
}

#[test]
fn copies_that_cannot_go_together_go_one_by_one() {
    let works = one_device();
    let bytes = pattern(3, 2 * 20 * 100);
    let (source, target) = (works.pinned(&bytes), works.allocate(device(0), 20 * 100));
    control("fault call=cuEventCreate:999").unwrap();
    let told = submit_each(&works, &scattered(&source, &target, 20, 100));
    assert_eq!((told.len(), calls("cuEventRecord")), (20, 20));
    for fence in told {
        assert_eq!(works.outcome(fence.unwrap()), Outcome::Done);
    }
    assert_eq!(works.download(&target), gathered(&bytes, 20, 100));
    drop((source, target, works));
    assert_clean();
}

#[test]
fn a_batch_that_fails_fails_each_of_its_copies() {
    let works = one_device();
    let bytes = pattern(3, 2 * 20 * 100);
    let (source, target) = (works.pinned(&bytes), works.allocate(device(0), 20 * 100));
    control(&format!("fault call={BATCH}:999")).unwrap();
    let told = submit_each(&works, &scattered(&source, &target, 20, 100));
    assert_eq!(told.len(), 20);
    for fence in told {
        let outcome = works.outcome(fence.unwrap());
        assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    }
    for fence in submit_each(&works, &scattered(&source, &target, 20, 100)) {
        assert_eq!(works.outcome(fence.unwrap()), Outcome::Done);
    }
    assert_eq!(works.download(&target), gathered(&bytes, 20, 100));
    drop((source, target, works));
    assert_clean();
}
