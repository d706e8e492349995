//! A simulated machine whose calls the test can block.

use std::time::Duration;

use transload::hal::{self, AllocError, Backend, Fence, Op, SubmitError, Waited};
use transload::model::LinkId;
use transload::{AllocSpec, Clock, Instant, MemoryId};
use transload_testkit::sim::{Sim, SimClock};

/// The test's action in a call before the machine gets it, on the calling thread.
pub(crate) trait Keeper: Send + Sync + 'static {
    /// Runs before the allocation of a slot. An error from here is the answer to the allocation.
    fn slot(&self, _memory: MemoryId) -> Result<(), AllocError> {
        Ok(())
    }

    /// Runs before a submission.
    fn submit(&self) {}

    /// Runs before a wait for a fence; returns true when the machine must not be asked.
    fn wait(&self) -> bool {
        false
    }
}

pub(crate) struct Gate<K> {
    pub(crate) sim: Sim,
    pub(crate) keeper: K,
}

// SAFETY: the simulated machine executes the operations. The gate itself only answers allocations with errors, and
// waits with time-outs.
unsafe impl<K: Keeper> Backend for Gate<K> {
    left_to_the_sim!(inventory exchange connect attach completes_unattended pump);

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<hal::Buffer, AllocError> {
        if spec.staging {
            self.keeper.slot(memory)?;
        }
        self.sim.allocate(memory, spec)
    }

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        self.keeper.submit();
        // SAFETY: the caller keeps the same promise that the machine asks for.
        unsafe { self.sim.submit(via, ops, after) }
    }

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        if self.keeper.wait() {
            return Waited::TimedOut;
        }
        self.sim.wait(fence, limit)
    }
}

/// The machine's clock, which reports each look at it.
pub(crate) struct Watched<F> {
    pub(crate) clock: SimClock,
    pub(crate) look: F,
}

impl<F: Fn() + Send + Sync> Clock for Watched<F> {
    fn now(&self) -> Instant {
        (self.look)();
        self.clock.now()
    }
}
