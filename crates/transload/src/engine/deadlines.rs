//! Deadlines of transfers.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use transload_core::Instant;

use super::active::{Stage, TransferId};
use super::places::Places;
use super::state::State;
use crate::TransferError;

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
    fn is_empty(&self) -> bool {
        self.heap.is_empty() && self.due.is_empty()
    }

    fn push(&mut self, at: Instant, id: TransferId, transfers: &Places) {
        self.live += 1;
        if self.heap.len() > 2 * self.live + FEW {
            self.heap
                .retain(|Reverse(entry)| is_live(transfers, *entry));
            self.heap.shrink_to(2 * self.live + FEW);
        }
        self.heap.push(Reverse((at, id)));
    }
}

fn is_live(transfers: &Places, (at, id): (Instant, TransferId)) -> bool {
    let active = transfers.get(id.slot as usize);
    active.is_some_and(|active| active.generation == id.generation && active.deadline == Some(at))
}

impl State {
    /// Sets the time at which a transfer stops.
    pub(crate) fn set_deadline(&mut self, slot: u32, deadline: Option<Instant>) {
        self.transfers[slot as usize].deadline = deadline;
        if let Some(at) = deadline {
            let id = self.id(slot);
            self.deadlines.push(at, id, &self.transfers);
        }
    }

    /// Called when the transfer is over, or its owner was told that it is.
    pub(crate) fn clear_deadline(&mut self, slot: u32) {
        let deadline = self.transfers[slot as usize].deadline.take();
        self.deadlines.live -= usize::from(deadline.is_some());
    }

    /// Stops transfers past their deadline, whether they have begun or not.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.deadlines.is_empty() {
            return;
        }
        while let Some(Reverse((at, id))) = self.deadlines.heap.peek().copied()
            && at <= now
        {
            self.deadlines.heap.pop();
            if is_live(&self.transfers, (at, id)) {
                self.deadlines.due.push(id);
            }
        }
        let mut due = core::mem::take(&mut self.deadlines.due);
        due.retain(|id| {
            let active = self
                .transfer(*id)
                .filter(|active| active.deadline.is_some());
            match active.map(|active| active.stage) {
                None => return false,
                Some(Stage::Waiting | Stage::Proving) => {
                    let error = TransferError::Deadline { leading_bytes: 0 };
                    self.finish(id.slot, Err(error));
                }
                // The flight checks its deadline itself.
                Some(_) => self.enqueue(id.slot),
            }
            true
        });
        self.deadlines.due = due;
    }

    /// Returns the next time at which something happens by itself. A live transfer past its deadline waits for its
    /// operations, and not for the time.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        loop {
            let Reverse(next) = *self.deadlines.heap.peek()?;
            if is_live(&self.transfers, next) {
                return Some(next.0);
            }
            self.deadlines.heap.pop();
        }
    }
}
