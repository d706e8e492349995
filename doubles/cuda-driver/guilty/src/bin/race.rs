//! Two threads write one number without any order between them: ThreadSanitizer must report that.

use std::cell::UnsafeCell;
use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

struct Shared(UnsafeCell<u64>);

// SAFETY: none is kept, and that is the fault: `add` writes without a lock.
unsafe impl Sync for Shared {}

impl Shared {
    fn add(&self) {
        let number = self.0.get();
        // SAFETY: the pointer is good for as long as `self` is; that no other thread writes is broken on purpose.
        let old = unsafe { number.read() };
        // SAFETY: as above.
        unsafe { number.write(old + 1) };
    }
}

fn main() {
    let shared = Shared(UnsafeCell::new(0));
    let there = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // Both threads live at once: the sanitizer keeps no history of a thread that ended before the other
                // began. The order is relaxed, so that it synchronizes nothing.
                there.fetch_add(1, Ordering::Relaxed);
                while there.load(Ordering::Relaxed) < 2 {
                    hint::spin_loop();
                }
                for _ in 0..1000 {
                    shared.add();
                }
            });
        }
    });
    println!("no sanitizer noticed: {}", shared.0.into_inner());
}
