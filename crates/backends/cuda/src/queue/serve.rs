//! The threads that wait for the driver and report outcomes.
//!
//! A lane's own thread waits in the driver for the oldest submission, once the engine expects its end. A thread that
//! waits for a fence polls its event for a moment first: a small copy is over sooner than a thread can be woken. The
//! thread that first sees that something ended reports it.

use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use transload_hal::{ErrorClass, Fault, Fence, Outcome, Waited};

use super::Way;
use super::lane::{Flight, Shared, State};
use crate::capture::relax;
use crate::fault::is_of_capture;
use crate::ids::BACKEND;
use crate::raw::{CUevent, CUresult};

/// How long a waiting thread polls the event before it sleeps: twice what a small copy and its completion take (10 µs,
/// as in `transload_core::defaults`), and less than it takes to put a thread to sleep and wake it twice.
const POLL: Duration = Duration::from_micros(20);

/// How often a driver that errs without having lost the device is asked again.
const PATIENCE: u32 = 3;

/// How soon a driver that refused to wait because of a capture is asked again: no call tells when a capture ends. This
/// happens only if the driver also refused to relax the thread.
const CAPTURE: Duration = Duration::from_millis(1);

impl Shared {
    /// Serves the lane until it closes and nothing is under way.
    pub(super) fn run(self: Arc<Shared>) {
        let _relaxed = relax(&self.context.driver);
        while let Some(flight) = self.next() {
            self.finish(flight);
        }
    }

    /// Serves the lane until nothing is under way.
    pub(super) fn finish_all(&self) {
        loop {
            let oldest = self.lock().flying.front().cloned();
            match oldest {
                Some(flight) => self.finish(flight),
                None => return,
            }
        }
    }

    /// The oldest submission under way, which is waited for; none when the lane has closed.
    fn next(&self) -> Option<Flight> {
        let mut state = self.lock();
        state.is_served = true;
        loop {
            if let Some(flight) = state.flying.front() {
                return Some(flight.clone());
            }
            if state.is_closing {
                return None;
            }
            state.is_served = false;
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.is_served = true;
        }
    }

    /// Blocks until the submission is over, and tells.
    fn finish(&self, flight: Flight) {
        if self.way == Way::Visible {
            return self.make_visible();
        }
        let outcome = match self.block(flight.event) {
            Ok(()) => Outcome::Done,
            Err(fault) => Outcome::Lost(fault),
        };
        self.settle(flight.sequence, &outcome);
    }

    /// Blocks until all work of the context is over, other users' work included, then settles every request made before
    /// this call: a request covers only work that was submitted before it.
    ///
    /// The whole context is synchronized, because its other users' streams are unknown: "Blocks until the current
    /// context has completed all preceding requested tasks" (CUDA Driver API, Context Management, cuCtxSynchronize).
    /// After that the host sees the device's writes to managed memory (CUDA C++ Programming Guide, Unified Memory
    /// Programming, Coherency and Concurrency).
    fn make_visible(&self) {
        let newest = self.lock().last;
        let mut outcome = Outcome::Done;
        for _ in 0..PATIENCE {
            outcome = match self.context_quiet() {
                Ok(()) => Outcome::Done,
                Err(fault) if fault.class == ErrorClass::Lost => Outcome::Lost(fault),
                // Nothing is under way here, so nothing is lost by a driver that will not wait, as during a capture.
                Err(fault) => Outcome::Failed(fault),
            };
            if !matches!(outcome, Outcome::Failed(_)) {
                break;
            }
        }
        self.settle(newest, &outcome);
    }

    fn context_quiet(&self) -> Result<(), Fault> {
        let _current = self.context.enter()?;
        // SAFETY: takes nothing.
        let waited = unsafe { self.context.driver.cuCtxSynchronize() };
        waited.map_err(|error| self.context.blame(error, self.stream))
    }

    /// Blocks until an event has come to pass, or where there is none nothing is under way in the stream.
    ///
    /// # Errors
    /// Why the device is lost. Nothing else keeps an operation that was accepted from ending, so a driver that
    /// complains of something else is asked again, by the stream.
    fn block(&self, event: Option<CUevent>) -> Result<(), Fault> {
        let mut asked = self.ask(event);
        for _ in 0..PATIENCE {
            match asked {
                Err(fault) if fault.class != ErrorClass::Lost => asked = self.ask(None),
                over_or_lost => return over_or_lost,
            }
        }
        asked.map_err(|fault| self.context.lose(fault))
    }

    /// Asks the driver to wait. If it refuses because of a capture, asks again each time that the capture may be over.
    /// Work under way goes on meanwhile.
    fn ask(&self, event: Option<CUevent>) -> Result<(), Fault> {
        let _current = self.context.enter()?;
        loop {
            let waited = match event {
                // SAFETY: an event is destroyed with the lane alone.
                Some(event) => unsafe { self.context.driver.cuEventSynchronize(event) },
                // SAFETY: the stream is this lane's.
                None => unsafe { self.context.driver.cuStreamSynchronize(self.stream) },
            };
            match waited {
                Err(error) if is_of_capture(&error) => thread::park_timeout(CAPTURE),
                waited => return waited.map_err(|error| self.context.blame(error, self.stream)),
            }
        }
    }

    /// Reports that everything up to a submission has ended with this outcome, except submissions that had failed
    /// before.
    fn settle(&self, sequence: u64, outcome: &Outcome) {
        let mut state = self.lock();
        while let Some(flight) = state.flying.front() {
            if flight.sequence > sequence {
                break;
            }
            let Some(flight) = state.flying.pop_front() else {
                break;
            };
            let end = flight.sequence + flight.count;
            state.settled = end - 1;
            self.context.reapers.end();
            state.idle.extend(flight.event);
            let Some(sink) = self.sink.get() else {
                continue;
            };
            // Under the lock, so that a thread that finds it settled finds its outcome at the sink.
            for sequence in flight.sequence..end {
                let fence = Fence::in_lane(BACKEND, self.number, sequence);
                sink.settle(fence, end_of(flight.fault.as_ref(), outcome));
            }
        }
        self.sleepers.wake();
    }

    /// Polls for a moment whether a submission has settled.
    pub(super) fn poll(&self, sequence: u64, begun: Instant, limit: Duration) -> bool {
        if let Some(event) = self.event_of(sequence) {
            self.poll_event(sequence, event, begun, POLL.min(limit));
        }
        self.lock().settled >= sequence
    }

    /// Blocks until a submission has settled or the limit has passed, counted from when it began.
    pub(super) fn await_end(&self, sequence: u64, begun: Instant, limit: Duration) -> Waited {
        let is_pending = |state: &State| state.settled < sequence;
        self.sleepers
            .sleep_while(self.lock(), (begun, limit), is_pending)
    }

    fn event_of(&self, sequence: u64) -> Option<CUevent> {
        let state = self.lock();
        let flight = state.flying.iter().find(|flight| flight.has(sequence));
        flight.and_then(|flight| flight.event)
    }

    /// Polls an event for a while, and reports it when it has occurred. The lane's thread handles errors.
    fn poll_event(&self, sequence: u64, event: CUevent, begun: Instant, limit: Duration) {
        let Ok(_current) = self.context.enter() else {
            return;
        };
        loop {
            // SAFETY: an event is destroyed with the lane alone. If it stands for another submission by now, this
            // one has settled.
            match unsafe { self.context.driver.cuEventQuery(event) } {
                Ok(()) => return self.settle_if_its(sequence, event),
                Err(error) if error.is(CUresult::CUDA_ERROR_NOT_READY) => {}
                Err(_) => return,
            }
            if begun.elapsed() >= limit {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Settles the submission that the event stands for now, after the event has occurred.
    fn settle_if_its(&self, sequence: u64, event: CUevent) {
        if self.event_of(sequence) == Some(event) {
            self.settle(sequence, &Outcome::Done);
        }
    }
}

/// The outcome of a submission, of which the rest may never have been begun.
fn end_of(fault: Option<&Fault>, outcome: &Outcome) -> Outcome {
    match (fault, outcome) {
        (Some(fault), Outcome::Done) if fault.class == ErrorClass::Lost => {
            Outcome::Lost(fault.clone())
        }
        (Some(fault), Outcome::Done) => Outcome::Failed(fault.clone()),
        _ => outcome.clone(),
    }
}
