//! One step of the engine, under its lock: takes outcomes in, looks at the clock, and asks each transfer's flight what
//! to do next, until there are commands for the thread that turns the engine.

use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::flight::{Action, Flight, Settled, Task, TaskId};
use transload_core::{Instant, Step};
use transload_hal::{BackendId, ErrorClass, Fault, Fence, Outcome};

use super::active::{Active, Stage};
use super::backlog::Full;
use super::command::{
    Answer, AnswerKind, Answers, Bound, Command, CommandKind, Commands, is_on_the_host, pins_pages,
};
use super::completions::Completions;
use super::state::State;
use super::trace::What;
use super::types::{Index, Line, Pace, TransferId};
use crate::adopt::Borrowed;
use crate::error::TransferError;

/// Up to this size a thread that starts other transfers also makes their copies. The host's threads take as long for a
/// batch of larger copies, and the batch is submitted sooner: 4,000 of 64 KiB in 6 ms and not 19, 2,000 of 256 KiB in 3
/// ms and not 30 (EPYC, 2 cores).
const QUICKLY_COPIED_BYTES: u64 = 32 << 10;

impl State {
    /// Makes one step, and fills `commands`. It does a limited amount of work, so that other threads get the lock:
    /// [`State::has_more`] says whether anything is left. `spares_drivers`: the thread runs inside a driver, which it must
    /// not enter again.
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
            #[cfg(not(threads))]
            self.note(|| What::settled(fence, &outcome));
            self.handle_outcome(fence, outcome);
        }
        completions.take_awaited(&mut self.awaited);
        self.expire(now);
        self.later.take(pace, commands);
        self.resume(commands);
        self.planning.release_due(now);
        let (mut looks, mut polls) = (Completions::AT_ONCE, 0..Completions::AT_ONCE);
        while !commands.is_full() && polls.next().is_some() {
            self.launch_due(&mut looks);
            self.admit_waiting(commands);
            if let Some(index) = self.table.next_ready() {
                self.poll(index, now, commands);
                continue;
            }
            self.grant_further(commands);
            self.run_errands(commands);
            if !self.table.has_ready() && (looks == 0 || !self.table.has_freed()) {
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
            if self.hold_for_order(index, commands) || self.hold_for_proof(index, now) {
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
                Some(Action::Lease) => {
                    self.admission.ask(index, active);
                    self.note(|| What::Asked(self.table.id(index)));
                }
                Some(Action::Return(id)) => {
                    let evicted = &mut self.after.buffers;
                    self.admission.take_back(active, id, evicted);
                    let (slot, id) = (id, self.table.id(index));
                    self.note(|| What::Returned { id, slot });
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
        let Some(bound) = Bound::of(active, &task, step.link.as_ref()) else {
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
            let postponed = self.table.find_mut(id).map(|active| &mut active.postponed);
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
                Some(Stage::Waiting | Stage::Entering | Stage::Proving) => {
                    let error = TransferError::Deadline { leading_bytes: 0 };
                    self.finish(id.index, Err(error));
                }
                Some(Stage::Guarding) => {
                    self.look_at_group(id.index, now);
                    return false;
                }
                // The flight checks its deadline itself.
                Some(_) => self.enqueue(id.index),
            }
            true
        });
        self.deadlines.keep_due(due);
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

impl State {
    /// Returns the fences of a transfer of which nothing is left to be submitted; none once it has ended well.
    pub(crate) fn fences(&self, id: TransferId) -> Option<Vec<Fence>> {
        let active = self.table.find(id)?;
        if let Some(result) = &active.result {
            return result.is_ok().then(Vec::new);
        }
        let is_out = active.flight.as_ref().is_some_and(Flight::is_out);
        let is_known = active.stage == Stage::Flying && active.commanded == 0;
        let fences = active.flying.iter().map(|(fence, _)| *fence);
        (is_known && is_out).then(|| fences.collect())
    }

    /// Returns whether the command submitted an operation that is under way, and more of its transfer is left to be
    /// submitted.
    pub(crate) fn is_partial(&self, answer: &Answer) -> bool {
        let AnswerKind::Submitted {
            fence: Ok(fence), ..
        } = &answer.kind
        else {
            return false;
        };
        let flight = self
            .table
            .find(answer.id)
            .and_then(|active| active.flight.as_ref());
        !fence.is_immediate() && !flight.is_some_and(Flight::is_out)
    }

    /// Records the answers to a thread's commands.
    pub(crate) fn record(&mut self, answers: &mut Answers) {
        self.in_flight.handle_recorded(answers.len());
        for answer in answers.drain(..) {
            self.record_one(answer);
        }
        self.in_flight.forget_early();
    }

    fn record_one(&mut self, answer: Answer) {
        let Answer { id, backend, kind } = answer;
        if let Some(active) = self.table.find_mut(id) {
            active.commanded -= 1;
        }
        match kind {
            AnswerKind::Submitted { task, fence } => {
                let is_under_way = fence.as_ref().is_ok_and(|fence| !fence.is_immediate());
                self.in_flight.handle_returned(backend, !is_under_way);
                match fence {
                    Ok(fence) if is_under_way => self.handle_submitted(id, task, fence),
                    Ok(_) => self.handle_settled(id, task, Settled::Done),
                    Err(fault) => self.handle_refused(id, task, backend, fault),
                }
            }
            AnswerKind::Full(full) => {
                self.in_flight.handle_returned(backend, false);
                self.handle_full(id, *full, backend);
            }
            AnswerKind::Stopped { task, moved_bytes } => self.handle_stop(id, task, moved_bytes),
            AnswerKind::Proved(proved) => {
                let (job, found) = *proved;
                self.handle_errand(job, found);
            }
            AnswerKind::Allocated(allocated) => {
                let (wanted, slot) = *allocated;
                self.handle_slot(id, wanted, slot.map_err(|fault| (backend, fault)));
            }
            AnswerKind::Entered(entered) => self.handle_entered(id, backend, *entered),
        }
    }

    /// Takes in that an operation is under way; its outcome may be known too.
    fn handle_submitted(&mut self, id: TransferId, task: TaskId, fence: Fence) {
        let lost = self.in_flight.handle_submitted(fence, id, task);
        if let Some(fault) = lost.filter(|_| !self.is_borrowed(id)) {
            // The backend was given up while it accepted this operation.
            self.leak_buffers(id);
            return self.handle_outcome(fence, Outcome::Lost(fault));
        }
        if let Some(active) = self.table.find_mut(id) {
            active.flying.push((fence, task));
            active.stop_asked = false;
            if active.flight.as_ref().is_some_and(Flight::is_stopping) {
                self.enqueue(id.index);
            }
        }
        if let Some(outcome) = self.in_flight.take_early(fence) {
            self.handle_outcome(fence, outcome);
        }
    }

    /// Takes in that a fence has settled.
    pub(crate) fn handle_outcome(&mut self, fence: Fence, outcome: Outcome) {
        let Some((id, task, outcome)) = self.in_flight.handle_outcome(fence, outcome) else {
            if let Some((id, outcome)) = self.in_flight.take_turn() {
                self.handle_turn(id, Some((fence, outcome)));
            }
            return;
        };
        if let Some(active) = self.table.find_mut(id) {
            active.flying.retain(|(flying, _)| *flying != fence);
        }
        let (settled, fault) = match outcome {
            Outcome::Done => (Settled::Done, None),
            Outcome::Stopped { leading_bytes } => (Settled::Stopped { leading_bytes }, None),
            Outcome::Failed(fault) => (Settled::Failed, Some(fault)),
            Outcome::Lost(mut fault) => {
                fault.class = ErrorClass::Lost;
                (Settled::Failed, Some(fault))
            }
        };
        if let Some(fault) = fault {
            self.note_fault(id, fence.backend(), fault);
        }
        self.handle_settled(id, task, settled);
    }

    /// Takes in that an operation was refused: the backend did nothing.
    pub(crate) fn handle_refused(
        &mut self,
        id: TransferId,
        task: TaskId,
        backend: BackendId,
        fault: Fault,
    ) {
        self.note_fault(id, backend, fault);
        self.handle_settled(id, task, Settled::Refused);
    }

    /// Takes in that the backend had no room for an operation, which then waits for the next end. The operation counts
    /// as refused if its leg stops, or if the engine had nothing else in the backend and so no end would follow.
    fn handle_full(&mut self, id: TransferId, full: Full, backend: BackendId) {
        let Full { task, fault, since } = full;
        let active = self.table.find(id).filter(|active| {
            let is_stopping = active.flight.as_ref().is_none_or(Flight::is_stopping);
            !is_stopping && active.fault.is_none()
        });
        let Some(active) = active else {
            return self.handle_settled(id, task.id, Settled::Refused);
        };
        let line = line_of(active, &task);
        match line.filter(|_| self.in_flight.may_have_room_after(backend, since)) {
            Some(line) => self.postpone(id, task, line, since),
            None => self.handle_refused(id, task.id, backend, fault),
        }
    }

    /// Takes in that a backend was asked to stop an operation, of which `moved_bytes` leading bytes had moved.
    fn handle_stop(&mut self, id: TransferId, task: TaskId, moved_bytes: u64) {
        let Some(active) = self.table.find_mut(id) else {
            return;
        };
        if let Some(flight) = &active.flight {
            let leading_bytes = flight.leading_bytes_with(task, moved_bytes);
            active.stopped_at = active.stopped_at.max(leading_bytes);
        }
        self.enqueue(id.index);
    }

    /// Notes the first fault of a leg: it is the one that counts.
    fn note_fault(&mut self, id: TransferId, backend: BackendId, fault: Fault) {
        if let Some(active) = self.table.find_mut(id) {
            active.fault.get_or_insert((backend, fault));
        }
    }

    /// Tells the flight how an operation ended.
    pub(super) fn handle_settled(&mut self, id: TransferId, task: TaskId, settled: Settled) {
        let Some(active) = self.table.find_mut(id) else {
            return;
        };
        let flight = active.flight.as_mut();
        let failure = flight.and_then(|flight| flight.handle_settled(task, settled));
        if active.member.is_some() {
            self.pass_on(id.index);
        }
        if failure.is_some() {
            self.withdraw_postponed(id);
        }
        self.enqueue(id.index);
    }

    /// Withdraws the operations of a transfer that wait for room in their backend.
    pub(super) fn withdraw_postponed(&mut self, id: TransferId) {
        while let Some((_, task)) = self.table[id.index].postponed.pop() {
            self.table[id.index].commanded -= 1;
            self.handle_settled(id, task.id, Settled::Refused);
        }
    }

    /// Gives a backend up that panicked where the engine can know nothing of its fences any more. The buffers of its
    /// operations are never freed, in case the backend still writes to them. Calls with borrowed bytes still wait for
    /// their operations. Returns false if the backend was given up before.
    pub(crate) fn give_up_backend(&mut self, backend: BackendId, fault: &Fault) -> bool {
        let Some(operations) = self.in_flight.give_up(backend, fault) else {
            return false;
        };
        self.planning.handle_lost(backend);
        for (fence, id) in self.in_flight.take_entries(backend) {
            self.handle_turn(id, Some((fence, Outcome::Lost(fault.clone()))));
        }
        for (fence, id) in operations {
            // A caller's stack frame cannot be leaked: the call waits until the operation has ended.
            if self.is_borrowed(id) || !self.in_flight.is_pending(fence) {
                continue;
            }
            self.leak_buffers(id);
            self.handle_outcome(fence, Outcome::Lost(fault.clone()));
        }
        true
    }

    fn is_borrowed(&self, id: TransferId) -> bool {
        let is_borrowed = |end: &super::operand::Operand| end.buffer.native::<Borrowed>().is_some();
        self.table
            .find(id)
            .is_some_and(|active| active.ends().any(is_borrowed))
    }

    fn leak_buffers(&mut self, id: TransferId) {
        let Some(active) = self.table.find_mut(id) else {
            return;
        };
        active.tainted = true;
        let ends = active.ends().map(|end| end.buffer.clone());
        let slots = active.leases.iter().map(|lease| lease.buffer.clone());
        ends.chain(slots).for_each(core::mem::forget);
        core::mem::forget(active.digests.clone());
    }
}
