//! What all handles of a simulated machine share, and the owners of its storages.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use transload_hal::{
    BackendId, Buffer, CompletionSink, Curve, Inventory, LinkId, MemoryId, Name, StorageId,
};

use super::clock::SimClock;
use super::completion::Hook;
use super::memory::{Block, Violation};
use super::state::{Needs, State};

/// The name under which every sim registers.
pub const BACKEND: BackendId = BackendId(Name::constant("sim"));

pub(crate) struct Shared {
    pub(super) name: String,
    pub(super) inventory: Inventory,
    pub(super) rows: Vec<LinkRow>,
    /// The transform engine's position among the state's engines.
    pub(super) transform: Option<usize>,
    pub(super) clock: SimClock,
    pub(super) sink: OnceLock<Arc<dyn CompletionSink>>,
    pub(super) hook: Mutex<Option<Arc<dyn Hook>>>,
    pub(super) state: Mutex<State>,
    pub(super) delivered: Condvar,
}

impl Shared {
    /// A panic in a script's call or in a hook leaves the state consistent, so a poisoned lock is used like a sound
    /// one.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identity of an allocation's bytes and the position of its first byte.
    pub(super) fn storage_id(&self, allocation: &Allocation) -> (StorageId, u64) {
        let info = &self.inventory.memories[allocation.pool];
        if info.host_addressable {
            return (StorageId::Host, allocation.block.span().addr());
        }
        let id = StorageId::Native {
            backend: BACKEND.0,
            handle: allocation.block.id,
        };
        (id, 0)
    }
}

/// A link's cost and needs. Rows are sorted by their ends, so that a link is found without a map.
pub(crate) struct LinkRow {
    pub(super) id: LinkId,
    pub(super) src: MemoryId,
    pub(super) dst: MemoryId,
    pub(super) engine: usize,
    pub(super) pitched: bool,
    pub(super) cost: Curve,
    pub(super) devices: Needs,
    /// The device that is lost when a script loses one here.
    pub(super) victim: Option<usize>,
}

/// The owner of a simulated storage.
pub(super) struct Allocation {
    pub(super) block: Arc<Block>,
    pub(super) pool: usize,
    pub(super) sim: Arc<Shared>,
}

impl Allocation {
    pub(super) fn new(block: Arc<Block>, pool: usize, sim: Arc<Shared>) -> Allocation {
        block.owners.fetch_add(1, Ordering::Relaxed);
        Allocation { block, pool, sim }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let last = self.block.owners.fetch_sub(1, Ordering::AcqRel) == 1;
        let mut state = self.sim.lock();
        if !last {
            return;
        }
        if self.block.in_flight.load(Ordering::Relaxed) > 0 {
            let memory = state.pools[self.pool].memory;
            state.violations.push(Violation::FreedInFlight { memory });
        }
        state.pools[self.pool].give_back(self.block.span().len() as u64);
    }
}

/// An exported allocation, as [`External::Object`](transload_hal::External::Object) carries it.
pub(super) struct Exported {
    pub(super) block: Arc<Block>,
    pub(super) memory: MemoryId,
    pub(super) sim: Arc<Shared>,
    /// An export counts as an allocation's view: the memory stays taken while it exists.
    _owner: Allocation,
}

impl Exported {
    pub(super) fn new(allocation: &Allocation, memory: MemoryId) -> Exported {
        Exported {
            block: Arc::clone(&allocation.block),
            memory,
            sim: Arc::clone(&allocation.sim),
            _owner: Allocation::new(
                Arc::clone(&allocation.block),
                allocation.pool,
                Arc::clone(&allocation.sim),
            ),
        }
    }
}

/// The sim's own allocation behind a buffer, unless the buffer shows other memory by now.
pub(super) fn own<'a>(sim: &Shared, buffer: &'a Buffer) -> Option<&'a Allocation> {
    buffer.native::<Allocation>().filter(|allocation| {
        std::ptr::eq(Arc::as_ptr(&allocation.sim), sim)
            && buffer.info().id == sim.storage_id(allocation).0
            && buffer.info().base == sim.storage_id(allocation).1
    })
}
