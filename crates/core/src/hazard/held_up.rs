//! Finds the tickets that another ticket is held up by.

use alloc::vec::Vec;

use super::index::Index;
use super::{Hazards, NIL, Owner, Ticket};

impl Hazards {
    /// Returns a ticket of `held` that stands before `ticket` in the order: `ticket` waits for it, or for a ticket that
    /// stands behind it. `None` when none does, or when `ticket` has left. Ignores tickets of `held` that have left.
    ///
    /// A ticket for which `leaves` is true leaves the order by itself: tickets that wait for it do not stand behind the
    /// ones that it waits for.
    ///
    /// # Cost
    /// With `n` tickets between the first of `held` and `ticket`: `O(n log n)`, and allocations for their footprints. It
    /// may look at the footprints of all live tickets.
    pub fn held_up_by(
        &self,
        ticket: Ticket,
        held: &[Ticket],
        leaves: impl Fn(Ticket) -> bool,
    ) -> Option<Ticket> {
        let first = held
            .iter()
            .filter(|held| self.live(**held).is_some())
            .min()?;
        self.live(ticket)?;
        // The footprints of all tickets that stand behind one of `held`, and of those themselves. Each names its cause.
        let mut behind = Index::new();
        let mut causes = Vec::new();
        for own in self.index.owners(first.order..=ticket.order) {
            let own = Ticket {
                order: own.order,
                slot: own.slot,
            };
            let cause = self.footprints(own.slot).find_map(|own| {
                let mut nodes = behind.candidates(own);
                let met = nodes.find(|node| own.conflicts_with(behind.footprint(*node)))?;
                Some(causes[behind.owner(met).slot])
            });
            if own == ticket {
                return cause;
            }
            let cause = match held.contains(&own) {
                true => Some(own),
                false => cause.filter(|_| !leaves(own)),
            };
            if let Some(cause) = cause {
                let owner = Owner {
                    slot: causes.len(),
                    order: own.order,
                };
                for footprint in self.footprints(own.slot) {
                    behind.insert(*footprint, owner, NIL);
                }
                causes.push(cause);
            }
        }
        None
    }
}
