//! One step of the engine, under its lock: takes outcomes in, looks at the clock, and asks each transfer's flight what
//! to do next, until there are commands for the thread that turns the engine.

use alloc::sync::Arc;

use transload_core::flight::{Action, Failure, Flight, Phase, Task};
use transload_core::{Instant, Plan, Step};
use transload_hal::{ErrorClass, Fault};

use super::active::{Active, Stage};
use super::command::{Bound, Command, CommandKind, Commands, is_on_the_host, pins_pages};
use super::completions::Completions;
use super::state::State;
use super::types::{Index, Line, Pace, TransferId};
use crate::error::TransferError;
use crate::report::Fallback;

/// Up to this size a thread that starts other transfers also makes their copies. The host's threads take as long for a
/// batch of larger copies, and the batch is submitted sooner: 4,000 of 64 KiB in 6 ms and not 19, 2,000 of 256 KiB in 3
/// ms and not 30 (EPYC, 2 cores).
const QUICKLY_COPIED_BYTES: u64 = 32 << 10;

impl State {
    /// Makes one step, and fills `commands`. `spares_drivers`: the thread runs inside a driver, which it must not enter
    /// again.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        pace: Pace,
        spares_drivers: bool,
        completions: &Completions,
        commands: &mut Commands,
    ) {
        self.now = self.now.max(now);
        self.pace = pace;
        for (fence, outcome) in
            core::iter::from_fn(|| completions.take()).take(Completions::AT_ONCE)
        {
            self.handle_outcome(fence, outcome);
        }
        for id in core::iter::from_fn(|| completions.take_awaited()).take(Completions::AT_ONCE) {
            self.handle_events(&[id]);
        }
        self.expire(now);
        self.later.take(pace, commands);
        self.resume(commands);
        self.planning.release_due(now);
        while !commands.is_full() {
            self.admit_waiting(commands);
            if let Some(index) = self.table.next_ready() {
                self.poll(index, now, commands);
                continue;
            }
            self.grant_further(commands);
            self.run_errands(commands);
            if !self.table.has_ready() {
                break;
            }
        }
        if spares_drivers {
            self.later.spare_drivers(commands);
        }
        self.in_flight.hand_out(commands);
    }

    /// Asks the flight of a transfer what to do, and does it, until the flight waits for something.
    fn poll(&mut self, index: Index, now: Instant, commands: &mut Commands) {
        loop {
            if self.must_prove_first(index, now) {
                return;
            }
            let active = &mut self.table[index];
            if active.stage != Stage::Flying {
                return;
            }
            if commands.is_full() {
                return self.table.requeue_front(index);
            }
            let Some(flight) = active.flight.as_mut() else {
                return;
            };
            if !flight.has_started() {
                active.begun = now;
                let batch = active.batch.as_ref();
                if batch.is_some_and(|batch| batch.has_failed()) {
                    flight.handle_cancel();
                }
            }
            match flight.poll_action(now) {
                Some(Action::Submit(task)) => self.submit_task(index, task, commands),
                Some(Action::Lease) => self.admission.ask(index, active),
                Some(Action::Return(id)) => {
                    let evicted = &mut self.after.buffers;
                    self.admission.take_back(active, id, evicted);
                }
                Some(Action::Route(failure)) => self.reroute(index, failure, now),
                Some(Action::Compare) => self.compare(index),
                Some(Action::Finish(verdict)) => return self.handle_verdict(index, verdict, now),
                None => {
                    if self.must_stop(index) && !self.stop_operations(index, commands) {
                        return self.table.requeue_front(index);
                    }
                    // The answer tells what has moved by then.
                    if self.table[index].commanded == 0 {
                        self.answer_at_deadline(index, now);
                    }
                    let active = &mut self.table[index];
                    return self.admission.note_wanting(index, active);
                }
            }
        }
    }

    /// Submits an operation, behind those that wait for the same engine of its backend.
    fn submit_task(&mut self, index: Index, task: Task, commands: &mut Commands) {
        let line = line_of(&self.table[index], &task);
        match line.filter(|line| self.in_flight.has_queue(*line)) {
            Some(line) => self.postpone(self.table.id(index), task, line, u64::MAX),
            None => self.submit_now(index, task, commands),
        }
    }

    fn submit_now(&mut self, index: Index, task: Task, commands: &mut Commands) {
        let id = self.table.id(index);
        let active = &self.table[index];
        let Some(step) = step_of(active, &task) else {
            return;
        };
        let known = self.in_flight.known(step.backend);
        let Some(known) = known.filter(|known| known.lost.is_none()) else {
            let message = alloc::format!("backend {} is not there any more", step.backend);
            let fault = Fault::new(ErrorClass::Lost, message);
            let backend = step.backend;
            return self.handle_refused(id, task.id, backend, fault);
        };
        let Some(bound) = Bound::of(active, &task) else {
            let fault = Fault::new(
                ErrorClass::Unsupported,
                "the plan needs a contiguous region or a slot that is not there",
            );
            let backend = step.backend;
            return self.handle_refused(id, task.id, backend, fault);
        };
        let is_small = self.pace != Pace::QUICK || task.span.len <= QUICKLY_COPIED_BYTES;
        let copies_here =
            self.pace.copies.has(id) && is_small || !is_on_the_host(step.link.as_ref());
        let pins_pages = pins_pages(&task, step.link.as_ref());
        // A command is large, and each small copy makes one: it is constructed in its final place.
        let command = || Command {
            id,
            backend: Arc::clone(&known.backend),
            backend_id: known.id,
            kind: CommandKind::Submit {
                task,
                via: step.link,
                bound,
                since: 0,
            },
            is_apart: !copies_here,
        };
        if pins_pages {
            let command = command();
            self.later.hand_out(command, self.pace, commands);
        } else {
            commands.push(command());
        }
        self.table[index].commanded += 1;
    }

    /// Makes an operation wait for an end in its backend after `since`.
    pub(crate) fn postpone(&mut self, id: TransferId, task: Task, line: Line, since: u64) {
        let active = &mut self.table[id.index];
        if self.in_flight.postpone(line, active.priority, id, since) {
            active.commanded += 1;
            active.postponed.push((line, task));
        }
    }

    /// Submits operations that have waited for room in their backend and may have it now.
    #[inline]
    fn resume(&mut self, commands: &mut Commands) {
        let mut from = 0;
        while let Some(at) = self.in_flight.next_backlog(from) {
            self.resume_at(at, commands);
            from = at + 1;
        }
    }

    #[cold]
    fn resume_at(&mut self, at: usize, commands: &mut Commands) {
        let mut attempts = self.in_flight.begin_attempts(at);
        while !commands.is_full()
            && let Some((line, id)) = attempts.next()
        {
            let postponed = { self.table.find_mut(id) }.map(|active| &mut active.postponed);
            let task = postponed.and_then(|postponed| {
                let first = postponed.iter().position(|(of, _)| *of == line)?;
                Some(postponed.remove(first).1)
            });
            // The operation may have been withdrawn.
            let Some(task) = task else { continue };
            attempts.spend();
            self.table[id.index].commanded -= 1;
            self.submit_now(id.index, task, commands);
        }
        self.in_flight.end_attempts(at, attempts);
    }

    /// Stops transfers past their deadline, whether they have begun or not.
    fn expire(&mut self, now: Instant) {
        if self.deadlines.is_empty() {
            return;
        }
        let mut due = self.deadlines.take_due(now, &self.table);
        due.retain(|id| {
            let active = { self.table.find(*id) }.filter(|active| active.deadline.is_some());
            match active.map(|active| active.stage) {
                None => return false,
                Some(Stage::Waiting | Stage::Proving) => {
                    let error = TransferError::Deadline { leading_bytes: 0 };
                    self.finish(id.index, Err(error));
                }
                // The flight checks its deadline itself.
                Some(_) => self.enqueue(id.index),
            }
            true
        });
        self.deadlines.keep_due(due);
    }

    /// Handles the failure of a leg: blames the link that failed, and finds another way.
    fn reroute(&mut self, index: Index, failure: Failure, now: Instant) {
        let class = self.give_up_leg(index, failure, now);
        let active = &self.table[index];
        // Bytes that took another way prove nothing about the link.
        let is_crossing = active.proof.is_some_and(|job| self.proofs.is_crossing(job));
        let is_only_way = active.over_one_link && failure.phase == Phase::Copy;
        // After a caller's mistake another route would fail likewise.
        let is_last = class.is_none_or(|class| class == ErrorClass::Caller);
        let ends = active.src.as_ref().zip(active.dst.as_ref());
        let ends = ends.filter(|_| !is_last && !is_crossing && !is_only_way);
        let next = ends.and_then(|ends| {
            let is_new = |plan: &Arc<Plan>| is_untried(active, plan) && fits(active, plan);
            self.planning.another(ends, failure.phase, now, is_new)
        });
        let active = &mut self.table[index];
        if next.is_some() {
            // The next leg has faults of its own; without a next leg, this fault is the last one.
            active.fault = None;
            active.checksum = None;
        }
        if let Some(flight) = &mut active.flight {
            flight.handle_route(next);
        }
    }

    /// Records a failed plan and its fault, and blames the links that may have caused it. Returns the class of the
    /// fault.
    pub(crate) fn give_up_leg(
        &mut self,
        index: Index,
        failure: Failure,
        now: Instant,
    ) -> Option<ErrorClass> {
        let active = &mut self.table[index];
        let flight = active.flight.as_ref()?;
        let failed = match failure.at {
            // After a comparison the leg that is over is the one that read the destination.
            None if failure.phase == Phase::Copy => flight.copied_by().or(flight.plan()).cloned(),
            _ => flight.plan().cloned(),
        }?;
        let (_, fault) = active.fault.clone().unwrap_or_else(|| {
            let backend = failed.lanes[0].steps[0].backend;
            (
                backend,
                Fault::new(ErrorClass::Failed, "no reason was given"),
            )
        });
        active.fallbacks.push(Fallback {
            plan: failed.clone(),
            fault: fault.clone(),
        });
        active.tried.push(failed.clone());
        // A checksum is present only between a comparison and the next leg.
        let compared = active.checksum.is_some();
        // A caller's mistake and an exhausted resource are not the route's fault. Operands that a link does not take
        // are not the link's fault: it serves others.
        let blameless = [
            ErrorClass::Caller,
            ErrorClass::Exhausted,
            ErrorClass::Unsupported,
        ];
        if !blameless.contains(&fault.class) {
            let reason = alloc::format!("{fault}");
            let planning = &mut self.planning;
            if planning.blame(&failed, failure, compared, &reason, now) {
                failed.links().for_each(|link| self.doubt(link));
            }
        }
        Some(fault.class)
    }

    fn compare(&mut self, index: Index) {
        let active = &mut self.table[index];
        let (Some(flight), Some([src, dst])) = (&mut active.flight, &active.digests) else {
            return;
        };
        let (src, dst) = (src.value(), dst.value());
        active.checksum = Some(src);
        if src != dst {
            let plan = flight.copied_by().or(flight.plan());
            let backend = plan.map(|plan| plan.lanes[0].steps[0].backend);
            let message =
                alloc::format!("source and destination differ: xxh3-64 {src:016x} and {dst:016x}");
            let fault = Fault::new(ErrorClass::Failed, message);
            active.fault = backend.map(|backend| (backend, fault));
        }
        flight.handle_compared(src == dst);
    }
}

/// Returns the engine that an operation goes to.
pub(crate) fn line_of(active: &Active, task: &Task) -> Option<Line> {
    let step = step_of(active, task)?;
    Some((step.backend, step.engine))
}

/// Returns the step of its plan that an operation belongs to.
fn step_of<'a>(active: &'a Active, task: &Task) -> Option<&'a Step> {
    let plan = active.flight.as_ref()?.plan()?;
    Some(&plan.lanes[usize::from(task.id.lane)].steps[usize::from(task.step)])
}

/// Returns whether no leg has failed over the same links.
fn is_untried(active: &Active, plan: &Arc<Plan>) -> bool {
    let is_twin = |tried: &Arc<Plan>| tried.links().eq(plan.links());
    !active.tried.iter().any(is_twin)
}

/// An overlapping copy must be a single operation.
fn fits(active: &Active, plan: &Plan) -> bool {
    let in_place = active.flight.as_ref().is_some_and(Flight::is_in_place);
    !in_place || plan.moves_whole()
}
