//! The end of transfers.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;

use transload_core::flight::{Failure, Flight, Settled, StopReason, Verdict};
use transload_core::stats::Sample;
use transload_core::{BackendId, Instant, Name};
use transload_hal::{ErrorClass, Fault};

use super::active::{Stage, TransferId};
use super::observe::Ended;
use super::order::{Order, Orders, What};
use super::state::State;
use crate::{Report, TransferError, TransferFailure};

impl State {
    /// The flight of a transfer is over.
    pub(crate) fn handle_verdict(&mut self, slot: u32, verdict: Verdict, now: Instant) {
        let result = match verdict {
            Verdict::Done => {
                self.trust(slot, now);
                Ok(self.report(slot, now))
            }
            Verdict::Failed(failure) => {
                let active = &self.transfers[slot as usize];
                let flight = active.flight.as_ref();
                let in_place = flight.filter(|flight| flight.is_in_place());
                let last = in_place.and_then(Flight::plan);
                let noted = |last| active.tried.last().is_some_and(|at| Arc::ptr_eq(at, last));
                if last.is_some_and(|last| !noted(last)) {
                    // The copy may have changed its own source, so no other route was asked for.
                    self.give_up_leg(slot, failure, now);
                }
                Err(self.failure(slot, failure))
            }
            Verdict::Stopped {
                reason: StopReason::Cancelled,
                started: false,
                ..
            } if self.is_batch_stopped(slot) => Err(TransferError::BatchStopped),
            Verdict::Stopped {
                reason,
                leading_bytes,
                ..
            } => Err(match reason {
                StopReason::Cancelled => TransferError::Cancelled { leading_bytes },
                StopReason::Deadline => TransferError::Deadline { leading_bytes },
            }),
        };
        if !self.transfers[slot as usize].answered {
            self.count(slot, &result);
        }
        self.finish(slot, result);
    }

    /// Ends a transfer whose deadline has passed while operations are under way, which may take any time: its owner
    /// gets the result now. The transfer keeps its place in the order and its buffers until they are quiet.
    pub(crate) fn answer_at_deadline(&mut self, slot: u32, now: Instant) {
        let active = &mut self.transfers[slot as usize];
        if active.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        let flight = active.flight.as_ref();
        let leading_bytes = flight.map_or(0, Flight::leading_bytes);
        let leading_bytes = leading_bytes.max(active.stopped_at);
        active.answered = true;
        if let Some(batch) = &active.batch {
            batch.fail();
        }
        self.after.wakers.extend(active.waker.take());
        self.clear_deadline(slot);
        let result = Err(TransferError::Deadline { leading_bytes });
        self.count(slot, &result);
        self.transfers[slot as usize].result = Some(result);
    }

    /// Leaves the order, wakes the threads and tasks that wait, and keeps the result for the owner.
    pub(crate) fn finish(&mut self, slot: u32, result: Result<Report, TransferError>) {
        let active = &mut self.transfers[slot as usize];
        if let (Err(_), Some(batch)) = (&result, &active.batch) {
            batch.fail();
        }
        self.clear_deadline(slot);
        let active = &mut self.transfers[slot as usize];
        // First slots that were leased for a flight that stopped before it was admitted.
        for boarded in active.boarded.drain(..) {
            if let Some(buffer) = boarded.buffer {
                let evicted = &mut self.after.buffers;
                self.pool.give_back(buffer, active.pair, evicted);
            }
        }
        let proof = active.proof;
        let proven = proof.map(|job| match &result {
            Ok(report) => (job, Ok(report.fallbacks.is_empty())),
            Err(TransferError::Failed(failure)) => (job, Err(failure.fault.clone())),
            Err(error) => (job, Err(Fault::new(error.class(), error.to_string()))),
        });
        active.result.get_or_insert(result);
        active.stage = Stage::Over;
        self.after.wakers.extend(active.waker.take());
        let then = core::mem::take(&mut active.then);
        self.leave(slot);
        for event in &then {
            self.handle_events(&event.set());
        }
        if let Some((job, proven)) = proven {
            self.handle_proof_step(job, proven);
        }
        let active = &mut self.transfers[slot as usize];
        if active.detached {
            // The last view of a storage must not go while the lock is held.
            let ends = [active.src.take(), active.dst.take()];
            let buffers = ends.into_iter().flatten().map(|end| end.buffer);
            self.after.buffers.extend(buffers);
            self.free_place(slot);
        }
    }

    fn is_batch_stopped(&self, slot: u32) -> bool {
        let batch = self.transfers[slot as usize].batch.as_ref();
        batch.is_some_and(|batch| batch.has_failed())
    }

    /// Asks a transfer to stop. Returns whether any operation of it was ever handed out.
    pub(crate) fn cancel(&mut self, id: TransferId) -> bool {
        let Some(active) = self.transfer(id) else {
            return false;
        };
        let started = active.flight.as_ref().is_some_and(Flight::has_started);
        match active.stage {
            Stage::Waiting | Stage::Proving => {
                self.finish(id.slot, Err(TransferError::Cancelled { leading_bytes: 0 }));
            }
            Stage::Flying => {
                if let Some(flight) = &mut active.flight {
                    flight.handle_cancel();
                }
                self.enqueue(id.slot);
            }
            Stage::Guarding | Stage::Over | Stage::Free => {}
        }
        started
    }

    /// Returns whether operations of a flight that must stop are under way, and no thread has asked the backends to
    /// stop them yet.
    pub(crate) fn must_stop(&self, slot: u32) -> bool {
        let active = &self.transfers[slot as usize];
        !active.stop_asked && active.flight.as_ref().is_some_and(Flight::is_stopping)
    }

    /// Asks the backends to stop the operations that are under way, and withdraws orders from `later`. Returns false
    /// when another thread has to carry out other orders first.
    pub(crate) fn stop_operations(&mut self, slot: u32, orders: &mut Orders) -> bool {
        let id = self.id(slot);
        self.withdraw_postponed(slot);
        let mut at = 0;
        while let Some(late) = self.later.get(at) {
            match late.what {
                What::Submit { task, .. } if late.id == id => {
                    self.later.remove(at);
                    self.transfers[slot as usize].ordered -= 1;
                    self.handle_settled(id, task.id, Settled::Refused);
                }
                _ => at += 1,
            }
        }
        let flying = self.transfers[slot as usize].flying.len();
        if flying > orders.remaining_capacity() {
            return false;
        }
        for at in 0..flying {
            let (fence, task) = self.transfers[slot as usize].flying[at];
            let Some(known) = self.registered(fence.backend()) else {
                continue;
            };
            orders.push(Order {
                id,
                backend: Arc::clone(&known.backend),
                backend_id: known.id,
                what: What::Stop { fence, task },
                is_apart: false,
            });
            self.transfers[slot as usize].ordered += 1;
        }
        self.transfers[slot as usize].stop_asked = true;
        true
    }

    /// Withdraws a transfer that was accepted in the same call.
    pub(crate) fn withdraw(&mut self, id: TransferId) {
        if let Some(active) = self.transfer(id) {
            active.detached = true;
            self.finish(id.slot, Err(TransferError::BatchStopped));
        }
    }

    /// Gives up a place in the order, and starts the transfers that waited for it.
    pub(crate) fn leave(&mut self, slot: u32) {
        self.live -= 1;
        self.moving -= usize::from(self.transfers[slot as usize].dst.is_some());
        self.care_for(slot, false);
        // The thread may come back from its backend much later.
        self.tend_no_more(self.id(slot));
        let Some(ticket) = self.transfers[slot as usize].ticket.take() else {
            return;
        };
        let mut freed = core::mem::take(&mut self.freed);
        self.hazards.leave(ticket, &mut |next| freed.push(next));
        for next in freed.drain(..) {
            self.handle_awaited(self.by_ticket[next.index()]);
        }
        self.freed = freed;
    }

    /// Events that these transfers waited for were set.
    pub(crate) fn handle_events(&mut self, waiting: &[TransferId]) {
        for id in waiting {
            if self.transfer(*id).is_some() {
                self.handle_awaited(id.slot);
            }
        }
    }

    /// Restores the trust in the links that carried the payload after earlier failures.
    fn trust(&mut self, slot: u32, now: Instant) {
        let flight = self.transfers[slot as usize].flight.as_ref();
        let plan = flight.and_then(|flight| flight.copied_by().or(flight.plan()));
        for link in plan.into_iter().flat_map(|plan| plan.links()) {
            self.quarantine.succeeded(link, now);
        }
    }

    fn report(&mut self, slot: u32, now: Instant) -> Report {
        let active = &mut self.transfers[slot as usize];
        let src = active.src.as_ref();
        let flight = active.flight.as_ref();
        Report {
            src: src.map(|end| end.buffer.memory()),
            dst: active.dst.as_ref().map(|end| end.buffer.memory()),
            bytes: src.map_or(0, |end| end.shape.payload_bytes()),
            plan: flight.and_then(|flight| flight.copied_by().or(flight.plan()).cloned()),
            waited_ns: active.begun.since_ns(active.submitted),
            elapsed_ns: now.since_ns(active.begun),
            checksum: active.checksum,
            fallbacks: core::mem::take(&mut active.fallbacks),
            simulated: false,
        }
        .marked(&self.topology)
    }

    fn failure(&mut self, slot: u32, failure: Failure) -> TransferError {
        let active = &mut self.transfers[slot as usize];
        let route = active.tried.last().map(|plan| plan.to_string());
        let unnamed = BackendId(Name::constant("unknown"));
        let (backend, fault) = active.fault.take().unwrap_or((
            unnamed,
            Fault::new(ErrorClass::Failed, "no reason was given"),
        ));
        if let (None, Some([src, dst])) = (failure.at, &active.digests)
            && active.checksum.is_some()
            && src.value() != dst.value()
        {
            return TransferError::Differs {
                route: route.unwrap_or_default(),
                src_checksum: src.value(),
                dst_checksum: dst.value(),
            };
        }
        let plan = active.flight.as_ref().and_then(Flight::plan);
        let step = failure.at.and_then(|(lane, step)| {
            let lane = plan?.lanes.get(usize::from(lane))?;
            lane.steps.get(usize::from(step))
        });
        TransferError::Failed(Box::new(TransferFailure {
            backend,
            device: step.map(|step| step.engine.device),
            route: route.unwrap_or_default(),
            step: failure.at.map(|(_, step)| step),
            span: failure.span,
            fault,
            routes_tried: active.tried.len() as u32,
        }))
    }

    /// Counts a transfer in the statistics. Leaves out what it cannot count: a statistic never fails a transfer.
    fn count(&mut self, slot: u32, result: &Result<Report, TransferError>) {
        let active = &self.transfers[slot as usize];
        if active.proof.is_some() {
            return;
        }
        let (Some(src), Some(dst)) = (&active.src, &active.dst) else {
            return;
        };
        // After a verification the flight's plan is the one that read the destination.
        let flight = active.flight.as_ref();
        let plan = flight.and_then(|flight| flight.copied_by().or(flight.plan()));
        let Some(plan) = plan else { return };
        let path = (src.buffer.memory(), dst.buffer.memory(), plan.method);
        let fallbacks = match result {
            Ok(report) => report.fallbacks.len(),
            Err(_) => active.fallbacks.len(),
        };
        if super::observe::is_watched(self.metrics) {
            let ended = Ended::new(path, src.shape.payload_bytes(), result);
            self.after.note(ended, self.metrics);
        }
        let duration_ns = result.as_ref().map_or(0, |report| report.elapsed_ns);
        self.stats.record(&Sample {
            src: path.0,
            dst: path.1,
            method: path.2,
            bytes: src.shape.payload_bytes(),
            duration_ns,
            failed: result.is_err(),
            fallbacks: fallbacks as u32,
        });
    }
}
