//! Fences, and the sink that receives their outcomes.

use core::fmt;

use transload_core::BackendId;

use crate::Fault;

/// The lowest bits of a fence's number, which name the lane of a backend that has lanes.
const LANE_BITS: u32 = 16;

/// Stands for operations that were submitted together. It settles once, when all of them have
/// ended: done, stopped, failed or lost. Fences settle one by one, in any order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    backend: BackendId,
    number: u64,
}

impl Fence {
    /// Makes the fence `number` of a backend, which counts from 1 and never uses a number twice.
    pub const fn new(backend: BackendId, number: u64) -> Fence {
        Fence { backend, number }
    }

    /// Makes the fence of a submission that went into one of a backend's lanes, each of which numbers its submissions by
    /// itself, from 1.
    pub const fn in_lane(backend: BackendId, lane: u64, sequence: u64) -> Fence {
        Fence::new(backend, sequence << LANE_BITS | lane)
    }

    /// Returns the lane of a fence that was made by [`Fence::in_lane`].
    pub const fn lane(&self) -> u64 {
        self.number & ((1 << LANE_BITS) - 1)
    }

    /// Returns the number in its lane of a submission whose fence was made by [`Fence::in_lane`].
    pub const fn sequence(&self) -> u64 {
        self.number >> LANE_BITS
    }

    /// Makes a fence for operations that were done when `submit` returned. It is never pushed to a sink.
    pub const fn immediate(backend: BackendId) -> Fence {
        Fence { backend, number: 0 }
    }

    /// Returns whether the operations were done when `submit` returned.
    pub const fn is_immediate(&self) -> bool {
        self.number == 0
    }

    /// Returns the backend that the fence belongs to.
    pub const fn backend(&self) -> BackendId {
        self.backend
    }

    /// Its number at that backend.
    pub const fn number(&self) -> u64 {
        self.number
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}!{}", self.backend, self.number)
    }
}

/// How operations ended. In each case they are quiet: none of them touches a region again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All bytes moved.
    Done,
    /// [`Backend::stop`](crate::Backend::stop) was called, and the backend left some of the bytes out.
    Stopped {
        /// Leading payload bytes that moved; what follows them in the destination range is unspecified. 0 where the fence
        /// stands for several operations.
        leading_bytes: u64,
    },
    /// Some or all bytes did not move; the destination range is unspecified.
    Failed(Fault),
    /// The device is gone, with every fence and allocation of it.
    Lost(Fault),
}

/// The result of a wait with a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// The fence has settled, and its outcome was pushed to the sink.
    Settled,
    /// The fence had not settled when the limit ran out.
    TimedOut,
}

/// Receives outcomes from a backend. The engine's sink only queues and notifies, so a backend may call it from any
/// thread, any callback, and from within `submit`, `pump`, `wait` and `stop`.
pub trait CompletionSink: Send + Sync {
    /// `fence` has settled. Called once for each fence that was not settled when `submit` returned.
    fn settle(&self, fence: Fence, outcome: Outcome);
}
