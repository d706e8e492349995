//! The end of transfers.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;

use transload_core::Instant;
use transload_core::flight::{Failure, Flight, Settled, StopReason, Verdict};
use transload_core::stats::Sample;
use transload_hal::Fault;

use super::active::Stage;
use super::command::{Command, CommandKind, Commands};
use super::entering::is_kept_elsewhere;
use super::observe::Ended;
use super::operand::Operand;
use super::state::State;
use super::trace::What;
use super::types::{Index, TransferId};
use crate::error::TransferError;
use crate::report::{Rare, Report};

impl State {
    /// The flight of a transfer is over.
    pub(crate) fn handle_verdict(&mut self, index: Index, verdict: Verdict, now: Instant) {
        let result = match verdict {
            Verdict::Done => {
                let active = &self.table[index];
                self.planning.trust(active.carrier(), now);
                if active.alone.is_some() {
                    self.learn(index, now);
                }
                Ok(self.report(index, now))
            }
            Verdict::Failed(failure) => {
                let active = &self.table[index];
                let flight = active.flight.as_ref();
                let in_place = flight.filter(|flight| flight.is_in_place());
                let last = in_place.and_then(Flight::plan);
                let noted = |last| active.tried.last().is_some_and(|at| Arc::ptr_eq(at, last));
                if last.is_some_and(|last| !noted(last)) {
                    // The copy may have changed its own source, so no other route was asked for.
                    self.give_up_leg(index, failure, now);
                }
                Err(self.failure(index, failure))
            }
            Verdict::Stopped {
                reason: StopReason::Cancelled,
                started: false,
                ..
            } if self.table[index].is_batch_stopped() => Err(TransferError::BatchStopped),
            Verdict::Stopped {
                reason,
                leading_bytes,
                ..
            } => Err(match reason {
                StopReason::Cancelled => TransferError::Cancelled { leading_bytes },
                StopReason::Deadline => TransferError::Deadline { leading_bytes },
            }),
        };
        if !self.table[index].answered {
            self.count(index, &result);
        }
        self.finish(index, result);
    }

    /// Ends a transfer whose deadline has passed while operations are under way, which may take any time: its owner
    /// gets the result now. The transfer keeps its place in the order and its buffers until they are quiet.
    pub(crate) fn answer_at_deadline(&mut self, index: Index, now: Instant) {
        let active = &mut self.table[index];
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
        self.deadlines.clear(index, &mut self.table);
        let result = Err(TransferError::Deadline { leading_bytes });
        self.count(index, &result);
        self.table[index].result = Some(result);
    }

    /// Leaves the order, wakes the threads and tasks that wait, and keeps the result for the owner.
    pub(crate) fn finish(&mut self, index: Index, result: Result<Report, TransferError>) {
        let active = &mut self.table[index];
        if let (Err(_), Some(batch)) = (&result, &active.batch) {
            batch.fail();
        }
        self.note(|| self.end_of(index, result.is_ok()));
        self.deadlines.clear(index, &mut self.table);
        let active = &mut self.table[index];
        // First slots that were leased for a flight that stopped before it was admitted.
        let evicted = &mut self.after.buffers;
        self.admission.take_back_first(active, evicted);
        let proof = active.proof;
        let proven = proof.map(|job| match &result {
            Ok(report) => (job, Ok(report.fallbacks().is_empty())),
            Err(TransferError::Failed(failure)) => (job, Err(failure.fault.clone())),
            Err(error) => (job, Err(Fault::new(error.class(), error.to_string()))),
        });
        active.result.get_or_insert(result);
        active.stage = Stage::Over;
        self.after.wakers.extend(active.waker.take());
        let then = core::mem::take(&mut active.then);
        if active.member.is_some() {
            let is_done = matches!(active.result, Some(Ok(_)));
            self.leave_group(index, is_done);
        }
        self.table.leave(index);
        for event in &then {
            self.awaited.push(event.set());
        }
        if let Some((job, proven)) = proven {
            self.handle_proof_step(job, proven);
        }
        let active = &mut self.table[index];
        if active.detached || active.ends().any(is_kept_elsewhere) {
            // The last view of a storage must not go while the lock is held. With the views of what another machine has
            // goes the place in the order there.
            let ends = active.src.take().into_iter().chain(active.dst.take());
            self.after.buffers.extend(ends.map(|end| end.buffer));
        }
        if active.detached {
            self.free_place(index);
        }
    }

    #[cold]
    fn end_of(&self, index: Index, is_done: bool) -> What {
        let active = &self.table[index];
        let memory = |end: &Operand| end.buffer.memory();
        What::Transfer {
            id: self.table.id(index),
            memories: { active.src.as_ref().zip(active.dst.as_ref()) }
                .map(|(src, dst)| (memory(src), memory(dst))),
            bytes: { &active.src }
                .as_ref()
                .map_or(0, |src| src.shape.payload_bytes()),
            submitted: active.submitted,
            begun: active.begun,
            is_done,
            is_proof: active.proof.is_some(),
        }
    }

    /// Asks a transfer to stop. Returns whether any operation of it was ever handed out.
    pub(crate) fn cancel(&mut self, id: TransferId) -> bool {
        let Some(active) = self.table.find_mut(id) else {
            return false;
        };
        let started = active.flight.as_ref().is_some_and(Flight::has_started);
        match active.stage {
            Stage::Waiting | Stage::Entering | Stage::Proving => {
                self.finish(id.index, Err(TransferError::Cancelled { leading_bytes: 0 }));
            }
            Stage::Flying => {
                if let Some(flight) = &mut active.flight {
                    flight.handle_cancel();
                }
                self.enqueue(id.index);
            }
            Stage::Guarding | Stage::Over | Stage::Free => {}
        }
        started
    }

    /// Returns whether operations of a flight that must stop are under way, and no thread has asked the backends to
    /// stop them yet.
    pub(crate) fn must_stop(&self, index: Index) -> bool {
        let active = &self.table[index];
        !active.stop_asked && active.flight.as_ref().is_some_and(Flight::is_stopping)
    }

    /// Asks the backends to stop the operations that are under way, and withdraws submissions that no thread has taken.
    /// Returns false when another thread has to execute other commands first.
    pub(crate) fn stop_operations(&mut self, index: Index, commands: &mut Commands) -> bool {
        let id = self.table.id(index);
        self.withdraw_postponed(id);
        while let Some(task) = self.later.withdraw(id) {
            self.table[index].commanded -= 1;
            self.handle_settled(id, task, Settled::Refused);
        }
        let active = &mut self.table[index];
        if active.flying.len() > commands.remaining_capacity() {
            return false;
        }
        for (fence, task) in active.flying.iter().copied() {
            let Some(known) = self.in_flight.known(fence.backend()) else {
                continue;
            };
            commands.push(Command {
                id,
                backend: Arc::clone(&known.backend),
                backend_id: known.id,
                kind: CommandKind::Stop { fence, task },
                is_apart: false,
            });
            active.commanded += 1;
        }
        active.stop_asked = true;
        true
    }

    /// Withdraws a transfer that was accepted in the same call.
    pub(crate) fn withdraw(&mut self, id: TransferId) {
        if let Some(active) = self.table.find_mut(id) {
            active.detached = true;
            self.finish(id.index, Err(TransferError::BatchStopped));
        }
    }

    fn report(&mut self, index: Index, now: Instant) -> Report {
        let active = &mut self.table[index];
        let src = active.src.as_ref();
        let tried = active.flight.as_ref().and_then(Flight::tried);
        let rare = (tried.is_some() || !active.fallbacks.is_empty()).then(|| {
            Box::new(Rare {
                tried: tried.cloned(),
                fallbacks: core::mem::take(&mut active.fallbacks),
            })
        });
        Report {
            bytes: src.map_or(0, |end| end.shape.payload_bytes()),
            plan: active.carrier().cloned(),
            waited_ns: active.begun.since_ns(active.submitted),
            elapsed_ns: now.since_ns(active.begun),
            checking_ns: { active.flight.as_ref() }
                .and_then(Flight::copied_at)
                .filter(|_| active.checksum.is_some())
                .map_or(0, |copied| now.since_ns(copied)),
            checksum: active.checksum,
            rare,
            simulated: false,
        }
        .marked(self.planning.topology())
    }

    pub(super) fn failure(&mut self, index: Index, failure: Failure) -> TransferError {
        let active = &mut self.table[index];
        if active.differs(failure)
            && let Some([src, dst]) = &active.digests
        {
            return TransferError::Differs {
                route: { active.tried.last() }.map_or_else(String::new, |plan| plan.to_string()),
                src_checksum: src.value(),
                dst_checksum: dst.value(),
            };
        }
        let (at, mut told) = match active.cause.take() {
            Some(cause) => *cause,
            // It failed before its first leg.
            None => {
                let plan = active.flight.as_ref().and_then(Flight::plan).cloned();
                (usize::MAX, active.failed_leg(plan.as_deref(), failure))
            }
        };
        active.fault = None;
        let others = active.fallbacks.iter().enumerate();
        told.others = others
            .filter(|(other, _)| *other != at)
            .map(|(_, leg)| (leg.plan.to_string(), leg.fault.clone()))
            .collect();
        told.routes_tried = active.tried.len() as u32;
        TransferError::Failed(Box::new(told))
    }

    /// Counts a transfer in the statistics. Leaves out what it cannot count: a statistic never fails a transfer.
    fn count(&mut self, index: Index, result: &Result<Report, TransferError>) {
        let active = &self.table[index];
        if active.proof.is_some() {
            return;
        }
        let (Some(src), Some(dst)) = (&active.src, &active.dst) else {
            return;
        };
        let Some(plan) = active.carrier() else { return };
        let path = (src.buffer.memory(), dst.buffer.memory(), plan.method);
        let fallbacks = match result {
            Ok(report) => report.fallbacks().len(),
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
