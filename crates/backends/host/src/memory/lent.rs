//! Addresses that were given out, of memory whose identity is not its address: shared memory and mapped files. Code that
//! got such an address may pass it in again, and the bytes are the same ones then.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use transload_hal::{Buffer, HostSpan, StorageId, WeakBuffer};

/// A storage at its address.
struct Lent {
    len_bytes: u64,
    id: StorageId,
    /// The position of its first byte.
    base: u64,
    storage: WeakBuffer,
}

// SAFETY: in a build for one thread a storage must not go to another one. This keeps no storage: it looks at a count, which
// is atomic, and frees the place where the storage was.
unsafe impl Send for Lent {}

/// By address. Storages that live have addresses of their own; those that have gone may lie anywhere.
static LENT: Mutex<BTreeMap<u64, Lent>> = Mutex::new(BTreeMap::new());

/// Most programs give no such address out, and need not look for it.
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// Notes that code outside the library learns the address of a buffer's storage.
pub(super) fn note(buffer: &Buffer) {
    let whole = buffer.whole();
    let Some(span) = whole.host(0, whole.len()) else {
        return;
    };
    if whole.storage_id() == StorageId::Host || whole.is_empty() {
        return;
    }
    let mut lent = lock();
    if lent.len().is_power_of_two() {
        lent.retain(|_, of| !of.storage.is_gone());
    }
    let of = Lent {
        len_bytes: whole.len(),
        id: whole.storage_id(),
        base: whole.position(),
        storage: whole.downgrade(),
    };
    lent.insert(span.addr(), of);
    IS_ANY.store(true, Ordering::Release);
}

/// Returns the identity of memory that is named by its address, and the position of its first byte.
pub(crate) fn identity(span: HostSpan) -> (StorageId, u64) {
    let own = (StorageId::Host, span.addr());
    if !IS_ANY.load(Ordering::Acquire) {
        return own;
    }
    let mut lent = lock();
    while let Some((start, of)) = lent.range(..=span.addr()).next_back() {
        let (start, offset) = (*start, span.addr() - start);
        if of.storage.is_gone() {
            lent.remove(&start);
            continue;
        }
        let is_within = offset < of.len_bytes && span.len() as u64 <= of.len_bytes - offset;
        return match is_within {
            true => (of.id, of.base + offset),
            false => own,
        };
    }
    own
}

fn lock() -> MutexGuard<'static, BTreeMap<u64, Lent>> {
    LENT.lock().unwrap_or_else(PoisonError::into_inner)
}
