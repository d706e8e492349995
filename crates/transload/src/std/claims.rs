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
use transload_hal::{Buffer, ExternalKind, ImportError, MemoryId};

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

/// The claimed bytes, and the manager that claims them. Claims of one use are neighbours in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    id: StorageId,
    how: Use,
    manager: usize,
    base: u64,
    len_bytes: u64,
    writable: bool,
}

/// What a manager does with bytes that it claims.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Use {
    /// It copies them from and to the storage.
    Copy,
    /// Guards show them where they are.
    Map,
    /// It cuts the file to no bytes.
    Cut,
}

/// Why bytes cannot be claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// Another manager has some of them, and one of the two may write them.
    ByOther,
    /// This manager maps some of the file that it is to cut.
    Mapped,
    /// This manager cuts the file that it is to map.
    Cut,
}

impl Taken {
    /// The refusal of a buffer of such bytes.
    pub(crate) fn refused(self, memory: MemoryId, kind: ExternalKind) -> ImportError {
        match self {
            Taken::ByOther => ImportError::Claimed { memory, kind },
            Taken::Mapped | Taken::Cut => ImportError::Invalid {
                memory,
                kind,
                reason: "a call of this manager is creating the file anew; take it in when that call has returned".into(),
            },
        }
    }
}

/// Claims a buffer that a backend has just made, for as long as its storage lives.
///
/// Memory that a program allocates or owns needs no claim: its type has no second owner, or promises that no code
/// writes it.
pub(crate) fn claim(raw: &Buffer, manager: usize) -> Result<(), Taken> {
    let info = raw.info();
    // The machine that it belongs to keeps the order between all that use it.
    if matches!(info.id, StorageId::Remote { .. }) {
        return Ok(());
    }
    let key = Key {
        id: info.id,
        how: match info.host {
            Some(_) => Use::Map,
            None => Use::Copy,
        },
        manager,
        base: info.base,
        len_bytes: info.len_bytes,
        writable: info.writable,
    };
    let table = table();
    lock(table).enter(key)?;
    raw.keep_claim(Box::new(Claim { table, key }));
    Ok(())
}

/// Claims a whole file, before its length is read or changed. The claim keeps other managers out until the buffer has
/// its own.
pub(crate) fn claim_file(id: StorageId, how: Use, manager: usize) -> Result<Claim, Taken> {
    let key = Key {
        id,
        how,
        manager,
        base: 0,
        len_bytes: u64::MAX,
        writable: how == Use::Cut,
    };
    let table = table();
    lock(table).enter(key)?;
    Ok(Claim { table, key })
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
    fn enter(&mut self, key: Key) -> Result<(), Taken> {
        // A file is not cut while guards may show its bytes, nor mapped while it is cut.
        let clash = match key.how {
            Use::Copy => None,
            Use::Map => Some((Use::Cut, Taken::Cut)),
            Use::Cut => Some((Use::Map, Taken::Mapped)),
        };
        if let Some((how, taken)) = clash
            && self.has(Key { how, ..key })
        {
            return Err(taken);
        }
        if let Some((_, count)) = self.claims.get_mut(&key) {
            *count += 1;
            return Ok(());
        }
        let shape = Shape::contiguous(key.len_bytes);
        let footprint = Footprint::new(key.id, key.base, shape, key.writable);
        let entered = self.order.enter(&[footprint.map_err(|_| Taken::ByOther)?]);
        let ticket = entered.ticket;
        if entered.waits {
            let others = self.order.blockers(ticket).iter();
            if { others }.any(|other| self.managers[other.index()] != key.manager) {
                self.leave_order(ticket);
                return Err(Taken::ByOther);
            }
        }
        if self.managers.len() <= ticket.index() {
            self.managers.resize(ticket.index() + 1, 0);
        }
        self.managers[ticket.index()] = key.manager;
        self.claims.insert(key, (ticket, 1));
        Ok(())
    }

    /// Returns whether the manager of a key has a claim of the same use on the same storage.
    fn has(&self, key: Key) -> bool {
        let first = Key {
            base: 0,
            len_bytes: 0,
            writable: false,
            ..key
        };
        let of = |key: &Key| (key.id, key.how, key.manager);
        let found = self.claims.range(first..).next();
        found.is_some_and(|(found, _)| of(found) == of(&key))
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_manager_does_not_cut_a_file_that_it_maps_nor_map_one_that_it_cuts() {
        let id = StorageId::File {
            device: u64::MAX,
            inode: 1,
        };
        for (one, other, taken) in [
            (Use::Map, Use::Cut, Taken::Mapped),
            (Use::Cut, Use::Map, Taken::Cut),
        ] {
            let first = claim_file(id, one, 1).ok().unwrap();
            let again = claim_file(id, one, 1).ok().unwrap();
            drop(first);
            assert_eq!(claim_file(id, other, 1).err(), Some(taken));
            assert_eq!(claim_file(id, other, 2).err(), Some(Taken::ByOther));
            assert!(claim_file(id, Use::Copy, 1).is_ok());
            drop(again);
            assert!(claim_file(id, other, 1).is_ok());
        }
    }
}
