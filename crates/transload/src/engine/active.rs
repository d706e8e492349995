//! The engine's record of one transfer, from its acceptance until its handle is gone.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Waker;

use transload_core::flight::{Failure, Flight, Phase, SlotId, Task, TaskId};
use transload_core::{DeviceId, Instant, Name, Plan, PlanKey, Ticket};
use transload_hal::{BackendId, Buffer, ErrorClass, Fault, Fence};

use super::digest::Digest;
use super::entering::Orders;
use super::event::EventState;
use super::group::{Group, Member};
use super::operand::Operand;
use super::types::{BatchFlag, FirstSlot, Line, Pair, Priority, QueuePosition};
use crate::error::{FailedTask, TransferError, TransferFailure};
use crate::report::{Fallback, Report};

/// The stage of a transfer or guard. [`Active`] lists what holds in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The place is free.
    Free,
    /// Waits for the user's events and for conflicting predecessors.
    Waiting,
    /// Waits for its turn in the order of another machine.
    Entering,
    /// Waits until links of its plan are proven.
    Proving,
    /// Its flight is under way.
    Flying,
    /// A guard that has its turn.
    Guarding,
    /// The result is known.
    Over,
}

/// A slot that the flight of a transfer holds.
pub(crate) struct Lease {
    pub(crate) id: SlotId,
    pub(crate) buffer: Buffer,
}

/// What tells whether the time of a transfer says anything of its route.
pub(crate) struct Alone {
    /// The plans that were asked for.
    pub(crate) key: PlanKey,
    /// The count of started transfers at its start: no other one may start meanwhile.
    pub(crate) started: u64,
    /// Since when no thread or task waits for it.
    pub(crate) unwatched: Option<Instant>,
    /// For how long none waited before. Its end may have come then, and is seen later.
    pub(crate) unwatched_ns: u64,
}

/// One transfer, or one guard. Places are reused, together with their allocated lists.
///
/// The invariant of each stage:
///
/// | stage | holds |
/// |---|---|
/// | `Free` | no buffer, ticket, waker or result; its place is in the table's list of free places; `flight` is over |
/// | `Waiting` | `ticket` is set and `waits_for` is above 0; nothing was submitted; `first_slots`, `leases` and `flying` are empty |
/// | `Entering` | `waits_for` is 0; nothing was submitted; `commanded` has the question to the machine's backend until it is answered |
/// | `Proving` | `waits_for` is 0; the leg has asked for nothing yet; a proof has the transfer in its list |
/// | `Flying` | `flight` is not over; `flying` has the fences that the engine waits for, `leases` the slots of the leg, `commanded` what threads have taken and not recorded. Only this stage has operations under way |
/// | `Guarding` | `src` and `ticket` are set, `dst` is not; conflicting transfers wait until the guard leaves |
/// | `Over` | `ticket` is gone, and so are the ends at other machines; `flying` and `leases` are empty, `result` is set until the handle takes it. A transfer whose handle is gone goes on to `Free` in the same step |
///
/// A transfer goes through the stages in this order, from `Flying` back to `Proving` with each leg. A transfer that is
/// cancelled or past its deadline goes from `Waiting`, `Entering` or `Proving` to `Over`. A guard goes from `Waiting` to `Guarding`,
/// a group over `Entering`, and to `Free`. `answered` holds only in `Flying`: the owner has the result, and operations are still under way.
pub(crate) struct Active {
    pub(crate) generation: u32,
    pub(crate) stage: Stage,
    pub(crate) src: Option<Operand>,
    pub(crate) dst: Option<Operand>,
    pub(crate) flight: Option<Flight>,
    pub(crate) ticket: Option<Ticket>,
    /// Events that have not been set, and one more for conflicting predecessors.
    pub(crate) waits_for: u32,
    /// Its turns at other machines.
    pub(crate) orders: Orders,
    /// Its place in a group of copies of one source.
    pub(crate) member: Option<Box<Member>>,
    /// The group, in the record that has its place in the order.
    pub(crate) group: Option<Box<Group>>,
    pub(crate) priority: Priority,
    pub(crate) deadline: Option<Instant>,
    /// In the list of transfers that could use more slots.
    pub(crate) wants_more: bool,
    /// In a queue of transfers to look at.
    pub(crate) queued: bool,
    /// Its position in the queue for first slots, while it is there.
    pub(crate) position: Option<QueuePosition>,
    /// The devices that its slots count with, once it has asked for slots.
    pub(crate) pair: Pair,
    pub(crate) first_slots: Vec<FirstSlot>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) flying: Vec<(Fence, TaskId)>,
    /// Operations for which their backend had no room, the oldest first.
    pub(crate) postponed: Vec<(Line, Task)>,
    /// Operations and allocations that a thread has taken and not recorded yet, and those in `postponed`.
    pub(crate) commanded: u32,
    /// The backends were asked to stop all that is in `flying`.
    pub(crate) stop_asked: bool,
    /// Leading bytes that were in place when the backends were asked.
    pub(crate) stopped_at: u64,
    /// The most arrived bytes that its owner has been told.
    pub(crate) shown_bytes: u64,
    /// The transfer stops when its handle is dropped.
    pub(crate) cancel_on_drop: bool,
    /// Why the current leg failed, and at which backend.
    pub(crate) fault: Option<(BackendId, Fault)>,
    /// The failed leg that the others follow from, and its number in `fallbacks`.
    pub(crate) cause: Option<Box<(usize, TransferFailure)>>,
    pub(crate) tried: Vec<Arc<Plan>>,
    pub(crate) fallbacks: Vec<Fallback>,
    pub(crate) digests: Option<[Arc<Digest>; 2]>,
    pub(crate) checksum: Option<u64>,
    pub(crate) then: Vec<Arc<EventState>>,
    pub(crate) batch: Option<Arc<BatchFlag>>,
    pub(crate) submitted: Instant,
    pub(crate) begun: Instant,
    pub(crate) waker: Option<Waker>,
    /// A thread must listen for outcomes of the transfer.
    pub(crate) needs_listener: bool,
    /// The thread that waits for it is blocked in a backend.
    pub(crate) has_waiter: bool,
    /// The handle is gone.
    pub(crate) detached: bool,
    /// The buffers may still be written by a backend that was given up: they are never used again.
    pub(crate) tainted: bool,
    /// The job of which this transfer is a step, for transfers of the engine itself. Such transfers are not counted and
    /// not traced.
    pub(crate) proof: Option<usize>,
    /// Set if nothing else was under way at its start.
    pub(crate) alone: Option<Alone>,
    /// The owner named the only way: there is no failover.
    pub(crate) has_only_way: bool,
    pub(crate) result: Option<Result<Report, TransferError>>,
    /// The owner was told the result although operations are still under way.
    pub(crate) answered: bool,
}

/// Two rings of four slots, and as many operations under way.
const ROOM: usize = 8;

impl Active {
    /// Returns a place that was never used. Its lists have room for what most plans need, so that its first
    /// use is like the later ones.
    pub(crate) fn vacant(generation: u32) -> Active {
        Active {
            generation,
            stage: Stage::Free,
            src: None,
            dst: None,
            flight: None,
            ticket: None,
            waits_for: 0,
            orders: Orders::default(),
            member: None,
            group: None,
            priority: Priority::Normal,
            deadline: None,
            wants_more: false,
            queued: false,
            position: None,
            pair: Pair::HOST,
            first_slots: Vec::with_capacity(ROOM),
            leases: Vec::with_capacity(ROOM),
            flying: Vec::with_capacity(ROOM),
            postponed: Vec::new(),
            commanded: 0,
            stop_asked: false,
            stopped_at: 0,
            shown_bytes: 0,
            cancel_on_drop: false,
            fault: None,
            cause: None,
            tried: Vec::new(),
            fallbacks: Vec::new(),
            digests: None,
            checksum: None,
            then: Vec::new(),
            batch: None,
            submitted: Instant(0),
            begun: Instant(0),
            waker: None,
            needs_listener: false,
            has_waiter: false,
            detached: false,
            tainted: false,
            proof: None,
            alone: None,
            has_only_way: false,
            result: None,
            answered: false,
        }
    }

    /// Makes the record one of a free place. Returns the digests, if no operation holds them any more. The caller has
    /// taken the transfer out of every queue that must know.
    pub(crate) fn vacate(&mut self) -> Option<[Arc<Digest>; 2]> {
        self.generation = self.generation.wrapping_add(1);
        self.stage = Stage::Free;
        self.src = None;
        self.dst = None;
        self.result = None;
        self.answered = false;
        self.waker = None;
        self.detached = false;
        self.tainted = false;
        self.tried.clear();
        self.fallbacks.clear();
        self.checksum = None;
        self.then.clear();
        self.batch = None;
        self.fault = None;
        self.cause = None;
        self.proof = None;
        self.alone = None;
        self.has_only_way = false;
        // An allocation for the transfer may still be under way.
        self.commanded = 0;
        self.stop_asked = false;
        self.stopped_at = 0;
        self.shown_bytes = 0;
        self.orders.clear();
        self.member = None;
        self.group = None;
        let digests = self.digests.take()?;
        let is_alone = |digest: &Arc<Digest>| Arc::strong_count(digest) == 1;
        digests.iter().all(is_alone).then_some(digests)
    }

    /// Returns whether the result is still to come.
    pub(crate) fn is_live(&self) -> bool {
        !matches!(self.stage, Stage::Free | Stage::Over)
    }

    /// Returns whether the owner has something to wait for.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_live() && self.stage != Stage::Guarding && !self.answered
    }

    /// Returns whether the other transfers of its batch stop it.
    pub(crate) fn is_batch_stopped(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.has_failed())
    }

    /// Returns the operand for the flight's role `Src` in its present phase.
    pub(crate) fn read_end(&self) -> Option<&Operand> {
        match self.flight.as_ref().map(Flight::phase) {
            Some(Phase::CheckDst) => self.dst.as_ref(),
            Some(Phase::CheckSrc) => match &self.member {
                Some(member) => Some(member.source()),
                None => self.src.as_ref(),
            },
            _ => self.src.as_ref(),
        }
    }

    /// Returns both ends that the transfer has.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &Operand> {
        self.src.iter().chain(&self.dst)
    }

    /// Returns the devices at its ends.
    pub(crate) fn pair_of_ends(&self) -> Pair {
        let device = |end: &Operand| end.buffer.memory().device;
        let [src, dst] = [&self.src, &self.dst].map(|end| end.as_ref().map(device));
        let [src, dst] = [src.or(dst), dst.or(src)].map(|end| end.unwrap_or(DeviceId::CPU0));
        Pair::between(src, dst)
    }

    /// Returns the digest that the flight's transforms feed in its present phase.
    pub(crate) fn digest(&self) -> Option<&Arc<Digest>> {
        let at = usize::from(self.flight.as_ref().map(Flight::phase) == Some(Phase::CheckDst));
        self.digests.as_ref().map(|digests| &digests[at])
    }

    pub(crate) fn lease(&self, id: SlotId) -> Option<&Buffer> {
        self.leases
            .iter()
            .find(|lease| lease.id == id)
            .map(|lease| &lease.buffer)
    }

    /// Returns whether both ends were read, and differ. A checksum is present only between a comparison and the next leg.
    pub(crate) fn differs(&self, failure: Failure) -> bool {
        let differ = |[src, dst]: &[Arc<Digest>; 2]| src.value() != dst.value();
        failure.at.is_none() && self.checksum.is_some() && self.digests.as_ref().is_some_and(differ)
    }

    /// Tells of a leg that has failed, or of a transfer that failed before its first leg.
    #[cold]
    pub(crate) fn failed_leg(&self, plan: Option<&Plan>, failure: Failure) -> TransferFailure {
        let flight = self.flight.as_ref();
        let step = failure.at.and_then(|(lane, step)| {
            let lane = plan?.lanes.get(usize::from(lane))?;
            lane.steps.get(usize::from(step))
        });
        let first = plan.map(|plan| plan.lanes[0].steps[0].backend);
        let (backend, fault) = self.fault.clone().unwrap_or_else(|| {
            let unnamed = BackendId(Name::constant("unknown"));
            let fault = Fault::new(ErrorClass::Failed, "no reason was given");
            (first.unwrap_or(unnamed), fault)
        });
        let memory = |end: &Option<Operand>| match end {
            Some(end) => end.buffer.memory().to_string(),
            None => "a buffer".into(),
        };
        TransferFailure {
            task: match failure.phase {
                Phase::Copy if self.differs(failure) => FailedTask::Compare,
                Phase::Copy => FailedTask::Copy,
                Phase::CheckSrc => FailedTask::ReadSource,
                Phase::CheckDst => FailedTask::ReadDestination,
            },
            backend,
            device: step.map(|step| step.engine.device),
            route: match plan {
                Some(plan) => plan.to_string(),
                None => alloc::format!("{} → {}", memory(&self.src), memory(&self.dst)),
            },
            step: failure.at.map(|(_, step)| step),
            span: failure.span,
            fault,
            len_bytes: flight.map_or(0, Flight::len_bytes),
            leading_bytes: flight.map_or(0, Flight::leading_bytes),
            others: Vec::new(),
            routes_tried: 0,
        }
    }

    /// Returns the plan that carried the payload, or carries it now. After a verification the flight's own plan is the
    /// one that read the destination.
    pub(crate) fn carrier(&self) -> Option<&Arc<Plan>> {
        let flight = self.flight.as_ref()?;
        flight.copied_by().or(flight.plan())
    }
}
