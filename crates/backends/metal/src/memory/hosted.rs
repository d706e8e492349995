//! Host memory that a device reaches in place as long as a buffer shows it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use transload_hal::{Guard, Owner};

use crate::raw::{Raw, pooled};

/// The buffers that show host memory, by its addresses. The owner of such a buffer is the memory's owner.
#[derive(Clone, Default)]
pub(crate) struct Hosted(Arc<Mutex<Vec<(u64, Raw)>>>);

impl Hosted {
    /// Returns the buffer that shows `len_bytes` bytes at an address, and their offset in it.
    pub(crate) fn find(&self, address: u64, len_bytes: u64) -> Option<(Raw, u64)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shows = |(start, raw): &&(u64, Raw)| {
            let at = address.checked_sub(*start);
            at.is_some_and(|at| at + len_bytes <= raw.len_bytes())
        };
        let (start, raw) = all.iter().find(shows)?;
        Some((raw.clone(), address - start))
    }

    pub(super) fn add(&self, address: u64, raw: Raw) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((address, raw));
    }

    fn remove(&self, handle: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(_, raw)| raw.handle() == handle);
        let gone = at.map(|at| all.swap_remove(at));
        drop(all);
        // Without the lock: Metal may call back.
        drop(gone);
    }
}

/// Whether Metal has released the memory.
#[derive(Default)]
pub(super) struct Gone {
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Default)]
struct State {
    is_gone: bool,
    /// The memory's owner, if no thread waits for it any more.
    owner: Option<Box<dyn Owner>>,
}

impl Gone {
    /// Called by Metal when it has released the memory.
    pub(super) fn tell(&self) {
        let mut state = self.lock();
        state.is_gone = true;
        let owner = state.owner.take();
        drop(state);
        self.told.notify_all();
        drop(owner);
    }

    /// Drops the owner once Metal has released the memory.
    fn leave(&self, owner: Box<dyn Owner>) {
        let mut state = self.lock();
        match state.is_gone {
            true => {
                drop(state);
                drop(owner);
            }
            false => state.owner = Some(owner),
        }
    }

    fn wait(&self) {
        let mut state = self.lock();
        while !state.is_gone {
            let told = self.told.wait(state);
            state = told.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps memory wrapped. Dropped before the memory's owner.
pub(super) struct Wrapped {
    all: Hosted,
    handle: u64,
    gone: Arc<Gone>,
    is_left: bool,
}

impl Wrapped {
    pub(super) fn new(all: &Hosted, handle: u64, gone: Arc<Gone>) -> Wrapped {
        Wrapped {
            all: all.clone(),
            handle,
            gone,
            is_left: false,
        }
    }
}

impl Guard for Wrapped {
    /// The backend no longer uses the buffer. If the program still holds it for commands of its own, the memory's
    /// owner is dropped when the program drops the buffer.
    fn release(mut self: Box<Self>, owner: Box<dyn Owner>) {
        let gone = Arc::clone(&self.gone);
        self.is_left = true;
        drop(self);
        gone.leave(owner);
    }
}

impl Drop for Wrapped {
    /// If the owner is taken out, waits until Metal has released the buffer.
    fn drop(&mut self) {
        pooled(|_| self.all.remove(self.handle));
        if !self.is_left {
            self.gone.wait();
        }
    }
}
