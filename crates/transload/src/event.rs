//! Events: the program's own work as something that transfers wait for, or that waits for them.

use alloc::sync::Arc;

use transload_hal::MaybeSend;

use crate::engine::event::EventState;
use crate::engine::shared::Shared;

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
    pub(crate) state: Arc<EventState>,
    pub(crate) shared: Arc<Shared>,
}

impl Event {
    pub(crate) fn new(shared: Arc<Shared>) -> Event {
        Event {
            state: Arc::new(EventState::new(shared.serial, shared.process)),
            shared,
        }
    }

    /// Sets the event. Transfers that start after it may start, now and in future. Setting it again changes nothing. In a
    /// child of `fork` it does nothing.
    ///
    /// Does not block. This thread starts the first few hundred transfers, also those that wait for one that is over by
    /// then, and makes their small copies. The manager's own thread does the rest, however many there are. Where the
    /// manager has no thread (without the feature `std`, in the browser, with a clock of the program's), this call starts
    /// all of them and takes as long as that does; [`Event::setter`] leaves them to the next call that turns the engine.
    pub fn set(&self) {
        self.shared.event_set(self.state.set());
    }

    /// Returns a function that sets the event from any context: a driver's callback, a signal handler's thread, code
    /// that holds locks. The function notes the fact and notifies, and runs nothing else: transfers start on the thread
    /// that waits for them, or on the manager's own.
    ///
    /// The function does not keep the manager alive.
    #[must_use = "the event is set only when this is called; dropped, it leaves what waits for the event waiting"]
    pub fn setter(&self) -> impl FnOnce() + MaybeSend + use<> {
        let state = Arc::clone(&self.state);
        let completions = Arc::clone(&self.shared.completions);
        move || completions.tell(state.set())
    }

    /// Returns whether the event was set. False in a child of `fork`.
    pub fn is_set(&self) -> bool {
        self.state.is_set()
    }
}

impl core::fmt::Debug for Event {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Event")
            .field("set", &self.is_set())
            .finish()
    }
}
