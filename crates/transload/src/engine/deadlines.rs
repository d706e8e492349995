//! Deadlines of transfers.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use transload_core::Instant;

use super::completions::Completions;
use super::table::Table;
use super::types::{Index, TransferId};

/// The deadlines of live transfers, the next one first. A transfer that ends leaves its entry behind, which is removed
/// at its time or when most entries are of ended transfers: each costs `O(log n)`, and the memory follows the number of
/// live ones.
#[derive(Default)]
pub(crate) struct Deadlines {
    heap: BinaryHeap<Reverse<(Instant, TransferId)>>,
    /// Transfers past their deadline whose owners were not told yet.
    due: Vec<TransferId>,
    live: usize,
}

/// Up to this many entries of ended transfers are not worth a look at all entries.
const FEW: usize = 64;

impl Deadlines {
    /// Returns whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty() && self.due.is_empty()
    }

    /// Sets the time at which a transfer stops.
    pub(crate) fn set(&mut self, index: Index, deadline: Option<Instant>, transfers: &mut Table) {
        transfers[index].deadline = deadline;
        let Some(at) = deadline else { return };
        self.live += 1;
        if self.heap.len() > 2 * self.live + FEW {
            self.heap
                .retain(|Reverse((at, id))| has_deadline(transfers, *id, *at));
            self.heap.shrink_to(2 * self.live + FEW);
        }
        self.heap.push(Reverse((at, transfers.id(index))));
    }

    /// Called when the transfer is over, or its owner was told that it is.
    pub(crate) fn clear(&mut self, index: Index, transfers: &mut Table) {
        let deadline = transfers[index].deadline.take();
        self.live -= usize::from(deadline.is_some());
    }

    /// Returns whether a transfer may be past its deadline that was not taken out yet.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        { self.heap.peek() }.is_some_and(|Reverse((at, _))| *at <= now)
    }

    /// Takes transfers out that are past their deadline: some of them at a time. The caller returns them with
    /// [`Deadlines::keep_due`].
    pub(crate) fn take_due(&mut self, now: Instant, transfers: &Table) -> Vec<TransferId> {
        let mut some = 0..Completions::AT_ONCE;
        while self.is_due(now)
            && some.next().is_some()
            && let Some(Reverse((at, id))) = self.heap.pop()
        {
            if has_deadline(transfers, id, at) {
                self.due.push(id);
            }
        }
        core::mem::take(&mut self.due)
    }

    /// Takes the transfers back whose owners must still be told.
    pub(crate) fn keep_due(&mut self, due: Vec<TransferId>) {
        self.due = due;
    }

    /// Returns the next time at which something happens by itself. A live transfer past its deadline waits for its
    /// operations, and not for the time.
    pub(crate) fn next(&mut self, transfers: &Table) -> Option<Instant> {
        loop {
            let Reverse((at, id)) = *self.heap.peek()?;
            if has_deadline(transfers, id, at) {
                return Some(at);
            }
            self.heap.pop();
        }
    }
}

fn has_deadline(transfers: &Table, id: TransferId, at: Instant) -> bool {
    let active = transfers.get(id.index);
    active.is_some_and(|active| active.generation == id.generation && active.deadline == Some(at))
}
