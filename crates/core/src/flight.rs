//! A transfer under way, as a state machine without I/O.
//!
//! A flight knows payload spans and roles, but no address, buffer or backend handle. Its driver asks
//! [`Flight::poll_action`] what to do, does it, and reports the result through the `handle_*` functions. The flight
//! carries the payload over one plan at a time, each attempt a *leg*. When a leg fails, the flight waits until all its
//! operations are quiet, returns its slots, and asks for another route from the first byte that has not arrived.
//!
//! With verification the copy is one of three phases: afterwards the flight reads both ends through a checksum, by
//! routes of their own, and has them compared.

mod lane;
mod leg;
mod outcome;
mod predict;
mod source;
mod task;
mod told;

use alloc::sync::Arc;

use leg::Leg;
pub use leg::PlanError;
pub use outcome::{Action, Failure, Phase, Settled, StopReason, Tried, Verdict};
pub use predict::{Load, Prediction, Resource, predict, predict_ns};
pub use task::{Endpoint, SlotId, Task, TaskId, Work};

use crate::{Instant, Plan, Span, Trial};

/// The task of a flight.
#[derive(Clone, Debug)]
pub struct FlightSpec {
    /// The payload in bytes.
    pub len_bytes: u64,
    /// The plan of the first leg.
    pub plan: Arc<Plan>,
    /// The plans that read source and destination through a checksum afterwards.
    pub verify: Option<Verify>,
    /// Source and destination overlap: the payload moves as one chunk, by a plan of one lane whose slots, if it has
    /// any, hold the whole payload. Once an operation was accepted, no other route is tried, since the source may be
    /// changed.
    pub in_place: bool,
    /// The time at which the flight gives up. Operations that are under way then still end.
    pub deadline: Option<Instant>,
}

/// The plans of a verification.
#[derive(Clone, Debug)]
pub struct Verify {
    /// Reads the source.
    pub src: Arc<Plan>,
    /// Reads the destination.
    pub dst: Arc<Plan>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum State {
    /// The leg's rings need their first slots. `asked`: the driver was asked for them.
    Boarding { asked: bool },
    /// Operations may be submitted.
    Moving,
    /// The leg failed; waits until nothing is under way.
    Failing(Failure),
    /// Waits for another plan.
    Rerouting(Failure),
    /// Waits for the comparison. `asked`: the driver was asked for it.
    Comparing { asked: bool },
    /// Asked to stop; waits until nothing is under way.
    Stopping(StopReason),
    /// The verdict is known, but the driver was not told yet.
    Ending(Verdict),
    /// The driver was told the verdict.
    Over,
}

/// A transfer under way. See the [module](self).
#[derive(Clone, Debug)]
pub struct Flight {
    leg: Leg,
    state: State,
    phase: Phase,
    /// The phase for which the leg was begun; it differs from `phase` only after a comparison failed.
    leg_phase: Phase,
    len_bytes: u64,
    /// Leading bytes of the copy that arrived in earlier legs, or all of them once it is done.
    arrived: u64,
    verify: Option<Verify>,
    copied: Option<Arc<Plan>>,
    copied_at: Option<Instant>,
    in_place: bool,
    started: bool,
    /// Whether an operation was accepted and has settled.
    touched: bool,
    deadline: Option<Instant>,
    legs: u32,
    /// The plan for what a trial leaves.
    rest: Option<Arc<Plan>>,
    tried: Option<Tried>,
    /// When the leg asked for its first slots.
    leg_begun: Instant,
    /// How many leading payload bytes the source has.
    there: u64,
}

impl Flight {
    /// Makes a flight that has not begun.
    ///
    /// # Errors
    /// When one of the plans cannot be run.
    pub fn new(spec: FlightSpec) -> Result<Flight, PlanError> {
        let mut flight = Flight {
            leg: Leg::default(),
            state: State::Over,
            phase: Phase::Copy,
            leg_phase: Phase::Copy,
            len_bytes: 0,
            arrived: 0,
            verify: None,
            copied: None,
            copied_at: None,
            in_place: false,
            started: false,
            touched: false,
            deadline: None,
            legs: 0,
            rest: None,
            tried: None,
            leg_begun: Instant(0),
            there: u64::MAX,
        };
        flight.restart(spec)?;
        Ok(flight)
    }

    /// Makes a flight that is over into a new one, keeping its allocations.
    ///
    /// # Errors
    /// As [`Flight::new`]; the flight is over then.
    pub fn restart(&mut self, spec: FlightSpec) -> Result<(), PlanError> {
        self.state = State::Over;
        for plan in spec.verify.iter().flat_map(|v| [&v.src, &v.dst]) {
            leg::check(plan)?;
        }
        self.phase = Phase::Copy;
        self.len_bytes = spec.len_bytes;
        self.arrived = 0;
        self.verify = spec.verify;
        self.copied = None;
        self.copied_at = None;
        self.in_place = spec.in_place;
        self.started = false;
        self.touched = false;
        self.deadline = spec.deadline;
        self.legs = 0;
        self.rest = None;
        self.tried = None;
        self.there = u64::MAX;
        self.begin_leg(spec.plan)
    }

    /// Sends the leading bytes over another way first, to see how long they take. Does nothing after the flight has
    /// begun, for a copy in place, and for a plan that cannot be run.
    pub fn try_first(&mut self, trial: Trial) {
        let is_new = self.legs == 1 && self.is_at_start_of_leg() && !self.in_place;
        let rest = self.leg.plan().cloned();
        let part = Span::new(0, trial.bytes.min(self.len_bytes));
        // A plan that cannot be run leaves the leg as it is.
        if is_new && part.len > 0 && self.leg.start(trial.plan, part, false).is_ok() {
            self.rest = rest;
        }
    }

    /// What to do next; `None` until something more was handed in, or the deadline passes.
    pub fn poll_action(&mut self, now: Instant) -> Option<Action> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.stop(StopReason::Deadline);
        }
        loop {
            match self.state {
                State::Boarding { asked: true } | State::Comparing { asked: true } => return None,
                // Slots that are leased before there is something to put into them would be missing elsewhere.
                State::Boarding { asked: false } if self.lacks_source() => return None,
                State::Boarding { asked: false } => {
                    self.leg_begun = now;
                    if self.leg.rings().next().is_none() {
                        self.state = State::Moving;
                        continue;
                    }
                    self.state = State::Boarding { asked: true };
                    return Some(Action::Lease);
                }
                State::Moving => {
                    let there = match self.phase {
                        Phase::Copy => self.there,
                        Phase::CheckSrc | Phase::CheckDst => u64::MAX,
                    };
                    if let Some(task) = self.leg.poll_task(there) {
                        self.started = true;
                        return Some(Action::Submit(task));
                    }
                    if let Some(slot) = self.leg.poll_return() {
                        return Some(Action::Return(slot));
                    }
                    self.leg.note_ends(now);
                    if !self.leg.is_done() || !self.leg.holds_no_slot() {
                        return None;
                    }
                    self.finish_phase(now);
                }
                State::Comparing { asked: false } => {
                    self.state = State::Comparing { asked: true };
                    return Some(Action::Compare);
                }
                State::Failing(failure) => {
                    if let Some(slot) = self.leg.poll_return() {
                        return Some(Action::Return(slot));
                    }
                    if !self.leg.is_quiet() {
                        return None;
                    }
                    if self.give_up_or_reroute(failure) {
                        return Some(Action::Route(failure));
                    }
                }
                State::Rerouting(_) => return None,
                State::Stopping(reason) => {
                    if let Some(slot) = self.leg.poll_return() {
                        return Some(Action::Return(slot));
                    }
                    if !self.leg.is_quiet() {
                        return None;
                    }
                    self.state = State::Ending(self.stopped(reason));
                }
                State::Ending(verdict) => {
                    self.state = State::Over;
                    return Some(Action::Finish(verdict));
                }
                State::Over => return None,
            }
        }
    }

    /// Returns every ring that the leg needs slots of, as (lane, ring).
    pub fn rings(&self) -> impl Iterator<Item = (u8, u8)> + '_ {
        self.leg.rings()
    }

    /// Returns the bytes that the largest chunk of a lane still has to have in a slot: less than the plan's where the
    /// lane's part of the payload is.
    pub fn slot_bytes(&self, lane: u8) -> u64 {
        self.leg.slot_bytes(lane)
    }

    /// One slot of each of [`Flight::rings`] was leased; they are numbered 0. Answers false, and
    /// takes none of them, when the flight no longer waits for them: give them back.
    pub fn handle_admitted(&mut self) -> bool {
        if self.state != (State::Boarding { asked: true }) {
            return false;
        }
        for lane in 0..Leg::MAX_LANES as u8 {
            for ring in 0..lane::MAX_RINGS as u8 {
                if self.leg.rings().any(|needed| needed == (lane, ring)) {
                    self.leg.handle_grant(lane, ring);
                }
            }
        }
        self.state = State::Moving;
        true
    }

    /// The leg may not begin: its slots cannot be had, or its route was found to be unfit. It fails
    /// before it has moved anything. Ignored when it has begun.
    pub fn handle_not_admitted(&mut self) {
        if matches!(self.state, State::Boarding { .. }) {
            self.leg.stop();
            self.state = State::Failing(Failure {
                phase: self.phase,
                at: None,
                span: Span::new(self.arrived, self.len_bytes - self.arrived),
            });
        }
    }

    /// Returns how many more slots of a ring the leg could use now. Never more than the plan's.
    pub fn wanted_slots(&self, lane: u8, ring: u8) -> u16 {
        match self.state {
            State::Moving => self.leg.wanted(lane, ring),
            _ => 0,
        }
    }

    /// One more slot of a ring was leased; answers its name. Only for rings whose
    /// [`Flight::wanted_slots`] is not 0.
    pub fn handle_grant(&mut self, lane: u8, ring: u8) -> SlotId {
        self.leg.handle_grant(lane, ring)
    }

    /// An operation has ended, or was refused. Answers where the leg failed if this was what made
    /// it fail, so that the driver can keep the reason.
    pub fn handle_settled(&mut self, id: TaskId, settled: Settled) -> Option<Failure> {
        let settled = match (settled, self.state) {
            (Settled::Stopped { .. }, State::Stopping(_)) => settled,
            // The flight goes on, and its next leg moves the chunk anew.
            (Settled::Stopped { .. }, _) => Settled::Failed,
            _ => settled,
        };
        let done = settled == Settled::Done;
        let (step, span) = self.leg.handle_settled(id, settled)?;
        self.touched |= settled != Settled::Refused;
        if done || self.state != State::Moving {
            return None;
        }
        let failure = Failure {
            phase: self.phase,
            at: Some((id.lane, step)),
            span,
        };
        self.leg.stop();
        self.state = State::Failing(failure);
        Some(failure)
    }

    /// The answer to [`Action::Route`]: another plan, or none. Ignored when none was asked for.
    pub fn handle_route(&mut self, plan: Option<Arc<Plan>>) {
        let State::Rerouting(failure) = self.state else {
            return;
        };
        let begun = plan.is_some_and(|plan| self.begin_leg(plan).is_ok());
        if !begun {
            self.state = State::Ending(Verdict::Failed(failure));
        }
    }

    /// The answer to [`Action::Compare`]. Different checksums fail the copy, which is then tried
    /// over another route from the start. Ignored when no comparison was asked for.
    pub fn handle_compared(&mut self, equal: bool) {
        if self.state != (State::Comparing { asked: true }) {
            return;
        }
        if equal {
            self.verify = None;
            self.state = State::Moving;
        } else {
            self.phase = Phase::Copy;
            self.arrived = 0;
            self.state = State::Failing(Failure {
                phase: Phase::Copy,
                at: None,
                span: Span::new(0, self.len_bytes),
            });
        }
    }

    /// Stops the flight as soon as its operations are quiet. A flight that is over stays so.
    pub fn handle_cancel(&mut self) {
        self.stop(StopReason::Cancelled);
    }

    /// Returns the part of the work that operations are about now.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns how many bytes the payload has.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the plan of the current leg.
    pub fn plan(&self) -> Option<&Arc<Plan>> {
        self.leg.plan()
    }

    /// Returns how many payload bytes have arrived, in any order. Counts whole chunks, and the bytes that stopped
    /// operations have moved; [`Flight::is_last_step`] tells which operations under way may be added.
    pub fn copied_bytes(&self) -> u64 {
        match self.phase {
            Phase::Copy if self.leg_phase == Phase::Copy => self.leg.arrived_bytes(),
            Phase::Copy => self.arrived,
            Phase::CheckSrc | Phase::CheckDst => self.len_bytes,
        }
    }

    /// Returns whether an operation under way takes its chunk of the copy through the last step: the bytes that it has
    /// moved so far have arrived, and [`Flight::copied_bytes`] does not count them yet.
    pub fn is_last_step(&self, task: TaskId) -> bool {
        (self.phase, self.leg_phase) == (Phase::Copy, Phase::Copy) && self.leg.is_last_step(task)
    }

    /// Returns [`Flight::leading_bytes`] when the first `moved_bytes` bytes of an operation under way have moved.
    pub fn leading_bytes_with(&self, task: TaskId, moved_bytes: u64) -> u64 {
        let leading_bytes = self.leading_bytes();
        let span = self
            .leg
            .span_of(task)
            .filter(|span| self.is_last_step(task) && span.offset == leading_bytes);
        span.map_or(leading_bytes, |span| {
            leading_bytes + moved_bytes.min(span.len)
        })
    }

    /// Returns whether the flight was asked to stop, and waits until nothing is under way.
    pub fn is_stopping(&self) -> bool {
        matches!(self.state, State::Stopping(_))
    }

    /// Returns whether nothing is left to be submitted: the copy is done once every operation under way has ended well.
    /// Always false where a comparison follows.
    pub fn is_out(&self) -> bool {
        self.state == State::Moving
            && self.phase == Phase::Copy
            && self.verify.is_none()
            && self.rest.is_none()
            && self.leg.is_out()
    }

    /// Returns the time at which the flight gives up.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Over | State::Stopping(_) | State::Ending(_) => None,
            _ => self.deadline,
        }
    }

    /// Returns whether the leg has asked for nothing yet.
    pub fn is_at_start_of_leg(&self) -> bool {
        self.state == (State::Boarding { asked: false })
    }

    /// Returns whether the flight waits for the answer to [`Action::Lease`].
    pub fn is_boarding(&self) -> bool {
        self.state == (State::Boarding { asked: true })
    }

    /// Returns whether any operation was ever submitted.
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// Returns whether source and destination overlap.
    pub fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// Returns whether the driver was told the verdict.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// For comparing states: everything except the plans.
    #[cfg(test)]
    fn state_key(&self) -> impl Ord + core::hash::Hash + core::fmt::Debug + Clone + use<> {
        (
            self.leg.state(),
            self.state,
            (self.phase, self.leg_phase),
            (self.arrived, self.legs, self.verify.is_some()),
            (self.started, self.touched, self.copied.is_some()),
            self.rest.is_some(),
        )
    }

    fn begin_leg(&mut self, plan: Arc<Plan>) -> Result<(), PlanError> {
        let from = match self.phase {
            Phase::Copy => self.arrived,
            // A checksum covers the whole payload.
            Phase::CheckSrc | Phase::CheckDst => 0,
        };
        let span = Span::new(from, self.len_bytes - from);
        self.leg
            .start(plan, span, self.in_place && self.phase == Phase::Copy)?;
        if self.phase == Phase::Copy {
            // Kept until now, so that the engine, which looks for another route, sees which one to leave out.
            self.copied = None;
        }
        self.legs += 1;
        self.leg_phase = self.phase;
        self.state = State::Boarding { asked: false };
        Ok(())
    }

    /// The leg is done: starts the next phase, or ends the flight.
    fn finish_phase(&mut self, now: Instant) {
        if let Some(rest) = self.rest.take() {
            self.arrived = self.leg.arrived_until();
            self.tried = self.leg.plan().map(|plan| Tried {
                plan: Arc::clone(plan),
                bytes: self.arrived,
                ns: now.since_ns(self.leg_begun),
            });
            if self.arrived < self.len_bytes {
                if self.begin_leg(rest).is_err() {
                    self.state = State::Ending(Verdict::Failed(Failure {
                        phase: self.phase,
                        at: None,
                        span: Span::new(self.arrived, self.len_bytes - self.arrived),
                    }));
                }
                return;
            }
        }
        let next = match (self.phase, &self.verify) {
            (Phase::Copy, verify) => {
                self.arrived = self.len_bytes;
                self.copied = self.leg.plan().cloned();
                self.copied_at = Some(now);
                verify.as_ref().map(|v| (Phase::CheckSrc, v.src.clone()))
            }
            (Phase::CheckSrc, Some(v)) => Some((Phase::CheckDst, v.dst.clone())),
            (Phase::CheckDst, Some(_)) => {
                self.state = State::Comparing { asked: false };
                return;
            }
            (Phase::CheckSrc | Phase::CheckDst, None) => None,
        };
        let Some((phase, plan)) = next else {
            self.state = State::Ending(Verdict::Done);
            return;
        };
        self.phase = phase;
        if self.begin_leg(plan).is_err() {
            self.state = State::Ending(Verdict::Failed(Failure {
                phase,
                at: None,
                span: Span::new(0, self.len_bytes),
            }));
        }
    }

    /// Called when the failed leg is quiet. Returns true when the flight asks for another route.
    fn give_up_or_reroute(&mut self, failure: Failure) -> bool {
        self.arrived = self.leading_bytes();
        self.rest = None;
        if self.in_place && self.touched && self.phase == Phase::Copy {
            self.state = State::Ending(Verdict::Failed(failure));
            return false;
        }
        self.state = State::Rerouting(failure);
        true
    }

    fn stop(&mut self, reason: StopReason) {
        if !matches!(
            self.state,
            State::Over | State::Stopping(_) | State::Ending(_)
        ) {
            self.leg.stop();
            self.state = State::Stopping(reason);
        }
    }

    fn stopped(&mut self, reason: StopReason) -> Verdict {
        let leading_bytes = self.leading_bytes();
        if leading_bytes == self.len_bytes
            && self.verify.is_none()
            && self.legs > 0
            && self.leg.is_done()
        {
            // The last operation ended before the stop took effect.
            if self.phase == Phase::Copy {
                self.copied = self.leg.plan().cloned();
            }
            return Verdict::Done;
        }
        Verdict::Stopped {
            reason,
            leading_bytes,
            started: self.started,
        }
    }

    /// Returns how many leading bytes of the destination equal the source: whole chunks, and the leading bytes of a
    /// stopped operation.
    pub fn leading_bytes(&self) -> u64 {
        match self.phase {
            Phase::Copy if self.leg_phase == Phase::Copy => {
                self.arrived.max(self.leg.arrived_until())
            }
            Phase::Copy => self.arrived,
            Phase::CheckSrc | Phase::CheckDst => self.len_bytes,
        }
    }
}

#[cfg(test)]
mod explorer;
#[cfg(test)]
mod tests;
