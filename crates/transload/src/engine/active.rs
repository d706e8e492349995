//! The engine's record of one transfer, from its acceptance until its handle is gone.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Waker;

use transload_core::flight::{Flight, Phase, SlotId, Task, TaskId};
use transload_core::{DeviceId, Instant, MemoryId, Plan, Shape};
use transload_hal::{BackendId, Buffer, Fault, Fence};

use super::admit::queue::Turn;
use super::backlog::Line;
use super::batch::BatchFlag;
use super::digest::Digest;
use super::event::EventCell;
use super::staging::Pair;
use crate::{Fallback, Report, TransferError};

/// One end of a transfer: a shape laid over a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) buffer: Buffer,
    /// Where the shape's first byte lies, counted from the start of the view.
    pub(crate) offset: u64,
    pub(crate) shape: Shape,
}

/// Names a transfer: its place in the table, and how often the place was used before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TransferId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Which transfers go first among those that wait for the same engine or slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Priority {
    /// After the others.
    Low,
    /// In the order of submission.
    #[default]
    Normal,
    /// Before the others.
    High,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The place is free.
    Free,
    /// Waits for the user's events and for conflicting predecessors.
    Waiting,
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

/// A slot that was leased or is being allocated for a flight that is not admitted yet.
pub(crate) struct Boarded {
    pub(crate) lane: u8,
    pub(crate) ring: u8,
    pub(crate) memory: MemoryId,
    pub(crate) bytes: u64,
    /// The part of it, in bytes, that the flight takes where it may share the slot.
    pub(crate) part: Option<u64>,
    /// `None` while it is being allocated.
    pub(crate) buffer: Option<Buffer>,
}

/// One transfer, or one guard. Places are reused, together with their allocated lists.
pub(crate) struct Active {
    pub(crate) generation: u32,
    pub(crate) stage: Stage,
    pub(crate) src: Option<Operand>,
    pub(crate) dst: Option<Operand>,
    pub(crate) flight: Option<Flight>,
    pub(crate) ticket: Option<transload_core::Ticket>,
    /// Events that have not been set, and one more for conflicting predecessors.
    pub(crate) waits_for: u32,
    pub(crate) priority: Priority,
    pub(crate) deadline: Option<Instant>,
    /// In the list of transfers that could use more slots.
    pub(crate) hungry: bool,
    /// In a queue of transfers to look at.
    pub(crate) queued: bool,
    /// Its turn in the queue for first slots, while it is there.
    pub(crate) boarding: Option<Turn>,
    /// The devices that its slots count with, once it has asked for slots.
    pub(crate) pair: Pair,
    pub(crate) boarded: Vec<Boarded>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) flying: Vec<(Fence, TaskId)>,
    /// Operations for which their backend had no room, the oldest first.
    pub(crate) postponed: Vec<(Line, Task)>,
    /// Operations and allocations that a thread has taken and not recorded yet, and those in `postponed`.
    pub(crate) ordered: u32,
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
    pub(crate) tried: Vec<Arc<Plan>>,
    pub(crate) fallbacks: Vec<Fallback>,
    pub(crate) digests: Option<[Arc<Digest>; 2]>,
    pub(crate) checksum: Option<u64>,
    pub(crate) then: Vec<Arc<EventCell>>,
    pub(crate) batch: Option<Arc<BatchFlag>>,
    pub(crate) submitted: Instant,
    pub(crate) begun: Instant,
    pub(crate) waker: Option<Waker>,
    /// A thread must listen for outcomes of the transfer.
    pub(crate) needs_care: bool,
    /// The thread that waits for it is blocked in a backend, and counts among `State::tended`.
    pub(crate) is_tended: bool,
    /// The handle is gone.
    pub(crate) detached: bool,
    /// The buffers may still be written by a backend that was given up: they are never used again.
    pub(crate) tainted: bool,
    /// The job of which this transfer is a step, for transfers of the engine itself. Such transfers are not counted and
    /// not traced.
    pub(crate) proof: Option<usize>,
    /// The owner wants that link and no other: there is no failover.
    pub(crate) over_one_link: bool,
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
            priority: Priority::Normal,
            deadline: None,
            hungry: false,
            queued: false,
            boarding: None,
            pair: Pair::HOST,
            boarded: Vec::with_capacity(ROOM),
            leases: Vec::with_capacity(ROOM),
            flying: Vec::with_capacity(ROOM),
            postponed: Vec::new(),
            ordered: 0,
            stop_asked: false,
            stopped_at: 0,
            shown_bytes: 0,
            cancel_on_drop: false,
            fault: None,
            tried: Vec::new(),
            fallbacks: Vec::new(),
            digests: None,
            checksum: None,
            then: Vec::new(),
            batch: None,
            submitted: Instant(0),
            begun: Instant(0),
            waker: None,
            needs_care: false,
            is_tended: false,
            detached: false,
            tainted: false,
            proof: None,
            over_one_link: false,
            result: None,
            answered: false,
        }
    }

    /// Returns whether the result is still to come.
    pub(crate) fn is_live(&self) -> bool {
        !matches!(self.stage, Stage::Free | Stage::Over)
    }

    /// Returns whether the owner has something to wait for.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_live() && self.stage != Stage::Guarding && !self.answered
    }

    /// Returns the operand for the flight's role `Src` in its present phase.
    pub(crate) fn read_end(&self) -> Option<&Operand> {
        match self.flight.as_ref().map(Flight::phase) {
            Some(Phase::CheckDst) => self.dst.as_ref(),
            _ => self.src.as_ref(),
        }
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
}
