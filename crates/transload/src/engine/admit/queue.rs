//! Transfers that wait for their first slots, in one line for each pair of devices.
//!
//! Lines make a look at the queue short. Transfers of other devices pass a transfer that waits for its device's share,
//! and transfers of its own pair do not. So only the head of each line matters, however long a batch is.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::super::active::Priority;
use super::super::places::Places;
use super::super::staging::Pair;
use super::super::state::queue_of;

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
    slot: u32,
    turn: Turn,
}

/// The turn of a transfer: by priority, then in the order of asking. The smaller one comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Turn(Reverse<Priority>, u64);

/// The head of a line.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) slot: u32,
    pub(crate) turn: Turn,
    line: usize,
}

/// Up to this many entries of ended transfers are not worth a look at all entries.
const FEW: usize = 64;

impl Queue {
    /// Puts the transfer at that place behind all transfers that asked before it with its priority or a higher one.
    pub(crate) fn push(&mut self, slot: u32, pair: Pair, priority: Priority) -> Turn {
        self.last += 1;
        let turn = Turn(Reverse(priority), self.last);
        let known = self.lines.iter().position(|line| line.pair == pair);
        let line = known.unwrap_or_else(|| {
            let waiting = Default::default();
            self.lines.push(Line { pair, waiting });
            self.lines.len() - 1
        });
        self.lines[line].waiting[queue_of(priority)].push_back(Waiting { slot, turn });
        self.waiting += 1;
        turn
    }

    /// Returns the first head of a line whose turn comes after `passed`.
    pub(crate) fn next(&mut self, passed: Option<Turn>, transfers: &Places) -> Option<Head> {
        for queue in self.lines.iter_mut().flat_map(|line| &mut line.waiting) {
            while queue.front().is_some_and(|front| !front.is_in(transfers)) {
                queue.pop_front();
                self.waiting -= 1;
                self.gone -= 1;
            }
        }
        let head = |(line, of): (usize, &Line)| {
            let head = of.waiting.iter().find_map(VecDeque::front)?;
            let (slot, turn) = (head.slot, head.turn);
            Some(Head { slot, turn, line })
        };
        let heads = self.lines.iter().enumerate().filter_map(head);
        let later = heads.filter(|head| passed.is_none_or(|passed| passed < head.turn));
        later.min_by_key(|head| head.turn)
    }

    /// Takes a head out.
    pub(crate) fn pop(&mut self, head: Head) {
        let Turn(Reverse(priority), _) = head.turn;
        self.lines[head.line].waiting[queue_of(priority)].pop_front();
        self.waiting -= 1;
    }

    /// Takes in that a transfer in line has ended.
    pub(crate) fn leave(&mut self, transfers: &Places) {
        self.gone += 1;
        if 2 * self.gone < self.waiting + FEW {
            return;
        }
        for queue in self.lines.iter_mut().flat_map(|line| &mut line.waiting) {
            queue.retain(|waiting| waiting.is_in(transfers));
        }
        self.waiting -= self.gone;
        self.gone = 0;
    }
}

impl Waiting {
    /// Returns whether the transfer still waits for this turn.
    fn is_in(&self, transfers: &Places) -> bool {
        let active = transfers.get(self.slot as usize);
        active.is_some_and(|active| active.boarding == Some(self.turn))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use transload_core::{DeviceId, DeviceKind};

    use super::*;

    /// A queue, and the places of its transfers.
    struct Waiters(Queue, Places);

    impl Waiters {
        /// Transfers of these devices and priorities ask one after the other.
        fn new(asked: &[(u32, Priority)]) -> Waiters {
            let mut waiters = Waiters(Queue::default(), Places::with_capacity(0));
            asked.iter().for_each(|asked| waiters.ask(*asked));
            waiters
        }

        fn ask(&mut self, (device, priority): (u32, Priority)) {
            let slot = self.1.take();
            let device = DeviceId::new(DeviceKind::SIM, device);
            let pair = Pair::between(DeviceId::CPU0, device);
            self.1[slot as usize].boarding = Some(self.0.push(slot, pair, priority));
        }

        fn next(&mut self, passed: Option<Turn>) -> Option<Head> {
            self.0.next(passed, &self.1)
        }

        /// Returns the heads in their order, when each is passed by the next.
        fn heads(&mut self) -> Vec<u32> {
            let first = self.next(None);
            let heads = core::iter::successors(first, |head| self.next(Some(head.turn)));
            heads.map(|head| head.slot).collect()
        }

        fn leave(&mut self, slot: u32) {
            self.1[slot as usize].boarding = None;
            self.1.give_back(slot);
            self.0.leave(&self.1);
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
            left.push(head.slot);
        }
        assert_eq!(left, [2, 5, 0, 3, 4, 1, 6]);
    }

    #[test]
    fn a_head_that_waits_is_passed_by_other_lines_alone() {
        let asked = [0, 0, 1, 0, 2].map(|device| (device, Priority::Normal));
        let mut queue = Waiters::new(&asked);
        assert_eq!(queue.heads(), [0, 2, 4]);
        let first = queue.next(None).unwrap();
        let passing = queue.next(Some(first.turn)).unwrap();
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
