//! Delivers outcomes from the state to the sink, with no lock held.

use std::sync::{Arc, PoisonError};

use transload_hal::{Fence, Outcome};

use super::completion::Completion;
use super::shared::{BACKEND, Shared};
use super::state::Phase;

/// The result of a wait for a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// The sink has been told, or need not be told.
    Told,
    /// Another thread is telling the sink of this fence.
    Delivering(u64),
    /// An event happened, or an outcome can be reported now.
    Moved,
    /// No event happens before the deadline, and the clock has reached the deadline.
    OutOfTime,
}

impl Shared {
    /// Executes one event, if it is due by then.
    pub(super) fn step(&self, limit_ns: u64) -> bool {
        let mut state = self.lock();
        let stepped = state.step(limit_ns);
        self.clock.set(state.now);
        stepped
    }

    /// Moves the clock to `ns` if no event is due before.
    pub(super) fn move_clock(&self, ns: u64) {
        let mut state = self.lock();
        state.now = state.now.max(ns);
        self.clock.set(state.now);
    }

    pub(super) fn deliver_unless_pumped(&self) {
        if self.lock().completion != Completion::Pumped {
            self.deliver();
        }
    }

    /// Reports all due outcomes to the sink.
    pub(super) fn deliver(&self) {
        while self.deliver_one() {}
    }

    /// Checks fences and, if all are pending, executes the next event. Both happen under one lock: otherwise a step of
    /// another thread in between would look like a time-out.
    pub(super) fn advance(&self, fences: &[Fence], deadline_ns: u64) -> Progress {
        let mut state = self.lock();
        for number in fences.iter().map(Fence::number) {
            match state.fence(number).map(|fence| fence.phase) {
                None if number <= state.last_number => return Progress::Told,
                Some(Phase::Silent) => return Progress::Told,
                Some(Phase::Delivering) => return Progress::Delivering(number),
                Some(Phase::Due) => return Progress::Moved,
                // A number that was never issued counts as pending.
                Some(Phase::Pending) | None => {}
            }
        }
        let stepped = state.step(deadline_ns);
        if !stepped {
            state.now = state.now.max(deadline_ns);
        }
        self.clock.set(state.now);
        if stepped {
            Progress::Moved
        } else {
            Progress::OutOfTime
        }
    }

    /// Blocks until the other thread has told the sink.
    pub(super) fn await_delivery(&self, number: u64) {
        let mut state = self.lock();
        while state
            .fence(number)
            .is_some_and(|fence| fence.phase == Phase::Delivering)
        {
            state = self
                .delivered
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn deliver_one(&self) -> bool {
        let mut state = self.lock();
        if state.outbox.is_empty() {
            return false;
        }
        let at = match state.completion {
            Completion::OutOfOrder { .. } => state.random() as usize % state.outbox.len(),
            _ => 0,
        };
        let Some(slot) = state.outbox.remove(at) else {
            return false;
        };
        let Some(fence) = state.fences.get_mut(slot) else {
            return true;
        };
        fence.phase = Phase::Delivering;
        let number = fence.number;
        let outcome = std::mem::replace(&mut fence.outcome, Outcome::Done);
        let reenter = state.completion == Completion::Reentrant;
        drop(state);

        let fence = Fence::new(BACKEND, number);
        let told = reenter.then(|| outcome.clone());
        let delivery = Delivery {
            shared: self,
            slot,
            number,
        };
        if let Some(sink) = self.sink.get() {
            sink.settle(fence, outcome);
        }
        drop(delivery);
        if let Some(outcome) = told {
            self.call_hook(fence, &outcome);
        }
        true
    }

    /// The hook is taken out of its place while it runs, so calls never nest.
    fn call_hook(&self, fence: Fence, outcome: &Outcome) {
        let take = || {
            self.hook
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take()
        };
        let Some(hook) = take() else {
            return;
        };
        let back = PutBack { shared: self, hook };
        back.hook.settled(fence, outcome);
    }
}

/// Ends a delivery, even if the sink panics: the fence was reported, and no thread waits for it longer.
struct Delivery<'a> {
    shared: &'a Shared,
    slot: u32,
    number: u64,
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.by_number.remove(&self.number);
        state.fences.remove(self.slot);
        drop(state);
        self.shared.delivered.notify_all();
    }
}

struct PutBack<'a> {
    shared: &'a Shared,
    hook: Arc<dyn super::Hook>,
}

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        let place = self.shared.hook.lock();
        let mut place = place.unwrap_or_else(PoisonError::into_inner);
        // If another hook was set meanwhile, that one stays.
        place.get_or_insert_with(|| Arc::clone(&self.hook));
    }
}
