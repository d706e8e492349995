//! The order among transfers that touch the same bytes.

mod footprint;
mod held_up;
mod index;

use alloc::vec::Vec;

use index::{Index, KEPT, NIL, Owner};

pub use footprint::{Footprint, FootprintError};

/// The order of transfers: those that share bytes of a storage, one of them writing, take effect in the order in which
/// they entered; all others run together.
///
/// A transfer [enters](Hazards::enter) with all its footprints at once, may start when it waits for no ticket any more,
/// and [leaves](Hazards::leave) when its last operation is quiet, or when it was given up before the first. Tickets leave
/// in any order. A ticket that leaves may free others, which [`Hazards::poll_freed`] finds.
///
/// A ticket may start when *every* earlier conflicting ticket has left. It follows one of them at a time, the latest. When
/// that one leaves, the ticket follows the latest that is still there. So cancelling a ticket between two others does not
/// change their order, and a ticket in a chain of any length has one follower.
///
/// # Cost
/// With `n` footprints alive, entering and leaving take `O(log n)` for each footprint, and so does the search for the
/// ticket to follow, at entry and for each follower of a ticket that leaves: `O(log n)` where the footprints with which it
/// could conflict start at one position, as in a chain of copies of the same bytes, and never more than `O(log n + k)`,
/// with `k` the live footprints whose bounds overlap its own. Comparing a pair of which one is pitched walks up to
/// [`Shape::OVERLAP_ROWS`] rows. Storages and distant ranges of one storage do not slow each other. Memory is reused:
/// nothing is allocated while the number of live footprints stays below the most that were alive at once. Where it falls
/// below a small part of that, and of 1,024, most of the memory goes back.
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
/// assert!(!fill.waits && drain.waits);
///
/// hazards.leave(fill.ticket);
/// let mut looks = usize::MAX;
/// assert_eq!(hazards.poll_freed(&mut looks), Some(drain.ticket));
/// assert_eq!(hazards.poll_freed(&mut looks), None);
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
    /// The first and the last slot of tickets that have left and whose followers were not looked at; the others follow by
    /// `chain`. A slot stays in use until then.
    left: [usize; 2],
    live: usize,
    /// The order of the last ticket that entered; 0 before the first.
    entered: u64,
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
    /// Returns a number that no other live ticket has. It is below the most tickets that were ever there at once, live or
    /// not [polled](Hazards::poll_freed), so the owner may index a table of transfers with it.
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
    /// Whether an earlier ticket must leave before it may start.
    pub waits: bool,
}

#[derive(Clone, Debug)]
struct Slot {
    /// The order of the ticket in this slot; 0, which no ticket has, when the slot is free or the ticket has left.
    order: u64,
    /// The ticket's first footprint, the next free slot, or the next one in `left`.
    chain: usize,
    /// The slot of the ticket that this one follows, which may have left.
    follows: usize,
    /// Among the followers of the same ticket.
    neighbours: [usize; 2],
    /// The first and the last follower.
    followers: [usize; 2],
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
            left: [NIL; 2],
            live: 0,
            entered: 0,
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

    /// Gives a transfer that touches `footprints` the next place in the order, and returns whether it waits for another
    /// one. Its own footprints never conflict with each other; empty ones conflict with nothing.
    pub fn enter(&mut self, footprints: &[Footprint]) -> Entered {
        self.entered += 1;
        let ticket = Ticket {
            order: self.entered,
            slot: self.take_slot(),
        };
        let latest = self.latest(footprints.iter(), ticket.order);
        let (mut chain, owner) = (NIL, owner(ticket));
        for footprint in footprints.iter().filter(|footprint| !footprint.is_empty()) {
            chain = self.index.insert(*footprint, owner, chain);
        }
        self.slots[ticket.slot] = Slot {
            order: ticket.order,
            chain,
            ..Slot::FREE
        };
        self.live += 1;
        if let Some(latest) = latest {
            self.follow(ticket.slot, latest.slot);
        }
        Entered {
            ticket,
            waits: latest.is_some(),
        }
    }

    /// Removes a ticket, finished or given up. Returns false and does nothing when the ticket has left already. Its
    /// followers wait until [`Hazards::poll_freed`] has looked at them: the call costs the same however many they are.
    pub fn leave(&mut self, ticket: Ticket) -> bool {
        let Some(mut node) = self.live(ticket).map(|slot| slot.chain) else {
            return false;
        };
        while node != NIL {
            let next = self.index.chain(node);
            self.index.remove(node);
            self.index.release(node);
            node = next;
        }
        self.unfollow(ticket.slot);
        self.live -= 1;
        let slot = &mut self.slots[ticket.slot];
        slot.order = 0;
        slot.chain = NIL;
        if slot.followers[0] == NIL {
            self.release_slot(ticket.slot);
        } else {
            match self.left {
                [NIL, _] => self.left = [ticket.slot; 2],
                [_, last] => {
                    self.slots[last].chain = ticket.slot;
                    self.left[1] = ticket.slot;
                }
            }
        }
        if self.index.is_roomy() || self.live == 0 && self.slots.len() > KEPT {
            self.shrink();
        }
        true
    }

    /// Returns the next ticket that waited for one that has left, and waits for none any more. `None` when there is none,
    /// and when `looks` is 0: it counts down with each follower that the call looks at. Followers that still have to wait
    /// follow another ticket from then on.
    ///
    /// Followers of one ticket come in the order in which they began to follow it.
    pub fn poll_freed(&mut self, looks: &mut usize) -> Option<Ticket> {
        while self.left[0] != NIL {
            let [gone, last] = self.left;
            let slot = self.slots[gone].followers[0];
            if slot == NIL {
                let next = self.slots[gone].chain;
                self.left = if gone == last { [NIL; 2] } else { [next, last] };
                self.release_slot(gone);
                continue;
            }
            *looks = looks.checked_sub(1)?;
            self.unfollow(slot);
            let order = self.slots[slot].order;
            match self.latest(self.footprints(slot), order) {
                Some(latest) => self.follow(slot, latest.slot),
                None => return Some(Ticket { order, slot }),
            }
        }
        None
    }

    /// Returns whether [`Hazards::poll_freed`] has anything to look at.
    pub const fn has_left(&self) -> bool {
        self.left[0] != NIL
    }

    /// Returns whether a ticket still waits for another one, or for [`Hazards::poll_freed`]; `None` when it has left.
    pub fn waits(&self, ticket: Ticket) -> Option<bool> {
        self.live(ticket).map(|slot| slot.follows != NIL)
    }

    /// Returns the tickets that this one still waits for, in the order in which they entered; none when it has left.
    /// Takes `O(log n + k)` for each footprint, as [`Hazards`] lists.
    pub fn blockers(&mut self, ticket: Ticket) -> &[Ticket] {
        let mut found = core::mem::take(&mut self.found);
        found.clear();
        if self.live(ticket).is_some() {
            for own in self.footprints(ticket.slot) {
                let nodes = self.index.candidates(own);
                let met = nodes.filter(|node| own.conflicts_with(self.index.footprint(*node)));
                let met = met.map(|node| self.index.owner(node));
                let earlier = met.filter(|other| other.order < ticket.order);
                found.extend(earlier.map(|Owner { slot, order }| Ticket { order, slot }));
            }
            found.sort_unstable();
            found.dedup();
        }
        self.found = found;
        &self.found
    }

    /// Returns whether a transfer that touches `footprints` would have to wait if it entered now.
    pub fn conflicts(&self, footprints: &[Footprint]) -> bool {
        self.latest(footprints.iter(), u64::MAX).is_some()
    }

    /// Returns the latest ticket before `order` that footprints conflict with.
    fn latest<'a>(
        &self,
        footprints: impl Iterator<Item = &'a Footprint>,
        order: u64,
    ) -> Option<Owner> {
        footprints.fold(None, |found, own| self.index.latest(own, order, found))
    }

    fn footprints(&self, slot: usize) -> impl Iterator<Item = &Footprint> {
        let node = |node: usize| Some(node).filter(|node| *node != NIL);
        let first = node(self.slots[slot].chain);
        let chain = core::iter::successors(first, move |at| node(self.index.chain(*at)));
        chain.map(|node| self.index.footprint(node))
    }

    /// Appends a ticket to the followers of another one.
    fn follow(&mut self, slot: usize, other: usize) {
        let [first, last] = self.slots[other].followers;
        let follower = &mut self.slots[slot];
        follower.follows = other;
        follower.neighbours = [last, NIL];
        if last == NIL {
            self.slots[other].followers = [slot; 2];
        } else {
            self.slots[last].neighbours[1] = slot;
            self.slots[other].followers = [first, slot];
        }
    }

    /// Takes a ticket out of the followers that it is among.
    fn unfollow(&mut self, slot: usize) {
        let Slot {
            follows,
            neighbours: [before, after],
            ..
        } = self.slots[slot];
        if follows == NIL {
            return;
        }
        match before {
            NIL => self.slots[follows].followers[0] = after,
            before => self.slots[before].neighbours[1] = after,
        }
        match after {
            NIL => self.slots[follows].followers[1] = before,
            after => self.slots[after].neighbours[0] = before,
        }
        self.slots[slot].follows = NIL;
    }

    fn live(&self, ticket: Ticket) -> Option<&Slot> {
        self.slots
            .get(ticket.slot)
            .filter(|slot| slot.order == ticket.order)
    }

    /// Moves the live entries to as much memory as they need.
    #[cold]
    fn shrink(&mut self) {
        // By the footprints: slots do not go back while any ticket is live, and may be many more.
        let owners = self.index.owners(0..=u64::MAX);
        let mut index = self.index.emptied();
        for owner in owners {
            let first = &mut self.slots[owner.slot].chain;
            let (mut node, mut chain) = (*first, NIL);
            while node != NIL {
                chain = index.insert(*self.index.footprint(node), owner, chain);
                node = self.index.chain(node);
            }
            *first = chain;
        }
        self.index = index;
        if self.live == 0 {
            self.slots = Vec::new();
            (self.free, self.left) = (NIL, [NIL; 2]);
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
    }
}

const fn owner(ticket: Ticket) -> Owner {
    Owner {
        slot: ticket.slot,
        order: ticket.order,
    }
}

impl Slot {
    const FREE: Slot = Slot {
        order: 0,
        chain: NIL,
        follows: NIL,
        neighbours: [NIL; 2],
        followers: [NIL; 2],
    };
}

#[cfg(test)]
mod tests;
