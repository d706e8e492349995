//! A plan: the chosen route cut into chunks and steps, without a single address.

use alloc::vec::Vec;
use core::fmt;

use crate::correction::scaled_ns;
use crate::defaults::PART_ALIGNMENT_BYTES;
use crate::{BackendId, Correction, Curve, EngineId, Estimate, LinkId, MemoryId, Method, Route};

/// An operand of a step. The engine binds roles to regions; code below the engine sees only roles.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// The source region.
    Src,
    /// The destination region.
    Dst,
    /// The slot that the chunk holds in the lane's ring of that number.
    Slot(u8),
}

/// The operation of a step on a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StepKind {
    /// Moves the chunk's bytes.
    Copy {
        /// Where they are.
        from: Role,
        /// Where they go.
        to: Role,
    },
    /// Reads the chunk in place on the host. Chunks pass a transform one by one,
    /// in payload order.
    Transform {
        /// Where the chunk is.
        at: Role,
    },
    /// Waits until the memory's own device has finished its work on the chunk, work from outside the library too, and
    /// makes the chunk visible to the engine of the next step. Comes before an engine of another device touches
    /// [mapped](crate::MemoryKind::Mapped) memory.
    MakeVisible {
        /// Where the chunk is.
        at: Role,
    },
}

/// One operation on each chunk of a lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The operation.
    pub kind: StepKind,
    /// The backend that executes it.
    pub backend: BackendId,
    /// The engine that executes it.
    pub engine: EngineId,
    /// The cost for one chunk, [as a part](Curve::part_of) of its payload.
    pub cost: Curve,
    /// How much of the host's processors and memory bus the step keeps busy, in parts of 1024 of its time.
    pub host_load: u16,
    /// The link of a copy, which is blamed for a failure; `None` for other steps.
    pub link: Option<LinkId>,
}

/// Staging slots of one size in one memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Ring {
    /// Where the slots are.
    pub memory: MemoryId,
    /// How many slots the pipeline can use. One is enough to make progress.
    pub slots: u16,
}

impl Ring {
    /// Returns how many bytes of a slot of `slot_bytes` bytes a transfer takes whose only chunk has `bytes` bytes, when
    /// small transfers share slots; `None` where the transfer has the slot to itself.
    ///
    /// A part costs no more than a slot, and delays no transfer: with a slot for each, as many transfers or more hold
    /// as many slots or more, each of which counts against the budget and was locked in place first. So sharing pays as
    /// soon as a slot has room for two parts. It is never done where host and device have to take turns.
    pub fn part_bytes(&self, slot_bytes: u64, bytes: u64) -> Option<u64> {
        let part = bytes
            .max(1)
            .checked_next_multiple_of(PART_ALIGNMENT_BYTES)?;
        let is_shared = !self.memory.kind.takes_turns() && part <= slot_bytes / 2;
        is_shared.then_some(part)
    }
}

/// One pipeline of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lane {
    /// The route of the lane's copies; `None` where all steps are transforms in place.
    pub route: Option<Route>,
    /// The steps that each chunk takes, in order. At least one. Each ring is first written by one
    /// step and last used by a later one.
    pub steps: Vec<Step>,
    /// The rings between the steps, as many as there are roles [`Role::Slot`].
    pub rings: Vec<Ring>,
    /// The size of a chunk, and of a slot. Never 0.
    pub chunk_bytes: u64,
    /// How many chunks may be under way at once where no ring limits them. At least 1.
    pub depth: u16,
    /// The lane's share of the payload, out of the sum over all lanes.
    pub share: u32,
}

impl Lane {
    /// Returns how many transfers of `bytes` bytes share a slot of the lane at most: 1 where each has its own, 0 where
    /// the lane has no slots.
    pub fn to_a_slot(&self, bytes: u64) -> u64 {
        let sharers = |ring: &Ring| match ring.part_bytes(self.chunk_bytes, bytes) {
            Some(part) => self.chunk_bytes / part.max(1),
            None => 1,
        };
        self.rings.iter().map(sharers).min().unwrap_or(0)
    }
}

/// An immutable recipe for moving a payload of any size within the range it was chosen for.
///
/// Most plans have one lane; a plan over several links at once has one for each.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The method under which users see the plan.
    pub method: Method,
    /// The pipelines. At least one.
    pub lanes: Vec<Lane>,
    /// The estimate that the planner compared: exact at one chunk and at multiples of it, for a
    /// pipeline whose engines have nothing else to do.
    pub estimate: Estimate,
    /// By how much measurements of the route differ from the costs of its steps. Part of the estimate.
    pub(crate) correction: Correction,
}

impl Plan {
    /// Makes a plan of at least one lane. Whether it can run is checked where it starts.
    pub fn new(method: Method, lanes: Vec<Lane>, estimate: Estimate) -> Plan {
        Plan {
            method,
            lanes,
            estimate,
            correction: Correction::default(),
        }
    }

    /// Returns the same plan in chunks of at most `most_bytes` bytes, a power of two. The estimate stays that of the plan.
    pub fn in_chunks(&self, most_bytes: u64) -> Plan {
        let mut plan = self.clone();
        for lane in &mut plan.lanes {
            lane.chunk_bytes = lane.chunk_bytes.min(most_bytes.max(1));
        }
        plan
    }

    /// Returns the estimated time in nanoseconds for `bytes` bytes.
    pub fn estimate_ns(&self, bytes: u64) -> u64 {
        self.estimate.at(bytes)
    }

    /// Returns the time in nanoseconds that the costs of the steps predict for `bytes` bytes, without the correction of
    /// the route.
    pub fn uncorrected_ns(&self, bytes: u64) -> u64 {
        let factor = u64::from(self.correction.at(bytes));
        scaled_ns(self.estimate.at(bytes), Correction::ONE.into(), factor)
    }

    /// Returns the size of a chunk in the first lane, in bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.lanes.first().map_or(0, |lane| lane.chunk_bytes)
    }

    /// Returns the links that the plan runs over.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.lanes
            .iter()
            .flat_map(|lane| lane.steps.iter().filter_map(|step| step.link))
    }

    /// Returns whether every chunk moves in one pass, without staging.
    pub fn is_one_pass(&self) -> bool {
        self.lanes.iter().all(|lane| lane.rings.is_empty())
    }

    /// Returns whether the payload can move as a whole, in a single operation, as an overlapping copy must.
    pub fn moves_whole(&self) -> bool {
        self.lanes.len() == 1 && self.is_one_pass()
    }

    /// Returns how many bytes of staging the plan can use, when every ring has all its slots.
    pub fn staging_bytes(&self) -> u64 {
        self.lanes
            .iter()
            .flat_map(|lane| {
                lane.rings
                    .iter()
                    .map(|ring| lane.chunk_bytes * u64::from(ring.slots))
            })
            .sum()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.method.fmt(f)?;
        for (i, route) in self
            .lanes
            .iter()
            .filter_map(|lane| lane.route.as_ref())
            .enumerate()
        {
            write!(f, "{} {route}", if i == 0 { "" } else { " +" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceId, MemoryKind};

    const SLOT: u64 = 64 << 10;

    fn ring(kind: MemoryKind) -> Ring {
        Ring {
            memory: DeviceId::CPU0.memory(kind),
            slots: 3,
        }
    }

    #[test]
    fn a_slot_is_shared_when_two_fit_into_it() {
        let part = |bytes| ring(MemoryKind::Pinned).part_bytes(SLOT, bytes);
        assert_eq!(part(0), Some(4096));
        assert_eq!(part(1), Some(4096));
        assert_eq!(part(4096), Some(4096));
        assert_eq!(part(4097), Some(8192));
        assert_eq!(part(SLOT / 2), Some(SLOT / 2));
        assert_eq!(part(SLOT / 2 + 1), None);
        assert_eq!(part(SLOT), None);
        assert_eq!(part(u64::MAX), None);
    }

    #[test]
    fn where_host_and_device_take_turns_nothing_is_shared() {
        for kind in MemoryKind::ALL {
            let alone = matches!(kind, MemoryKind::Upload | MemoryKind::Readback);
            assert_eq!(ring(kind).part_bytes(SLOT, 1).is_none(), alone, "{kind:?}");
        }
    }
}
