//! Operations for which their backend has no room.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use transload_core::flight::Task;
use transload_hal::Fault;

use super::types::{Line, Priority, TransferId};

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

/// A round over the queues of a backlog.
pub(crate) struct Attempts {
    queues: Vec<Queue>,
    at: usize,
    ended: u64,
    /// The backend will end nothing more: each operation is tried, and refused.
    takes_all: bool,
}

impl Backlog {
    /// Called before a thread calls `submit`. Returns how many operations have ended so far.
    pub(crate) fn handle_call(&mut self) -> u64 {
        self.out += 1;
        self.ended
    }

    /// Takes in that a call of `submit` has returned. A call that leaves nothing under way counts as an end: it may
    /// have held a place meanwhile.
    pub(crate) fn handle_returned(&mut self, has_ended: bool) {
        self.out -= 1;
        self.ended += u64::from(has_ended);
    }

    /// Takes in that an operation or a hint has ended: the backend may have room for one more.
    pub(crate) fn handle_ended(&mut self) {
        self.ended += 1;
    }

    /// Returns whether a call of `submit` is under way.
    pub(crate) fn is_called(&self) -> bool {
        self.out > 0
    }

    /// Returns whether anything has ended after `since`.
    pub(crate) fn has_ended_after(&self, since: u64) -> bool {
        self.ended > since
    }

    /// Returns whether no operation waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns whether operations wait for an engine of the backend.
    pub(crate) fn has_queue(&self, line: Line) -> bool {
        self.queues.iter().any(|queue| queue.line == line)
    }

    /// Makes an operation wait for an end after `since`.
    pub(crate) fn push(&mut self, line: Line, priority: Priority, id: TransferId, since: u64) {
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
        queue.waiting[priority.queue()].push_back(id);
    }

    /// Begins a round.
    pub(crate) fn begin(&mut self, takes_all: bool) -> Attempts {
        Attempts {
            queues: core::mem::take(&mut self.queues),
            at: 0,
            ended: self.ended,
            takes_all,
        }
    }

    /// Ends the round.
    pub(crate) fn end(&mut self, attempts: Attempts) {
        let mut queues = attempts.queues;
        queues.retain(|queue| !queue.is_empty());
        // Engines may share the places of their backend: each is the first one in turn.
        if let [_, _, ..] = queues[..] {
            queues.rotate_left(1);
        }
        self.queues = queues;
    }
}

impl Attempts {
    /// Takes the next transfer one of whose operations may have room now, and the engine that the operation waits for.
    pub(crate) fn next(&mut self) -> Option<(Line, TransferId)> {
        loop {
            let queue = self.queues.get_mut(self.at)?;
            if (self.takes_all || queue.spent < self.ended)
                && let Some(id) = queue.pop()
            {
                return Some((queue.line, id));
            }
            self.at += 1;
        }
    }

    /// Counts the operation that [`Attempts::next`] named: it is submitted, and was not withdrawn.
    pub(crate) fn spend(&mut self) {
        let queue = &mut self.queues[self.at];
        queue.spent = self.ended.min(queue.spent + 1);
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
