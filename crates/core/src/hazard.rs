//! The order among transfers that touch the same bytes.

mod footprint;
mod held_up;
mod index;

use alloc::vec::Vec;

use index::{Index, KEPT, NIL};

pub use footprint::{Footprint, FootprintError};

/// The order of transfers: those that share bytes of a storage, one of them writing, take effect in the order in which
/// they entered; all others run together.
///
/// A transfer [enters](Hazards::enter) with all its footprints at once, may start when every ticket that it waits for
/// has left, and [leaves](Hazards::leave) when its last operation is quiet, or when it was given up before the first.
/// Tickets leave in any order. A ticket waits for *every* earlier conflicting ticket and not only for the last, so
/// cancelling a ticket between two others does not change their order.
///
/// # Cost
/// With `n` footprints alive, entering and leaving takes `O(log n + k)` for each footprint, with `k`
/// the live footprints whose bounds overlap its own and that it could conflict with; where one of
/// such a pair is pitched, comparing them walks up to [`Shape::OVERLAP_ROWS`] rows. Storages and
/// distant ranges of one storage do not slow each other. Relations are found by search when a ticket
/// enters and again when it leaves, never stored. Memory is reused: nothing is allocated while the number of live
/// footprints stays below the most that were alive at once. Where it falls below a quarter of that, and of 1,024, most of
/// the memory goes back.
///
/// Nothing here blocks. The owner guards it against concurrent use.
///
/// ```
/// use transload_core::{Footprint, Hazards, Shape, StorageId};
///
/// let bytes = |position, len, writes| {
///     Footprint::new(StorageId::Host, position, Shape::contiguous(len), writes)
/// };
/// let mut hazards = Hazards::new();
/// let fill = hazards.enter(&[bytes(0x1000, 64, true)?]);
/// let drain = hazards.enter(&[bytes(0x1020, 8, false)?]);
/// assert_eq!((fill.waits_for, drain.waits_for), (0, 1));
///
/// let mut ready = Vec::new();
/// hazards.leave(fill.ticket, &mut |ticket| ready.push(ticket));
/// assert_eq!(ready, [drain.ticket]);
/// # Ok::<(), transload_core::FootprintError>(())
/// ```
///
/// [`Shape::OVERLAP_ROWS`]: crate::Shape::OVERLAP_ROWS
#[derive(Clone, Debug)]
pub struct Hazards {
    index: Index,
    slots: Vec<Slot>,
    /// The first free slot; the others follow by `chain`.
    free: usize,
    live: usize,
    /// The order of the last ticket that entered; 0 before the first.
    entered: u64,
    /// The number of the last search. A slot holds the number of the last search that counted it.
    search: u64,
    /// The tickets that the last search found; kept for its capacity.
    found: Vec<Ticket>,
}

/// Identifies a transfer in [`Hazards`] from the moment it enters until it leaves, and never another one afterwards.
/// Tickets compare in the order in which they entered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    /// The number of the ticket, counted from 1. It is unique, so it tells the users of one slot apart.
    order: u64,
    slot: usize,
}

impl Ticket {
    /// Returns a number that no other live ticket has. It is below the most tickets that were ever live at once, so the
    /// owner may index a table of transfers with it.
    pub const fn index(self) -> usize {
        self.slot
    }
}

/// The result of [`Hazards::enter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Entered {
    /// The transfer's ticket.
    pub ticket: Ticket,
    /// How many earlier tickets must leave before it may start.
    pub waits_for: usize,
}

#[derive(Clone, Debug)]
struct Slot {
    /// The order of the ticket in this slot; 0, which no ticket has, when the slot is free.
    order: u64,
    /// The ticket's first footprint, or the next free slot.
    chain: usize,
    waits_for: usize,
    counted_by: u64,
}

impl Default for Hazards {
    fn default() -> Hazards {
        Hazards::new()
    }
}

impl Hazards {
    /// Makes an empty order. Allocates nothing.
    pub const fn new() -> Hazards {
        Hazards {
            index: Index::new(),
            slots: Vec::new(),
            free: NIL,
            live: 0,
            entered: 0,
            search: 0,
            found: Vec::new(),
        }
    }

    /// Returns how many tickets are live.
    pub const fn len(&self) -> usize {
        self.live
    }

    /// Returns whether no ticket is live.
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Gives a transfer that touches `footprints` the next place in the order, and returns how many tickets it waits
    /// for. Its own footprints never conflict with each other; empty ones conflict with nothing.
    pub fn enter(&mut self, footprints: &[Footprint]) -> Entered {
        self.entered += 1;
        let ticket = Ticket {
            order: self.entered,
            slot: self.take_slot(),
        };
        self.search += 1;
        let mut waits_for = 0;
        for footprint in footprints {
            for node in self.index.candidates(footprint) {
                let other = &mut self.slots[self.index.owner(node)];
                if other.counted_by != self.search
                    && footprint.conflicts_with(self.index.footprint(node))
                {
                    other.counted_by = self.search;
                    waits_for += 1;
                }
            }
        }
        let mut chain = NIL;
        for footprint in footprints.iter().filter(|footprint| !footprint.is_empty()) {
            chain = self.index.insert(*footprint, ticket.slot, chain);
        }
        self.slots[ticket.slot] = Slot {
            order: ticket.order,
            chain,
            waits_for,
            counted_by: 0,
        };
        self.live += 1;
        Entered { ticket, waits_for }
    }

    /// Removes a ticket, finished or given up, and calls `freed` for each ticket that waits for none any more, in the
    /// order in which they entered. Returns false and does nothing when the ticket has left already.
    pub fn leave(&mut self, ticket: Ticket, freed: &mut impl FnMut(Ticket)) -> bool {
        let Some(first) = self.live(ticket).map(|slot| slot.chain) else {
            return false;
        };
        let mut node = first;
        while node != NIL {
            self.index.remove(node);
            node = self.index.chain(node);
        }
        self.found.clear();
        // No ticket is behind the one that entered last, which a lone copy always is.
        if ticket.order < self.entered {
            self.find_conflicting(first, |other| other > ticket);
        }
        node = first;
        while node != NIL {
            let next = self.index.chain(node);
            self.index.release(node);
            node = next;
        }
        self.release_slot(ticket.slot);
        if self.index.is_roomy() || self.live == 0 && self.slots.len() > KEPT {
            self.shrink();
        }
        let slots = &mut self.slots;
        self.found.retain(|later| {
            // `enter` counted this ticket in with the search that has just found it again.
            let slot = &mut slots[later.slot];
            slot.waits_for -= 1;
            slot.waits_for == 0
        });
        self.found.sort_unstable();
        for later in &self.found {
            freed(*later);
        }
        true
    }

    /// Returns how many tickets this one still waits for; `None` when it has left.
    pub fn waits_for(&self, ticket: Ticket) -> Option<usize> {
        self.live(ticket).map(|slot| slot.waits_for)
    }

    /// Returns the tickets that this one still waits for, in the order in which they entered; none when it has left.
    /// Costs as much as entering.
    pub fn blockers(&mut self, ticket: Ticket) -> &[Ticket] {
        self.found.clear();
        if let Some(first) = self.live(ticket).map(|slot| slot.chain) {
            self.find_conflicting(first, |other| other < ticket);
            self.found.sort_unstable();
        }
        &self.found
    }

    /// Returns whether a transfer that touches `footprints` would have to wait if it entered now.
    pub fn conflicts(&self, footprints: &[Footprint]) -> bool {
        footprints.iter().any(|footprint| {
            self.index
                .candidates(footprint)
                .any(|node| footprint.conflicts_with(self.index.footprint(node)))
        })
    }

    /// Collects in `found` the wanted tickets that conflict with a footprint of the chain from
    /// `first` on, each once.
    fn find_conflicting(&mut self, first: usize, wanted: impl Fn(Ticket) -> bool) {
        self.search += 1;
        self.found.clear();
        let mut own = first;
        while own != NIL {
            let footprint = self.index.footprint(own);
            for node in self.index.candidates(footprint) {
                let slot = self.index.owner(node);
                let other = &mut self.slots[slot];
                let ticket = Ticket {
                    order: other.order,
                    slot,
                };
                // Compared in the same direction as in `enter`, so that the answer is the same.
                if other.counted_by != self.search
                    && wanted(ticket)
                    && self.index.footprint(node).conflicts_with(footprint)
                {
                    other.counted_by = self.search;
                    self.found.push(ticket);
                }
            }
            own = self.index.chain(own);
        }
    }

    fn live(&self, ticket: Ticket) -> Option<&Slot> {
        self.slots
            .get(ticket.slot)
            .filter(|slot| slot.order == ticket.order)
    }

    /// Moves the live entries to as much memory as they need.
    #[cold]
    fn shrink(&mut self) {
        let mut index = self.index.emptied();
        for (owner, slot) in self.slots.iter_mut().enumerate() {
            let mut node = if slot.order == 0 { NIL } else { slot.chain };
            let mut chain = NIL;
            while node != NIL {
                chain = index.insert(*self.index.footprint(node), owner, chain);
                node = self.index.chain(node);
            }
            if slot.order != 0 {
                slot.chain = chain;
            }
        }
        self.index = index;
        if self.live == 0 {
            self.slots = Vec::new();
            self.free = NIL;
            self.found = Vec::new();
        }
    }

    fn take_slot(&mut self) -> usize {
        let slot = self.free;
        if slot == NIL {
            self.slots.push(Slot::FREE);
            return self.slots.len() - 1;
        }
        self.free = self.slots[slot].chain;
        slot
    }

    fn release_slot(&mut self, slot: usize) {
        self.slots[slot] = Slot {
            chain: self.free,
            ..Slot::FREE
        };
        self.free = slot;
        self.live -= 1;
    }
}

impl Slot {
    const FREE: Slot = Slot {
        order: 0,
        chain: NIL,
        waits_for: 0,
        counted_by: 0,
    };
}

#[cfg(test)]
mod tests;
