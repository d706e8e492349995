//! What is under way in a lane, and how its end is reported.
//!
//! A submission is over when its commands are over and Metal has released all host memory that was wrapped for them.
//! Callbacks report both, and the last callback reports to the engine. Events, blocks and lists stay with their place
//! for the next submission, so that a lane that has been used before allocates nothing.
//!
//! A place has an event of its own, which the device sets when the commands are over. Metal does not document that
//! failed commands set theirs, so the callback sets it then, and no other submission does meanwhile. One event for the
//! whole lane would be set by later submissions, which may wait for work that waits for this one.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use transload_hal::{ErrorClass, Fault, Fence, Outcome, Sleepers, Waited};

use crate::fault::fault_of;
use crate::memory::Coherence;
use crate::raw::{Event, Failure, Raw, pooled};
use crate::types::{BACKEND, Lost, Sink};

/// The state that the callbacks of a lane share.
pub(super) struct Shared {
    /// Its number within the backend.
    pub(super) number: u64,
    pub(super) lost: Lost,
    sink: Sink,
    /// Held from the first command of a submission until it is committed, so that sequences grow in the order of the
    /// queue.
    pub(super) gate: Mutex<()>,
    state: Mutex<State>,
    /// Threads that wait until something settles.
    sleepers: Sleepers,
}

#[derive(Default)]
struct State {
    places: Vec<Flight>,
    /// The sequence number of the last submission.
    last: u64,
    /// The number of submissions under way.
    flying: u32,
}

/// A place for a submission.
struct Flight {
    /// Gets the number of a submission when its commands are over.
    event: Event,
    /// The sequence number of the submission; 0 for none.
    sequence: u64,
    /// The number of reports still to come: the end of the commands, and of each wrapping.
    left: u32,
    fault: Option<Fault>,
    wrapped: Vec<Raw>,
    /// Managed buffers that are being synchronized.
    shown: Vec<(Arc<Coherence>, u64)>,
}

impl Flight {
    fn new(event: Event) -> Flight {
        Flight {
            event,
            sequence: 0,
            left: 0,
            fault: None,
            wrapped: Vec::new(),
            shown: Vec::new(),
        }
    }

    fn is_idle(&self) -> bool {
        self.sequence == 0 && self.left == 0
    }
}

/// The lists that a submission uses.
#[derive(Default)]
pub(super) struct Resources {
    pub(super) wrapped: Vec<Raw>,
    pub(super) shown: Vec<(Arc<Coherence>, u64)>,
}

impl Shared {
    /// Makes the state with one place, which gets the given event.
    pub(super) fn new(number: u64, event: Event, sink: &Sink, lost: &Lost) -> Shared {
        let state = State {
            places: vec![Flight::new(event)],
            ..State::default()
        };
        Shared {
            number,
            lost: Arc::clone(lost),
            sink: Arc::clone(sink),
            gate: Mutex::new(()),
            state: Mutex::new(state),
            sleepers: Sleepers::default(),
        }
    }

    /// Takes an idle place, with its lists and the event that its commands set. If none is idle, makes a new place at
    /// the end, with an event from `event`; `None` if that gives none. The gate must be held.
    pub(super) fn take_place(
        &self,
        event: impl FnOnce() -> Option<Event>,
    ) -> Option<(usize, Event, Resources)> {
        let mut state = self.lock();
        if !state.places.iter().any(Flight::is_idle) {
            // Without the lock: this asks Metal.
            drop(state);
            let fresh = Flight::new(event()?);
            state = self.lock();
            state.places.push(fresh);
        }
        let place = state.places.iter().position(Flight::is_idle)?;
        let flight = &mut state.places[place];
        // No other submission takes it until it flies or is given up.
        flight.left = 1;
        let resources = Resources {
            wrapped: mem::take(&mut flight.wrapped),
            shown: mem::take(&mut flight.shown),
        };
        Some((place, flight.event.clone(), resources))
    }

    /// Expects the report of one more wrapping.
    pub(super) fn expect_release(&self, place: usize) {
        self.lock().places[place].left += 1;
    }

    /// Does not expect the report of a wrapping that could not be made.
    pub(super) fn forget_release(&self, place: usize) {
        self.lock().places[place].left -= 1;
    }

    /// The next sequence number of the lane. The gate must be held.
    pub(super) fn next(&self) -> u64 {
        self.lock().last + 1
    }

    /// Records a submission whose commands are about to be committed.
    pub(super) fn fly(&self, place: usize, sequence: u64, resources: Resources) {
        let mut state = self.lock();
        state.last = sequence;
        state.flying += 1;
        let flight = &mut state.places[place];
        flight.sequence = sequence;
        flight.wrapped = resources.wrapped;
        flight.shown = resources.shown;
    }

    /// Gives up commands that will not be committed. Waits until Metal has released the memory that was wrapped for
    /// them, which no other reference holds.
    pub(super) fn give_up(&self, place: usize, mut resources: Resources) {
        pooled(|_| resources.wrapped.clear());
        for (coherence, written) in resources.shown.drain(..) {
            coherence.end(written, false);
        }
        let mut state = self.lock();
        while state.places[place].left > 1 {
            state = self.sleepers.sleep(state, Duration::MAX);
        }
        let flight = &mut state.places[place];
        flight.wrapped = resources.wrapped;
        flight.shown = resources.shown;
        flight.left = 0;
    }

    /// Called by Metal when the commands of a place are over.
    pub(super) fn end(&self, place: usize, failure: Option<Failure>) {
        let fault = failure.as_ref().map(fault_of);
        if let Some(fault) = &fault {
            if fault.class == ErrorClass::Lost {
                let _ = self.lost.set(fault.clone());
            }
            self.release_those_waiting(place);
        }
        let is_done = fault.is_none();
        let mut state = self.lock();
        let flight = &mut state.places[place];
        flight.fault = fault;
        let mut wrapped = mem::take(&mut flight.wrapped);
        let mut shown = mem::take(&mut flight.shown);
        drop(state);
        for (coherence, written) in shown.drain(..) {
            coherence.end(written, is_done);
        }
        // Without the lock: this may call back.
        pooled(|_| wrapped.clear());
        let mut state = self.lock();
        let flight = &mut state.places[place];
        flight.wrapped = wrapped;
        flight.shown = shown;
        self.count_report(state, place);
    }

    /// Called by Metal when it has released memory that was wrapped for a place.
    pub(super) fn memory_released(&self, place: usize) {
        self.count_report(self.lock(), place);
    }

    /// Counts one report of a place; settles the submission after the last one.
    fn count_report(&self, mut state: MutexGuard<'_, State>, place: usize) {
        let flight = &mut state.places[place];
        flight.left -= 1;
        if flight.left == 0 && flight.sequence != 0 {
            let outcome = match (self.lost.get(), flight.fault.take()) {
                (Some(fault), Some(_)) => Outcome::Lost(fault.clone()),
                (None, Some(fault)) => Outcome::Failed(fault),
                // It was over before the device was lost.
                (_, None) => Outcome::Done,
            };
            let sequence = mem::take(&mut flight.sequence);
            state.flying -= 1;
            // Under the lock, so that a thread that finds it settled finds its outcome at the sink.
            if let Some(sink) = self.sink.get() {
                let fence = Fence::in_lane(BACKEND, self.number, sequence);
                sink.settle(fence, outcome);
            }
        }
        self.sleepers.wake();
    }

    /// Releases device work that waits for failed commands. The place has not settled, so no other submission uses its
    /// event.
    fn release_those_waiting(&self, place: usize) {
        let state = self.lock();
        let flight = &state.places[place];
        let (event, sequence) = (flight.event.clone(), flight.sequence);
        drop(state);
        if event.value() < sequence {
            event.set(sequence);
        }
    }

    /// The event that gets the number of a submission when its commands are over; `None` if the submission has settled.
    pub(super) fn event_of(&self, sequence: u64) -> Option<Event> {
        let state = self.lock();
        let mut places = state.places.iter();
        let flight = places.find(|flight| flight.sequence == sequence)?;
        Some(flight.event.clone())
    }

    /// Whether a submission has not settled.
    pub(super) fn is_pending(&self, sequence: u64) -> bool {
        let state = self.lock();
        is_flying(&state, sequence)
    }

    /// The last submission, if any is under way.
    pub(super) fn newest(&self) -> Option<u64> {
        let state = self.lock();
        (state.flying > 0).then_some(state.last)
    }

    /// Blocks until a submission has settled or the limit has passed.
    pub(super) fn wait(&self, sequence: u64, limit: Duration) -> Waited {
        let is_pending = |state: &State| is_flying(state, sequence);
        self.sleepers
            .sleep_while(self.lock(), (Instant::now(), limit), is_pending)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_flying(state: &State, sequence: u64) -> bool {
    let mut places = state.places.iter();
    places.any(|flight| flight.sequence == sequence)
}
