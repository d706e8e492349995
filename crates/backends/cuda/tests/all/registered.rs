//! User memory that the backend registers in place: which memory, for which devices, and for how long.

use crate::common;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::work::{Works, copy, device, pattern, pinned, read, write};
use common::{assert_clean, backend, calls, control, counter};
use transload_cuda::raw::CU_MEMHOSTREGISTER;
use transload_hal::{AllocSpec, Backend, Buffer, External, HostSpan, ImportError, SubmitError};

/// User bytes that several owners may hold.
type Bytes = Arc<Vec<u8>>;

fn one_device() -> Works {
    Works::new(backend(&[]))
}

/// Registers a range of these bytes as pinned memory.
fn take(
    works: &Works,
    bytes: &Bytes,
    range: std::ops::Range<usize>,
    writable: bool,
) -> Result<Buffer, ImportError> {
    let external = External::Host {
        span: HostSpan::of(&bytes[range]),
        writable,
        owner: Box::new(Arc::clone(bytes)),
    };
    // SAFETY: the vector stays in place while the owner lives, and the tests do not touch it meanwhile.
    unsafe { works.cuda.import(pinned(), external) }
}

/// The message of a refused import.
fn reason(refused: Result<Buffer, ImportError>) -> String {
    let Err(error) = refused else {
        panic!("it was taken")
    };
    error.to_string()
}

/// Copies bytes from the buffer to the device and back, without the driver's own staging memory.
fn carries_bytes(works: &Works, buffer: &Buffer, seed: u8) {
    let bytes = pattern(seed, buffer.len() as usize);
    write(buffer, &bytes);
    let far = works.allocate(device(0), bytes.len());
    works.run(&[copy(buffer, &far)]);
    write(buffer, &vec![0; bytes.len()]);
    works.run(&[copy(&far, buffer)]);
    assert_eq!(read(buffer), bytes);
    assert_eq!(counter("pageable-copies-staged"), 0);
}

fn registrations() -> [u64; 2] {
    [counter("registrations"), counter("unregistrations")]
}

#[test]
fn memory_is_registered_as_long_as_its_buffer_lives() {
    let works = one_device();
    let bytes: Bytes = Arc::new(vec![0; 100_000]);
    let buffer = take(&works, &bytes, 0..100_000, true).unwrap();
    assert_eq!(registrations(), [1, 0]);
    for round in 0..5 {
        carries_bytes(&works, &buffer, round);
    }
    let of_the_others = counter("registrations");
    let view = buffer.slice(10, 20).unwrap();
    drop(buffer);
    assert_eq!(registrations()[1], of_the_others - 1);
    drop(view);
    assert_eq!(registrations(), [of_the_others; 2]);
    assert_eq!(Arc::strong_count(&bytes), 1);
    drop(works);
    assert_clean();
}

#[test]
fn an_owner_comes_back_unregistered() {
    let works = one_device();
    let bytes: Bytes = Arc::new(vec![7; 5000]);
    let buffer = take(&works, &bytes, 0..5000, true).unwrap();
    let back = buffer.into_owner::<Bytes>().unwrap();
    assert_eq!(registrations(), [1, 1]);
    assert_eq!(*back, vec![7; 5000]);
    drop(works);
    assert_clean();
}

/// Checks, when it is dropped, whether its memory is still registered.
struct Watched(Vec<u8>, Arc<AtomicU64>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(counter("unregistrations"), Ordering::Relaxed);
    }
}

#[test]
fn memory_is_let_go_before_its_owner_frees_it() {
    let works = one_device();
    let seen = Arc::new(AtomicU64::new(0));
    let owner = Watched(vec![0; 100], Arc::clone(&seen));
    let external = External::Host {
        span: HostSpan::of(&owner.0),
        writable: false,
        owner: Box::new(owner),
    };
    // SAFETY: the vector's block stays where it is as long as the owner lives.
    let buffer = unsafe { works.cuda.import(pinned(), external) }.unwrap();
    drop(buffer);
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    drop(works);
    assert_clean();
}

#[test]
fn ranges_of_any_alignment_are_registered_and_neighbours_are_not_touched() {
    let works = one_device();
    let bytes: Bytes = Arc::new(vec![0xee; 40_000]);
    for (start, end) in [(1, 2), (4095, 4097), (13, 20_001), (39_999, 40_000)] {
        let buffer = take(&works, &bytes, start..end, true).unwrap();
        carries_bytes(&works, &buffer, 3);
        write(&buffer, &vec![0xee; end - start]);
        drop(buffer);
        assert!(bytes.iter().all(|byte| *byte == 0xee), "{start} to {end}");
    }
    drop(works);
    assert_clean();
}

#[test]
fn neighbours_in_one_page_are_registered_apart() {
    let works = one_device();
    let bytes: Bytes = Arc::new(vec![0; 300]);
    let [first, second] =
        [0..100, 100..300].map(|range| take(&works, &bytes, range, true).unwrap());
    assert_eq!(registrations(), [2, 0]);
    carries_bytes(&works, &second, 2);
    drop(first);
    carries_bytes(&works, &second, 4);
    drop((second, works));
    assert_clean();
}

#[test]
fn buffers_of_the_same_bytes_share_a_registration_until_the_last_goes() {
    let works = one_device();
    let bytes: Bytes = Arc::new(vec![0; 10_000]);
    let whole = take(&works, &bytes, 0..10_000, true).unwrap();
    let same = take(&works, &bytes, 0..10_000, true).unwrap();
    let part = take(&works, &bytes, 4000..4100, false).unwrap();
    assert_eq!(calls("cuMemHostRegister_v2"), 1);
    drop(whole);
    carries_bytes(&works, &same, 1);
    drop(same);
    assert_eq!(read(&part), bytes[4000..4100]);
    assert_eq!(registrations()[0] - registrations()[1], 1);
    drop(part);
    assert_eq!(registrations()[0] - registrations()[1], 0);
    let again = take(&works, &bytes, 0..10_000, true).unwrap();
    carries_bytes(&works, &again, 2);
    drop((again, works));
    assert_clean();
}

#[test]
fn a_range_that_is_registered_in_part_is_refused_and_says_which() {
    let works = one_device();
    let bytes: Bytes = Arc::new(vec![0; 10_000]);
    let middle = take(&works, &bytes, 4000..6000, true).unwrap();
    for range in [0..10_000, 5000..7000, 3000..5000] {
        let told = reason(take(&works, &bytes, range.clone(), true));
        assert!(
            told.contains("are registered for another buffer"),
            "{range:?}: {told}"
        );
    }
    assert_eq!(Arc::strong_count(&bytes), 2, "what was refused is let go");
    drop(middle);
    carries_bytes(&works, &take(&works, &bytes, 0..10_000, true).unwrap(), 1);
    drop(works);
    assert_clean();
}

#[test]
fn what_the_user_registered_is_taken_and_left_as_it_is() {
    let works = one_device();
    // Keeps the primary context, which would otherwise end with the thread that registers.
    let open = works.allocate(device(0), 1);
    let bytes: Bytes = Arc::new(vec![0; 10_000]);
    let start = bytes.as_ptr().cast_mut().cast();
    let driver = works.cuda.driver();
    let flags = CU_MEMHOSTREGISTER::PORTABLE;
    // SAFETY: the vector is there until it is unregistered below.
    let register = || unsafe { driver.cuMemHostRegister_v2(start, 10_000, flags) };
    works.beside(0, register).unwrap();
    let buffer = take(&works, &bytes, 100..9000, true).unwrap();
    carries_bytes(&works, &buffer, 1);
    drop(buffer);
    // SAFETY: it was registered above.
    let unregister = || unsafe { driver.cuMemHostUnregister(start) };
    works.beside(0, unregister).unwrap();
    drop((open, works));
    assert_clean();
}

/// A file whose mapping allows reading alone.
fn read_only_file(bytes: &[u8]) -> memmap2::Mmap {
    let path = std::env::temp_dir().join(format!("transload-registered-{}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // SAFETY: no other code knows the file any more.
    unsafe { memmap2::Mmap::map(&file) }.unwrap()
}

#[test]
fn memory_that_the_process_may_only_read_is_registered_for_reading() {
    let works = one_device();
    let bytes = pattern(6, 9000);
    let owner = read_only_file(&bytes);
    let external = External::Host {
        span: HostSpan::of(&owner),
        writable: false,
        owner: Box::new(owner),
    };
    // SAFETY: the mapping stays as long as its owner, and no code writes it.
    let buffer = unsafe { works.cuda.import(pinned(), external) }.unwrap();
    let far = works.allocate(device(0), bytes.len());
    works.run(&[copy(&buffer, &far)]);
    assert_eq!(works.download(&far), bytes);
    assert_eq!(counter("pageable-copies-staged"), 0);
    // The driver stops a caller that does not check.
    let refused = works.submit(&[copy(&far, &buffer)]);
    assert!(
        matches!(refused, Err(SubmitError::Refused(_))),
        "{refused:?}"
    );
    drop((buffer, far, works));
    assert_clean();
}

#[test]
fn what_devices_may_only_read_is_not_shared_with_who_wants_it_written() {
    let works = one_device();
    let bytes: Bytes = Arc::new(vec![0; 1000]);
    let to_read = take(&works, &bytes, 0..1000, false).unwrap();
    let told = reason(take(&works, &bytes, 0..1000, true));
    assert!(told.contains("which devices may only read"), "{told}");
    let also = take(&works, &bytes, 0..10, false).unwrap();
    drop((to_read, also));
    carries_bytes(&works, &take(&works, &bytes, 0..1000, true).unwrap(), 1);
    drop(works);
    assert_clean();
}

#[test]
fn a_device_without_room_for_a_registration_is_asked_once_more() {
    let works = one_device();
    drop(works.allocate(device(0), 1));
    let bytes: Bytes = Arc::new(vec![0; 1000]);
    control("fault oom").unwrap();
    let buffer = take(&works, &bytes, 0..1000, true).unwrap();
    assert_eq!(calls("cuMemPoolTrimTo"), 1);
    drop(buffer);
    control("fault oom@1+").unwrap();
    let refused = take(&works, &bytes, 0..1000, true);
    assert!(
        matches!(refused, Err(ImportError::Failed { .. })),
        "{refused:?}"
    );
    assert_eq!(Arc::strong_count(&bytes), 1);
    drop(works);
    assert_clean();
}

#[test]
fn memory_is_let_go_while_a_stream_never_answers() {
    let works = Works::new(backend(&[("DEVICES", "2")]));
    let bytes: Bytes = Arc::new(vec![0; 10_000]);
    let buffer = take(&works, &bytes, 0..10_000, true).unwrap();
    let stuck = (works.pinned(&[1; 64]), works.allocate(device(0), 64));
    control("fault stuck").unwrap();
    works.submit(&[copy(&stuck.0, &stuck.1)]).unwrap();
    // The driver would wait for the copy before it frees the memory, and this test would not end.
    drop(buffer);
    assert_eq!(Arc::strong_count(&bytes), 2, "it may still be registered");
    // Other callers are not held up either.
    let other: Bytes = Arc::new(vec![0; 10_000]);
    let beside = take(&works, &other, 0..10_000, true).unwrap();
    let far = works.allocate(device(1), 10_000);
    works.run(&[copy(&beside, &far)]);
    drop((beside, works));
    // The copy never ends, so it uses the buffers for ever.
    std::mem::forget(stuck);
}

#[test]
fn who_wants_memory_while_it_is_let_go_gets_it() {
    let works = one_device();
    let bytes: Bytes = Arc::new(vec![3; 10_000]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let far = works.allocate(device(0), 10_000);
                for _ in 0..50 {
                    let buffer = take(&works, &bytes, 0..10_000, false).unwrap();
                    works.run(&[copy(&buffer, &far)]);
                }
            });
        }
    });
    // An allocation that finds no memory waits for memory that is about to be freed.
    control("fault oom@1+").unwrap();
    let spec = AllocSpec::bytes(1);
    assert!(works.cuda.allocate(device(0), &spec).is_err());
    drop(works);
    let [registered, unregistered] = registrations();
    assert_eq!(registered, unregistered);
    assert_eq!(Arc::strong_count(&bytes), 1);
    assert_clean();
}

/// A device with much to do, on a machine whose copies take long. The engine did not call `expect` for that work.
fn busy() -> (Works, [Buffer; 2]) {
    let works = Works::new(backend(&[("TOPOLOGY", &common::made_up("gigabyte"))]));
    let ends = [pinned(), device(0)].map(|memory| works.allocate(memory, 50 << 20));
    (works, ends)
}

#[test]
fn memory_whose_buffer_has_gone_is_not_in_the_way_of_the_next() {
    let (works, [from, to]) = busy();
    let [bytes, other] = [(); 2].map(|()| Bytes::new(vec![0; 10_000]));
    for (first, writable) in [(4000..6000, true), (0..10_000, false)] {
        let beside = take(&works, &other, 0..10_000, true).unwrap();
        let before = take(&works, &bytes, first, writable).unwrap();
        works.submit(&[copy(&from, &to)]).unwrap();
        // The buffers are freed one after the other, when the device is idle.
        drop(beside);
        drop(before);
        let whole = take(&works, &bytes, 0..10_000, true).unwrap();
        carries_bytes(&works, &whole, 3);
    }
    drop((from, to, works));
    assert_clean();
}

#[test]
fn who_finds_no_room_for_a_registration_waits_for_one_that_is_about_to_go() {
    let (works, [from, to]) = busy();
    let [first, second, third] = [(); 3].map(|()| Bytes::new(vec![0; 10_000]));
    let before = [&first, &second].map(|bytes| take(&works, bytes, 0..10_000, true).unwrap());
    let fence = works.submit(&[copy(&from, &to)]).unwrap();
    let gone = registrations()[1];
    drop(before);
    // Memory of the pool does not help either.
    control("fault oom;oom@2").unwrap();
    let buffer = take(&works, &third, 0..10_000, true).unwrap();
    assert_eq!(registrations()[1], gone + 2);
    works.outcome(fence);
    drop((buffer, from, to, works));
    assert_clean();
}
