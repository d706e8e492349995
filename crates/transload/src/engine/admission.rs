//! Which flights get staging slots, and which of them: the first of each ring all at once, further ones as they become
//! free.

pub(crate) mod budget;
pub(crate) mod queue;
pub(crate) mod shares;
mod shelf;

use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::DeviceId;
use transload_core::flight::{Flight, SlotId};
use transload_hal::Buffer;

use super::active::{Active, Lease, Stage};
use super::table::Table;
use super::types::{FirstSlot, Index, Wanted};
use budget::{Further, Leased, Pool, StagingBudget};
use queue::{Head, Queue};
use shares::Claims;

/// The slots of the manager, and the transfers that wait for some.
pub(crate) struct Admission {
    pool: Arc<Pool>,
    /// Transfers that wait for their first slots, first come first served within a priority.
    queue: Queue,
    /// What transfers in the queue that wait for their share reserve, as of the last look.
    claims: Claims,
    /// Whether one of the transfers in the queue waits for something else than its share, as of the last look.
    waits_for_room: bool,
    /// The place of the transfer that was admitted last, even if that transfer is over.
    admitted: Option<Index>,
    /// Transfers that could use more slots than they have.
    wanting: Vec<Index>,
}

/// The answer to a look at the queue.
pub(crate) enum Next {
    /// The transfer has its first slots, or needs none. Those without a buffer are to be allocated.
    Admit(Index),
    /// None can be admitted now.
    None,
}

impl Admission {
    pub(crate) fn new(pool: Arc<Pool>, room: usize) -> Admission {
        Admission {
            pool,
            queue: Queue::default(),
            claims: Claims::default(),
            waits_for_room: false,
            admitted: None,
            wanting: Vec::with_capacity(room),
        }
    }

    pub(crate) fn budget(&self) -> &Arc<StagingBudget> {
        self.pool.budget()
    }

    /// Frees every idle slot.
    pub(crate) fn trim(&self) -> Vec<Buffer> {
        self.pool.trim()
    }

    /// Frees every idle slot in a device's memories.
    pub(crate) fn trim_of(&self, device: DeviceId) -> Vec<Buffer> {
        self.pool.trim_of(device)
    }

    /// Queues a flight that needs the first slots of its rings. It waits behind the transfers that came before it, so
    /// that none starves. It holds no slot while it waits, so that two flights cannot each hold the slots that the
    /// other one lacks.
    pub(crate) fn ask(&mut self, index: Index, active: &mut Active) {
        if active.position.is_none() {
            active.pair = active.pair_of_ends();
            active.position = Some(self.queue.push(index, active.pair, active.priority));
        }
    }

    /// Takes in that a transfer in the queue has ended.
    pub(crate) fn leave(&mut self, transfers: &Table) {
        self.queue.leave(waits_in(transfers));
    }

    /// Begins a round over the queue. Returns whether any transfer waits there.
    #[inline]
    pub(crate) fn begin(&mut self) -> bool {
        self.claims.clear();
        self.waits_for_room = false;
        !self.queue.is_empty()
    }

    /// Takes the next transfer out of the queue that can be admitted, in their order and one at a time: the next one
    /// after the last one had its turn among those that are under way already. So of many small transfers some drain
    /// while others fill, instead of all filling first. At most `room` slots are left to be allocated.
    ///
    /// Transfers of other devices pass a transfer whose device has its share. All others wait for their turn.
    pub(crate) fn next(
        &mut self,
        transfers: &mut Table,
        room: usize,
        evicted: &mut Vec<Buffer>,
    ) -> Next {
        let mut passed = None;
        while let Some(head) = self.queue.next(passed, waits_in(transfers)) {
            let priority = transfers[head.index].priority;
            let last = self.admitted.and_then(|last| transfers.get(last));
            if last.is_some_and(|last| last.queued && last.priority >= priority) {
                self.waits_for_room = true;
                return Next::None;
            }
            match self.lease_first(&mut transfers[head.index], room, evicted) {
                Leased::All => return self.take(head, transfers),
                Leased::NoShare | Leased::Coming => passed = Some(head.position),
                Leased::NoRoom => {
                    self.waits_for_room = true;
                    return Next::None;
                }
            }
        }
        Next::None
    }

    fn take(&mut self, head: Head, transfers: &mut Table) -> Next {
        self.queue.pop(head);
        transfers[head.index].position = None;
        Next::Admit(head.index)
    }

    /// Leases one slot for each ring, all or none. A flight that no longer waits for slots needs none.
    fn lease_first(
        &mut self,
        active: &mut Active,
        room: usize,
        evicted: &mut Vec<Buffer>,
    ) -> Leased {
        let flight = active.flight.as_ref().filter(|flight| flight.is_boarding());
        let Some((flight, plan)) = flight.and_then(|flight| Some((flight, flight.plan()?))) else {
            return Leased::All;
        };
        // Each ring may turn out to need a command.
        if flight.rings().count() > room {
            return Leased::NoRoom;
        }
        active.first_slots.clear();
        for (lane, ring) in flight.rings() {
            let pipeline = &plan.lanes[usize::from(lane)];
            let (of, bytes) = (&pipeline.rings[usize::from(ring)], pipeline.chunk_bytes);
            active.first_slots.push(FirstSlot {
                lane,
                ring,
                memory: of.memory,
                bytes,
                part: of.part_bytes(bytes, flight.slot_bytes(lane)),
                buffer: None,
            });
        }
        let (pair, wanted) = (active.pair, &mut active.first_slots);
        let leased = self.pool.lease(pair, &mut self.claims, wanted, evicted);
        if leased != Leased::All {
            active.first_slots.clear();
        }
        leased
    }

    /// Gives its first slots to a flight, once all of them are allocated. Returns false until then.
    pub(crate) fn admit(
        &mut self,
        index: Index,
        active: &mut Active,
        evicted: &mut Vec<Buffer>,
    ) -> bool {
        let is_complete = active.first_slots.iter().all(|slot| slot.buffer.is_some());
        let Some(flight) = active.flight.as_mut().filter(|_| is_complete) else {
            return false;
        };
        let is_taken = !active.first_slots.is_empty() && flight.handle_admitted();
        if is_taken {
            let first = |first: FirstSlot| {
                let (lane, ring) = (first.lane, first.ring);
                let id = SlotId {
                    lane,
                    ring,
                    slot: 0,
                };
                Some(Lease {
                    id,
                    buffer: first.buffer?,
                })
            };
            active
                .leases
                .extend(active.first_slots.drain(..).filter_map(first));
        } else {
            self.take_back_first(active, evicted);
        }
        self.admitted = Some(index);
        true
    }

    /// Takes back first slots that the flight will not use.
    #[inline]
    pub(crate) fn take_back_first(&self, active: &mut Active, evicted: &mut Vec<Buffer>) {
        for first in active.first_slots.drain(..) {
            if let Some(buffer) = first.buffer {
                self.pool.give_back(buffer, active.pair, evicted);
            }
        }
    }

    /// Takes back a slot that the flight no longer needs.
    pub(crate) fn take_back(&self, active: &mut Active, id: SlotId, evicted: &mut Vec<Buffer>) {
        let Some(at) = active.leases.iter().position(|lease| lease.id == id) else {
            return;
        };
        let buffer = active.leases.swap_remove(at).buffer;
        match active.tainted {
            // The slot was leaked on purpose, and is of no more use.
            true => self.pool.give_back_spoilt(buffer, active.pair, evicted),
            false => self.pool.give_back(buffer, active.pair, evicted),
        }
    }

    /// Takes in that a slot was allocated, or could not be.
    pub(crate) fn handle_allocated(&self, wanted: &Wanted, is_there: bool) {
        self.pool.handle_allocated(wanted, is_there);
    }

    /// Returns the transfer's share of a new slot.
    pub(crate) fn share(&self, slot: Buffer, wanted: &Wanted) -> Buffer {
        self.pool.share(slot, wanted)
    }

    /// Takes back a slot that no flight has.
    pub(crate) fn give_back(&self, slot: Buffer, wanted: &Wanted, evicted: &mut Vec<Buffer>) {
        self.pool.give_back(slot, wanted.pair, evicted);
    }

    /// Returns leased room for which no slot was allocated.
    pub(crate) fn release(&self, wanted: &Wanted) {
        self.pool.release(wanted.pair, wanted.bytes);
    }

    /// Notes a flight that could use more slots.
    pub(crate) fn note_wanting(&mut self, index: Index, active: &mut Active) {
        if !active.wants_more && further(active).is_some() {
            active.wants_more = true;
            self.wanting.push(index);
        }
    }

    /// Returns whether a flight could use more slots.
    #[inline]
    pub(crate) fn has_wanting(&self) -> bool {
        !self.wanting.is_empty()
    }

    /// Returns the next further slot to be given to a flight, or room for one, while no transfer waits for first slots
    /// that could have it. A transfer that waits for its share could not.
    pub(crate) fn next_further(
        &mut self,
        transfers: &mut Table,
        evicted: &mut Vec<Buffer>,
    ) -> Option<(Index, Wanted, Option<Buffer>)> {
        while let Some(index) = self.wanting.last().copied() {
            if self.waits_for_room {
                return None;
            }
            let Some(wanted) = transfers.get(index).and_then(further) else {
                self.forget_last(transfers);
                continue;
            };
            let (pair, one) = (wanted.pair, (wanted.memory, wanted.bytes));
            match { &self.pool }.lease_further(pair, &self.claims, one, evicted) {
                Further::Slot(slot) => return Some((index, wanted, Some(slot))),
                // Another slot may be under allocation already; the engine asks for one at a time.
                Further::Room => {
                    self.forget_last(transfers);
                    return Some((index, wanted, None));
                }
                Further::Nothing => self.forget_last(transfers),
            }
        }
        None
    }

    /// Removes the last flight that could use more slots from the list for now.
    fn forget_last(&mut self, transfers: &mut Table) {
        let index = self.wanting.pop();
        if let Some(active) = index.and_then(|index| transfers.get_mut(index)) {
            active.wants_more = false;
        }
    }
}

/// Returns the first slots of a transfer that are still to be allocated.
pub(crate) fn missing(active: &Active) -> impl Iterator<Item = Wanted> {
    let leg = active.flight.as_ref().map_or(0, Flight::legs);
    let missing = active
        .first_slots
        .iter()
        .filter(|first| first.buffer.is_none());
    missing.map(move |first| Wanted {
        at: (first.lane, first.ring),
        leg,
        memory: first.memory,
        bytes: first.bytes,
        part: first.part,
        pair: active.pair,
    })
}

/// Tells whether a transfer still waits for a turn.
fn waits_in(transfers: &Table) -> impl Fn(Index, super::types::QueuePosition) -> bool {
    |index, position| {
        transfers
            .get(index)
            .is_some_and(|active| active.position == Some(position))
    }
}

/// Returns the first ring of a flight that could use another slot.
fn further(active: &Active) -> Option<Wanted> {
    let flight = active
        .flight
        .as_ref()
        .filter(|_| active.stage == Stage::Flying)?;
    let plan = flight.plan()?;
    plan.lanes.iter().enumerate().find_map(|(lane, pipeline)| {
        let rings = pipeline.rings.iter().enumerate();
        rings.into_iter().find_map(|(ring, of)| {
            let at = (lane as u8, ring as u8);
            (flight.wanted_slots(at.0, at.1) > 0).then_some(Wanted {
                at,
                leg: flight.legs(),
                memory: of.memory,
                bytes: pipeline.chunk_bytes,
                part: None,
                pair: active.pair,
            })
        })
    })
}
