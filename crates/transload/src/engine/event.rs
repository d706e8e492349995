//! Events: the program's own work as something that transfers wait for, or that waits for them.

use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_hal::{MaybeSend, Process};

use super::active::TransferId;
use super::shared::Shared;
use super::sync::Lock;

pub(crate) struct EventCell {
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

impl EventCell {
    pub(crate) fn new(shared: &Shared) -> EventCell {
        EventCell {
            manager: shared.serial,
            process: shared.process,
            inner: Lock::default(),
        }
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
        if !self.process.is_current() {
            return Vec::new();
        }
        self.inner.with(|inner| {
            inner.set = true;
            core::mem::take(&mut inner.waiting)
        })
    }
}

/// Something that happens once. The program's own code sets it, or a transfer when it is over.
///
/// A request lists events that it starts [after](crate::Request::after) and events that are set
/// [then](crate::Request::then). Clones are the same event.
///
/// A thread cannot wait for an event, only for a transfer. A transfer after an event that is never set waits for ever,
/// unless it has a [deadline](crate::Request::deadline) or is cancelled: dropping the last handle of an event, or its
/// [setter](Event::setter) without a call, does not set it.
#[derive(Clone)]
pub struct Event {
    pub(crate) cell: Arc<EventCell>,
    pub(crate) shared: Arc<Shared>,
}

impl Event {
    pub(crate) fn new(shared: Arc<Shared>) -> Event {
        Event {
            cell: Arc::new(EventCell::new(&shared)),
            shared,
        }
    }

    /// Sets the event. Transfers that start after it may start, now and in future. Does not block; transfers that can
    /// start do so on this thread. Setting it again changes nothing. In a child of `fork` it does nothing.
    pub fn set(&self) {
        let waiting = self.cell.set();
        self.shared.events_set(&waiting);
    }

    /// Returns a function that sets the event from any context: a driver's callback, a signal handler's thread, code
    /// that holds locks. The function notes the fact and notifies, and runs nothing else: transfers start on the thread
    /// that waits for them, or on the manager's own.
    ///
    /// The function does not keep the manager alive.
    #[must_use = "the event is set only when this is called; dropped, it leaves what waits for the event waiting"]
    pub fn setter(&self) -> impl FnOnce() + MaybeSend + use<> {
        let cell = Arc::clone(&self.cell);
        let completions = Arc::clone(&self.shared.completions);
        move || completions.tell(&cell.set())
    }

    /// Returns whether the event was set. False in a child of `fork`.
    pub fn is_set(&self) -> bool {
        self.cell.process.is_current() && self.cell.inner.with(|inner| inner.set)
    }
}

impl core::fmt::Debug for Event {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Event")
            .field("set", &self.is_set())
            .finish()
    }
}
