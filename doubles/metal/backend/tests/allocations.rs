//! In a steady state, moving bytes to and from Metal devices allocates nothing in the library. Metal's own allocations
//! do not count: here Metal is the double, recognized by the names on the stack.

#[path = "all/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use common::engine::{allocate, manager, paged};
use common::{assert_clean, pattern};
use transload::{Buffer, Request, TransferManager};
use transload_metal_double::{Device, settle};

static LOOKS: AtomicBool = AtomicBool::new(false);
static OURS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static THEIRS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is looking at an allocation, and allocates for that.
    static IS_LOOKING: Cell<bool> = const { Cell::new(false) };
}

struct Watching;

/// Records the allocating code.
fn look() {
    if !LOOKS.load(Ordering::Relaxed) || IS_LOOKING.replace(true) {
        return;
    }
    let stack = Backtrace::force_capture().to_string();
    match is_ours(&stack) {
        true => OURS.lock().unwrap().push(stack),
        false => THEIRS.store(true, Ordering::Relaxed),
    }
    IS_LOOKING.set(false);
}

/// Whether the innermost function of the project's crates on the stack is outside the double. In builds with debug
/// assertions the bindings compare each call with the method's declared types, which is not the backend's code.
fn is_ours(stack: &str) -> bool {
    let is_name = |line: &&str| {
        let line = line.trim_start();
        line.starts_with(|first: char| first.is_ascii_digit())
    };
    let mut names = stack.lines().filter(is_name);
    let innermost = names.find(|name| name.contains("transload") || name.contains("objc2::verify"));
    let others = ["transload_metal_double", "objc2::verify"];
    innermost.is_some_and(|name| !others.iter().any(|other| name.contains(other)))
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        look();
        // SAFETY: the caller keeps the same promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        look();
        // SAFETY: the caller keeps the same promise.
        unsafe { System.realloc(start, layout, len) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the same promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static WATCHING: Watching = Watching;

/// The allocations of that many rounds.
fn watched(rounds: u32, mut round: impl FnMut()) -> Vec<String> {
    LOOKS.store(true, Ordering::Relaxed);
    (0..rounds).for_each(|_| round());
    settle();
    LOOKS.store(false, Ordering::Relaxed);
    std::mem::take(&mut *OURS.lock().unwrap())
}

/// Some allocations occur only when two threads first meet in a place, which may happen late, so there are several
/// attempts; an allocation per copy fails all of them.
fn assert_allocates_nothing(what: &str, mut round: impl FnMut()) {
    let mut ours = Vec::new();
    for _ in 0..4 {
        (0..64).for_each(|_| round());
        ours = watched(8, &mut round);
        if ours.is_empty() {
            return;
        }
    }
    panic!("{what}: {} allocations, such as by {}", ours.len(), ours[0]);
}

fn every_call(manager: &TransferManager, what: &str, src: &Buffer, dst: &Buffer) {
    let prepared = manager.prepare(&Request::new(src, dst)).unwrap();
    assert_allocates_nothing(&format!("Prepared::post, {what}"), || {
        prepared.post().wait().unwrap();
    });
    assert_allocates_nothing(&format!("copy, {what}"), || {
        manager.copy(src, dst).wait().unwrap();
    });
    assert_allocates_nothing(&format!("two copies at once, {what}"), || {
        let (first, second) = (manager.copy(src, dst), manager.copy(src, dst));
        second.wait().unwrap();
        first.wait().unwrap();
    });
}

#[test]
fn a_warm_manager_of_devices_allocates_nothing() {
    // The test notices such allocations.
    let seen = watched(1, || {
        drop(TransferManager::builder().host().build().unwrap())
    });
    assert!(!seen.is_empty(), "a manager allocates");
    let manager = manager(vec![Device::unified(), Device::discrete()]);
    for len in [64, 100_003] {
        let bytes = pattern(len);
        let host = paged(&manager, &bytes);
        for (from, to) in [
            ("cpu:0", "metal:0"),
            ("metal:0", "cpu:0"),
            ("metal:0", "metal:0/device"),
            ("metal:0/device", "metal:0"),
            ("paged", "metal:0/device"),
            ("metal:0/device", "paged"),
            ("cpu:0", "metal:1/managed"),
            ("metal:1/device", "metal:1/managed"),
            ("metal:1/managed", "cpu:0"),
        ] {
            let buffer = |place| match place {
                "paged" => host.clone(),
                place => allocate(&manager, place, len),
            };
            let what = format!("{len} bytes from {from} to {to}");
            every_call(&manager, &what, &buffer(from), &buffer(to));
        }
    }
    assert!(THEIRS.load(Ordering::Relaxed), "the double allocates");
    drop(manager);
    assert_clean();
}
