//! Transfers that wait for their first slots, in one line for each pair of devices.
//!
//! Lines keep a look at the queue short. A transfer that waits for its device's share is passed by transfers of other
//! devices and by none of its own pair, so of each line only the head is of interest, however long a batch is.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::super::active::Priority;
use super::super::staging::Pair;

#[derive(Default)]
pub(crate) struct Queue {
    /// A line stays when it is empty: its room serves the next batch, and a machine has few pairs.
    lines: Vec<Line>,
    last: u64,
}

struct Line {
    pair: Pair,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    slot: u32,
    turn: Turn,
}

/// When a transfer's turn is: by priority, then in the order of asking. The smaller one comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Turn(Reverse<Priority>, u64);

/// The head of a line.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) slot: u32,
    pub(crate) turn: Turn,
    line: usize,
}

impl Queue {
    /// Puts the transfer at that place behind all that asked before it with its priority or a higher one.
    pub(crate) fn push(&mut self, slot: u32, pair: Pair, priority: Priority) {
        self.last += 1;
        let turn = Turn(Reverse(priority), self.last);
        let known = self.lines.iter().position(|line| line.pair == pair);
        let line = known.unwrap_or_else(|| {
            let waiting = VecDeque::new();
            self.lines.push(Line { pair, waiting });
            self.lines.len() - 1
        });
        let waiting = &mut self.lines[line].waiting;
        let before = waiting.iter().rposition(|other| other.turn < turn);
        waiting.insert(before.map_or(0, |at| at + 1), Waiting { slot, turn });
    }

    /// The first head of a line whose turn comes after `passed`.
    pub(crate) fn next(&self, passed: Option<Turn>) -> Option<Head> {
        let head = |(line, of): (usize, &Line)| {
            let head = of.waiting.front()?;
            let (slot, turn) = (head.slot, head.turn);
            Some(Head { slot, turn, line })
        };
        let heads = self.lines.iter().enumerate().filter_map(head);
        let later = heads.filter(|head| passed.is_none_or(|passed| passed < head.turn));
        later.min_by_key(|head| head.turn)
    }

    /// Takes a head out.
    pub(crate) fn pop(&mut self, head: Head) {
        self.lines[head.line].waiting.pop_front();
    }

    /// Takes out what the transfer at that place, which has gone, left behind.
    pub(crate) fn remove(&mut self, slot: u32, pair: Pair) {
        let line = self.lines.iter_mut().find(|line| line.pair == pair);
        let Some(line) = line else { return };
        let at = { line.waiting.iter() }.position(|waiting| waiting.slot == slot);
        at.and_then(|at| line.waiting.remove(at));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use transload_core::{DeviceId, DeviceKind};

    use super::*;

    fn pair(device: u32) -> Pair {
        Pair::between(DeviceId::CPU0, DeviceId::new(DeviceKind::SIM, device))
    }

    /// The heads in their order, when each is passed by the next.
    fn heads(queue: &Queue) -> Vec<u32> {
        let first = queue.next(None);
        let heads = core::iter::successors(first, |head| queue.next(Some(head.turn)));
        heads.map(|head| head.slot).collect()
    }

    #[test]
    fn transfers_leave_in_the_order_of_priority_and_asking() {
        let mut queue = Queue::default();
        let asked = [
            (1, 0, Priority::Normal),
            (2, 1, Priority::Low),
            (3, 0, Priority::High),
            (4, 1, Priority::Normal),
            (5, 2, Priority::Normal),
            (6, 0, Priority::High),
            (7, 1, Priority::Low),
        ];
        for (slot, device, priority) in asked {
            queue.push(slot, pair(device), priority);
        }
        let mut left = Vec::new();
        while let Some(head) = queue.next(None) {
            queue.pop(head);
            left.push(head.slot);
        }
        assert_eq!(left, [3, 6, 1, 4, 5, 2, 7]);
    }

    #[test]
    fn a_head_that_waits_is_passed_by_other_lines_alone() {
        let mut queue = Queue::default();
        for (slot, device) in [(1, 0), (2, 0), (3, 1), (4, 0), (5, 2)] {
            queue.push(slot, pair(device), Priority::Normal);
        }
        assert_eq!(heads(&queue), [1, 3, 5]);
        let first = queue.next(None).unwrap();
        let passing = queue.next(Some(first.turn)).unwrap();
        queue.pop(passing);
        assert_eq!(heads(&queue), [1, 5]);
    }

    #[test]
    fn a_transfer_that_has_gone_leaves_its_line() {
        let mut queue = Queue::default();
        for (slot, device) in [(1, 0), (2, 0), (3, 1)] {
            queue.push(slot, pair(device), Priority::Normal);
        }
        queue.remove(1, pair(0));
        queue.remove(3, pair(0));
        queue.remove(3, pair(7));
        assert_eq!(heads(&queue), [2, 3]);
        queue.remove(2, pair(0));
        queue.remove(3, pair(1));
        assert!(heads(&queue).is_empty());
    }
}
