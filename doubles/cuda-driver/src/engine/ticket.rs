//! Objects that outlive work: tickets, which report its end, and bars, at which it waits.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// The part of a gate at which work waits.
#[derive(Clone, Default)]
pub struct Bar {
    /// Taken under the engine's lock, and calls nothing.
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    open: bool,
    numbers: Vec<u64>,
}

impl Bar {
    /// Lets all work pass from now on. Returns the works that wait.
    pub(super) fn open(&self) -> Vec<u64> {
        let mut waiting = self.waiting();
        waiting.open = true;
        std::mem::take(&mut waiting.numbers)
    }

    /// Whether the work may pass; if not, it is recorded for the time when the gate opens.
    pub(super) fn admits(&self, number: u64) -> bool {
        let mut waiting = self.waiting();
        if !waiting.open {
            waiting.numbers.push(number);
        }
        waiting.open
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
