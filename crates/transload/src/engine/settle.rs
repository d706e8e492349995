//! Takes in the backends' answers: what became of commands, and how operations ended.

use alloc::vec::Vec;

use transload_core::flight::{Flight, Settled, TaskId};
use transload_hal::{BackendId, ErrorClass, Fault, Fence, Outcome};

use super::active::Stage;
use super::backlog::Full;
use super::command::{Answer, AnswerKind, Answers};
use super::state::State;
use super::step::line_of;
use super::types::TransferId;
use crate::adopt::Borrowed;

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
        let flight = { self.table.find(answer.id) }.and_then(|active| active.flight.as_ref());
        !fence.is_settled() && !flight.is_some_and(Flight::is_out)
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
                let is_under_way = fence.as_ref().is_ok_and(|fence| !fence.is_settled());
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
        let is_borrowed = |end: &super::types::Operand| end.buffer.native::<Borrowed>().is_some();
        { self.table.find(id) }.is_some_and(|active| active.ends().any(is_borrowed))
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
