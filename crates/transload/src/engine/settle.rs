//! Outcomes of operations.

use alloc::vec::Vec;

use transload_core::flight::{Flight, Settled, TaskId};
use transload_hal::{BackendId, Buffer, ErrorClass, Fault, Fence, Outcome};

use super::active::{Stage, TransferId};
use super::order::{Deed, DeedResult, Deeds};
use super::state::State;
use crate::adopt::Borrowed;

impl State {
    /// Returns the fences of a transfer of which nothing is left to be submitted; none once it has ended well.
    pub(crate) fn fences(&mut self, id: TransferId) -> Option<Vec<Fence>> {
        let active = self.transfer(id)?;
        if let Some(result) = &active.result {
            return result.is_ok().then(Vec::new);
        }
        let is_out = active.flight.as_ref().is_some_and(Flight::is_out);
        let is_known = active.stage == Stage::Flying && active.ordered == 0;
        let fences = active.flying.iter().map(|(fence, _)| *fence);
        (is_known && is_out).then(|| fences.collect())
    }

    /// Returns whether the deed submitted an operation that is under way, and more of its transfer is left to be
    /// submitted.
    pub(crate) fn is_partial(&mut self, deed: &Deed) -> bool {
        let DeedResult::Submitted {
            fence: Ok(fence), ..
        } = &deed.result
        else {
            return false;
        };
        let flight = self
            .transfer(deed.id)
            .and_then(|active| active.flight.as_ref());
        !fence.is_settled() && !flight.is_some_and(Flight::is_out)
    }

    /// Records what a thread did with its orders.
    pub(crate) fn record(&mut self, deeds: &mut Deeds) {
        self.outstanding -= deeds.len();
        for deed in deeds.drain(..) {
            self.record_one(deed);
        }
        if self.outstanding == 0 {
            // No thread is about to record them: they belong to no order of this engine.
            self.early.clear();
        }
    }

    fn record_one(&mut self, deed: Deed) {
        let Deed {
            id,
            backend,
            result,
        } = deed;
        if let Some(active) = self.transfer(id) {
            active.ordered -= 1;
        }
        match &result {
            DeedResult::Submitted { fence, .. } => {
                let is_under_way = fence.as_ref().is_ok_and(|fence| !fence.is_settled());
                self.handle_returned(backend, !is_under_way);
            }
            DeedResult::Full(_) => self.handle_returned(backend, false),
            _ => {}
        }
        match result {
            DeedResult::Submitted {
                task,
                fence: Ok(fence),
            } if fence.is_settled() => self.handle_settled(id, task, Settled::Done),
            DeedResult::Submitted {
                task,
                fence: Ok(fence),
            } => self.handle_submitted(id, task, fence),
            DeedResult::Submitted {
                task,
                fence: Err(fault),
            } => self.handle_refused(id, task, backend, fault),
            DeedResult::Full(full) => self.handle_full(id, *full, backend),
            DeedResult::Stopped { task, moved_bytes } => self.handle_stop(id, task, moved_bytes),
            DeedResult::Proved(proved) => {
                let (job, found) = *proved;
                self.handle_errand(job, found);
            }
            DeedResult::Allocated(allocated) => {
                let (wanted, slot) = *allocated;
                self.handle_slot(id, wanted, slot.map_err(|fault| (backend, fault)));
            }
        }
    }

    /// A backend was asked to stop an operation, of which `moved_bytes` leading bytes had moved.
    fn handle_stop(&mut self, id: TransferId, task: TaskId, moved_bytes: u64) {
        let Some(active) = self.transfer(id) else {
            return;
        };
        if let Some(flight) = &active.flight {
            let leading_bytes = flight.leading_bytes_with(task, moved_bytes);
            active.stopped_at = active.stopped_at.max(leading_bytes);
        }
        self.enqueue(id.slot);
    }

    /// The fence of an operation is known; its outcome may be known too.
    fn handle_submitted(&mut self, id: TransferId, task: TaskId, fence: Fence) {
        self.pending.insert(fence, (id, task));
        if let Some(known) = self
            .backends
            .iter_mut()
            .find(|known| known.id == fence.backend())
        {
            known.pending += 1;
            if !known.unattended {
                known.attended.insert(fence);
            }
            if let Some(fault) = known.lost.clone()
                && !self.is_borrowed(id)
            {
                // The backend was given up while it accepted this operation.
                self.leak_buffers(id);
                return self.handle_outcome(fence, Outcome::Lost(fault));
            }
        }
        if let Some(active) = self.transfer(id) {
            active.flying.push((fence, task));
            active.stop_asked = false;
            if active.flight.as_ref().is_some_and(Flight::is_stopping) {
                self.enqueue(id.slot);
            }
        }
        if let Some(at) = self.early.iter().position(|(early, _)| *early == fence) {
            let (_, outcome) = self.early.swap_remove(at);
            self.handle_outcome(fence, outcome);
        }
    }

    /// A fence has settled.
    pub(crate) fn handle_outcome(&mut self, fence: Fence, outcome: Outcome) {
        let Some((id, task)) = self.pending.remove(&fence) else {
            match self.hints.settle(fence, outcome) {
                Some(outcome) => self.early.push((fence, outcome)),
                None => {
                    if let Some(known) = self.registered_mut(fence.backend()) {
                        known.backlog.handle_ended();
                    }
                }
            }
            return;
        };
        let backend = fence.backend();
        if let Some(known) = self.backends.iter_mut().find(|known| known.id == backend) {
            known.pending -= 1;
            known.attended.remove(&fence);
            known.backlog.handle_ended();
        }
        if let Some(active) = self.transfer(id) {
            active.flying.retain(|(flying, _)| *flying != fence);
        }
        match outcome {
            Outcome::Done => self.handle_settled(id, task, Settled::Done),
            Outcome::Stopped { leading_bytes } => {
                self.handle_settled(id, task, Settled::Stopped { leading_bytes });
            }
            Outcome::Failed(fault) => self.handle_failed(id, task, backend, fault),
            Outcome::Lost(fault) => {
                let fault = Fault {
                    class: ErrorClass::Lost,
                    ..fault
                };
                self.handle_failed(id, task, backend, fault);
            }
        }
    }

    /// An operation was refused: the backend did nothing.
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

    fn handle_failed(&mut self, id: TransferId, task: TaskId, backend: BackendId, fault: Fault) {
        self.note_fault(id, backend, fault);
        self.handle_settled(id, task, Settled::Failed);
    }

    /// The first fault of a leg is the one that counts.
    fn note_fault(&mut self, id: TransferId, backend: BackendId, fault: Fault) {
        if let Some(active) = self.transfer(id) {
            active.fault.get_or_insert((backend, fault));
        }
    }

    pub(super) fn handle_settled(&mut self, id: TransferId, task: TaskId, settled: Settled) {
        let Some(active) = self.transfer(id) else {
            return;
        };
        let flight = active.flight.as_mut();
        let failure = flight.and_then(|flight| flight.handle_settled(task, settled));
        if failure.is_some() {
            self.withdraw_postponed(id.slot);
        }
        self.enqueue(id.slot);
    }

    /// Gives a backend up that panicked where the engine can know nothing of its fences any more. The buffers of its
    /// operations are never freed, in case the backend still writes to them. Calls with borrowed bytes still wait for
    /// their operations.
    pub(crate) fn give_up_backend(&mut self, backend: BackendId, fault: &Fault) {
        let Some(known) = self.backends.iter_mut().find(|known| known.id == backend) else {
            return;
        };
        if known.lost.is_some() {
            return;
        }
        known.lost = Some(fault.clone());
        let fences = self
            .pending
            .keys()
            .filter(|fence| fence.backend() == backend);
        let fences: Vec<Fence> = fences.copied().collect();
        for fence in fences {
            let Some((id, _)) = self.pending.get(&fence).copied() else {
                continue;
            };
            // A caller's stack frame cannot be leaked: the call waits until the operation has ended.
            if self.is_borrowed(id) {
                continue;
            }
            self.leak_buffers(id);
            self.handle_outcome(fence, Outcome::Lost(fault.clone()));
        }
    }

    fn is_borrowed(&mut self, id: TransferId) -> bool {
        self.transfer(id).is_some_and(|active| {
            let ends = [active.src.as_ref(), active.dst.as_ref()];
            let mut ends = ends.into_iter().flatten();
            ends.any(|end| end.buffer.native::<Borrowed>().is_some())
        })
    }

    fn leak_buffers(&mut self, id: TransferId) {
        let Some(active) = self.transfer(id) else {
            return;
        };
        active.tainted = true;
        let ends = [active.src.as_ref(), active.dst.as_ref()]
            .into_iter()
            .flatten();
        let ends = ends.map(|end| end.buffer.clone());
        let slots = active.leases.iter().map(|lease| lease.buffer.clone());
        ends.chain(slots)
            .for_each(|buffer: Buffer| core::mem::forget(buffer));
        core::mem::forget(active.digests.clone());
    }
}
