//! The end of the process.
//!
//! A process that returns from `main` or calls `exit` runs the destructors of libraries on one thread, while all others run
//! on. A worker's thread in a call of UCX would then use what UCX has destroyed. So an exit handler, which runs before them,
//! waits until no thread is in a call, and keeps all threads out from then on.

use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

/// How long a call of UCX may delay the end of the process.
const LIMIT: Duration = Duration::from_secs(2);

struct Door {
    inside: usize,
    is_closed: bool,
}

static DOOR: Mutex<Door> = Mutex::new(Door {
    inside: 0,
    is_closed: false,
});

static LAST: Condvar = Condvar::new();

fn door() -> MutexGuard<'static, Door> {
    // Each change is whole when it may panic.
    DOOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that may call UCX.
pub(super) struct Inside(());

impl Inside {
    /// Does not return once the process ends.
    pub(super) fn enter() -> Inside {
        let mut door = door();
        if !door.is_closed {
            door.inside += 1;
            return Inside(());
        }
        drop(door);
        loop {
            thread::park();
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut door = door();
        door.inside -= 1;
        if door.is_closed && door.inside == 0 {
            LAST.notify_all();
        }
    }
}

/// Registers the exit handler, after UCX was loaded: handlers run in the opposite order of their registration.
pub(super) fn watch() {
    static WATCHED: Once = Once::new();
    extern "C" fn at_exit() {
        let mut door = door();
        door.is_closed = true;
        let _ = LAST.wait_timeout_while(door, LIMIT, |door| door.inside > 0);
    }
    WATCHED.call_once(|| {
        // SAFETY: the handler is a function of this program. If the system has no memory for it, UCX ends as without it.
        let _ = unsafe { libc::atexit(at_exit) };
    });
}
