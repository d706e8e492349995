//! The state of a simulated machine: engines, fences, operations, and pending events.
//!
//! Engines work first in, first out, and costs are known, so the end of every operation is known when the sim accepts
//! it. The end is the operation's cost after the latest of: now, the end of the engine's last operation, and the ends
//! of the fences that the operation waits for; engines that share the host take longer together. Only operations that wait
//! for a fence that never answers have no end; they get one when that fence is lost.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use transload_hal::{DeviceId, EngineId, Fault, MemoryId, Outcome};

use super::completion::Completion;
use super::memory::{MemoryUse, Violation};
use super::script::{OpFault, Script};
use super::work::Work;

/// The number of operations and fences in flight without a reallocation.
const CAPACITY: usize = 1024;

pub(super) struct State {
    pub(super) now: u64,
    pub(super) completion: Completion,
    pub(super) engines: Vec<Engine>,
    /// How much of the host each engine keeps busy, of 1024.
    pub(super) loads: Vec<u16>,
    /// The end of the host's part of all accepted work.
    host_free_at_ns: u64,
    pub(super) pools: Vec<MemoryUse>,
    /// By device, in the order of the inventory.
    pub(super) lost: Vec<Option<Fault>>,
    pub(super) script: Script,
    pub(super) violations: Vec<Violation>,
    pub(super) fences: Slots<FenceSlot>,
    pub(super) ops: Slots<OpSlot>,
    pub(super) by_number: HashMap<u64, u32>,
    pub(super) events: BinaryHeap<Reverse<Event>>,
    pub(super) outbox: VecDeque<u32>,
    /// Operations of the submission that is being checked.
    pub(super) staged: Vec<OpSlot>,
    pub(super) last_number: u64,
    next_seq: u64,
    random: u64,
}

/// An engine and its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EngineUse {
    /// The engine.
    pub engine: EngineId,
    /// The end of its accepted work, in nanoseconds.
    pub free_at_ns: u64,
    /// The total cost of its accepted work, in nanoseconds.
    pub busy_ns: u64,
    /// The number of accepted operations.
    pub operations: u64,
}

pub(super) type Engine = EngineUse;

/// The numbers of devices that operations need. A single operation needs up to three.
#[derive(Clone, Default)]
pub(super) struct Needs {
    few: [Option<u32>; 3],
    more: Vec<u32>,
}

impl Needs {
    pub(super) fn of(devices: impl IntoIterator<Item = Option<usize>>) -> Needs {
        let mut all = Needs::default();
        for device in devices.into_iter().flatten() {
            all.add(device as u32);
        }
        all
    }

    pub(super) fn of_all<'a>(each: impl Iterator<Item = &'a Needs>) -> Needs {
        let mut all = Needs::default();
        for needs in each {
            needs.iter().for_each(|device| all.add(device));
        }
        all
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let few = self.few.iter().copied().flatten();
        few.chain(self.more.iter().copied())
    }

    fn add(&mut self, device: u32) {
        if self.iter().any(|known| known == device) {
            return;
        }
        match self.few.iter_mut().find(|free| free.is_none()) {
            Some(free) => *free = Some(device),
            None => self.more.push(device),
        }
    }

    pub(super) fn has(&self, device: usize) -> bool {
        self.iter().any(|known| known as usize == device)
    }
}

pub(super) struct OpSlot {
    /// The fence's slot.
    pub(super) fence: u32,
    pub(super) seq: u64,
    pub(super) work: Work,
    /// `None` for hints, which no engine executes.
    pub(super) engine: Option<usize>,
    pub(super) cost_ns: u64,
    /// The devices that the operation needs.
    pub(super) devices: Needs,
    /// The device that is lost when the script says so.
    pub(super) victim: Option<usize>,
    /// The memory that it writes; if it writes none, the memory that it reads.
    pub(super) memory: MemoryId,
    /// The next operation of the same submission.
    pub(super) next: Option<u32>,
    pub(super) fault: Option<OpFault>,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

pub(super) struct FenceSlot {
    pub(super) number: u64,
    pub(super) seq: u64,
    pub(super) first_op: Option<u32>,
    pub(super) devices: Needs,
    pub(super) phase: Phase,
    /// The end of the last operation; `None` if that is never or not known yet.
    pub(super) end_ns: Option<u64>,
    /// Fences that never answer and that must settle first.
    pub(super) blockers: Vec<u64>,
    /// The latest end of the earlier fences whose ends are known.
    pub(super) ready_ns: u64,
    pub(super) outcome: Outcome,
    /// Not reported to the sink when done: `submit` returns a settled fence.
    pub(super) silent: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Its operations are in flight.
    Pending,
    /// In the outbox.
    Due,
    /// A thread is reporting it to the sink.
    Delivering,
    /// Done, without a report to the sink.
    Silent,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Event {
    pub(super) at_ns: u64,
    pub(super) seq: u64,
    pub(super) what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum What {
    OpEnds(u32),
    FenceSettles(u32),
}

impl State {
    pub(super) fn new(
        completion: Completion,
        engines: Vec<EngineId>,
        loads: Vec<u16>,
        pools: Vec<MemoryUse>,
        devices: usize,
        script: Script,
    ) -> State {
        let random = match completion {
            Completion::OutOfOrder { seed } => seed,
            _ => 0,
        };
        State {
            now: 0,
            completion,
            engines: engines
                .into_iter()
                .map(|engine| Engine {
                    engine,
                    free_at_ns: 0,
                    busy_ns: 0,
                    operations: 0,
                })
                .collect(),
            loads,
            host_free_at_ns: 0,
            pools,
            lost: vec![None; devices],
            script,
            violations: Vec::new(),
            fences: Slots::with_capacity(CAPACITY),
            ops: Slots::with_capacity(CAPACITY),
            by_number: HashMap::with_capacity(CAPACITY),
            events: BinaryHeap::with_capacity(2 * CAPACITY),
            outbox: VecDeque::with_capacity(CAPACITY),
            staged: Vec::with_capacity(CAPACITY),
            last_number: 0,
            next_seq: 0,
            random,
        }
    }

    /// The fence of that number, if it has not been reported yet.
    pub(super) fn fence(&self, number: u64) -> Option<&FenceSlot> {
        let slot = *self.by_number.get(&number)?;
        self.fences.get(slot)
    }

    /// Accepts the staged operations after the fences `after`. Returns the new fence's number.
    pub(super) fn accept(&mut self, after: impl Iterator<Item = u64>) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        let mut fence = FenceSlot {
            number,
            seq: 0,
            first_op: None,
            devices: Needs::of_all(self.staged.iter().map(|op| &op.devices)),
            phase: Phase::Pending,
            end_ns: None,
            blockers: Vec::new(),
            ready_ns: 0,
            outcome: Outcome::Done,
            silent: self.completion == Completion::AtOnce,
        };
        for before in after {
            if let Some(before) = self.fence(before) {
                fence.comes_after(before);
            }
        }
        for device in self.staged.iter().filter_map(OpSlot::waits_for) {
            for op in (0..self.ops.len()).filter_map(|slot| self.ops.get(slot)) {
                let engine = op.engine.map(|engine| self.engines[engine].engine);
                if engine.is_some_and(|engine| engine.device == device)
                    && let Some(before) = self.fences.get(op.fence)
                {
                    fence.comes_after(before);
                }
            }
        }
        let blocked = !fence.blockers.is_empty();
        let slot = self.fences.insert(fence);
        self.by_number.insert(number, slot);
        let mut next = None;
        while let Some(mut op) = self.staged.pop() {
            op.fence = slot;
            op.next = next;
            next = Some(self.ops.insert(op));
        }
        if let Some(fence) = self.fences.get_mut(slot) {
            fence.first_op = next;
        }
        if !blocked {
            self.schedule(slot);
        }
        number
    }

    /// Gives the operations of a fence their times.
    pub(super) fn schedule(&mut self, fence_slot: u32) {
        let Some(fence) = self.fences.get(fence_slot) else {
            return;
        };
        let ready = fence.ready_ns.max(self.now);
        let mut end_of_all = (self.completion != Completion::Never).then_some(ready);
        let mut next = fence.first_op;
        while let Some(slot) = next {
            let Some(op) = self.ops.get(slot) else {
                break;
            };
            next = op.next;
            let hangs =
                self.completion == Completion::Never || op.fault == Some(OpFault::NeverAnswer);
            if hangs {
                end_of_all = None;
                continue;
            }
            let end = self.start(slot, ready);
            end_of_all = end_of_all.map(|all| all.max(end));
        }
        let seq = self.seq();
        let scramble = self.scramble();
        let Some(fence) = self.fences.get_mut(fence_slot) else {
            return;
        };
        fence.seq = seq;
        fence.end_ns = end_of_all;
        if let Some(end) = fence.end_ns {
            self.events.push(Reverse(Event {
                at_ns: end.saturating_add(scramble),
                seq,
                what: What::FenceSettles(fence_slot),
            }));
        }
    }

    /// Appends one operation to the work of its engine. Returns its end.
    fn start(&mut self, slot: u32, ready: u64) -> u64 {
        let seq = self.seq();
        let Some(op) = self.ops.get_mut(slot) else {
            return ready;
        };
        let delay = match op.fault {
            Some(OpFault::Delay { ns }) => ns,
            _ => 0,
        };
        let busy = op.cost_ns.saturating_add(delay);
        let start = match op.engine {
            Some(engine) => ready.max(self.engines[engine].free_at_ns),
            None => ready,
        };
        op.seq = seq;
        op.start_ns = start;
        let load = op.engine.map_or(0, |engine| self.loads[engine]);
        let host_ns = u128::from(op.cost_ns) * u128::from(load) / 1024;
        op.end_ns = start.saturating_add(busy);
        if host_ns > 0 {
            let begin = self.host_free_at_ns.max(start);
            self.host_free_at_ns = begin.saturating_add(host_ns as u64);
            op.end_ns = op.end_ns.max(self.host_free_at_ns);
        }
        let end = op.end_ns;
        if let Some(engine) = op.engine {
            let engine = &mut self.engines[engine];
            engine.free_at_ns = end;
            engine.busy_ns = engine.busy_ns.saturating_add(busy);
            engine.operations += 1;
        }
        self.events.push(Reverse(Event {
            at_ns: end,
            seq,
            what: What::OpEnds(slot),
        }));
        self.find_race(slot);
        end
    }

    /// Records a race if another operation shares bytes and time with this one: the submitter did not order the two.
    fn find_race(&mut self, slot: u32) {
        let Some(op) = self.ops.get(slot) else {
            return;
        };
        let races = (0..self.ops.len()).any(|other_slot| {
            other_slot != slot
                && self.ops.get(other_slot).is_some_and(|other| {
                    // An operation that has no time yet has a sequence number of 0.
                    other.seq != 0
                        && other.start_ns < op.end_ns
                        && op.start_ns < other.end_ns
                        && other.work.races(&op.work)
                })
        });
        if races {
            let memory = op.memory;
            self.violations.push(Violation::Race { memory });
        }
    }

    /// Makes the sink receive a fence's outcome even if the fence is done.
    pub(super) fn speak_up(&mut self, number: u64) {
        let slot = self.by_number.get(&number).copied();
        if let Some(fence) = slot.and_then(|slot| self.fences.get_mut(slot)) {
            fence.silent = false;
        }
    }

    fn seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq
    }

    fn scramble(&mut self) -> u64 {
        match self.completion {
            Completion::OutOfOrder { .. } => self.random() % (Completion::MAX_SCRAMBLE_NS + 1),
            _ => 0,
        }
    }

    /// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    pub(super) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

impl OpSlot {
    /// The device whose earlier work must be over first.
    fn waits_for(&self) -> Option<DeviceId> {
        matches!(self.work, Work::Visible).then_some(self.memory.device)
    }
}

impl FenceSlot {
    fn comes_after(&mut self, before: &FenceSlot) {
        match before.end_ns {
            Some(end) => self.ready_ns = self.ready_ns.max(end),
            None if before.phase == Phase::Pending => self.blockers.push(before.number),
            None => {}
        }
    }
}

/// A slab: slots keep their numbers, and free slots are reused.
pub(super) struct Slots<T> {
    all: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    fn with_capacity(capacity: usize) -> Slots<T> {
        Slots {
            all: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
        }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.all[slot as usize] = Some(value);
                slot
            }
            None => {
                self.all.push(Some(value));
                (self.all.len() - 1) as u32
            }
        }
    }

    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        self.all.get(slot as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.all.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.all.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(value)
    }

    /// One past the highest slot in use so far.
    pub(super) fn len(&self) -> u32 {
        self.all.len() as u32
    }
}
