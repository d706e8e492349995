//! The queue of news for the engine, from any thread and any callback: outcomes from backends, events from users.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use transload_hal::{CompletionSink, Fence, Outcome};

use super::signal::Signal;
use super::sync::{AtomicUsize, Lock};
use super::trace::Recorder;
#[cfg(threads)]
use super::trace::What;
use super::types::TransferId;

/// The queue between backends and the engine. Settling a fence queues its outcome and notifies, and does nothing else:
/// it takes no other lock and runs no other code, except the clock's for a trace, so it is safe inside drivers' callbacks.
pub(crate) struct Completions {
    queue: Lock<VecDeque<(Fence, Outcome)>>,
    /// The number of outcomes, so that a thread that finds 0 need not take the lock.
    len: AtomicUsize,
    /// Transfers of which an event was set where the engine must not be turned.
    awaited: Lock<VecDeque<TransferId>>,
    /// Their number.
    awaited_len: AtomicUsize,
    signal: Arc<Signal>,
    /// Notes ends when they are told. Where there is one thread, and its clock need not be `Sync`, the engine notes them when it
    /// takes them in.
    #[cfg(threads)]
    recorder: Option<Arc<Recorder>>,
}

impl Completions {
    /// A queue with room for as many outcomes as are usually under way; it grows if there are more.
    const CAPACITY: usize = 256;

    /// How many outcomes, or transfers that waited for an event, one step takes in: other threads that want the
    /// engine's lock wait no longer than that.
    pub(crate) const AT_ONCE: usize = 256;

    pub(crate) fn new(signal: Arc<Signal>, recorder: Option<Arc<Recorder>>) -> Completions {
        #[cfg(not(threads))]
        drop(recorder);
        Completions {
            queue: Lock::new(VecDeque::with_capacity(Completions::CAPACITY)),
            len: AtomicUsize::new(0),
            awaited: Lock::new(VecDeque::new()),
            awaited_len: AtomicUsize::new(0),
            signal,
            #[cfg(threads)]
            recorder,
        }
    }

    /// Returns whether anything is queued.
    pub(crate) fn has_any(&self) -> bool {
        let count = |len: &AtomicUsize| len.load(Ordering::Acquire);
        count(&self.len) > 0 || count(&self.awaited_len) > 0
    }

    /// Takes the oldest outcome.
    pub(crate) fn take(&self) -> Option<(Fence, Outcome)> {
        // A thread that reads 0 here while an outcome is being queued is notified after the outcome was queued.
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.queue.with(|queue| {
            let outcome = queue.pop_front()?;
            self.len.store(queue.len(), Ordering::Release);
            Some(outcome)
        })
    }

    /// Queues transfers whose event was set, and notifies.
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

    /// Takes a transfer whose event was set, once for each of its events.
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
        #[cfg(threads)]
        if let Some(recorder) = &self.recorder {
            let what = What::settled(fence, &outcome);
            recorder.add_at(recorder.now(), what);
        }
        self.queue.with(|queue| {
            queue.push_back((fence, outcome));
            self.len.store(queue.len(), Ordering::Release);
        });
        self.signal.notify();
    }
}
