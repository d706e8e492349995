//! The user's own work as something that transfers wait for, or that waits for them.

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

    /// Whether the transfer has to wait; if so it is told when the event is set. Transfers that wait no longer, as
    /// `waits` says, are forgotten where there is no room for another one.
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

    /// Sets the event; answers who waited for it. Does nothing in a child of `fork`.
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

/// Something that happens once: set by the user's own code, or by a transfer when it is over.
///
/// A request lists events that it starts [after](crate::Request::after) and events that are set
/// [then](crate::Request::then). Clones are the same event.
///
/// An event is not waited for by itself: who needs to know waits for a transfer. What starts after an event that is
/// never set waits for good, unless it has a [deadline](crate::Request::deadline) or is cancelled: an event sets itself
/// neither when its last handle is dropped nor when its [setter](Event::setter) is, uncalled.
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

    /// Lets go on what waits for the event, now and in future. Does not block; transfers that can
    /// start do so on this thread. Setting it again changes nothing. In a child of `fork` it does nothing.
    pub fn set(&self) {
        let waiting = self.cell.set();
        self.shared.events_set(&waiting);
    }

    /// What sets the event from wherever that happens to be: a driver's callback, a signal's handler
    /// thread, a place that holds locks. It notes the fact and notifies, and runs nothing else: what
    /// waited starts on the thread that waits for it, or on the manager's own.
    ///
    /// It does not keep the manager alive.
    #[must_use = "the event is set only when this is called; dropped, it leaves what waits for the event waiting"]
    pub fn setter(&self) -> impl FnOnce() + MaybeSend + use<> {
        let cell = Arc::clone(&self.cell);
        let completions = Arc::clone(&self.shared.completions);
        move || completions.tell(&cell.set())
    }

    /// Whether it was set. False in a child of `fork`.
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
