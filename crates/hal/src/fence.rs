//! Fences, and how their settling is made known.

use core::fmt;

use transload_core::BackendId;

use crate::Fault;

/// Stands for operations that were submitted together. It settles once, when all of them have
/// ended: done, stopped, failed or lost. Fences settle one by one, in any order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    backend: BackendId,
    number: u64,
}

impl Fence {
    /// The fence `number` of a backend, which counts from 1 and never uses a number twice.
    pub const fn new(backend: BackendId, number: u64) -> Fence {
        Fence { backend, number }
    }

    /// A fence for operations that were done when `submit` returned. It is never pushed to a sink.
    pub const fn settled(backend: BackendId) -> Fence {
        Fence { backend, number: 0 }
    }

    /// Whether it was done when `submit` returned.
    pub const fn is_settled(&self) -> bool {
        self.number == 0
    }

    /// The backend that it belongs to.
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

/// How operations ended. In each case they are quiet: nothing of theirs will touch a region again.
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
    /// Some or all did not; the destination range is unspecified.
    Failed(Fault),
    /// The device is gone, and every fence and allocation of it with it.
    Lost(Fault),
}

/// What a limited wait saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// The fence has settled, and its outcome was pushed to the sink.
    Settled,
    /// It had not when the limit ran out.
    TimedOut,
}

/// Where a backend tells outcomes. The engine's end of it only queues and notifies, so it may be
/// called from any thread, any callback, and from within `submit`, `pump`, `wait` and `stop`.
pub trait CompletionSink: Send + Sync {
    /// `fence` has settled. Called once for each fence that was not settled when `submit` returned.
    fn settle(&self, fence: Fence, outcome: Outcome);
}
