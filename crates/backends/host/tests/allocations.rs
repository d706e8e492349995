//! In a steady state the host allocates nothing: neither for inline copies nor on its threads.
//!
//! The test is alone in its file, because the count covers the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use transload_hal::{AllocSpec, Backend, Buffer, CompletionSink, Fence, Op, Outcome, Part, Waited};
use transload_host::Host;
use transload_host::memory::PAGEABLE;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator does the work; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Counts unexpected outcomes.
#[derive(Default)]
struct Sink {
    bad: AtomicU64,
}

impl CompletionSink for Sink {
    fn settle(&self, _: Fence, outcome: Outcome) {
        if outcome != Outcome::Done {
            self.bad.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn part(buffer: &Buffer, len_bytes: u64) -> Part<'_> {
    Part {
        buffer,
        offset: 0,
        len_bytes,
    }
}

/// A small copy, a large one, and a chain of four.
fn round(host: &Host, buffers: &[Buffer]) {
    let wait = |fence| assert_eq!(host.wait(fence, Duration::MAX), Waited::Settled);
    let submit = |from: usize, to: usize, len, after: &[Fence]| {
        let op = Op::Copy {
            src: part(&buffers[from], len),
            dst: part(&buffers[to], len),
        };
        // SAFETY: the round waits for all of its fences, and the buffers outlive it.
        unsafe { host.submit(None, &[op], after) }.unwrap()
    };
    wait(submit(0, 1, 4096, &[]));
    wait(submit(0, 1, 2 << 20, &[]));
    let first = submit(0, 1, 1 << 20, &[]);
    let second = submit(1, 2, 1 << 20, &[first]);
    let third = submit(2, 3, 1 << 20, &[first, second]);
    wait(submit(3, 0, 1 << 20, &[third]));
}

#[test]
fn warm_copies_allocate_nothing_on_any_thread() {
    let host = Host::new();
    let sink = Arc::new(Sink::default());
    host.attach(Arc::clone(&sink) as Arc<dyn CompletionSink>);
    let buffers: Vec<_> = (0..4)
        .map(|_| host.allocate(PAGEABLE, &AllocSpec::bytes(2 << 20)).unwrap())
        .collect();
    // Threads start and lists grow during the first rounds; the system decides in which round a second thread is first
    // needed. So the test waits for a hundred rounds in a row without an allocation.
    let quiet = (0..20).any(|_| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..100).for_each(|_| round(&host, &buffers));
        ALLOCATIONS.load(Ordering::Relaxed) == before
    });
    assert!(quiet, "every hundred copies allocated something");
    assert_eq!(sink.bad.load(Ordering::Relaxed), 0);
}
