//! Staging slots for transfers: what the engine does about the decisions of [`Admission`](super::admission::Admission).

use alloc::sync::Arc;

use arrayvec::ArrayVec;
use transload_core::MemoryId;
use transload_core::flight::Flight;
use transload_hal::{BackendId, Buffer, ErrorClass, Fault};

use super::active::{Active, Lease};
use super::admission::{Next, missing};
use super::command::{Command, CommandKind, Commands, MAX_COMMANDS};
use super::state::State;
use super::trace::What;
use super::types::{Index, TransferId, Wanted};

impl State {
    /// Admits transfers that wait for their first slots. Slots that must be allocated become commands.
    #[inline]
    pub(crate) fn admit_waiting(&mut self, commands: &mut Commands) {
        if self.admission.begin() {
            self.admit_in_turn(commands);
        }
    }

    fn admit_in_turn(&mut self, commands: &mut Commands) {
        loop {
            let (room, evicted) = (commands.remaining_capacity(), &mut self.after.buffers);
            let index = match self.admission.next(&mut self.table, room, evicted) {
                Next::Admit(index) => index,
                Next::None => return,
            };
            let id = self.table.id(index);
            let missing: ArrayVec<Wanted, MAX_COMMANDS> = missing(&self.table[index]).collect();
            for wanted in missing {
                if !self.order_slot(id, wanted, commands) {
                    self.handle_slot(id, wanted, Err(no_backend(wanted.memory)));
                }
            }
            self.admit(index);
        }
    }

    /// Gives its first slots to a flight, once all of them are allocated.
    fn admit(&mut self, index: Index) {
        let (active, evicted) = (&mut self.table[index], &mut self.after.buffers);
        if self.admission.admit(index, active, evicted) {
            for lease in &self.table[index].leases {
                self.note_lease(index, lease);
            }
            self.enqueue(index);
        }
    }

    /// Takes in that a slot was allocated, or could not be.
    pub(crate) fn handle_slot(
        &mut self,
        id: TransferId,
        wanted: Wanted,
        slot: Result<Buffer, (BackendId, Fault)>,
    ) {
        let has_failed = slot.is_err();
        self.admission.handle_allocated(&wanted, !has_failed);
        let same_leg = |active: &&mut Active| {
            let legs = active.flight.as_ref().map(Flight::legs);
            legs == Some(wanted.leg) && active.is_live()
        };
        let Some(active) = self.table.find_mut(id).filter(same_leg) else {
            // The leg is over; the slot may serve another transfer.
            if let Ok(buffer) = slot {
                let evicted = &mut self.after.buffers;
                self.admission.give_back(buffer, &wanted, evicted);
            }
            return;
        };
        let is_it = |first: &super::types::FirstSlot| {
            (first.lane, first.ring) == wanted.at && first.buffer.is_none()
        };
        let first = active.first_slots.iter().position(is_it);
        match (first, slot) {
            (Some(at), Ok(buffer)) => {
                let buffer = self.admission.share(buffer, &wanted);
                active.first_slots[at].buffer = Some(buffer);
            }
            (Some(at), Err((backend, fault))) => {
                active.first_slots.remove(at);
                active.fault.get_or_insert((backend, fault));
            }
            (None, Ok(buffer)) => return self.grant(id.index, wanted, buffer),
            // A further slot could not be had: the flight goes on with the slots that it has.
            (None, Err(_)) => return,
        }
        let is_complete = active.first_slots.iter().all(|slot| slot.buffer.is_some());
        if is_complete && (has_failed || active.fault.is_some()) {
            // Some first slots of the leg could not be had.
            let evicted = &mut self.after.buffers;
            self.admission.take_back_first(active, evicted);
            if let Some(flight) = &mut active.flight {
                flight.handle_not_admitted();
            }
            self.enqueue(id.index);
        } else if is_complete {
            self.admit(id.index);
        }
    }

    /// Gives further slots to flights that could use them.
    #[inline]
    pub(crate) fn grant_further(&mut self, commands: &mut Commands) {
        while self.admission.has_wanting() && !commands.is_full() {
            let evicted = &mut self.after.buffers;
            let next = self.admission.next_further(&mut self.table, evicted);
            let Some((index, wanted, slot)) = next else {
                return;
            };
            let id = self.table.id(index);
            match slot {
                Some(buffer) => self.grant(index, wanted, buffer),
                None if self.order_slot(id, wanted, commands) => {}
                None => self.admission.release(&wanted),
            }
        }
    }

    fn note_lease(&self, index: Index, lease: &Lease) {
        self.note(|| What::Leased {
            id: self.table.id(index),
            slot: lease.id,
            memory: lease.buffer.memory(),
            bytes: lease.buffer.len(),
        });
    }

    /// Gives a further slot to the ring of the leg that asked for it.
    fn grant(&mut self, index: Index, wanted: Wanted, buffer: Buffer) {
        let active = &mut self.table[index];
        let fits = wanted.memory == buffer.memory() && wanted.bytes == buffer.len();
        let (lane, ring) = wanted.at;
        let could_use = |flight: &&mut Flight| {
            fits && flight.legs() == wanted.leg && flight.wanted_slots(lane, ring) > 0
        };
        if let Some(flight) = active.flight.as_mut().filter(could_use) {
            let id = flight.handle_grant(lane, ring);
            active.leases.push(Lease { id, buffer });
            if let Some(lease) = self.table[index].leases.last() {
                self.note_lease(index, lease);
            }
            return self.enqueue(index);
        }
        let evicted = &mut self.after.buffers;
        self.admission.give_back(buffer, &wanted, evicted);
    }

    /// Orders a slot of its backend. Returns false if no backend allocates there.
    fn order_slot(&mut self, id: TransferId, wanted: Wanted, commands: &mut Commands) -> bool {
        let owner = self.planning.owner(wanted.memory);
        let Some(known) = owner.and_then(|owner| self.in_flight.known(owner)) else {
            return false;
        };
        let command = Command {
            id,
            backend: Arc::clone(&known.backend),
            backend_id: known.id,
            kind: CommandKind::Allocate { wanted },
            is_apart: false,
        };
        self.later.hand_out(command, self.pace, commands);
        self.table[id.index].commanded += 1;
        true
    }
}

fn no_backend(memory: MemoryId) -> (BackendId, Fault) {
    let name = memory.device.backend();
    let message = alloc::format!("no backend allocates in {memory}");
    (name, Fault::new(ErrorClass::Unsupported, message))
}
