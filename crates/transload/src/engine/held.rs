//! Waits that would never end: for a transfer that waits for a guard of the same thread, in a backend's callback for a
//! device, and in the browser for anything.
//!
//! A guard stays on the thread that took it. So a transfer behind a guard in the order cannot start while that thread
//! waits for the transfer. Callbacks run on threads that settle fences.

use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::{DeviceId, Footprint, MemoryId};
use transload_hal::in_callback;

use super::active::Stage;
use super::operand::Operand;
use super::shared::Shared;
use super::state::State;
use super::types::TransferId;
use crate::error::{GuardError, TransferError};

/// Why a thread must not wait for a transfer or guard: the wait would never end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deadlock {
    /// The transfer or guard is behind a guard on that memory, which the thread holds.
    GuardHeld(MemoryId),
    /// The thread runs a callback of a backend, or a page's own code. The memory is that of the source, or of the guard.
    WouldBlock(MemoryId),
}

impl From<Deadlock> for TransferError {
    fn from(deadlock: Deadlock) -> TransferError {
        match deadlock {
            Deadlock::GuardHeld(memory) => TransferError::GuardHeld { memory },
            Deadlock::WouldBlock(_) => TransferError::WouldBlock,
        }
    }
}

impl From<Deadlock> for GuardError {
    fn from(deadlock: Deadlock) -> GuardError {
        match deadlock {
            Deadlock::GuardHeld(memory) => GuardError::GuardHeld { memory },
            Deadlock::WouldBlock(memory) => GuardError::WouldBlock { memory },
        }
    }
}

impl Shared {
    /// Starts a guard on a region, and blocks until it has its turn.
    ///
    /// # Errors
    /// When this thread would wait for ever. The guard is removed then.
    pub(crate) fn guard_in_turn(
        self: &Arc<Self>,
        end: Operand,
        footprint: Footprint,
    ) -> Result<TransferId, Deadlock> {
        let (id, has_turn) = self.start_guard(end, footprint);
        if !has_turn {
            if let Err(deadlock) = self.may_wait(id) {
                self.unguard(id);
                return Err(deadlock);
            }
            self.block_on(id, None);
        }
        Ok(id)
    }

    /// Starts a guard on a region if nothing stands before it.
    ///
    /// # Errors
    /// The reason for which it would have to wait.
    pub(crate) fn guard_now(
        self: &Arc<Self>,
        end: Operand,
        footprint: Footprint,
    ) -> Result<TransferId, GuardError> {
        let memory = end.buffer.memory();
        self.take_outcomes();
        let (id, has_turn) = self.start_guard(end, footprint);
        if has_turn {
            return Ok(id);
        }
        let may_wait = self.may_wait(id);
        self.unguard(id);
        may_wait?;
        Err(GuardError::WouldBlock { memory })
    }

    /// Records that this thread holds a guard.
    pub(crate) fn hold(&self, id: TransferId) {
        own::with(|held| held.push((self.serial, id)));
    }

    /// Records that this thread no longer holds the guard.
    pub(crate) fn let_go(&self, id: TransferId) {
        own::with(|held| {
            if let Some(at) = held.iter().rposition(|held| *held == (self.serial, id)) {
                held.swap_remove(at);
            }
        });
    }

    /// Checks whether this thread may block until a transfer or guard is no longer under way. Takes no lock while the
    /// thread holds no guard and runs no callback. In the browser no call may block, since the page's only thread must
    /// return to it: there the engine is turned first.
    pub(crate) fn may_wait(self: &Arc<Self>, id: TransferId) -> Result<(), Deadlock> {
        #[cfg(browser)]
        self.turn();
        if (cfg!(browser) || in_callback())
            && let Some(memory) = self.state.with(|state| state.needs_others(id))
        {
            return Err(Deadlock::WouldBlock(memory));
        }
        let mut held = Vec::new();
        own::with(|all| {
            let of_this = all.iter().filter(|(serial, _)| *serial == self.serial);
            held.extend(of_this.map(|(_, id)| *id));
        });
        if held.is_empty() {
            return Ok(());
        }
        match self.state.with(|state| state.table.held_up_by(id, &held)) {
            Some(memory) => Err(Deadlock::GuardHeld(memory)),
            None => Ok(()),
        }
    }
}

impl State {
    /// Returns the memory of the source of a transfer, or of a guard, that needs more than the host's own threads to
    /// end.
    fn needs_others(&self, id: TransferId) -> Option<MemoryId> {
        let active = self.table.find(id).filter(|active| active.is_awaited())?;
        let [src, dst] = [&active.src, &active.dst].map(|end| Some(end.as_ref()?.buffer.memory()));
        let on_the_host =
            |end: Option<MemoryId>| end.is_none_or(|end| end.device == DeviceId::CPU0);
        let is_alone = !cfg!(browser) && active.stage == Stage::Flying;
        let is_alone = is_alone && on_the_host(src) && on_the_host(dst);
        src.filter(|_| !is_alone)
    }
}

/// The guards that this thread holds, of all managers.
#[cfg(all(feature = "std", not(loom)))]
mod own {
    use std::cell::RefCell;
    use std::thread_local;

    use super::{TransferId, Vec};

    thread_local! {
        static HELD: RefCell<Vec<(usize, TransferId)>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn with(f: impl FnOnce(&mut Vec<(usize, TransferId)>)) {
        // A destructor of another thread-local value may hold a guard when this one is destroyed already.
        let _ = HELD.try_with(|held| f(&mut held.borrow_mut()));
    }
}

/// Without an operating system threads cannot be told apart. Loom's threads are all one of the system's.
#[cfg(not(all(feature = "std", not(loom))))]
mod own {
    use super::{TransferId, Vec};

    pub(super) fn with(_f: impl FnOnce(&mut Vec<(usize, TransferId)>)) {}
}
