//! The state of an event, which transfers wait for or set.

use alloc::vec::Vec;

use transload_hal::Process;

use super::sync::Lock;
use super::types::TransferId;

pub(crate) struct EventState {
    /// The manager whose transfers may wait for it.
    pub(crate) manager: usize,
    /// The process of the manager. A child of `fork` does not touch the lock.
    process: Process,
    inner: Lock<Inner>,
}

#[derive(Default)]
struct Inner {
    set: bool,
    waiting: Vec<TransferId>,
}

impl EventState {
    pub(crate) fn new(manager: usize, process: Process) -> EventState {
        EventState {
            manager,
            process,
            inner: Lock::default(),
        }
    }

    /// Returns whether this process is a child of the one that made the event.
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Returns whether the transfer has to wait; if so, it is woken when the event is set. Where there is no room for
    /// another transfer, those that wait no longer, as `waits` says, are removed.
    pub(crate) fn subscribe(&self, id: TransferId, waits: impl Fn(TransferId) -> bool) -> bool {
        self.inner.with(|inner| {
            let waiting = &mut inner.waiting;
            if !inner.set && waiting.len() == waiting.capacity() {
                waiting.retain(|id| waits(*id));
                waiting.shrink_to(2 * waiting.len());
            }
            if !inner.set {
                waiting.push(id);
            }
            !inner.set
        })
    }

    /// Sets the event; returns the transfers that waited for it. Does nothing in a child of `fork`.
    pub(crate) fn set(&self) -> Vec<TransferId> {
        if self.is_forked() {
            return Vec::new();
        }
        self.inner.with(|inner| {
            inner.set = true;
            core::mem::take(&mut inner.waiting)
        })
    }

    /// Returns whether the event was set. False in a child of `fork`.
    pub(crate) fn is_set(&self) -> bool {
        !self.is_forked() && self.inner.with(|inner| inner.set)
    }
}
