//! Transfers that wait for their first slots, in one line for each pair of devices.
//!
//! Lines make a look at the queue short. Transfers of other devices pass a transfer that waits for its device's share,
//! and transfers of its own pair do not. So only the head of each line matters, however long a batch is.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::super::types::{Index, Pair, Priority, QueuePosition};

/// Each step costs as much as there are pairs of devices, and no more for the transfers that wait. A transfer that ends
/// while it waits stays in its line until its turn comes or most of the entries are of ended transfers.
#[derive(Default)]
pub(crate) struct Queue {
    /// A line stays when it is empty: the next batch uses its allocation, and a machine has few pairs.
    lines: Vec<Line>,
    last: u64,
    /// How many entries there are, and how many of them belong to transfers that have ended.
    waiting: usize,
    gone: usize,
}

struct Line {
    pair: Pair,
    /// One queue for each priority, the highest first.
    waiting: [VecDeque<Waiting>; 3],
}

struct Waiting {
    index: Index,
    position: QueuePosition,
}

/// The head of a line.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) index: Index,
    pub(crate) position: QueuePosition,
    line: usize,
}

/// Up to this many entries of ended transfers are not worth a look at all entries.
const FEW: usize = 64;

impl Queue {
    /// Returns whether no transfer is in line.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Puts the transfer at that place behind all transfers that asked before it with its priority or a higher one.
    pub(crate) fn push(&mut self, index: Index, pair: Pair, priority: Priority) -> QueuePosition {
        self.last += 1;
        let position = QueuePosition(Reverse(priority), self.last);
        let known = self.lines.iter().position(|line| line.pair == pair);
        let line = known.unwrap_or_else(|| {
            let waiting = Default::default();
            self.lines.push(Line { pair, waiting });
            self.lines.len() - 1
        });
        self.lines[line].waiting[priority.queue()].push_back(Waiting { index, position });
        self.waiting += 1;
        position
    }

    /// Returns the first head of a line whose turn comes after `passed`. `waits` tells whether a transfer still waits for
    /// a turn.
    pub(crate) fn next(
        &mut self,
        passed: Option<QueuePosition>,
        waits: impl Fn(Index, QueuePosition) -> bool,
    ) -> Option<Head> {
        for queue in self.lines.iter_mut().flat_map(|line| &mut line.waiting) {
            while queue
                .front()
                .is_some_and(|front| !waits(front.index, front.position))
            {
                queue.pop_front();
                self.waiting -= 1;
                self.gone -= 1;
            }
        }
        let head = |(line, of): (usize, &Line)| {
            let head = of.waiting.iter().find_map(VecDeque::front)?;
            let (index, position) = (head.index, head.position);
            Some(Head {
                index,
                position,
                line,
            })
        };
        let heads = self.lines.iter().enumerate().filter_map(head);
        let later = heads.filter(|head| passed.is_none_or(|passed| passed < head.position));
        later.min_by_key(|head| head.position)
    }

    /// Takes a head out.
    pub(crate) fn pop(&mut self, head: Head) {
        let QueuePosition(Reverse(priority), _) = head.position;
        self.lines[head.line].waiting[priority.queue()].pop_front();
        self.waiting -= 1;
    }

    /// Takes in that a transfer in line has ended.
    pub(crate) fn leave(&mut self, waits: impl Fn(Index, QueuePosition) -> bool) {
        self.gone += 1;
        if 2 * self.gone < self.waiting + FEW {
            return;
        }
        for queue in self.lines.iter_mut().flat_map(|line| &mut line.waiting) {
            queue.retain(|waiting| waits(waiting.index, waiting.position));
        }
        self.waiting -= self.gone;
        self.gone = 0;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use transload_core::{DeviceId, DeviceKind};

    use super::*;

    /// A queue, and the turn of each transfer that waits, by its number.
    struct Waiters(Queue, Vec<Option<QueuePosition>>);

    impl Waiters {
        /// Transfers of these devices and priorities ask one after the other.
        fn new(asked: &[(u32, Priority)]) -> Waiters {
            let mut waiters = Waiters(Queue::default(), Vec::new());
            asked.iter().for_each(|asked| waiters.ask(*asked));
            waiters
        }

        /// Takes the first number that no transfer has.
        fn ask(&mut self, (device, priority): (u32, Priority)) {
            let free = self.1.iter().position(Option::is_none);
            let at = free.unwrap_or(self.1.len());
            let device = DeviceId::new(DeviceKind::SIM, device);
            let pair = Pair::between(DeviceId::CPU0, device);
            let turn = self.0.push(Index::of(at), pair, priority);
            self.1.resize(self.1.len().max(at + 1), None);
            self.1[at] = Some(turn);
        }

        fn next(&mut self, passed: Option<QueuePosition>) -> Option<Head> {
            let turns = &self.1;
            self.0
                .next(passed, |index, turn| turns[index.position()] == Some(turn))
        }

        /// Returns the heads in their order, when each is passed by the next.
        fn heads(&mut self) -> Vec<usize> {
            let first = self.next(None);
            let heads = core::iter::successors(first, |head| self.next(Some(head.position)));
            heads.map(|head| head.index.position()).collect()
        }

        fn leave(&mut self, at: usize) {
            self.1[at] = None;
            let turns = &self.1;
            self.0
                .leave(|index, turn| turns[index.position()] == Some(turn));
        }
    }

    #[test]
    fn transfers_leave_in_the_order_of_priority_and_asking() {
        let mut queue = Waiters::new(&[
            (0, Priority::Normal),
            (1, Priority::Low),
            (0, Priority::High),
            (1, Priority::Normal),
            (2, Priority::Normal),
            (0, Priority::High),
            (1, Priority::Low),
        ]);
        let mut left = Vec::new();
        while let Some(head) = queue.next(None) {
            queue.0.pop(head);
            left.push(head.index.position());
        }
        assert_eq!(left, [2, 5, 0, 3, 4, 1, 6]);
    }

    #[test]
    fn a_head_that_waits_is_passed_by_other_lines_alone() {
        let asked = [0, 0, 1, 0, 2].map(|device| (device, Priority::Normal));
        let mut queue = Waiters::new(&asked);
        assert_eq!(queue.heads(), [0, 2, 4]);
        let first = queue.next(None).unwrap();
        let passing = queue.next(Some(first.position)).unwrap();
        queue.0.pop(passing);
        assert_eq!(queue.heads(), [0, 4]);
    }

    #[test]
    fn a_transfer_that_has_gone_leaves_its_line() {
        let asked = [0, 0, 1].map(|device| (device, Priority::Normal));
        let mut queue = Waiters::new(&asked);
        queue.leave(0);
        assert_eq!(queue.heads(), [1, 2]);
        // The next transfer in its place has a turn of its own, behind all others.
        queue.ask((0, Priority::Normal));
        let first = queue.next(None).unwrap();
        queue.0.pop(first);
        assert_eq!(queue.heads(), [2, 0]);
    }

    #[test]
    fn the_queue_keeps_no_more_than_twice_those_who_wait() {
        let mut queue = Waiters::new(&[(0, Priority::Normal)]);
        for _ in 0..10_000 {
            queue.ask((0, Priority::Normal));
            queue.leave(1);
        }
        assert!(queue.0.waiting <= 2 + FEW, "{} entries", queue.0.waiting);
        assert_eq!(queue.heads(), [0]);
    }
}
