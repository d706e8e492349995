//! The table of transfers and guards: their places, their order, and the queue of those to look at.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::{Index as At, IndexMut};

use transload_core::{Footprint, Hazards, MemoryId, Ticket};

use super::active::{Active, Stage};
use super::types::{Index, TransferId, Which};

/// A transfer has a place from the moment it is accepted until its handle is dropped. Places are reused.
///
/// A few places keep their allocations while they are free, so that a program with a steady load allocates nothing. The
/// others keep 20 bytes each: a burst of a million transfers leaves 20 MB.
pub(crate) struct Table {
    places: Vec<Place>,
    /// Free places that keep their allocations. The last one is taken first.
    warm: Vec<Index>,
    cold: Vec<Index>,
    hazards: Hazards,
    /// The place of each ticket's transfer, by the ticket's index.
    by_ticket: Vec<Index>,
    /// Transfers to look at, by priority, and how many.
    ready: [VecDeque<Index>; 3],
    ready_len: usize,
    /// Transfers and guards in the order.
    live: usize,
    /// Transfers in the order: guards are none.
    moving: usize,
    /// Transfers and guards that need a thread that listens, plus the threads that wait for all transfers.
    needs: usize,
    /// Transfers that a thread looks after which is blocked in a backend for them.
    waiters: usize,
}

enum Place {
    /// Taken, or free and warm.
    Warm(Box<Active>),
    /// Free: the number of its earlier uses.
    Cold(u32),
}

/// The most free places that keep their allocations, about 2 KiB each: more transfers than most programs have under
/// way.
const WARM: usize = 256;

impl Table {
    /// Makes a table with room for `room` transfers, so that rare events allocate no more than frequent ones.
    pub(crate) fn with_capacity(room: usize) -> Table {
        Table {
            places: Vec::with_capacity(room),
            warm: Vec::with_capacity(WARM),
            cold: Vec::new(),
            hazards: Hazards::new(),
            by_ticket: Vec::with_capacity(room),
            ready: core::array::from_fn(|_| VecDeque::with_capacity(room)),
            ready_len: 0,
            live: 0,
            moving: 0,
            needs: 0,
            waiters: 0,
        }
    }

    /// Takes a free place for a transfer or guard.
    pub(crate) fn take(&mut self) -> Index {
        if let Some(index) = self.warm.pop() {
            return index;
        }
        let index = self.cold.pop();
        let position = index.map_or(self.places.len(), Index::position);
        let generation = match self.places.get(position) {
            Some(Place::Cold(generation)) => *generation,
            _ => 0,
        };
        let place = Place::Warm(Box::new(Active::vacant(generation)));
        match self.places.get_mut(position) {
            Some(cold) => *cold = place,
            None => self.places.push(place),
        }
        Index::of(position)
    }

    /// Takes back the place of a transfer that holds nothing of others any more.
    pub(crate) fn give_back(&mut self, index: Index) {
        if self.warm.len() < WARM {
            return self.warm.push(index);
        }
        self.places[index.position()] = Place::Cold(self[index].generation);
        self.cold.push(index);
    }

    pub(crate) fn get(&self, index: Index) -> Option<&Active> {
        match self.places.get(index.position())? {
            Place::Warm(active) => Some(active),
            Place::Cold(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, index: Index) -> Option<&mut Active> {
        match self.places.get_mut(index.position())? {
            Place::Warm(active) => Some(active),
            Place::Cold(_) => None,
        }
    }

    /// Returns the transfer, unless it has left its place.
    pub(crate) fn find(&self, id: TransferId) -> Option<&Active> {
        let is_it = |active: &&Active| active.generation == id.generation;
        let active = self.get(id.index).filter(is_it)?;
        (active.stage != Stage::Free).then_some(active)
    }

    /// The same, to change it.
    pub(crate) fn find_mut(&mut self, id: TransferId) -> Option<&mut Active> {
        let is_it = |active: &&mut Active| active.generation == id.generation;
        let active = self.get_mut(id.index).filter(is_it)?;
        (active.stage != Stage::Free).then_some(active)
    }

    pub(crate) fn id(&self, index: Index) -> TransferId {
        TransferId {
            index,
            generation: self[index].generation,
        }
    }

    /// Returns whether a transfer waits for events or for other transfers.
    pub(crate) fn waits(&self, id: TransferId) -> bool {
        self.find(id)
            .is_some_and(|active| active.stage == Stage::Waiting)
    }

    /// Gives a transfer or guard its place in the order. Returns whether another one stands before it.
    pub(crate) fn enter(&mut self, index: Index, footprints: &[Footprint]) -> bool {
        let entry = self.hazards.enter(footprints);
        let at = entry.ticket.index();
        if self.by_ticket.len() <= at {
            self.by_ticket.resize(at + 1, Index::NONE);
        }
        self.by_ticket[at] = index;
        let active = &mut self[index];
        active.ticket = Some(entry.ticket);
        let is_transfer = active.dst.is_some();
        self.live += 1;
        self.moving += usize::from(is_transfer);
        entry.waits
    }

    /// Takes a transfer or guard out of the order.
    pub(crate) fn leave(&mut self, index: Index) {
        let active = &mut self[index];
        let is_transfer = active.dst.is_some();
        let needed = core::mem::take(&mut active.needs_listener);
        let had_waiter = core::mem::take(&mut active.has_waiter);
        let ticket = active.ticket.take();
        self.live -= 1;
        self.moving -= usize::from(is_transfer);
        self.needs -= usize::from(needed);
        self.waiters -= usize::from(had_waiter);
        if let Some(ticket) = ticket {
            self.hazards.leave(ticket);
        }
    }

    /// Returns a transfer or guard that has nothing before it any more, once. Takes one off `looks` for each that it looks
    /// at; `None` when it is 0.
    #[inline]
    pub(crate) fn next_freed(&mut self, looks: &mut usize) -> Option<Index> {
        let ticket = self.hazards.poll_freed(looks)?;
        Some(self.by_ticket[ticket.index()])
    }

    /// Returns whether any transfer or guard may have nothing before it any more.
    #[inline]
    pub(crate) fn has_freed(&self) -> bool {
        self.hazards.has_left()
    }

    /// Returns how many transfers and guards are in the order.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Returns how many transfers are in the order.
    pub(crate) fn moving(&self) -> usize {
        self.moving
    }

    /// Returns the memory of one of the guards `held` that must end before a transfer or guard can start. `None` for a
    /// transfer with a deadline, which ends by itself.
    pub(crate) fn held_up_by(&self, id: TransferId, held: &[TransferId]) -> Option<MemoryId> {
        let active = self.find(id)?;
        if active.stage != Stage::Waiting || active.deadline.is_some() {
            return None;
        }
        let guard = |id: &TransferId| {
            let guard = self.find(*id)?;
            Some((guard.ticket?, guard.src.as_ref()?.buffer.memory()))
        };
        let guards: Vec<(Ticket, MemoryId)> = held.iter().filter_map(guard).collect();
        let tickets: Vec<Ticket> = guards.iter().map(|(ticket, _)| *ticket).collect();
        let has_deadline = |ticket: Ticket| {
            let index = self.by_ticket[ticket.index()];
            self[index].deadline.is_some()
        };
        // A group has one place in the order: its leader's.
        let ticket = match &active.member {
            Some(member) => self.find(member.leader())?.ticket?,
            None => active.ticket?,
        };
        let cause = self.hazards.held_up_by(ticket, &tickets, has_deadline)?;
        guards
            .iter()
            .find_map(|(ticket, memory)| (*ticket == cause).then_some(*memory))
    }

    /// Queues a transfer to be looked at, unless it is queued. `needs_listener`: a thread must listen for it then.
    #[inline]
    pub(crate) fn enqueue(&mut self, index: Index, needs_listener: bool) {
        let active = &mut self[index];
        let is_new = !core::mem::replace(&mut active.queued, true);
        let queue = active.priority.queue();
        let needs_now = needs_listener && !active.needs_listener;
        if is_new {
            self.ready[queue].push_back(index);
            self.ready_len += 1;
        }
        if needs_now {
            self.set_needs_listener(index, true);
        }
    }

    /// Puts a transfer back whose turn was not completed.
    pub(crate) fn requeue_front(&mut self, index: Index) {
        let active = &mut self[index];
        if !active.queued {
            active.queued = true;
            let queue = active.priority.queue();
            self.ready[queue].push_front(index);
            self.ready_len += 1;
        }
    }

    /// Returns whether any transfer is to be looked at.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready_len > 0
    }

    /// Takes the next transfer to look at, by priority and then in the order of asking.
    #[inline]
    pub(crate) fn next_ready(&mut self) -> Option<Index> {
        while self.has_ready() {
            let index = self.ready.iter_mut().find_map(VecDeque::pop_front)?;
            self.ready_len -= 1;
            // A transfer that ended meanwhile may have left its place.
            if let Some(active) = self.get_mut(index) {
                active.queued = false;
                return Some(index);
            }
        }
        None
    }

    /// Records whether a transfer or guard needs a thread that listens. One that is over needs none.
    #[inline]
    pub(crate) fn set_needs_listener(&mut self, index: Index, needs: bool) {
        let active = &mut self[index];
        let needs = needs && active.is_live();
        if active.needs_listener != needs {
            active.needs_listener = needs;
            match needs {
                true => self.needs += 1,
                false => self.needs -= 1,
            }
        }
    }

    /// Records whether a thread that waits for all transfers needs a thread that listens.
    pub(crate) fn set_needs_idle(&mut self, needs: bool) {
        match needs {
            true => self.needs += 1,
            false => self.needs -= 1,
        }
    }

    /// Records whether a thread is blocked in a backend for the transfer, and so looks after it.
    pub(crate) fn set_waiter(&mut self, index: Index, has_waiter: bool) {
        let active = &mut self[index];
        if active.has_waiter != has_waiter {
            active.has_waiter = has_waiter;
            match has_waiter {
                true => self.waiters += 1,
                false => self.waiters -= 1,
            }
        }
    }

    /// Returns whether no transfer, guard or thread needs a thread that listens.
    pub(crate) fn is_idle(&self) -> bool {
        self.needs == 0
    }

    /// Returns whether a transfer needs a thread that listens, and no thread that waits for it in a backend looks after
    /// it.
    pub(crate) fn needs_listener(&self) -> bool {
        self.needs > self.waiters
    }

    /// The same for the transfers other than `own`.
    pub(crate) fn others_need_listener(&self, own: Which) -> bool {
        let own = own.index().and_then(|index| self.get(index));
        let is_counted = own.is_some_and(|own| own.needs_listener && !own.has_waiter);
        self.needs - usize::from(is_counted) > self.waiters
    }
}

/// The place of a transfer that has not left it.
impl At<Index> for Table {
    type Output = Active;

    fn index(&self, index: Index) -> &Active {
        self.get(index)
            .expect("a transfer has its place until it leaves it")
    }
}

impl IndexMut<Index> for Table {
    fn index_mut(&mut self, index: Index) -> &mut Active {
        self.get_mut(index)
            .expect("a transfer has its place until it leaves it")
    }
}
