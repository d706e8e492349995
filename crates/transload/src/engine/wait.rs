//! The choice of a thread that waits: to block in a backend, or to park.

use alloc::sync::Arc;
use core::task::Waker;

use arrayvec::ArrayVec;
use transload_core::Instant;
use transload_hal::{Backend, BackendId, Fence};

use super::active::Active;
use super::state::State;
use super::types::TransferId;

/// How many fences a thread waits for at once: as many as the largest plan has under way, four lanes
/// of four slots.
const MOST_FENCES: usize = 16;

type Fences = ArrayVec<Fence, MOST_FENCES>;

/// Fences of one backend to block on.
pub(super) struct Block {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) name: BackendId,
    pub(super) fences: Fences,
    /// Whether the thread may wait for an outcome of another backend too.
    pub(super) is_shared: bool,
}

/// The decision for a thread that waits for a transfer.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives on the stack of the thread that waits; a box would allocate"
)]
pub(super) enum Wait {
    /// The result is known.
    Over,
    /// Block in the backend, until the transfer's own deadline at most. The thread counts as the transfer's waiter.
    Block(Block, Option<Instant>),
    /// Park. The waker is called when the transfer is over.
    Park,
}

impl State {
    /// Returns how a thread waits for a transfer or guard: on the transfer's own fences if it has any, for then the
    /// backend may put the thread to work. Leaves the waker that is not needed in `waker`, to be dropped without the
    /// lock.
    pub(super) fn wait_for(&mut self, id: TransferId, waker: &mut Option<Waker>) -> Wait {
        if !self.is_awaited(id) {
            return Wait::Over;
        }
        self.table.set_needs_listener(id.index, true);
        let active = &self.table[id.index];
        if let Some(block) = self.own_block(active) {
            let deadline = active.deadline;
            self.table.set_waiter(id.index, true);
            return Wait::Block(block, deadline);
        }
        core::mem::swap(&mut self.table[id.index].waker, waker);
        Wait::Park
    }

    /// Records that no thread is blocked in a backend for the transfer any more.
    pub(super) fn end_wait(&mut self, id: TransferId) {
        if self.table.find(id).is_some() {
            self.table.set_waiter(id.index, false);
        }
    }

    /// Called when a thread waits for the transfer no longer: its end wakes the task again that polled it before.
    /// Leaves wakers in `theirs`, to be dropped without the lock.
    pub(super) fn give_back_waker(
        &mut self,
        id: TransferId,
        theirs: &mut Option<Waker>,
        is_parker: impl FnOnce(&Waker) -> bool,
    ) {
        if let Some(active) = self.table.find_mut(id)
            && active.is_awaited()
            && active.waker.as_ref().is_some_and(is_parker)
        {
            core::mem::swap(&mut active.waker, theirs);
        }
    }

    fn own_block(&self, active: &Active) -> Option<Block> {
        let own = || active.flying.iter().map(|(fence, _)| *fence);
        let known = || own().filter_map(|fence| self.in_flight.known(fence.backend()));
        let attended = known().find(|known| !known.unattended);
        let known = attended.or_else(|| known().next())?;
        let is_alone = own().all(|fence| fence.backend() == known.id);
        // We do not block in one backend while an outcome of another one may arrive: that would stall the pipeline. A
        // backend that was given up is not asked to wait again.
        if known.unattended && (known.lost.is_some() || !is_alone) {
            return None;
        }
        let fences = own().filter(|fence| fence.backend() == known.id);
        Some(Block {
            backend: Arc::clone(&known.backend),
            name: known.id,
            fences: fences.take(MOST_FENCES).collect(),
            is_shared: !is_alone,
        })
    }

    /// Returns fences of a backend that settles them only when a thread calls it, the oldest first.
    pub(super) fn attended_block(&self) -> Option<Block> {
        let mut backends = self.in_flight.backends().iter();
        let known = backends.find(|known| known.attended().next().is_some())?;
        let oldest = known.attended().take(MOST_FENCES);
        Some(Block {
            backend: Arc::clone(&known.backend),
            name: known.id,
            fences: oldest.collect(),
            is_shared: true,
        })
    }
}
