//! An allocator that counts, for a program of one test.
#![allow(dead_code, reason = "no test uses all of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Bytes that all threads have allocated now.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread's allocations count; `None` before its first one. The thread of the test harness allocated
    /// before the count began, so it does not count.
    static COUNTS: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Starts the count of this thread's allocations, and of threads that have not allocated so far.
pub(crate) fn start() {
    STARTED.store(true, Ordering::Relaxed);
    COUNTS.with(|counts| counts.set(Some(true)));
}

/// The number of counted allocations.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// The number of bytes that all threads have allocated now.
pub(crate) fn live_bytes() -> i64 {
    LIVE_BYTES.load(Ordering::Relaxed)
}

/// Stops the count of this thread's allocations until this value is dropped.
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

// SAFETY: every call goes to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        LIVE_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller keeps the same promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        LIVE_BYTES.fetch_add(len as i64 - layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller keeps the same promise.
        unsafe { System.realloc(start, layout, len) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller keeps the same promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Repeats `f` until 200 rounds in a row allocate nothing. Some allocations occur only when two threads first meet in a
/// place, which may happen late, so there are several attempts. An allocation per copy, or one in a hundred copies,
/// fails all attempts. The threads of the library count too, so this program has only one test.
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
