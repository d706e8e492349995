//! The state of an event, which transfers wait for or set.

use alloc::collections::VecDeque;
use alloc::vec::{self, Vec};

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

/// The transfers that waited for an event, each as often as it did.
pub(crate) type Waiting = vec::IntoIter<TransferId>;

/// Transfers whose event was set and which the engine has not looked at yet, in the lists that their events had: setting
/// an event costs the same however many wait for it.
#[derive(Default)]
pub(crate) struct Awaited(VecDeque<Waiting>);

impl Awaited {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        if waiting.len() > 0 {
            self.0.push_back(waiting);
        }
    }

    /// Takes all lists out of `other`.
    pub(crate) fn append(&mut self, other: &mut Awaited) {
        self.0.append(&mut other.0);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn next(&mut self) -> Option<TransferId> {
        let first = self.0.front_mut()?;
        let id = first.next();
        if first.len() == 0 {
            self.0.pop_front();
        }
        id
    }
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
    pub(crate) fn subscribe(
        &self,
        id: TransferId,
        mut waits: impl FnMut(TransferId) -> bool,
    ) -> bool {
        self.inner.with(|inner| {
            let waiting = &mut inner.waiting;
            if !inner.set && waiting.len() == waiting.capacity() {
                waiting.retain(|id| waits(*id));
                waiting.shrink_to(2 * waiting.len());
                // So many more come before the next look at all of them.
                waiting.reserve(waiting.len());
            }
            if !inner.set {
                waiting.push(id);
            }
            !inner.set
        })
    }

    /// Sets the event; returns the transfers that waited for it. Does nothing in a child of `fork`.
    pub(crate) fn set(&self) -> Waiting {
        if self.is_forked() {
            return Vec::new().into_iter();
        }
        let waiting = self.inner.with(|inner| {
            inner.set = true;
            core::mem::take(&mut inner.waiting)
        });
        waiting.into_iter()
    }

    /// Returns whether the event was set. False in a child of `fork`.
    pub(crate) fn is_set(&self) -> bool {
        !self.is_forked() && self.inner.with(|inner| inner.set)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::types::Index;
    use super::*;

    #[test]
    fn transfers_that_come_and_go_beside_many_that_wait_for_an_event_are_looked_at_a_few_times_each()
     {
        let event = EventState::new(1, Process::current());
        let (mut looks, count) = (0, 1 << 14);
        for position in 0..2 * count {
            let id = TransferId {
                index: Index::of(position),
                generation: 0,
            };
            // One less than there is room for goes on to wait.
            let waits = |id: TransferId| {
                looks += 1;
                id.index.position() < count - 1
            };
            assert!(event.subscribe(id, waits));
        }
        assert!(looks <= 4 * count, "{looks} looks");
    }
}
