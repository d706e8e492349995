//! An allocator that counts, for a program of one test.
#![allow(dead_code, reason = "no test uses all of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Bytes that are allocated now, by any thread.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread's allocations count; `None` before its first one. The thread of the test's
    /// harness was there before, so it does not count.
    static COUNTS: Cell<Option<bool>> = const { Cell::new(None) };
}

/// From now on what this thread allocates counts, and what threads do that have not allocated so far.
pub(crate) fn start() {
    STARTED.store(true, Ordering::Relaxed);
    COUNTS.with(|counts| counts.set(Some(true)));
}

/// How often something that counts was allocated.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// How many bytes are allocated now, by any thread.
pub(crate) fn live_bytes() -> i64 {
    LIVE_BYTES.load(Ordering::Relaxed)
}

/// What this thread allocates does not count until this goes.
pub(crate) struct Pause(Option<bool>);

impl Pause {
    pub(crate) fn new() -> Pause {
        Pause(COUNTS.with(|counts| counts.replace(Some(false))))
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        let known = self.0.or(Some(STARTED.load(Ordering::Relaxed)));
        COUNTS.with(|counts| counts.set(known));
    }
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
        LIVE_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        LIVE_BYTES.fetch_add(len as i64 - layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.realloc(start, layout, len) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
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
pub(crate) fn assert_allocates_nothing(what: &str, mut f: impl FnMut()) {
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
