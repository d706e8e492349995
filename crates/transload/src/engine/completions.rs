//! The queue of news for the engine, from any thread and any callback: outcomes from backends, events from users.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use transload_hal::{CompletionSink, Fence, Outcome};

use super::event::{Awaited, Waiting};
use super::signal::Signal;
use super::sync::{AtomicUsize, Lock};
use super::trace::Recorder;
#[cfg(threads)]
use super::trace::What;

/// The queue between backends and the engine. Settling a fence queues its outcome and notifies, and does nothing else:
/// it takes no other lock and runs no other code, except the clock's for a trace, so it is safe inside drivers' callbacks.
pub(crate) struct Completions {
    queue: Lock<VecDeque<(Fence, Outcome)>>,
    /// The number of outcomes, so that a thread that finds 0 need not take the lock.
    len: AtomicUsize,
    /// Transfers of which an event was set where the engine must not be turned.
    awaited: Lock<Awaited>,
    /// Whether there are any: 0 or 1.
    has_awaited: AtomicUsize,
    signal: Arc<Signal>,
    /// Notes ends when they are told. Where there is one thread, and its clock need not be `Sync`, the engine notes them when it
    /// takes them in.
    #[cfg(threads)]
    recorder: Option<Arc<Recorder>>,
}

impl Completions {
    /// A queue with room for as many outcomes as are usually under way; it grows if there are more.
    const CAPACITY: usize = 256;

    /// How many outcomes one step takes in, how many transfers it launches, looks at or ends at their deadline: other
    /// threads that want the engine's lock wait no longer than that.
    pub(crate) const AT_ONCE: usize = 256;

    pub(crate) fn new(signal: Arc<Signal>, recorder: Option<Arc<Recorder>>) -> Completions {
        #[cfg(not(threads))]
        drop(recorder);
        Completions {
            queue: Lock::new(VecDeque::with_capacity(Completions::CAPACITY)),
            len: AtomicUsize::new(0),
            awaited: Lock::new(Awaited::default()),
            has_awaited: AtomicUsize::new(0),
            signal,
            #[cfg(threads)]
            recorder,
        }
    }

    /// Returns whether anything is queued.
    pub(crate) fn has_any(&self) -> bool {
        let has = |len: &AtomicUsize| len.load(Ordering::Acquire) > 0;
        has(&self.len) || has(&self.has_awaited)
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
    pub(crate) fn tell(&self, waiting: Waiting) {
        if waiting.len() == 0 {
            return;
        }
        self.awaited.with(|awaited| {
            awaited.push(waiting);
            self.has_awaited.store(1, Ordering::Release);
        });
        self.signal.notify();
    }

    /// Moves the transfers whose event was set to `to`.
    #[inline]
    pub(crate) fn take_awaited(&self, to: &mut Awaited) {
        if self.has_awaited.load(Ordering::Acquire) > 0 {
            self.awaited.with(|awaited| {
                to.append(awaited);
                self.has_awaited.store(0, Ordering::Release);
            });
        }
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
