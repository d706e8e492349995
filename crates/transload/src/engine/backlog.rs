//! Operations for which their backend has no room.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use transload_core::EngineId;
use transload_core::flight::{Flight, Settled, Task};
use transload_hal::{BackendId, Fault};

use super::active::TransferId;
use super::order::{Orders, What};
use super::state::{Registered, State, queue_of};

/// The engine of a backend that an operation goes to.
pub(crate) type Line = (BackendId, EngineId);

/// The operations that wait until a backend has room, and the counts that tell when it may have some. Operations for
/// one engine of the backend do not hold up those for another one: each engine may have places of its own.
#[derive(Default)]
pub(crate) struct Backlog {
    /// One queue for each engine that operations wait for. Empty while the backend has room.
    queues: Vec<Queue>,
    /// How many operations, hints and calls of `submit` have ended.
    ended: u64,
    /// Calls of `submit` that the engine has not recorded.
    out: usize,
}

/// Operations that wait for one engine of a backend. Each is in its transfer's `postponed`.
struct Queue {
    line: Line,
    /// The transfer of each operation, by priority, the highest first, then in their order. The operation may have been
    /// withdrawn.
    waiting: [VecDeque<TransferId>; 3],
    /// The part of `Backlog::ended` that this queue has used: for each end one operation of the queue is submitted.
    spent: u64,
}

/// A backend's answer that it has no room.
pub(crate) struct Full {
    pub(crate) task: Task,
    pub(crate) fault: Fault,
    /// `Backlog::ended` when the operation was handed out.
    pub(crate) since: u64,
}

impl Backlog {
    /// Called before a thread calls `submit`. Returns how many operations have ended so far.
    pub(super) fn handle_call(&mut self) -> u64 {
        self.out += 1;
        self.ended
    }

    /// Takes in that an operation or a hint has ended: the backend may have room for one more.
    pub(super) fn handle_ended(&mut self) {
        self.ended += 1;
    }

    /// Returns whether operations wait for an engine of the backend.
    pub(crate) fn has_queue(&self, line: Line) -> bool {
        self.queues.iter().any(|queue| queue.line == line)
    }

    /// Returns the queue of an engine, with an attempt for each end after `since`.
    fn queue(&mut self, line: Line, since: u64) -> &mut Queue {
        let known = self.queues.iter().position(|queue| queue.line == line);
        let at = known.unwrap_or_else(|| {
            self.queues.push(Queue {
                line,
                waiting: Default::default(),
                spent: since,
            });
            self.queues.len() - 1
        });
        let queue = &mut self.queues[at];
        queue.spent = queue.spent.min(since);
        queue
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }

    fn pop(&mut self) -> Option<TransferId> {
        self.waiting.iter_mut().find_map(VecDeque::pop_front)
    }
}

impl State {
    pub(super) fn registered_mut(&mut self, name: BackendId) -> Option<&mut Registered> {
        self.backends.iter_mut().find(|known| known.id == name)
    }

    /// Returns whether an operation, a hint or a call of `submit` is under way in a backend: the engine will see its
    /// end.
    fn is_engaged(&self, known: &Registered) -> bool {
        known.pending > 0 || known.backlog.out > 0 || self.hints.are_with(known.id)
    }

    /// Counts orders that the thread which turns the engine takes.
    pub(crate) fn hand_out(&mut self, orders: &mut Orders) {
        self.outstanding += orders.len();
        for order in orders {
            if let What::Submit { since, .. } = &mut order.what
                && let Some(known) = self.registered_mut(order.backend_id)
            {
                *since = known.backlog.handle_call();
            }
        }
    }

    /// Returns whether operations wait until the backend has room.
    pub(super) fn is_backed_up(&self, name: BackendId) -> bool {
        let known = self.registered(name);
        known.is_some_and(|known| !known.backlog.queues.is_empty())
    }

    /// Takes in that a call of `submit` has returned. A call that leaves nothing under way counts as an end: it may
    /// have held a place meanwhile.
    pub(super) fn handle_returned(&mut self, name: BackendId, has_ended: bool) {
        if let Some(known) = self.registered_mut(name) {
            known.backlog.out -= 1;
            known.backlog.ended += u64::from(has_ended);
        }
    }

    /// Takes in that the backend had no room for an operation, which then waits for the next end. The operation counts
    /// as refused if its leg stops, or if the engine had nothing else in the backend and so no end would follow.
    pub(crate) fn handle_full(&mut self, id: TransferId, full: Full, name: BackendId) {
        let Full { task, fault, since } = full;
        let is_wanted = self.transfer(id).is_some_and(|active| {
            let is_stopping = active.flight.as_ref().is_none_or(Flight::is_stopping);
            !is_stopping && active.fault.is_none()
        });
        if !is_wanted {
            return self.handle_settled(id, task.id, Settled::Refused);
        }
        let is_worth_it = self
            .registered(name)
            .is_some_and(|known| known.backlog.ended > since || self.is_engaged(known));
        let line = self.line_of(id.slot, &task);
        let (Some(line), true) = (line, is_worth_it) else {
            return self.handle_refused(id, task.id, name, fault);
        };
        self.postpone(id, task, line, since);
    }

    /// Makes an operation wait for an end in its backend after `since`. It counts among the operations that were handed
    /// out.
    pub(crate) fn postpone(&mut self, id: TransferId, task: Task, line: Line, since: u64) {
        let Some(known) = self.backends.iter_mut().find(|known| known.id == line.0) else {
            return;
        };
        let active = &mut self.transfers[id.slot as usize];
        active.ordered += 1;
        active.postponed.push((line, task));
        let queue = known.backlog.queue(line, since);
        queue.waiting[queue_of(active.priority)].push_back(id);
    }

    /// Submits operations that have waited and may have room now.
    #[inline]
    pub(crate) fn resume(&mut self, orders: &mut Orders) {
        for at in 0..self.backends.len() {
            if !self.backends[at].backlog.queues.is_empty() {
                self.resume_at(at, orders);
            }
        }
    }

    #[cold]
    fn resume_at(&mut self, at: usize, orders: &mut Orders) {
        let known = &self.backends[at];
        let takes_all = known.lost.is_some() || !self.is_engaged(known);
        let ended = known.backlog.ended;
        let mut queues = core::mem::take(&mut self.backends[at].backlog.queues);
        for queue in &mut queues {
            while (takes_all || queue.spent < ended)
                && !orders.is_full()
                && let Some(id) = queue.pop()
            {
                let postponed = self.transfer(id).map(|active| &mut active.postponed);
                let task = postponed.and_then(|postponed| {
                    let of_queue = |(line, _): &(Line, Task)| *line == queue.line;
                    let first = postponed.iter().position(of_queue)?;
                    Some(postponed.remove(first).1)
                });
                // The operation may have been withdrawn.
                let Some(task) = task else { continue };
                queue.spent = ended.min(queue.spent + 1);
                self.transfers[id.slot as usize].ordered -= 1;
                self.order_now(id.slot, task, orders);
            }
        }
        queues.retain(|queue| !queue.is_empty());
        // Engines may share the places of their backend: each is the first one in turn.
        if let [_, _, ..] = queues[..] {
            queues.rotate_left(1);
        }
        self.backends[at].backlog.queues = queues;
    }

    /// Withdraws the operations of a transfer that wait.
    pub(crate) fn withdraw_postponed(&mut self, slot: u32) {
        let id = self.id(slot);
        while let Some((_, task)) = self.transfers[slot as usize].postponed.pop() {
            self.transfers[slot as usize].ordered -= 1;
            self.handle_settled(id, task.id, Settled::Refused);
        }
    }
}
