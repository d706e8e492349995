//! Objects that outlive work: tickets, which report its end, and gates at which work waits.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Shared;

/// Reports whether work is done. Keeps no other part of the work alive.
#[derive(Clone)]
pub struct Ticket {
    pub(super) done: Arc<Done>,
}

impl Ticket {
    /// Whether the work is done. If it is, the caller sees the bytes that it moved.
    pub fn is_done(&self) -> bool {
        self.done_at_ns().is_some()
    }

    /// The time at which the work was done, by the engine's clock. In real time a move's bytes may have arrived later
    /// than this modelled end.
    pub fn done_at_ns(&self) -> Option<u64> {
        match self.done.at_ns.load(Ordering::Acquire) {
            NOT_DONE => None,
            at_ns => Some(at_ns),
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.done_at_ns() {
            Some(at_ns) => write!(f, "work {}, done at {at_ns} ns", self.done.number),
            None => write!(f, "work {}, not done", self.done.number),
        }
    }
}

/// No clock reads it: that would take 584 years.
const NOT_DONE: u64 = u64::MAX;

/// One work's end. Only the engine's lock holder sets it.
pub(super) struct Done {
    pub(super) number: u64,
    at_ns: AtomicU64,
}

impl Done {
    pub(super) fn new(number: u64) -> Arc<Done> {
        Arc::new(Done {
            number,
            at_ns: AtomicU64::new(NOT_DONE),
        })
    }

    pub(super) fn set(&self, at_ns: u64) {
        self.at_ns.store(at_ns.min(NOT_DONE - 1), Ordering::Release);
    }
}

/// A condition that work waits for and that is not submitted work, such as a semaphore that another process signals.
/// Opens once.
#[derive(Clone)]
pub struct Gate {
    engine: Weak<Shared>,
    /// Taken under the engine's lock, and calls nothing.
    bar: Arc<Mutex<Bar>>,
}

#[derive(Default)]
struct Bar {
    open: bool,
    waiting: Vec<u64>,
}

impl Gate {
    pub(super) fn new(engine: &Arc<Shared>) -> Gate {
        Gate {
            engine: Arc::downgrade(engine),
            bar: Arc::default(),
        }
    }

    /// Lets all work pass that waits here or ever will. The waiting work is done when this returns.
    pub fn open(&self) {
        let Some(shared) = self.engine.upgrade() else {
            return;
        };
        let mut state = shared.lock();
        let waiting = {
            let mut bar = self.bar();
            bar.open = true;
            std::mem::take(&mut bar.waiting)
        };
        let now = shared.now_ns(&state);
        state.graph.finish(now, waiting);
        drop(state);
        shared.tell();
    }

    /// Whether the work may pass; if not, it is recorded for the time when the gate opens.
    pub(super) fn admits(&self, number: u64) -> bool {
        let mut bar = self.bar();
        if !bar.open {
            bar.waiting.push(number);
        }
        bar.open
    }

    fn bar(&self) -> std::sync::MutexGuard<'_, Bar> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
