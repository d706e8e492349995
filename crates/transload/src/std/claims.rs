//! Claims of managers on bytes, in the whole process.
//!
//! Each manager orders its own transfers, and knows nothing of the transfers of other managers. So bytes that more than
//! one manager could reach belong to the manager that took them in first, until its last buffer of them is dropped.
//! Several managers may have bytes that none of them may write.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use super::PerProcess;
use transload_core::{Footprint, Hazards, Shape, StorageId, Ticket};
use transload_hal::Buffer;

/// A manager's claim on bytes. Other managers may claim them when the last claim is dropped.
pub(crate) struct Claim {
    table: &'static Mutex<Table>,
    key: Key,
}

/// The claims of a process. The rule is the one of hazards: two managers must not share bytes if two transfers of them
/// would have to wait for each other.
struct Table {
    order: Hazards,
    /// The place of each claim in the order, and how many buffers have it: one storage may have many buffers.
    claims: BTreeMap<Key, (Ticket, usize)>,
    /// The manager of each place, by its ticket's index.
    managers: Vec<usize>,
}

/// The claimed bytes, and the manager that claims them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    id: StorageId,
    base: u64,
    len_bytes: u64,
    writable: bool,
    /// Guards show the bytes where they are, and not a copy of them.
    mapped: bool,
    manager: usize,
}

/// What a manager does with a whole file that it claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileUse {
    Read,
    Map,
    /// The file is cut to no bytes first.
    Create,
}

/// Why a whole file cannot be claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// Another manager has some of it, and one of the two may write it.
    ByOther,
    /// A buffer of this manager maps some of it, and it would be cut under that buffer.
    Mapped,
}

/// Claims a buffer that a backend has just made, for as long as its storage lives. False when another manager has some of
/// its bytes, and one of the two may write them.
///
/// Memory that a program allocates or owns needs no claim: its type has no second owner, or promises that no code
/// writes it.
pub(crate) fn claim(raw: &Buffer, manager: usize) -> bool {
    let info = raw.info();
    // The machine that it belongs to keeps the order between all that use it.
    if matches!(info.id, StorageId::Remote { .. }) {
        return true;
    }
    let key = Key {
        id: info.id,
        base: info.base,
        len_bytes: info.len_bytes,
        writable: info.writable,
        mapped: info.host.is_some(),
        manager,
    };
    let table = table();
    if !lock(table).enter(key) {
        return false;
    }
    raw.keep_claim(Box::new(Claim { table, key }));
    true
}

/// Claims a whole file, before its length is read or changed. The claim keeps other managers out until the buffer has
/// its own.
pub(crate) fn claim_file(id: StorageId, of: FileUse, manager: usize) -> Result<Claim, Taken> {
    let key = Key {
        id,
        base: 0,
        len_bytes: u64::MAX,
        writable: of == FileUse::Create,
        mapped: of == FileUse::Map,
        manager,
    };
    let table = table();
    let mut claims = lock(table);
    if of == FileUse::Create && claims.has_mapped(id, manager) {
        return Err(Taken::Mapped);
    }
    match claims.enter(key) {
        true => Ok(Claim { table, key }),
        false => Err(Taken::ByOther),
    }
}

fn table() -> &'static Mutex<Table> {
    static PROCESS: PerProcess<Mutex<Table>> = PerProcess::new();
    PROCESS.get_or_init(|| {
        Mutex::new(Table {
            order: Hazards::new(),
            claims: BTreeMap::new(),
            managers: Vec::new(),
        })
    })
}

/// No code under the lock can panic half-way through a change.
fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    fn enter(&mut self, key: Key) -> bool {
        if let Some((_, count)) = self.claims.get_mut(&key) {
            *count += 1;
            return true;
        }
        let shape = Shape::contiguous(key.len_bytes);
        let Ok(footprint) = Footprint::new(key.id, key.base, shape, key.writable) else {
            return false;
        };
        let entered = self.order.enter(&[footprint]);
        let ticket = entered.ticket;
        if entered.waits {
            let others = self.order.blockers(ticket).iter();
            if { others }.any(|other| self.managers[other.index()] != key.manager) {
                self.leave_order(ticket);
                return false;
            }
        }
        if self.managers.len() <= ticket.index() {
            self.managers.resize(ticket.index() + 1, 0);
        }
        self.managers[ticket.index()] = key.manager;
        self.claims.insert(key, (ticket, 1));
        true
    }

    /// Returns whether a buffer of the manager maps bytes of the storage.
    fn has_mapped(&self, id: StorageId, manager: usize) -> bool {
        let first = Key {
            id,
            base: 0,
            len_bytes: 0,
            writable: false,
            mapped: false,
            manager: 0,
        };
        let mut of_storage = { self.claims.range(first..) }.take_while(|(key, _)| key.id == id);
        of_storage.any(|(key, _)| key.mapped && key.manager == manager)
    }

    fn leave(&mut self, key: &Key) {
        let Some((ticket, count)) = self.claims.get_mut(key) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            let ticket = *ticket;
            self.claims.remove(key);
            self.leave_order(ticket);
        }
    }

    /// No claim waits for another one.
    fn leave_order(&mut self, ticket: Ticket) {
        self.order.leave(ticket);
        let mut looks = usize::MAX;
        while self.order.poll_freed(&mut looks).is_some() {}
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(self.table).leave(&self.key);
    }
}
