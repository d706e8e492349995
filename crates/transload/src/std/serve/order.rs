//! The order of the transfers of all sessions, and the leases that several of them use.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use transload_core::{Footprint, Hazards, Shape, StorageId, Ticket};
use transload_hal::Fault;

use super::Serving;
use super::grant::Grant;
use super::guest::{Leased, mistake};
use super::ready::{News, Ready};

/// Bytes of a lease that a transfer will touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reserved {
    /// The number of the memory.
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) writes: bool,
}

impl Reserved {
    /// Returns whether an operation on those bytes keeps to what was reserved.
    pub(super) fn covers(&self, use_of: &Reserved) -> bool {
        let end = |of: &Reserved| of.offset.checked_add(of.len);
        self.number == use_of.number
            && (self.writes || !use_of.writes)
            && self.offset <= use_of.offset
            && end(use_of).is_some_and(|last| end(self).is_some_and(|limit| last <= limit))
    }

    fn footprint(&self) -> Result<Footprint, Fault> {
        let id = StorageId::Remote {
            owner: [0; 16],
            number: self.number,
        };
        let shape = Shape::contiguous(self.len);
        Footprint::new(id, self.offset, shape, self.writes)
            .map_err(|error| mistake(error.to_string()))
    }
}

/// A place in the order. It is given up when its last holder drops it: the reservation, or an operation of it.
pub(super) struct Place {
    pub(super) serving: Arc<Serving>,
    pub(super) ticket: Ticket,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.serving.order().leave(self.ticket);
    }
}

/// The places of transfers, and the tokens of shared leases and grants.
#[derive(Default)]
pub(super) struct Order {
    hazards: Hazards,
    waiting: HashMap<Ticket, (Arc<Ready>, u64)>,
    shared: HashMap<[u8; 16], Weak<Leased>>,
    grants: HashMap<[u8; 16], Weak<Grant>>,
}

impl Order {
    /// Gives the transfer with the number `id` of a session a place. Returns whether its turn has come; else its session is
    /// told when it does.
    pub(super) fn enter(
        &mut self,
        uses: &[Reserved],
        session: &Arc<Ready>,
        id: u64,
    ) -> Result<(Ticket, bool), Fault> {
        let footprints: Result<Vec<_>, _> = uses.iter().map(Reserved::footprint).collect();
        let entered = self.hazards.enter(&footprints?);
        let has_turn = !entered.waits;
        if !has_turn {
            let waiter = (Arc::clone(session), id);
            self.waiting.insert(entered.ticket, waiter);
        }
        Ok((entered.ticket, has_turn))
    }

    /// Gives a place up, and tells the sessions of those that waited for it alone.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
        self.hazards.leave(ticket);
        let mut looks = usize::MAX;
        while let Some(freed) = self.hazards.poll_freed(&mut looks) {
            if let Some((session, id)) = self.waiting.remove(&freed) {
                session.tell(News::Turn(id, freed));
            }
        }
    }

    /// Makes a lease one that others can open by the token.
    pub(super) fn share(&mut self, token: [u8; 16], lease: &Arc<Leased>) {
        self.shared.retain(|_, lease| lease.strong_count() > 0);
        self.shared.insert(token, Arc::downgrade(lease));
    }

    pub(super) fn open(&self, token: &[u8; 16]) -> Option<Arc<Leased>> {
        self.shared.get(token)?.upgrade()
    }

    /// Makes a grant one that others can use by its token.
    pub(super) fn grant(&mut self, grant: &Arc<Grant>) {
        self.grants.insert(grant.token, Arc::downgrade(grant));
    }

    pub(super) fn granted(&self, token: &[u8; 16]) -> Option<Arc<Grant>> {
        self.grants.get(token)?.upgrade()
    }

    pub(super) fn revoke(&mut self, token: &[u8; 16]) {
        self.grants.remove(token);
    }
}
