//! A simulated machine whose calls the test can hold up.

use std::time::Duration;

use transload::hal::{self, AllocError, Backend, Fence, Op, SubmitError, Waited};
use transload::model::LinkId;
use transload::{AllocSpec, Clock, Instant, MemoryId};
use transload_testkit::sim::{Sim, SimClock};

/// What the test does in a call before the machine gets it, on the thread that calls.
pub(crate) trait Keeper: Send + Sync + 'static {
    /// A slot is to be allocated; an error is the answer.
    fn slot(&self, _memory: MemoryId) -> Result<(), AllocError> {
        Ok(())
    }

    /// Operations are to be submitted.
    fn submit(&self) {}

    /// A fence is to be waited for; true when the machine is not to be asked.
    fn wait(&self) -> bool {
        false
    }
}

pub(crate) struct Gate<K> {
    pub(crate) sim: Sim,
    pub(crate) keeper: K,
}

// SAFETY: the simulated machine does it all; the gate only answers for it with errors to
// allocations, and with waits that ran out of time.
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
        // SAFETY: the caller's promise is the one that the machine asks for.
        unsafe { self.sim.submit(via, ops, after) }
    }

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        if self.keeper.wait() {
            return Waited::TimedOut;
        }
        self.sim.wait(fence, limit)
    }
}

/// The machine's clock; whoever looks at it is seen.
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
