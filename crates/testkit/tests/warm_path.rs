//! In a steady state the sim allocates nothing from submission to settling: the engine's own test of that promise runs
//! over it.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use support::{copy, machine, mem};
use transload_hal::{AllocSpec, Backend, CompletionSink, Fence, Outcome, Waited};
use transload_testkit::sim::{Completion, Sim};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the same promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the same promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[derive(Default)]
struct Count(AtomicU64);

impl CompletionSink for Count {
    fn settle(&self, _: Fence, outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn submit_and_settle_allocate_nothing_when_warm() {
    for completion in [
        Completion::Timed,
        Completion::AtOnce,
        Completion::OutOfOrder { seed: 2 },
        Completion::Pumped,
        Completion::Reentrant,
    ] {
        let sim = Sim::builder(&machine())
            .completion(completion)
            .build()
            .unwrap();
        let count = Arc::new(Count::default());
        sim.attach(count.clone());
        let spec = AllocSpec::bytes(4096);
        let src = sim.allocate(mem("cpu:0/pinned"), &spec).unwrap();
        let dst = sim.allocate(mem("sim:0/device"), &spec).unwrap();
        let round = || {
            let mut last = Fence::immediate(transload_testkit::sim::BACKEND);
            for _ in 0..16 {
                last = copy(&sim, &src, &dst, &[last]).unwrap();
            }
            assert_eq!(sim.wait(last, Duration::MAX), Waited::Settled);
        };
        round();
        let before = ALLOCATIONS.with(Cell::get);
        for _ in 0..100 {
            round();
        }
        let allocated = ALLOCATIONS.with(Cell::get) - before;
        assert_eq!(allocated, 0, "{completion}");
        sim.run_until_idle();
        sim.pump();
        let told = count.0.load(Ordering::Relaxed);
        assert_eq!(
            told,
            if completion == Completion::AtOnce {
                0
            } else {
                101 * 16
            }
        );
        assert!(sim.violations().is_empty());
    }
}
