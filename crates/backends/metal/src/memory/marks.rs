//! Which copy of a managed buffer is the newer one.
//!
//! Of a managed buffer host and device have a copy each. What a device wrote the host sees after a
//! `synchronizeResource`, which brings all of the buffer: so none is ordered where the device wrote nothing since
//! the last one, and none may run while the host writes, whose bytes it would overwrite with the device's old ones.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What is known of a buffer's copies.
#[derive(Default)]
pub(crate) struct Marks {
    /// How many submissions have written it on the device.
    written: AtomicU64,
    /// How many of these the host's copy has.
    shown: AtomicU64,
    /// Others may write it, too.
    is_given_out: AtomicBool,
    /// How many synchronizations are under way. Held by the host while it writes.
    running: Mutex<u32>,
    /// None is.
    quiet: Condvar,
}

impl Marks {
    /// Others have the buffer from now on.
    pub(crate) fn give_out(&self) {
        self.is_given_out.store(true, Ordering::Relaxed);
    }

    /// A submission that writes it has been handed over.
    pub(crate) fn wrote(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the host's copy may be out of date.
    pub(crate) fn is_news(&self) -> bool {
        let written = self.written.load(Ordering::Acquire);
        let is_new = self.shown.load(Ordering::Acquire) < written;
        is_new || self.is_given_out.load(Ordering::Relaxed)
    }

    /// Begins a synchronization where one is needed. The answer is for [`Marks::end`].
    pub(crate) fn begin(&self) -> Option<u64> {
        let mut running = self.lock();
        let written = self.written.load(Ordering::Acquire);
        if !self.is_news() {
            return None;
        }
        *running += 1;
        Some(written)
    }

    /// A synchronization is over, well or not.
    pub(crate) fn end(&self, written: u64, is_done: bool) {
        if is_done {
            self.shown.fetch_max(written, Ordering::AcqRel);
        }
        let mut running = self.lock();
        *running -= 1;
        if *running == 0 {
            self.quiet.notify_all();
        }
    }

    /// Has the host write while no synchronization runs. Blocks until those are over that do, each a copy within the
    /// machine.
    pub(crate) fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        let mut running = self.lock();
        while *running > 0 {
            running = self
                .quiet
                .wait(running)
                .unwrap_or_else(PoisonError::into_inner);
        }
        write()
    }

    fn lock(&self) -> MutexGuard<'_, u32> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_writes_when_no_synchronization_runs() {
        let (marks, told) = (Marks::default(), Mutex::new(Vec::new()));
        marks.wrote();
        let running = marks.begin().unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| marks.write(|| told.lock().unwrap().push("written")));
            std::thread::yield_now();
            told.lock().unwrap().push("over");
            marks.end(running, true);
            writer.join().unwrap();
        });
        assert_eq!(*told.lock().unwrap(), ["over", "written"]);
    }

    #[test]
    fn the_host_is_shown_what_is_new_and_no_more() {
        let marks = Marks::default();
        assert_eq!(marks.begin(), None, "the device wrote nothing");
        marks.wrote();
        let first = marks.begin().unwrap();
        marks.wrote();
        marks.end(first, true);
        let second = marks.begin().expect("it was written meanwhile");
        marks.end(second, false);
        let third = marks.begin().expect("the last one failed");
        marks.end(third, true);
        assert_eq!(marks.begin(), None);
        marks.give_out();
        assert!(marks.begin().is_some(), "nobody knows what others wrote");
    }
}
