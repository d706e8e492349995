//! Backends run callbacks of the program.

/// Runs a callback of the program, and marks the thread meanwhile.
///
/// A backend calls this where a callback may run on a thread that settles fences: a wait for such a fence in the
/// callback would never end. While the thread is marked, the engine refuses to wait on it. A backend whose callback may
/// run on either kind of thread marks both, so that a program gets the same answer each time.
///
/// If the callback unwinds, so does this function, and the thread's mark is as before.
pub fn run_callback<R>(callback: impl FnOnce() -> R) -> R {
    let _running = mark::Running::new();
    callback()
}

/// Returns whether this thread is inside [`run_callback`], or [is ending](is_ending). The engine enters no driver on
/// such a thread. Without the feature `std` the answer is false.
pub fn in_callback() -> bool {
    mark::depth().is_none_or(|depth| depth > 0)
}

/// Returns whether the thread-local values of this thread have been destroyed, as far as they were first used after the
/// first call of this. A driver that keeps such values may panic on the thread.
pub fn is_ending() -> bool {
    mark::depth().is_none()
}

#[cfg(feature = "std")]
mod mark {
    use std::cell::Cell;
    use std::thread_local;

    /// The number of callbacks that the thread is inside of. Its destructor makes this thread-local value one that is
    /// destroyed with the others.
    struct Depth(Cell<u32>);

    impl Drop for Depth {
        fn drop(&mut self) {}
    }

    thread_local! {
        static DEPTH: Depth = const { Depth(Cell::new(0)) };
    }

    /// Does nothing when the value has been destroyed.
    fn change(by: i32) {
        let _ = DEPTH.try_with(|depth| depth.0.set(depth.0.get().wrapping_add_signed(by)));
    }

    pub(super) struct Running;

    impl Running {
        pub(super) fn new() -> Running {
            change(1);
            Running
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            change(-1);
        }
    }

    pub(super) fn depth() -> Option<u32> {
        DEPTH.try_with(|depth| depth.0.get()).ok()
    }
}

#[cfg(not(feature = "std"))]
mod mark {
    pub(super) struct Running;

    impl Running {
        pub(super) fn new() -> Running {
            Running
        }
    }

    pub(super) fn depth() -> Option<u32> {
        Some(0)
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_thread_is_marked_while_a_callback_runs_on_it() {
        assert!(!in_callback());
        let (outside, inside) = run_callback(|| (in_callback(), run_callback(in_callback)));
        assert_eq!((outside, inside), (true, true));
        let unwound = catch_unwind(AssertUnwindSafe(|| run_callback(|| panic!("on purpose"))));
        assert!(unwound.is_err());
        assert!(!in_callback());
        run_callback(|| assert!(!std::thread::spawn(in_callback).join().unwrap()));
    }
}
