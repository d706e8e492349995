//! Operations that their backend has no room for.

use alloc::collections::VecDeque;

use transload_core::flight::{Settled, Task};
use transload_hal::{BackendId, Fault};

use super::active::TransferId;
use super::order::Orders;
use super::state::{Registered, State, queue_of};

/// A backend takes so many operations at a time. The others wait here, each in its transfer's `postponed`, and as many are
/// submitted as operations of the backend end.
#[derive(Default)]
pub(crate) struct Backlog {
    /// The transfer of each operation that waits, by priority, the highest first, then in their order.
    waiting: [VecDeque<TransferId>; 3],
    /// Operations that have ended since the first one had to wait, less those that were submitted.
    room: usize,
    /// Refusals in a row although nothing was under way.
    in_vain: u32,
}

/// A thread may record a refusal when another one has recorded the ends of all that was in the way. So often in a row that
/// does not happen.
const MOST_IN_VAIN: u32 = 1000;

impl Backlog {
    fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }

    fn pop(&mut self) -> Option<TransferId> {
        self.waiting.iter_mut().find_map(VecDeque::pop_front)
    }

    /// An operation of the backend has ended.
    pub(crate) fn handle_ended(&mut self) {
        self.in_vain = 0;
        if !self.is_empty() {
            self.room += 1;
        }
    }
}

impl Registered {
    /// Whether an operation that waits may be submitted.
    fn takes_more(&self) -> bool {
        self.backlog.room > 0 || self.pending == 0 || self.lost.is_some()
    }

    /// Whether others wait that came before.
    pub(crate) fn is_backed_up(&self) -> bool {
        !self.backlog.is_empty()
    }
}

impl State {
    /// The backend had no room for an operation.
    pub(crate) fn handle_full(
        &mut self,
        id: TransferId,
        task: Task,
        name: BackendId,
        fault: Fault,
    ) {
        let mut backends = self.backends.iter_mut();
        let known = backends.find(|known| known.id == name);
        if let Some(known) = known.filter(|known| known.pending == 0) {
            known.backlog.in_vain += 1;
            if known.backlog.in_vain > MOST_IN_VAIN {
                known.backlog.in_vain = 0;
                return self.handle_refused(id, task.id, name, fault);
            }
        }
        self.postpone(id, task, name);
    }

    /// Has an operation wait until its backend has room. It counts among those that were handed out.
    pub(crate) fn postpone(&mut self, id: TransferId, task: Task, name: BackendId) {
        let mut backends = self.backends.iter_mut();
        let known = backends.find(|known| known.id == name);
        let active = self.transfers.get_mut(id.slot as usize);
        let (Some(known), Some(active)) = (known, active) else {
            return;
        };
        active.ordered += 1;
        active.postponed.push(task);
        known.backlog.waiting[queue_of(active.priority)].push_back(id);
    }

    /// Submits what has waited and has room now.
    pub(crate) fn resume(&mut self, orders: &mut Orders) {
        for at in 0..self.backends.len() {
            while self.backends[at].takes_more() && !orders.is_full() {
                let backlog = &mut self.backends[at].backlog;
                let Some(id) = backlog.pop() else {
                    backlog.room = 0;
                    break;
                };
                // It may have been stopped.
                let Some(active) = self
                    .transfer(id)
                    .filter(|active| !active.postponed.is_empty())
                else {
                    continue;
                };
                let task = active.postponed.remove(0);
                active.ordered -= 1;
                let backlog = &mut self.backends[at].backlog;
                backlog.room = backlog.room.saturating_sub(1);
                self.order_now(id.slot, task, orders);
            }
        }
    }

    /// Takes back the operations of a transfer that wait.
    pub(crate) fn withdraw_postponed(&mut self, slot: u32) {
        let id = self.id(slot);
        while let Some(task) = self.transfers[slot as usize].postponed.pop() {
            self.transfers[slot as usize].ordered -= 1;
            self.handle_settled(id, task.id, Settled::Refused);
        }
    }
}
