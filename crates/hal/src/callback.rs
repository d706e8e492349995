//! Callbacks of the program's that backends run.

/// Runs a callback of the program's, and marks the thread meanwhile.
///
/// A backend calls this where a callback may run on a thread that settles fences: what the callback waited for there
/// would never end. While the thread is marked the engine refuses to wait on it. A backend whose callback may run on
/// either kind of thread marks both, so that a program gets the same answer each time.
///
/// A callback that unwinds unwinds out of this, and the thread is as before.
pub fn run_callback<R>(callback: impl FnOnce() -> R) -> R {
    let _running = mark::Running::new();
    callback()
}

/// Whether this thread is inside [`run_callback`]. Without the feature `std` no thread can be marked, and the answer is
/// false.
pub fn in_callback() -> bool {
    mark::depth() > 0
}

#[cfg(feature = "std")]
mod mark {
    use std::cell::Cell;
    use std::thread_local;

    thread_local! {
        static DEPTH: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) struct Running;

    impl Running {
        pub(super) fn new() -> Running {
            DEPTH.set(DEPTH.get() + 1);
            Running
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }

    pub(super) fn depth() -> u32 {
        DEPTH.get()
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

    pub(super) fn depth() -> u32 {
        0
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
