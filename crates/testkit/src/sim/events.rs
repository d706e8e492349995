//! Events as time passes: operations end, fences settle, devices are lost.

use std::cmp::Reverse;

use transload_hal::{ErrorClass, Fault, Outcome};

use super::script::{OpFault, scripted};
use super::state::{Event, FenceSlot, OpSlot, Phase, State, What};

impl State {
    /// The time of the next event, in nanoseconds.
    pub(super) fn next_event_ns(&mut self) -> Option<u64> {
        while let Some(Reverse(event)) = self.events.peek() {
            if self.is_current(event) {
                return Some(event.at_ns);
            }
            self.events.pop();
        }
        None
    }

    /// Executes the next event if it is due by `limit_ns`, and moves the clock to it.
    pub(super) fn step(&mut self, limit_ns: u64) -> bool {
        if self.next_event_ns().is_none_or(|at| at > limit_ns) {
            return false;
        }
        let Some(Reverse(event)) = self.events.pop() else {
            return false;
        };
        self.now = self.now.max(event.at_ns);
        match event.what {
            What::OpEnds(slot) => self.end_op(slot),
            What::FenceSettles(slot) => self.settle(slot, None),
        }
        true
    }

    /// Settles all operations that need the device as lost, and records the loss.
    pub(super) fn lose(&mut self, device: usize, fault: Fault) {
        if self.lost[device].is_some() {
            return;
        }
        self.lost[device] = Some(fault.clone());
        for slot in 0..self.fences.len() {
            let hit = self
                .fences
                .get(slot)
                .is_some_and(|fence| fence.phase == Phase::Pending && fence.devices.has(device));
            if hit {
                self.drop_ops(slot);
                self.settle(slot, Some(Outcome::Lost(fault.clone())));
            }
        }
    }

    fn end_op(&mut self, slot: u32) {
        let Some(op) = self.ops.get(slot) else {
            return;
        };
        let (fence, fault) = (op.fence, op.fault);
        if let (Some(OpFault::LoseDevice), Some(device)) = (fault, op.victim) {
            self.lose(device, scripted(ErrorClass::Lost));
            return;
        }
        let result = op.work.finish(fault);
        self.unlink(fence, slot);
        self.ops.remove(slot);
        if let (Err(fault), Some(fence)) = (result, self.fences.get_mut(fence))
            && fence.outcome == Outcome::Done
        {
            fence.outcome = Outcome::Failed(fault);
        }
    }

    /// Removes an operation that has ended from its fence's list.
    fn unlink(&mut self, fence: u32, slot: u32) {
        let after = self.ops.get(slot).and_then(|op| op.next);
        let Some(fence) = self.fences.get_mut(fence) else {
            return;
        };
        if fence.first_op == Some(slot) {
            fence.first_op = after;
            return;
        }
        let mut at = fence.first_op;
        while let Some(op) = at.and_then(|at| self.ops.get_mut(at)) {
            if op.next == Some(slot) {
                op.next = after;
                return;
            }
            at = op.next;
        }
    }

    fn settle(&mut self, slot: u32, lost: Option<Outcome>) {
        let now = self.now;
        let Some(fence) = self.fences.get_mut(slot) else {
            return;
        };
        if let Some(lost) = lost {
            fence.outcome = lost;
        }
        let number = fence.number;
        let was_known = fence.end_ns.is_some();
        fence.end_ns = Some(fence.end_ns.map_or(now, |end| end.min(now)));
        if fence.silent && fence.outcome == Outcome::Done {
            fence.phase = Phase::Silent;
        } else {
            fence.phase = Phase::Due;
            self.outbox.push_back(slot);
        }
        if !was_known {
            self.unblock(number, now);
        }
    }

    /// Called when the end of `number` becomes known: schedules the operations that waited for that.
    pub(super) fn unblock(&mut self, number: u64, end_ns: u64) {
        for slot in 0..self.fences.len() {
            let Some(fence) = self.fences.get_mut(slot) else {
                continue;
            };
            let before = fence.blockers.len();
            fence.blockers.retain(|&blocker| blocker != number);
            if fence.blockers.len() == before {
                continue;
            }
            fence.ready_ns = fence.ready_ns.max(end_ns);
            let free = fence.blockers.is_empty() && fence.phase == Phase::Pending;
            let number = fence.number;
            if free {
                self.schedule(slot);
                if let Some(end) = self.fences.get(slot).and_then(|fence| fence.end_ns) {
                    self.unblock(number, end);
                }
            }
        }
    }

    fn drop_ops(&mut self, fence: u32) {
        let mut next = self
            .fences
            .get_mut(fence)
            .and_then(|fence| fence.first_op.take());
        while let Some(op) = next.and_then(|slot| self.ops.remove(slot)) {
            next = op.next;
        }
    }

    /// Whether the operation or fence of the event still exists.
    fn is_current(&self, event: &Event) -> bool {
        match event.what {
            What::OpEnds(slot) => self.ops.get(slot).map(|op: &OpSlot| op.seq),
            What::FenceSettles(slot) => self
                .fences
                .get(slot)
                .filter(|fence| fence.phase == Phase::Pending)
                .map(|fence: &FenceSlot| fence.seq),
        }
        .is_some_and(|seq| seq == event.seq)
    }
}
