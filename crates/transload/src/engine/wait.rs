//! What a thread that waits should do: block in a backend, or park.

use alloc::sync::Arc;

use arrayvec::ArrayVec;
use transload_hal::{Backend, BackendId, Fence};

use super::active::TransferId;
use super::state::{Registered, State};

/// How many fences a thread waits for at once: as many as the largest plan has under way, four lanes
/// of four slots.
const MOST_FENCES: usize = 16;

pub(super) type Fences = ArrayVec<Fence, MOST_FENCES>;

/// What a thread that waits should do.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives on the stack of the thread that waits; a box would allocate"
)]
pub(super) enum Wait {
    /// What it waits for is there.
    Over,
    /// Block in the backend until one of these fences has settled.
    Fences(Arc<dyn Backend>, BackendId, Fences),
    /// Park until something happens.
    Park,
}

/// What the owner of a transfer blocks on: one of its own fences if it has any, for then the
/// backend may put the thread to work; else any fence that somebody must look after.
pub(super) fn wait_for(state: &State, id: TransferId) -> Wait {
    let Some(active) = state
        .transfers
        .get(id.slot as usize)
        .filter(|active| active.generation == id.generation && active.is_awaited())
    else {
        return Wait::Over;
    };
    let own = || active.flying.iter().map(|(fence, _)| *fence);
    let known = || own().filter_map(|fence| state.registered(fence.backend()));
    let attended = known().find(|known| !known.unattended);
    let Some(known) = attended.or_else(|| known().next()) else {
        // Nothing of its own is under way: it waits for others.
        return any_attended(state).unwrap_or(Wait::Park);
    };
    // Blocking in one backend while another one's outcome arrives would stall the pipeline; and one that was given up is
    // not asked to wait again.
    let is_alone = || own().all(|fence| fence.backend() == known.id);
    if known.unattended && (known.lost.is_some() || !is_alone()) {
        return Wait::Park;
    }
    let fences = own().filter(|fence| fence.backend() == known.id);
    let fences = fences.take(MOST_FENCES).collect();
    Wait::Fences(Arc::clone(&known.backend), known.id, fences)
}

/// Fences of a backend that somebody must look after, the oldest first.
pub(super) fn any_attended(state: &State) -> Option<Wait> {
    let attended = |known: &&Registered| !known.unattended && known.pending > 0;
    let known = state.backends.iter().find(attended)?;
    let of_it = |fence: &&Fence| fence.backend() == known.id;
    let oldest = state.pending.keys().filter(of_it).min()?;
    let others = state.pending.keys().filter(of_it);
    let others = others.filter(|fence| *fence != oldest).copied();
    let fences = core::iter::once(*oldest).chain(others).take(MOST_FENCES);
    Some(Wait::Fences(
        Arc::clone(&known.backend),
        known.id,
        fences.collect(),
    ))
}
