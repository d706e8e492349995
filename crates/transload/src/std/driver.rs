//! One thread that turns the engine when nobody else does: for futures and for detached transfers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use crate::engine::shared::Shared;
use crate::engine::signal::Signal;

/// The thread, started by the first transfer that needs it. While nothing is under way it is parked
/// without a timer, and holds nothing of the manager alive.
pub(crate) struct Driver {
    running: AtomicBool,
    closed: Arc<AtomicBool>,
    signal: Arc<Signal>,
}

impl Driver {
    pub(crate) fn new(signal: Arc<Signal>) -> Driver {
        Driver {
            running: AtomicBool::new(false),
            closed: Arc::new(AtomicBool::new(false)),
            signal,
        }
    }

    /// Starts the thread if it does not run, and has it look.
    pub(crate) fn ensure(&self, shared: &Arc<Shared>) {
        if !self.running.swap(true, Ordering::AcqRel) {
            let shared = Arc::downgrade(shared);
            let signal = Arc::clone(&self.signal);
            let closed = Arc::clone(&self.closed);
            let started = thread::Builder::new()
                .name("transload".into())
                .spawn(move || run(&shared, &signal, &closed));
            if started.is_err() {
                // Whoever waits turns the engine itself; the next one tries again.
                self.running.store(false, Ordering::Release);
            }
        }
        self.signal.notify();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        self.signal.notify();
    }
}

fn run(shared: &Weak<Shared>, signal: &Signal, closed: &AtomicBool) {
    loop {
        let seen = signal.seen();
        // Held only while something is under way, so that detached transfers complete and an idle
        // manager can go.
        while let Some(shared) = shared.upgrade() {
            let seen = signal.seen();
            if !shared.drive(seen) {
                break;
            }
        }
        if closed.load(Ordering::Acquire) {
            return;
        }
        signal.park(seen, None);
    }
}
