//! One thread that turns the engine when nobody else does: for futures and for detached transfers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::engine::shared::Shared;
use crate::engine::signal::Signal;

/// The thread, started by the first transfer that needs it. While nothing is under way it is parked
/// without a timer, and holds nothing of the manager alive.
pub(crate) struct Driver {
    running: AtomicBool,
    post: Arc<Post>,
}

/// Where the thread finds what it is to look after.
struct Post {
    /// A manager that has work for the thread. A counted handle, so that the manager cannot go
    /// between the moment in which a transfer is detached and the one in which the thread looks.
    handed: Mutex<Option<Arc<Shared>>>,
    closed: AtomicBool,
    signal: Arc<Signal>,
}

impl Driver {
    pub(crate) fn new(signal: Arc<Signal>) -> Driver {
        Driver {
            running: AtomicBool::new(false),
            post: Arc::new(Post {
                handed: Mutex::new(None),
                closed: AtomicBool::new(false),
                signal,
            }),
        }
    }

    /// Starts the thread if it does not run, and has it look.
    pub(crate) fn ensure(&self, shared: &Arc<Shared>) {
        if !self.running.swap(true, Ordering::AcqRel) {
            let post = Arc::clone(&self.post);
            let started = thread::Builder::new()
                .name("transload".into())
                .spawn(move || run(&post));
            if started.is_err() {
                // Whoever waits turns the engine itself; the next one tries again.
                self.running.store(false, Ordering::Release);
                return;
            }
        }
        self.post.hand(Some(Arc::clone(shared)));
        self.post.signal.notify();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.post.closed.store(true, Ordering::Release);
        self.post.signal.notify();
    }
}

impl Post {
    fn hand(&self, shared: Option<Arc<Shared>>) -> Option<Arc<Shared>> {
        let mut handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::replace(&mut *handed, shared)
    }
}

fn run(post: &Post) {
    loop {
        let seen = post.signal.seen();
        // Held until nothing is under way, so that detached transfers complete; then let go, so that
        // an idle manager can go.
        if let Some(shared) = post.hand(None) {
            while shared.drive() {}
            continue;
        }
        if post.closed.load(Ordering::Acquire) {
            return;
        }
        post.signal.park(seen, None);
    }
}
