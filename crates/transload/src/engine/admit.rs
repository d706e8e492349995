//! Slots for flights: the first of each ring all at once, further ones as they become free.

pub(crate) mod queue;

use alloc::sync::Arc;

use arrayvec::ArrayVec;
use transload_core::MemoryId;
use transload_core::flight::{Flight, SlotId};
use transload_hal::{BackendId, Buffer, ErrorClass, Fault};

use super::active::{Active, Boarded, Lease, Stage, TransferId};
use super::order::{ORDERS, Order, Orders, What};
use super::staging::{Further, Leased, Pair};
use super::state::State;

/// A slot that a ring of a flight's leg could use.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// The lane and the ring.
    pub(crate) at: (u8, u8),
    /// The leg of the flight that the ring belongs to: another leg has other rings.
    pub(crate) leg: u32,
    pub(crate) memory: MemoryId,
    pub(crate) bytes: u64,
    /// The part of the slot that the flight takes, where other transfers may have the rest.
    pub(crate) part: Option<u64>,
    /// The devices that the slot counts with.
    pub(crate) pair: Pair,
}

impl State {
    /// Queues a flight that needs the first slots of its rings. It waits behind the transfers that came before it, so
    /// that none starves. It holds no slot while it waits, so that two flights cannot each hold the slots that the
    /// other one lacks.
    pub(crate) fn ask_for_slots(&mut self, slot: u32) {
        let active = &mut self.transfers[slot as usize];
        let pair = active.pair_of_ends();
        if active.boarding.is_some() {
            return;
        }
        active.pair = pair;
        active.boarding = Some(self.boarding.push(slot, pair, active.priority));
    }

    /// Admits transfers in their order, as long as there are slots, and one at a time: the next one after the last one
    /// had its turn among those that are under way already. So of many small transfers some drain while others fill,
    /// instead of all filling first.
    ///
    /// Transfers of other devices pass a transfer whose device has its share. All others wait for their turn.
    pub(crate) fn board(&mut self, orders: &mut Orders) {
        self.claims.clear();
        self.waits_for_room = false;
        let mut passed = None;
        while let Some(head) = self.boarding.next(passed, &self.transfers) {
            let slot = head.slot;
            let priority = self.transfers[slot as usize].priority;
            let last = self
                .admitted
                .and_then(|last| self.transfers.get(last as usize));
            if last.is_some_and(|last| last.queued && last.priority >= priority) {
                self.waits_for_room = true;
                return;
            }
            let waits = self.transfers[slot as usize]
                .flight
                .as_ref()
                .is_some_and(Flight::is_boarding);
            let leased = match waits {
                true => self.lease_first(slot, orders),
                false => Leased::All,
            };
            match leased {
                Leased::All => {}
                Leased::NoShare | Leased::Coming => {
                    passed = Some(head.turn);
                    continue;
                }
                Leased::NoRoom => {
                    self.waits_for_room = true;
                    return;
                }
            }
            self.boarding.pop(head);
            self.transfers[slot as usize].boarding = None;
            self.admit(slot);
        }
    }

    /// Leases one slot for each ring, all or none. Slots that must be allocated become orders.
    fn lease_first(&mut self, slot: u32, orders: &mut Orders) -> Leased {
        let id = self.id(slot);
        let active = &mut self.transfers[slot as usize];
        let Some((flight, plan)) = active
            .flight
            .as_ref()
            .and_then(|flight| Some((flight, flight.plan()?)))
        else {
            return Leased::All;
        };
        // Each ring may turn out to need an order.
        if flight.rings().count() > orders.remaining_capacity() {
            return Leased::NoRoom;
        }
        active.boarded.clear();
        for (lane, ring) in flight.rings() {
            let pipeline = &plan.lanes[usize::from(lane)];
            let (of, bytes) = (&pipeline.rings[usize::from(ring)], pipeline.chunk_bytes);
            active.boarded.push(Boarded {
                lane,
                ring,
                memory: of.memory,
                bytes,
                part: of.part_bytes(bytes, flight.slot_bytes(lane)),
                buffer: None,
            });
        }
        let (pair, boarded) = (active.pair, &mut active.boarded);
        let evicted = &mut self.after.buffers;
        let leased = { &self.pool }.lease(pair, &mut self.claims, boarded, evicted);
        if leased != Leased::All {
            active.boarded.clear();
            return leased;
        }
        let leg = flight.legs();
        let missing: ArrayVec<Wanted, ORDERS> = active
            .boarded
            .iter()
            .filter(|boarded| boarded.buffer.is_none())
            .map(|boarded| Wanted {
                at: (boarded.lane, boarded.ring),
                leg,
                memory: boarded.memory,
                bytes: boarded.bytes,
                part: boarded.part,
                pair,
            })
            .collect();
        for wanted in missing {
            if !self.order_slot(id, wanted, orders) {
                self.handle_slot(id, wanted, Err(no_backend(wanted.memory)));
            }
        }
        Leased::All
    }

    /// Gives the slots to the flight, once all of them are allocated.
    fn admit(&mut self, slot: u32) {
        let active = &mut self.transfers[slot as usize];
        let complete = active
            .boarded
            .iter()
            .all(|boarded| boarded.buffer.is_some());
        let Some(flight) = active.flight.as_mut().filter(|_| complete) else {
            return;
        };
        let taken = !active.boarded.is_empty() && flight.handle_admitted();
        for boarded in active.boarded.drain(..) {
            let Some(buffer) = boarded.buffer else {
                continue;
            };
            if taken {
                let (lane, ring) = (boarded.lane, boarded.ring);
                let id = SlotId {
                    lane,
                    ring,
                    slot: 0,
                };
                active.leases.push(Lease { id, buffer });
            } else {
                let evicted = &mut self.after.buffers;
                self.pool.give_back(buffer, active.pair, evicted);
            }
        }
        self.admitted = Some(slot);
        self.enqueue(slot);
    }

    /// Takes in that a slot was allocated, or could not be.
    pub(crate) fn handle_slot(
        &mut self,
        id: TransferId,
        wanted: Wanted,
        slot: Result<Buffer, (BackendId, Fault)>,
    ) {
        let failed = slot.is_err();
        self.pool.handle_allocated(&wanted, !failed);
        let same_leg = |active: &&mut Active| {
            let legs = active.flight.as_ref().map(Flight::legs);
            legs == Some(wanted.leg) && active.is_live()
        };
        let Some(active) = self.transfer(id).filter(same_leg) else {
            // The leg is over; the slot may serve another transfer.
            if let Ok(buffer) = slot {
                let evicted = &mut self.after.buffers;
                self.pool.give_back(buffer, wanted.pair, evicted);
            }
            return;
        };
        let first = active.boarded.iter().position(|boarded| {
            (boarded.lane, boarded.ring) == wanted.at && boarded.buffer.is_none()
        });
        match (first, slot) {
            (Some(at), Ok(buffer)) => {
                let buffer = self.pool.share(buffer, &wanted);
                self.transfers[id.slot as usize].boarded[at].buffer = Some(buffer);
            }
            (Some(at), Err((backend, fault))) => {
                active.boarded.remove(at);
                active.fault.get_or_insert((backend, fault));
            }
            (None, Ok(buffer)) => return self.grant(id.slot, wanted, buffer),
            // A further slot could not be had: the flight goes on with the slots that it has.
            (None, Err(_)) => return,
        }
        let active = &self.transfers[id.slot as usize];
        let all_there = active
            .boarded
            .iter()
            .all(|boarded| boarded.buffer.is_some());
        if all_there && (failed || active.fault.is_some()) {
            self.turn_away(id.slot);
        } else if all_there {
            self.admit(id.slot);
        }
    }

    /// Fails a leg of which some first slots could not be had.
    fn turn_away(&mut self, slot: u32) {
        let active = &mut self.transfers[slot as usize];
        for boarded in active.boarded.drain(..) {
            if let Some(buffer) = boarded.buffer {
                let evicted = &mut self.after.buffers;
                self.pool.give_back(buffer, active.pair, evicted);
            }
        }
        if let Some(flight) = &mut active.flight {
            flight.handle_not_admitted();
        }
        self.enqueue(slot);
    }

    /// Takes back a slot that the flight no longer needs.
    pub(crate) fn take_slot_back(&mut self, slot: u32, id: SlotId) {
        let active = &mut self.transfers[slot as usize];
        let Some(at) = active.leases.iter().position(|lease| lease.id == id) else {
            return;
        };
        let buffer = active.leases.swap_remove(at).buffer;
        let evicted = &mut self.after.buffers;
        match active.tainted {
            // The slot was leaked on purpose, and is of no more use.
            true => self.pool.give_back_spoilt(buffer, active.pair, evicted),
            false => self.pool.give_back(buffer, active.pair, evicted),
        }
    }

    /// Records that the flight could use more slots.
    pub(crate) fn note_hunger(&mut self, slot: u32) {
        let active = &mut self.transfers[slot as usize];
        if !active.hungry && wanted(active).is_some() {
            active.hungry = true;
            self.hungry.push(slot);
        }
    }

    /// Gives further slots to flights that could use them, while no transfer waits for first slots that could have
    /// them. A transfer that waits for its share could not.
    pub(crate) fn feed(&mut self, orders: &mut Orders) {
        while let Some(slot) = self.hungry.last().copied() {
            if self.waits_for_room || orders.is_full() {
                return;
            }
            let active = self.transfers.get(slot as usize);
            let Some(wanted) = active.and_then(wanted) else {
                self.fed();
                continue;
            };
            let (evicted, one) = (&mut self.after.buffers, (wanted.memory, wanted.bytes));
            match { &self.pool }.lease_further(wanted.pair, &self.claims, one, evicted) {
                Further::Slot(buffer) => self.grant(slot, wanted, buffer),
                // Another slot may be under allocation already; the engine asks for one at a time.
                Further::Room => {
                    self.fed();
                    if !self.order_slot(self.id(slot), wanted, orders) {
                        self.pool.release(wanted.pair, wanted.bytes);
                    }
                }
                Further::Nothing => self.fed(),
            }
        }
    }

    /// Removes the last flight that could use more slots from the list for now.
    fn fed(&mut self) {
        let slot = self.hungry.pop();
        if let Some(active) = slot.and_then(|slot| self.transfers.get_mut(slot as usize)) {
            active.hungry = false;
        }
    }

    /// Gives a further slot to the ring of the leg that asked for it.
    fn grant(&mut self, slot: u32, wanted: Wanted, buffer: Buffer) {
        let active = &mut self.transfers[slot as usize];
        let fits = wanted.memory == buffer.memory() && wanted.bytes == buffer.len();
        let (lane, ring) = wanted.at;
        match &mut active.flight {
            Some(flight)
                if fits && flight.legs() == wanted.leg && flight.wanted_slots(lane, ring) > 0 =>
            {
                let id = flight.handle_grant(lane, ring);
                active.leases.push(Lease { id, buffer });
                self.enqueue(slot);
            }
            _ => {
                let evicted = &mut self.after.buffers;
                self.pool.give_back(buffer, wanted.pair, evicted);
            }
        }
    }

    fn order_slot(&mut self, id: TransferId, wanted: Wanted, orders: &mut Orders) -> bool {
        let memory = self.topology.memory(wanted.memory);
        let owner = memory.map(|memory| memory.backend);
        let known = owner.and_then(|owner| self.registered(owner));
        let Some((backend, backend_id)) = known.map(|known| (Arc::clone(&known.backend), known.id))
        else {
            return false;
        };
        let order = Order {
            id,
            backend,
            backend_id,
            what: What::Allocate { wanted },
            is_apart: false,
        };
        self.hand_out_slow(order, orders);
        self.transfers[id.slot as usize].ordered += 1;
        true
    }
}

/// Returns the first ring that could use another slot.
fn wanted(active: &Active) -> Option<Wanted> {
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

fn no_backend(memory: MemoryId) -> (BackendId, Fault) {
    let name = BackendId(memory.device.kind.0);
    let message = alloc::format!("no backend allocates in {memory}");
    (name, Fault::new(ErrorClass::Unsupported, message))
}
