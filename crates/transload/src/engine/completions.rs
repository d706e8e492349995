//! Where news is put, from any thread and any callback: outcomes by backends, events by users.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use transload_hal::{CompletionSink, Fence, Outcome};

use super::active::TransferId;
use super::signal::Signal;
use super::sync::{AtomicUsize, Lock};

/// The queue between backends and the engine. Settling a fence queues its outcome and notifies, no
/// more: it takes no other lock and calls nothing, so it is safe inside drivers' callbacks.
pub(crate) struct Completions {
    queue: Lock<VecDeque<(Fence, Outcome)>>,
    /// How many there are, so that whoever finds none need not take the lock.
    len: AtomicUsize,
    /// Transfers one of whose events was set where the engine must not be turned.
    awaited: Lock<VecDeque<TransferId>>,
    /// How many there are.
    awaited_len: AtomicUsize,
    signal: Arc<Signal>,
}

impl Completions {
    /// A queue with room for as many outcomes as are usually under way; it grows if there are more.
    const CAPACITY: usize = 256;

    /// How many outcomes, or transfers that waited for an event, one step takes in: what others want to do under the
    /// engine's lock waits for no more.
    pub(crate) const AT_ONCE: usize = 256;

    pub(crate) fn new(signal: Arc<Signal>) -> Completions {
        Completions {
            queue: Lock::new(VecDeque::with_capacity(Completions::CAPACITY)),
            len: AtomicUsize::new(0),
            awaited: Lock::new(VecDeque::new()),
            awaited_len: AtomicUsize::new(0),
            signal,
        }
    }

    /// Whether anything waits to be taken.
    pub(crate) fn has_any(&self) -> bool {
        let count = |len: &AtomicUsize| len.load(Ordering::Acquire);
        count(&self.len) > 0 || count(&self.awaited_len) > 0
    }

    /// The oldest outcome that nobody has taken.
    pub(crate) fn take(&self) -> Option<(Fence, Outcome)> {
        // Who sees 0 here while an outcome is on its way is notified after it has arrived.
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.queue.with(|queue| {
            let outcome = queue.pop_front()?;
            self.len.store(queue.len(), Ordering::Release);
            Some(outcome)
        })
    }

    /// Queues word to transfers that an event which they waited for was set, and notifies, no more.
    pub(crate) fn tell(&self, waiting: &[TransferId]) {
        if waiting.is_empty() {
            return;
        }
        self.awaited.with(|awaited| {
            awaited.extend(waiting);
            self.awaited_len.store(awaited.len(), Ordering::Release);
        });
        self.signal.notify();
    }

    /// A transfer one of whose events was set, once for each of them.
    pub(crate) fn take_awaited(&self) -> Option<TransferId> {
        if self.awaited_len.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.awaited.with(|awaited| {
            let id = awaited.pop_front()?;
            self.awaited_len.store(awaited.len(), Ordering::Release);
            Some(id)
        })
    }
}

impl CompletionSink for Completions {
    fn settle(&self, fence: Fence, outcome: Outcome) {
        self.queue.with(|queue| {
            queue.push_back((fence, outcome));
            self.len.store(queue.len(), Ordering::Release);
        });
        self.signal.notify();
    }
}
