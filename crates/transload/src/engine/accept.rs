//! Accepts requests: checks, plans and orders them.

use alloc::sync::Arc;
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use transload_core::flight::{Flight, FlightSpec, Verify};
use transload_core::{Footprint, Instant, LinkId, MemoryKind, Plan};

use super::active::{Operand, Priority, Stage, TransferId};
use super::batch::BatchFlag;
use super::digest::Digest;
use super::event::EventCell;
use super::state::State;
use crate::{RegionError, TransferError};

/// The host writes memory that it shares with a device in bytes. The device's engine writes it in words, and writes the
/// old bytes beside a transfer's bytes back. So two transfers that write bytes of one word go one after the other. In
/// other memory one engine does all writes, in its own order.
const MAPPED_GRAIN: u64 = 4;

/// A request whose ends were checked.
#[derive(Clone)]
pub(crate) struct Checked {
    pub(crate) src: Operand,
    pub(crate) dst: Operand,
    pub(crate) in_place: bool,
    /// The footprints in the order: of both ends, or of the one that is not borrowed.
    pub(crate) footprints: ArrayVec<Footprint, 2>,
}

impl Checked {
    /// Returns whether an end is not host memory. Copies between host memories are done when they are submitted.
    pub(crate) fn leaves_the_host(&self) -> bool {
        let ends = [&self.src, &self.dst];
        ends.into_iter()
            .any(|end| end.buffer.memory().device != transload_hal::DeviceId::CPU0)
    }
}

/// The terms of a transfer.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    pub(crate) priority: Priority,
    pub(crate) deadline: Option<Instant>,
    pub(crate) verify: bool,
    /// The link that it must use, if it names one.
    pub(crate) over: Option<LinkId>,
    pub(crate) after: Vec<Arc<EventCell>>,
    pub(crate) then: Vec<Arc<EventCell>>,
    pub(crate) batch: Option<Arc<BatchFlag>>,
    pub(crate) proof: Option<usize>,
    pub(crate) cancel_on_drop: bool,
}

/// The plans of a transfer.
#[derive(Clone)]
pub(crate) struct Chosen {
    pub(crate) plan: Arc<Plan>,
    pub(crate) verify: Option<Verify>,
}

impl Checked {
    /// Checks bounds, lengths, permission and overlap.
    pub(crate) fn new(src: Operand, dst: Operand) -> Result<Checked, TransferError> {
        let (from, to) = (footprint(&src, false)?, footprint(&dst, true)?);
        let (src_bytes, dst_bytes) = (src.shape.payload_bytes(), dst.shape.payload_bytes());
        if src_bytes != dst_bytes {
            return Err(TransferError::LengthMismatch {
                src_bytes,
                dst_bytes,
            });
        }
        if !dst.buffer.is_writable() {
            let memory = dst.buffer.memory();
            return Err(TransferError::ReadOnly { memory });
        }
        let in_place = from.conflicts_with(&to);
        if in_place && !(src.shape.is_contiguous() && dst.shape.is_contiguous()) {
            let memory = dst.buffer.memory();
            return Err(TransferError::Overlap { memory });
        }
        let ordered = match dst.buffer.memory().kind {
            MemoryKind::Mapped => to.widened(MAPPED_GRAIN),
            _ => to,
        };
        Ok(Checked {
            src,
            dst,
            in_place,
            footprints: ArrayVec::from([from, ordered]),
        })
    }

    /// The same for an end that the caller has borrowed: while the borrow lasts no other code can touch its bytes, so
    /// it needs no place in the order. It may lie under a guard of the caller's own, and a place in the order would
    /// wait for that guard for ever.
    pub(crate) fn with_borrowed_src(mut self) -> Checked {
        self.footprints.remove(0);
        self
    }

    /// As [`Checked::with_borrowed_src`].
    pub(crate) fn with_borrowed_dst(mut self) -> Checked {
        self.footprints.truncate(1);
        self
    }

    /// Returns the arguments of [`State::accept`].
    pub(crate) fn parts(&self) -> (bool, &[Footprint]) {
        (self.in_place, &self.footprints)
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.src.shape.payload_bytes()
    }
}

/// Returns the footprint of one end, once its bounds were checked.
pub(crate) fn footprint(end: &Operand, writes: bool) -> Result<Footprint, TransferError> {
    let buffer = &end.buffer;
    let out_of_bounds = RegionError::OutOfBounds {
        memory: buffer.memory(),
        offset: end.offset,
        len: end.shape.extent_bytes(),
        limit: buffer.len(),
    };
    let fits = transload_core::Span::new(end.offset, end.shape.extent_bytes()).fits(buffer.len());
    if !fits {
        return Err(out_of_bounds.into());
    }
    let position = buffer.position().checked_add(end.offset);
    position
        .and_then(|at| Footprint::new(buffer.storage_id(), at, end.shape, writes).ok())
        .ok_or_else(|| out_of_bounds.into())
}

impl State {
    /// Makes a transfer of a checked request: of its ends, whether they overlap, and its footprints.
    pub(crate) fn accept(
        &mut self,
        (src, dst): (Operand, Operand),
        (in_place, footprints): (bool, &[Footprint]),
        chosen: Chosen,
        terms: &Terms,
        now: Instant,
    ) -> Result<TransferId, TransferError> {
        self.now = self.now.max(now);
        let len_bytes = src.shape.payload_bytes();
        let spec = FlightSpec {
            len_bytes,
            plan: chosen.plan,
            in_place,
            deadline: terms.deadline,
            verify: chosen.verify,
        };
        let digests = spec.verify.is_some().then(|| self.take_digests());
        let slot = self.transfers.take();
        let active = &mut self.transfers[slot as usize];
        let started = match &mut active.flight {
            Some(flight) => flight.restart(spec),
            None => Flight::new(spec).map(|flight| active.flight = Some(flight)),
        };
        if let Err(error) = started {
            let (src, dst) = (src.buffer.memory(), dst.buffer.memory());
            let reasons = alloc::format!("{error}");
            self.free_place(slot);
            return Err(TransferError::NoRoute { src, dst, reasons });
        }
        active.stage = Stage::Waiting;
        active.src = Some(src);
        active.dst = Some(dst);
        active.priority = terms.priority;
        active.digests = digests;
        active.then.extend(terms.then.iter().cloned());
        active.batch.clone_from(&terms.batch);
        active.proof = terms.proof;
        active.over_one_link = terms.over.is_some();
        active.cancel_on_drop = terms.cancel_on_drop;
        active.stop_asked = false;
        active.stopped_at = 0;
        active.shown_bytes = 0;
        active.submitted = now;
        active.begun = now;
        self.set_deadline(slot, terms.deadline);
        self.enter(slot, footprints, &terms.after);
        Ok(self.id(slot))
    }

    /// Returns empty digests for the two ends.
    fn take_digests(&mut self) -> [Arc<Digest>; 2] {
        match self.digests.pop() {
            Some(digests) => {
                digests.iter().for_each(|digest| digest.reset());
                digests
            }
            None => [Arc::new(Digest::new()), Arc::new(Digest::new())],
        }
    }

    /// Gives a transfer or guard its place in the order, and starts it if nothing stands before it.
    pub(crate) fn enter(&mut self, slot: u32, footprints: &[Footprint], after: &[Arc<EventCell>]) {
        self.live += 1;
        self.moving += usize::from(self.transfers[slot as usize].dst.is_some());
        let entry = self.hazards.enter(footprints);
        let at = entry.ticket.index();
        if self.by_ticket.len() <= at {
            self.by_ticket.resize(at + 1, u32::MAX);
        }
        self.by_ticket[at] = slot;
        let id = self.id(slot);
        let waits = |id| self.transfers.waits(id);
        let events = after.iter().filter(|event| event.subscribe(id, waits));
        let events = events.count();
        let active = &mut self.transfers[slot as usize];
        active.ticket = Some(entry.ticket);
        active.waits_for = events as u32 + u32::from(entry.waits_for > 0);
        match active.waits_for {
            0 => self.launch(slot),
            _ => self.care_for(slot, self.advances),
        }
    }

    /// Takes in that one of the things that a transfer waits for has happened.
    pub(crate) fn handle_awaited(&mut self, slot: u32) {
        let active = &mut self.transfers[slot as usize];
        if active.stage == Stage::Waiting && active.waits_for > 0 {
            active.waits_for -= 1;
            if active.waits_for == 0 {
                self.launch(slot);
            }
        }
    }
}
