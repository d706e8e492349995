//! Once warm, moving bytes allocates nothing: not on the calling thread and not on any other.

mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rig::{Outcome, Rig, bytes, modes, place, without_peers};
use transload::{AllocSpec, Request, TransferManager};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread's allocations count; `None` before its first one. The thread of the test's
    /// harness was there before, so it does not count.
    static COUNTS: Cell<Option<bool>> = const { Cell::new(None) };
}

struct Counting;

fn count() {
    let counts = COUNTS.with(|counts| {
        let known = counts.get().unwrap_or(STARTED.load(Ordering::Relaxed));
        counts.set(Some(known));
        known
    });
    ALLOCATIONS.fetch_add(u64::from(counts), Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's.
        unsafe { System.realloc(start, layout, len) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Repeats `f` until everything has its room: until 200 rounds in a row allocate nothing. What two
/// threads meet in for the first time may come late, so there is more than one attempt; an
/// allocation per copy, or one in a hundred, fails all of them. The threads of the library count
/// too, so there is one test in this program.
fn assert_allocates_nothing(what: &str, mut f: impl FnMut()) {
    let mut allocated = [0; 4];
    for allocated in &mut allocated {
        (0..64).for_each(|_| f());
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..200).for_each(|_| f());
        *allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
        if *allocated == 0 {
            return;
        }
    }
    panic!("{what}: {allocated:?} allocations in 200 rounds each");
}

fn every_way_to_copy(manager: &TransferManager, from: &str, to: &str, len: usize, label: &str) {
    let allocate = |at| {
        manager
            .allocate(place(at), AllocSpec::bytes(len as u64))
            .unwrap()
    };
    let (src, dst) = (allocate(from), allocate(to));
    let what = |call: &str| format!("{call} of {len} bytes from {from} to {to}, {label}");

    let prepared = manager.prepare(&Request::new(&src, &dst)).unwrap();
    assert_allocates_nothing(&what("Prepared::post"), || {
        prepared.post().wait().unwrap();
    });
    assert_allocates_nothing(&what("copy"), || {
        manager.copy(&src, &dst).wait().unwrap();
    });
    let verified = manager.prepare(&Request::new(&src, &dst).verify()).unwrap();
    assert_allocates_nothing(&what("verified copy"), || {
        verified.post().wait().unwrap();
    });
    let frame = bytes(len, 1);
    assert_allocates_nothing(&what("copy_from_slice"), || {
        manager.copy_from_slice(&frame, &dst).unwrap();
    });
    let mut out = vec![0; len];
    assert_allocates_nothing(&what("copy_into_slice"), || {
        manager.copy_into_slice(&src, &mut out).unwrap();
    });
    assert_allocates_nothing(&what("two copies at once"), || {
        let first = manager.copy(&src, &dst);
        let second = manager.copy(&src, &dst);
        second.wait().unwrap();
        first.wait().unwrap();
    });
    if src.read().is_ok() {
        assert_allocates_nothing(&what("read guard"), || {
            drop(src.read().unwrap());
        });
    }
}

#[test]
fn a_warm_manager_allocates_nothing() -> Outcome {
    STARTED.store(true, Ordering::Relaxed);
    COUNTS.with(|counts| counts.set(Some(true)));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let manager = TransferManager::builder().host().build()?;
    assert!(
        ALLOCATIONS.load(Ordering::Relaxed) > before,
        "allocations are counted"
    );
    // The host's threads start when there is first something for them to do.
    let large = manager.allocate(place("cpu:0"), AllocSpec::bytes(64 << 20))?;
    let other = manager.allocate(place("cpu:0"), AllocSpec::bytes(64 << 20))?;
    for _ in 0..4 {
        let both = [&large, &other].map(|src| {
            let dst = if src.raw().same_storage(large.raw()) {
                &other
            } else {
                &large
            };
            manager.submit(&Request::new(src, dst).verify())
        });
        for transfer in both {
            transfer.wait()?;
        }
    }
    for len in [64, 4096, 100_000, 3 << 20] {
        every_way_to_copy(&manager, "cpu:0", "cpu:0", len, "host");
        every_way_to_copy(&manager, "cpu:0", "cpu:0/shared", len, "host");
    }
    for completion in modes() {
        let rig = Rig::new(&without_peers(2), completion, 256 << 10);
        let label = completion.to_string();
        for len in [64, 200_000] {
            every_way_to_copy(&rig.manager, "sim:0", "sim:1", len, &label);
            every_way_to_copy(&rig.manager, "cpu:0/pinned", "sim:1", len, &label);
        }
    }
    Ok(())
}
