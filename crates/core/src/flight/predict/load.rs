//! How long a flight keeps each thing busy that it uses.

use alloc::vec::Vec;
use core::fmt;

use crate::flight::lane::{first_write, last_use};
use crate::flight::task::Task;
use crate::planner::loaded_ns;
use crate::{EngineId, MemoryId, Plan};

/// What a predicted time consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Prediction {
    /// The time in nanoseconds.
    pub ns: u64,
    /// How long each resource is busy, the busiest one first: that one bounds the time. Of equal ones engines come
    /// first, then the host, slots, and the chunk. Empty where nothing moves.
    pub loads: Vec<Load>,
}

/// How long a resource is busy. No plan takes less time than any of its loads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Load {
    /// The resource.
    pub of: Resource,
    /// The busy time in nanoseconds: the sum of the costs of the steps that use the resource. Of slots it is the time for
    /// which chunks hold one, divided by the number of slots.
    pub ns: u64,
}

/// What the steps of a plan compete for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Resource {
    /// An engine, which executes one step at a time.
    Engine(EngineId),
    /// The host's processors and memory bus, of which a step takes [a part](crate::Step::host_load).
    Host,
    /// The staging slots in a memory.
    Slots(MemoryId),
    /// The largest chunk, which takes its steps one after the other.
    Chunk,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Engine(engine) => write!(f, "engine {engine}"),
            Resource::Host => f.write_str("host processors"),
            Resource::Slots(memory) => write!(f, "slots in {memory}"),
            Resource::Chunk => f.write_str("steps of one chunk"),
        }
    }
}

/// The loads of a flight over a plan, by what was submitted so far.
#[derive(Debug, Default)]
pub(super) struct Loads {
    sums: Vec<Load>,
    /// For how long chunks hold slots, by lane and ring.
    held: Vec<(u8, u8, u64)>,
    /// How long the first chunk of each lane takes, by lane. No chunk is larger.
    first: Vec<(u8, u64)>,
}

impl Loads {
    /// Adds a task, which takes `ns` nanoseconds.
    pub(super) fn add(&mut self, plan: &Plan, task: &Task, ns: u64) {
        let lane = &plan.lanes[usize::from(task.id.lane)];
        let step = &lane.steps[usize::from(task.step)];
        self.sum(Resource::Engine(step.engine), ns);
        self.sum(Resource::Host, loaded_ns(ns, step.host_load));
        for ring in 0..lane.rings.len() as u8 {
            let last = last_use(lane, ring);
            if first_write(lane, ring) <= task.step && last.is_some_and(|last| task.step <= last) {
                let at = (task.id.lane, ring);
                match self.held.iter_mut().find(|held| (held.0, held.1) == at) {
                    Some(held) => held.2 = held.2.saturating_add(ns),
                    None => self.held.push((at.0, at.1, ns)),
                }
            }
        }
        if task.id.chunk == 0 {
            match self.first.iter_mut().find(|(of, _)| *of == task.id.lane) {
                Some((_, sum)) => *sum = sum.saturating_add(ns),
                None => self.first.push((task.id.lane, ns)),
            }
        }
    }

    fn sum(&mut self, of: Resource, ns: u64) {
        match self.sums.iter_mut().find(|load| load.of == of) {
            Some(load) => load.ns = load.ns.saturating_add(ns),
            None => self.sums.push(Load { of, ns }),
        }
    }

    /// Returns the prediction of a flight over `plan` that takes `ns` nanoseconds for `bytes` bytes, all of it corrected as
    /// the route's time is.
    pub(super) fn predict(self, plan: &Plan, bytes: u64, ns: u64) -> Prediction {
        let mut loads = self.sums;
        let slots = self.held.into_iter().map(|(lane, ring, ns)| {
            let ring = &plan.lanes[usize::from(lane)].rings[usize::from(ring)];
            let ns = ns / u64::from(ring.slots.max(1));
            let of = Resource::Slots(ring.memory);
            Load { of, ns }
        });
        let longest = self.first.into_iter().map(|(_, ns)| ns).max();
        let of = Resource::Chunk;
        let chunk = longest.map(|ns| Load { of, ns });
        loads.extend(slots.chain(chunk));
        for load in &mut loads {
            load.ns = plan.correction.apply(bytes, load.ns);
        }
        loads.retain(|load| load.ns > 0);
        busiest_first(&mut loads);
        // Lanes with slots in one memory have slots of their own: the more loaded ones count.
        let mut seen: Vec<Resource> = Vec::with_capacity(loads.len());
        loads.retain(|load| {
            let is_new = !seen.contains(&load.of);
            seen.push(load.of);
            is_new
        });
        Prediction {
            ns: plan.correction.apply(bytes, ns),
            loads,
        }
    }
}

/// Of equal loads engines come first, then the host, slots, and the chunk.
pub(super) fn busiest_first(loads: &mut [Load]) {
    loads.sort_by(|a, b| b.ns.cmp(&a.ns).then(a.of.cmp(&b.of)));
}
