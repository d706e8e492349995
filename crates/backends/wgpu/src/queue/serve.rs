//! One thread waits in the driver while operations are under way.
//!
//! One thread at a time serves a queue: a thread that waits for one of its fences, if there is one, since it then needs no
//! wake-up; else the queue's own thread.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use transload_hal::{Buffer, Fault, Fence, Outcome, Waited, run_callback};

use super::{Ended, Shared, State, Waiting};
use crate::gpu::PollFailure;
use crate::memory::{Slot, SlotStatus};
use crate::storage::{BACKEND, failed};

/// The longest time that a thread sleeps before it checks the state again.
const PATIENCE: Duration = Duration::from_millis(100);

/// A thread that may wait at least this long serves the queue, for as long as the driver takes, because a poll of a device
/// has no time limit (`Gpu::poll`). Threads with a shorter limit leave that to the queue's own thread.
const LONG: Duration = Duration::from_secs(600);

/// The right to serve the queue, given up when dropped.
struct Service<'a>(&'a Shared);

impl Drop for Service<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_served = false;
        let left = !state.flying.is_empty();
        drop(state);
        if left {
            self.0.work.notify_one();
        }
        self.0.sleepers.wake();
    }
}

impl Shared {
    /// Serves the queue until it closes and nothing is under way.
    pub(super) fn run(&self) {
        loop {
            let mut state = self.lock();
            while state.is_served || state.flying.is_empty() && !state.is_closing {
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if state.flying.is_empty() {
                return;
            }
            self.serve(state);
        }
    }

    /// Blocks until the fence has settled or the limit has passed, serving meanwhile if no other thread does.
    pub(super) fn wait(&self, number: u64, limit: Duration) -> Waited {
        let deadline = Instant::now().checked_add(limit);
        loop {
            let state = self.lock();
            if !state.pending.contains(&number) {
                return Waited::Settled;
            }
            let left = deadline.map_or(PATIENCE, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return Waited::TimedOut;
            }
            if state.is_served || state.flying.is_empty() || limit < LONG {
                drop(self.sleepers.sleep(state, left.min(PATIENCE)));
            } else {
                self.serve(state);
            }
        }
    }

    /// Blocks until the host can reach the slots, which requires that the submissions that use them have ended.
    pub(super) fn wait_for(&self, slots: &[Buffer]) {
        let mapped = |slot: &Buffer| slot.native::<Slot>().is_none_or(Slot::is_mapped);
        loop {
            let state = self.lock();
            if slots.iter().all(mapped) || state.flying.is_empty() {
                return;
            }
            drop(self.sleepers.sleep(state, PATIENCE));
        }
    }

    /// Serves the queue until nothing is under way.
    pub(super) fn finish_all(&self) {
        loop {
            let state = self.lock();
            match (state.flying.is_empty(), state.is_served) {
                (true, _) => return,
                (_, true) => drop(self.sleepers.sleep(state, PATIENCE)),
                (_, false) => self.serve(state),
            }
        }
    }

    /// Waits for the oldest submission, and settles it when it is over.
    fn serve(&self, mut state: MutexGuard<'_, State>) {
        let Some(index) = state.flying.front().map(Waiting::index) else {
            return;
        };
        state.is_served = true;
        drop(state);
        let _service = Service(self);
        if self.is_over(index) {
            self.finish_one();
        }
    }

    /// Blocks until everything submitted to the driver so far is over.
    pub(super) fn drain(&self) {
        let submit = || run_callback(|| self.gpu.queue.submit([]));
        loop {
            // A callback that panics is called once.
            let Ok(index) = catch_unwind(AssertUnwindSafe(submit)) else {
                continue;
            };
            while !self.is_over(index.clone()) {}
            return;
        }
    }

    /// Blocks until a submission is over, possibly lost with its device. Returns false if it may still run.
    fn is_over(&self, index: wgpu::SubmissionIndex) -> bool {
        match self.gpu.poll(wgpu::PollType::Wait {
            submission_index: Some(index),
            timeout: None,
        }) {
            Ok(()) | Err(PollFailure::Lost(_)) => true,
            // Even if the device is known to be lost: wgpu also reports a loss if the user destroys the device or memory ran
            // out, and earlier submissions then go on writing host memory.
            Err(PollFailure::Pending) => false,
            // The submission was made, but the device was lost.
            Err(PollFailure::NoSuch { .. }) => {
                self.gpu.note_loss();
                true
            }
        }
    }

    /// The oldest flight has ended, or its device is lost.
    fn finish_one(&self) {
        let oldest = self.lock().flying.pop_front();
        let flight = match oldest {
            Some(Waiting::Own(flight)) => flight,
            Some(Waiting::User(watch)) => return watch.tell(),
            None => return,
        };
        let mut outcome = match self.gpu.lost.get() {
            Some(fault) => Outcome::Lost(fault.clone()),
            None => Outcome::Done,
        };
        for import in flight.imports {
            if let (Err(fault), Outcome::Done) = (import.finish(&self.gpu), &outcome) {
                outcome = Outcome::Failed(fault);
            }
        }
        for slot in &flight.slots {
            if let (Err(fault), Outcome::Done) = (self.end_use(slot), &outcome) {
                outcome = Outcome::Failed(fault);
            }
        }
        if let (Some(fault), Outcome::Failed(_)) = (self.gpu.lost.get(), &outcome) {
            outcome = Outcome::Lost(fault.clone());
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.push(Ended {
            numbers: flight.numbers,
            slots: flight.slots,
            outcome,
        });
        let mut over = Vec::new();
        let mut at = 0;
        while at < ended.len() {
            match ended[at].is_over(self.gpu.lost.get()) {
                true => over.push(ended.remove(at)),
                false => at += 1,
            }
        }
        drop(ended);
        for Ended {
            numbers,
            slots,
            outcome,
        } in over
        {
            drop(slots);
            for number in numbers {
                if let Some(sink) = self.sink.get() {
                    sink.settle(Fence::new(BACKEND, number), outcome.clone());
                }
                self.lock().pending.remove(&number);
            }
        }
    }

    /// New numbers of fences, which are numbered through over all devices.
    pub(super) fn next_numbers(&self, count: u64) -> Range<u64> {
        let first = self.numbers.fetch_add(count, Ordering::Relaxed);
        first..first + count
    }
}

impl Ended {
    /// Whether the outcome can be reported: a slot that is in use again is not mapped for the host yet. A slot that can
    /// never be mapped again makes the operation fail.
    fn is_over(&mut self, lost: Option<&Fault>) -> bool {
        if self.outcome != Outcome::Done {
            return true;
        }
        let slots = self.slots.iter().filter_map(|slot| slot.native::<Slot>());
        let status: Vec<SlotStatus> = slots.map(Slot::status).collect();
        if status.contains(&SlotStatus::InUse) {
            return false;
        }
        if status.contains(&SlotStatus::Broken) {
            let failed = || Outcome::Failed(failed(&"a slot of it could not be mapped again"));
            self.outcome = lost.map_or_else(failed, |fault| Outcome::Lost(fault.clone()));
        }
        true
    }
}
