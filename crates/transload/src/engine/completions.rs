//! Where backends put outcomes, from any thread and any callback.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use transload_hal::{CompletionSink, Fence, Outcome};

use super::signal::Signal;
use super::sync::{AtomicUsize, Lock};

/// The queue between backends and the engine. Settling a fence queues its outcome and notifies, no
/// more: it takes no other lock and calls nothing, so it is safe inside drivers' callbacks.
pub(crate) struct Completions {
    queue: Lock<VecDeque<(Fence, Outcome)>>,
    /// How many there are, so that whoever finds none need not take the lock.
    len: AtomicUsize,
    signal: Arc<Signal>,
}

impl Completions {
    /// A queue with room for as many outcomes as are usually under way; it grows if there are more.
    const CAPACITY: usize = 256;

    pub(crate) fn new(signal: Arc<Signal>) -> Completions {
        Completions {
            queue: Lock::new(VecDeque::with_capacity(Completions::CAPACITY)),
            len: AtomicUsize::new(0),
            signal,
        }
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
