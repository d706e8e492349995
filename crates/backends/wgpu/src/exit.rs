//! The end of the process.
//!
//! A process that returns from `main` or calls `exit` runs exit handlers and destructors of libraries on one thread. All
//! other threads run on meanwhile. A driver destroys its own state there, and one of its threads that still carries out
//! commands may crash: SwiftShader deletes the thread-local keys of its scheduler, and a dispatch on its queue thread, or the
//! end of a device, then reads a null pointer.
//!
//! So this backend registers an exit handler, too. It refuses new work and waits until the work under way has ended. Exit
//! handlers run in the opposite order of their registration, so it runs before those of drivers that were loaded earlier.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use transload_hal::{Guard, Owner};

/// How many [`Inside`] there are, and [`CLOSED`] once the process ends.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

const CLOSED: usize = 1 << (usize::BITS - 1);

/// Tells the handler that the last one has gone. Nothing else is done under the lock.
static LAST: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// Work of this backend in a driver: a call, or a submission that has not settled. The exit handler waits for it.
pub(crate) struct Inside(());

impl Inside {
    /// Begins work; `None` once the process ends.
    pub(crate) fn enter() -> Option<Inside> {
        let inside = Inside(());
        // Relaxed here and below: one number orders itself, and guards no other memory.
        let before = INSIDE.fetch_add(1, Ordering::Relaxed);
        (before & CLOSED == 0).then_some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Release: the handler sees the driver's state as this work left it.
        if INSIDE.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            let _waits = LAST.0.lock();
            LAST.1.notify_all();
        }
    }
}

/// Keeps a device. The last one lets go of it as work of this backend, or leaks it once the process ends: a driver that
/// shuts down must not destroy a device as well.
pub(crate) struct Lease {
    handles: Option<(wgpu::Device, wgpu::Queue)>,
}

impl Lease {
    pub(crate) fn new(device: &wgpu::Device, queue: &wgpu::Queue) -> Lease {
        Lease {
            handles: Some((device.clone(), queue.clone())),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let inside = Inside::enter();
        let handles = self.handles.take();
        match inside {
            Some(_) => drop(handles),
            None => mem::forget(handles),
        }
    }
}

impl Guard for Lease {
    /// Drops or leaks a buffer of the device in the same way.
    fn release(self: Box<Self>, owner: Box<dyn Owner>) {
        let inside = Inside::enter();
        match inside {
            Some(_) => drop(owner),
            None => mem::forget(owner),
        }
    }
}

/// Registers the exit handler. The backend calls this for each set of devices, since their drivers may have been loaded
/// after the last call. The handler then runs as often, and waits once.
#[cfg(unix)]
pub(crate) fn watch() {
    use std::ffi::c_int;
    use std::sync::{OnceLock, PoisonError};
    use std::time::{Duration, Instant};

    use transload_hal::Process;

    /// How long a driver that hangs delays the end of the process.
    const LIMIT: Duration = Duration::from_secs(2);

    static DEADLINE: OnceLock<Instant> = OnceLock::new();
    static PROCESS: OnceLock<Process> = OnceLock::new();

    unsafe extern "C" {
        /// C23, 7.24.4.2.
        fn atexit(handler: extern "C" fn()) -> c_int;
    }
    /// Takes no other lock than its own: the thread that ends the process may hold any.
    extern "C" fn at_exit() {
        // A child of `fork` has a copy of the number, but not of the threads that would lower it.
        if PROCESS.get().is_none_or(|process| !process.is_current()) {
            return;
        }
        INSIDE.fetch_or(CLOSED, Ordering::Relaxed);
        let deadline = DEADLINE.get_or_init(|| Instant::now() + LIMIT);
        let mut waits = LAST.0.lock().unwrap_or_else(PoisonError::into_inner);
        while INSIDE.load(Ordering::Acquire) != CLOSED {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = LAST.1.wait_timeout(waits, left);
            waits = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    PROCESS.get_or_init(Process::current);
    // SAFETY: the handler does not unwind. The C library forgets handlers of a library that is unloaded.
    let refused = unsafe { atexit(at_exit) };
    // The only refusal is that there is no memory for the entry. Then the process ends as it would without this.
    let _ = refused;
}

/// Windows ends all other threads before it runs destructors of libraries.
#[cfg(not(unix))]
pub(crate) fn watch() {}

#[cfg(all(test, unix))]
mod tests {
    use std::env;
    use std::process::{self, Command};

    use super::*;

    const CHILD: &str = "TRANSLOAD_TEST_CHILD";

    #[test]
    fn work_that_never_ends_does_not_keep_the_process() {
        if env::var_os(CHILD).is_some() {
            watch();
            mem::forget(Inside::enter());
            process::exit(3);
        }
        let name = "exit::tests::work_that_never_ends_does_not_keep_the_process";
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
        assert_eq!(child.status().unwrap().code(), Some(3));
    }
}
