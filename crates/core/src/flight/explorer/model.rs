//! The shadow of a flight: what its driver knows, and so what the flight may say and do.

use alloc::format;
use alloc::sync::Arc;

use super::scenario::Scenario;
use super::staging::{Check, ShadowLeg, hold, mask};
use crate::flight::{
    Action, Endpoint, Failure, Flight, Phase, Settled, SlotId, StopReason, Task, TaskId, Verdict,
    Work,
};
use crate::{Instant, Plan, Span};

/// A question of the flight that its driver has not answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Question {
    Lease,
    Route,
    Compare,
}

/// Follows a flight from outside. Everything in it comes from what the driver did and was told.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Model {
    pub(super) leg: ShadowLeg,
    phase: Phase,
    /// The leg runs over the second plan.
    rerouted: bool,
    legs: u32,
    pub(super) routes_left: u8,
    /// The destination's bytes that equal the source's.
    delivered: u128,
    /// The comparison said so.
    pub(super) equal: bool,
    /// Whether the leg that moved the last byte was over the second plan.
    copied_by_second: bool,
    failure: Option<Failure>,
    /// No route is left.
    stranded: bool,
    pub(super) owed: Option<Question>,
    started: bool,
    /// Some operation was more than refused.
    touched: bool,
    /// An operation on overlapping regions has written the destination.
    overwritten: bool,
    pub(super) cancelled: bool,
    pub(super) late: bool,
    /// Why the flight was stopped, once it knows.
    stopped: Option<StopReason>,
    pub(super) over: bool,
}

impl Model {
    pub(super) fn new() -> Model {
        Model {
            leg: ShadowLeg::new(0),
            phase: Phase::Copy,
            rerouted: false,
            legs: 1,
            routes_left: 1,
            delivered: 0,
            equal: false,
            copied_by_second: false,
            failure: None,
            stranded: false,
            owed: None,
            started: false,
            touched: false,
            overwritten: false,
            cancelled: false,
            late: false,
            stopped: None,
            over: false,
        }
    }

    pub(super) fn now(&self) -> Instant {
        match self.late {
            true => super::scenario::DEADLINE,
            false => Instant(0),
        }
    }

    /// Returns the plan that the leg runs over.
    pub(super) fn plan<'a>(&self, scenario: &'a Scenario) -> &'a Arc<Plan> {
        scenario.plan(self.phase, self.rerouted)
    }

    /// Returns the plan that a question for a route may be answered with.
    pub(super) fn second_plan<'a>(&self, scenario: &'a Scenario) -> &'a Arc<Plan> {
        scenario.plan(self.phase, true)
    }

    /// The flight was polled and answered.
    pub(super) fn polled(
        &mut self,
        scenario: &Scenario,
        flight: &Flight,
        action: Option<Action>,
    ) -> Check {
        if self.late {
            self.stopped.get_or_insert(StopReason::Deadline);
        }
        while self.legs < flight.legs() {
            self.next_phase(scenario)?;
        }
        let Some(action) = action else {
            let waits = !self.leg.is_quiet() || self.owed.is_some() && self.stopped.is_none();
            hold!(waits || self.over, "stuck: nothing will ever happen");
            return Ok(());
        };
        hold!(!self.over, "after its end: {action:?}");
        let goes_on = !matches!(action, Action::Return(_) | Action::Finish(_));
        hold!(
            !goes_on || self.stopped.is_none() && self.owed.is_none(),
            "stopped {:?}, waits for {:?}, and yet: {action:?}",
            self.stopped,
            self.owed
        );
        match action {
            Action::Lease => self.ask(Question::Lease),
            Action::Submit(task) => self.submitted(scenario, flight, task),
            Action::Return(slot) => {
                let ending = self.stopped.is_some() || self.failure.is_some();
                self.leg.give_back(slot, ending)
            }
            Action::Route(failure) => {
                hold!(
                    self.failure == Some(failure),
                    "failed at {:?}",
                    self.failure
                );
                hold!(
                    !self.is_spoilt(scenario),
                    "another route for a source that was changed"
                );
                self.ask(Question::Route)
            }
            Action::Compare => {
                let read = self.phase == Phase::CheckDst && self.is_through(scenario);
                hold!(read, "compares what was not read to its end");
                self.ask(Question::Compare)
            }
            Action::Finish(verdict) => self.finished(scenario, flight, verdict),
        }
    }

    pub(super) fn settled(
        &mut self,
        scenario: &Scenario,
        id: TaskId,
        settled: Settled,
        told: Option<Failure>,
    ) -> Check {
        let plan = self.plan(scenario);
        // In a flight that goes on, a stopped operation is a failed one: its chunk moves anew.
        let settled = match settled {
            Settled::Stopped { .. } if self.stopped.is_none() => Settled::Failed,
            settled => settled,
        };
        let (span, step, work) = self.leg.settle(plan, id, settled)?;
        self.touched |= settled != Settled::Refused;
        if writes_dst(work) {
            match settled {
                Settled::Done => self.delivered |= mask(span),
                Settled::Failed => self.delivered &= !mask(span),
                Settled::Stopped { leading_bytes } => {
                    self.delivered &= !mask(span);
                    self.delivered |= mask(Span::new(span.offset, leading_bytes));
                }
                Settled::Refused => {}
            }
            self.overwritten |= scenario.in_place && settled != Settled::Refused;
        }
        let failure = Failure {
            phase: self.phase,
            at: Some((id.lane, step)),
            span,
        };
        let first = self.failure.is_none() && self.stopped.is_none();
        let expected = (settled != Settled::Done && first).then_some(failure);
        hold!(told == expected, "told {told:?}, it was {expected:?}");
        self.failure = self.failure.or(expected);
        Ok(())
    }

    /// The first slots were offered, one for each of `rings`.
    pub(super) fn admitted(
        &mut self,
        scenario: &Scenario,
        rings: &[(u8, u8)],
        taken: bool,
    ) -> Check {
        self.owed = None;
        hold!(
            taken == self.stopped.is_none(),
            "stopped {:?}, slots taken: {taken}",
            self.stopped
        );
        for &(lane, ring) in rings.iter().filter(|_| taken) {
            let slot = SlotId {
                lane,
                ring,
                slot: 0,
            };
            self.granted(scenario, slot)?;
        }
        Ok(())
    }

    pub(super) fn granted(&mut self, scenario: &Scenario, slot: SlotId) -> Check {
        let plan = self.plan(scenario);
        self.leg.grant(plan, slot)
    }

    pub(super) fn routed(&mut self, scenario: &Scenario, flight: &Flight, found: bool) -> Check {
        self.owed = None;
        self.routes_left -= u8::from(found);
        let fits = self.phase != Phase::Copy || scenario.second_fits;
        let begins = found && fits && self.stopped.is_none();
        hold!(
            flight.legs() == self.legs + u32::from(begins),
            "{} legs, another was found: {found}",
            flight.legs()
        );
        if begins {
            self.legs += 1;
            self.rerouted = true;
            self.failure = None;
            let base = match self.phase {
                Phase::Copy => u64::from(self.leg.arrived().trailing_ones()),
                Phase::CheckSrc | Phase::CheckDst => 0,
            };
            self.leg = ShadowLeg::new(base);
        } else {
            self.stranded |= self.stopped.is_none();
        }
        Ok(())
    }

    pub(super) fn compared(&mut self, scenario: &Scenario, equal: bool) {
        self.owed = None;
        if self.stopped.is_some() {
            return;
        }
        self.equal = equal;
        if !equal {
            self.phase = Phase::Copy;
            self.delivered = 0;
            self.leg = ShadowLeg::new(0);
            self.failure = Some(Failure {
                phase: Phase::Copy,
                at: None,
                span: Span::new(0, scenario.len_bytes),
            });
        }
    }

    pub(super) fn cancelled(&mut self) {
        self.cancelled = true;
        self.stopped.get_or_insert(StopReason::Cancelled);
    }

    /// What holds in every state.
    pub(super) fn agrees(&self, scenario: &Scenario, flight: &Flight) -> Check {
        let plan = self.plan(scenario);
        let arrived = match self.phase {
            Phase::Copy => u64::from(self.leg.arrived().count_ones()),
            Phase::CheckSrc | Phase::CheckDst => scenario.len_bytes,
        };
        let told = flight.copied_bytes();
        hold!(told == arrived, "{arrived} bytes arrived, it says {told}");
        for (id, _) in self.leg.running() {
            let is_last = self.phase == Phase::Copy && self.leg.is_last_step(plan, id);
            let told = flight.is_last_step(id);
            hold!(told == is_last, "{id:?} is the last step: {told}");
        }
        hold!(
            flight.is_over() == self.over && flight.legs() == self.legs,
            "over: {}, legs: {}",
            flight.is_over(),
            flight.legs()
        );
        let still = self.stopped.is_some() || self.failure.is_some() || self.owed.is_some();
        for (lane, pipeline) in self.plan(scenario).lanes.iter().enumerate() {
            for (ring, limits) in pipeline.rings.iter().enumerate() {
                let name = (lane as u8, ring as u8);
                let wanted = flight.wanted_slots(name.0, name.1);
                let most = if still || self.over {
                    0
                } else {
                    limits.slots - self.leg.held_of(name)
                };
                hold!(
                    wanted <= most,
                    "{name:?} wants {wanted}, at most {most} are of use"
                );
            }
        }
        Ok(())
    }

    fn ask(&mut self, question: Question) -> Check {
        hold!(
            self.leg.is_quiet() && self.leg.holds_no_slot(),
            "asks for {question:?} while operations run or slots are held"
        );
        self.owed = Some(question);
        Ok(())
    }

    fn submitted(&mut self, scenario: &Scenario, flight: &Flight, task: Task) -> Check {
        hold!(self.failure.is_none(), "goes on after {:?}", self.failure);
        let plan = self.plan(scenario);
        let same = flight.plan().is_some_and(|is| Arc::ptr_eq(is, plan));
        hold!(same && flight.phase() == self.phase, "runs another plan");
        hold!(task.span.fits(scenario.len_bytes), "beyond the payload");
        let moving = scenario.in_place && self.phase == Phase::Copy;
        hold!(
            !moving || !self.overwritten && self.leg.is_quiet(),
            "an overlapping payload moves in more than one piece"
        );
        self.started = true;
        self.leg.submit(plan, task, moving)
    }

    /// The leg is done and the flight went on by itself: from the copy to the checks.
    fn next_phase(&mut self, scenario: &Scenario) -> Check {
        hold!(
            self.failure.is_none() && self.stopped.is_none() && self.owed.is_none(),
            "another leg after {:?} {:?}",
            self.failure,
            self.stopped
        );
        hold!(self.is_through(scenario), "{:?} is not done", self.phase);
        self.phase = match self.phase {
            Phase::Copy if scenario.verify.is_some() => {
                self.copied_by_second = self.rerouted;
                Phase::CheckSrc
            }
            Phase::CheckSrc => Phase::CheckDst,
            phase => return Err(format!("another leg after {phase:?}")),
        };
        self.legs += 1;
        self.rerouted = false;
        self.leg = ShadowLeg::new(0);
        Ok(())
    }

    fn finished(&mut self, scenario: &Scenario, flight: &Flight, verdict: Verdict) -> Check {
        hold!(
            self.leg.is_quiet() && self.leg.holds_no_slot(),
            "ends while operations run or slots are held"
        );
        self.over = true;
        let whole = mask(Span::new(0, scenario.len_bytes));
        let done = match scenario.verify {
            None => self.phase == Phase::Copy && self.is_through(scenario),
            Some(_) => self.equal,
        };
        match verdict {
            Verdict::Done => {
                hold!(self.delivered == whole, "bytes are missing");
                hold!(done, "the last leg is not done or not verified");
                let second = match scenario.verify {
                    None => self.rerouted,
                    Some(_) => self.copied_by_second,
                };
                let plan = scenario.plan(Phase::Copy, second);
                let same = flight.copied_by().is_some_and(|is| Arc::ptr_eq(is, plan));
                hold!(same, "copied by another plan");
            }
            Verdict::Failed(failure) => {
                hold!(
                    self.failure == Some(failure),
                    "failed at {:?}",
                    self.failure
                );
                hold!(
                    self.stranded || self.is_spoilt(scenario),
                    "gives up while there may be another route"
                );
            }
            Verdict::Stopped {
                reason,
                leading_bytes,
                started,
            } => {
                hold!(self.stopped == Some(reason), "stopped: {:?}", self.stopped);
                hold!(started == self.started, "started: {}", self.started);
                hold!(!done, "stopped after its last byte");
                let delivered = u64::from(self.delivered.trailing_ones());
                hold!(leading_bytes <= delivered, "only {delivered} arrived");
                let arrived = match self.phase {
                    Phase::Copy => u64::from(self.leg.arrived().trailing_ones()),
                    Phase::CheckSrc | Phase::CheckDst => scenario.len_bytes,
                };
                hold!(leading_bytes >= arrived, "{arrived} arrived in order");
            }
        }
        Ok(())
    }

    fn is_through(&self, scenario: &Scenario) -> bool {
        let whole = mask(Span::new(0, scenario.len_bytes));
        self.leg.arrived() == whole && self.leg.is_quiet() && self.leg.holds_no_slot()
    }

    /// The regions overlap and the source may be changed.
    fn is_spoilt(&self, scenario: &Scenario) -> bool {
        scenario.in_place && self.touched && self.phase == Phase::Copy
    }
}

fn writes_dst(work: Work) -> bool {
    matches!(
        work,
        Work::Copy {
            to: Endpoint::Dst,
            ..
        }
    )
}
