//! Which manager has which bytes, in the whole process.
//!
//! Each manager orders its own transfers, and knows nothing of those of others. So bytes that more than one manager could
//! reach belong to the manager that took them in first, until its last buffer of them goes. Several managers may have bytes
//! that none of them may write.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use transload_core::{Footprint, Hazards, Shape, Ticket};
use transload_hal::Buffer;
use transload_host::HostFile;

use super::PerProcess;

/// Bytes that a manager has. They are free for others when it is dropped.
struct Claim {
    table: &'static Mutex<Table>,
    ticket: Ticket,
}

/// The claims of a process. Who must wait for whom among transfers is who may not share bytes among managers.
struct Table {
    claims: Hazards,
    /// The manager of each claim, by its ticket's index.
    managers: Vec<usize>,
}

/// Claims a buffer that a backend has just made, for as long as its storage lives. False when another manager has some of
/// its bytes, and one of the two may write them.
///
/// Memory that a program allocates or owns needs no claim: its type has no second owner, or promises that none writes.
pub(crate) fn claim(raw: &Buffer, manager: usize) -> bool {
    let info = raw.info();
    let shape = Shape::contiguous(info.len_bytes);
    let Ok(footprint) = Footprint::new(info.id, info.base, shape, info.writable) else {
        return true;
    };
    let table = table();
    let Some(ticket) = lock(table).enter(footprint, manager) else {
        return false;
    };
    raw.keep_claim(Box::new(Claim { table, ticket }));
    true
}

/// Whether a manager may write a file, all of it: no other has some of it.
pub(crate) fn may_write(file: &HostFile, manager: usize) -> bool {
    let all = Shape::contiguous(u64::MAX);
    let Ok(footprint) = Footprint::new(file.storage_id(), 0, all, true) else {
        return true;
    };
    let mut table = lock(table());
    let ticket = table.enter(footprint, manager);
    ticket.is_some_and(|ticket| table.claims.leave(ticket, &mut |_| ()))
}

fn table() -> &'static Mutex<Table> {
    static PROCESS: PerProcess<Mutex<Table>> = PerProcess::new();
    PROCESS.get_or_init(|| {
        Mutex::new(Table {
            claims: Hazards::new(),
            managers: Vec::new(),
        })
    })
}

/// Nothing under the lock can panic half-way through a change.
fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    fn enter(&mut self, footprint: Footprint, manager: usize) -> Option<Ticket> {
        let entered = self.claims.enter(&[footprint]);
        let ticket = entered.ticket;
        if entered.waits_for > 0 {
            let others = self.claims.blockers(ticket).iter();
            if { others }.any(|other| self.managers[other.index()] != manager) {
                self.claims.leave(ticket, &mut |_| ());
                return None;
            }
        }
        if self.managers.len() <= ticket.index() {
            self.managers.resize(ticket.index() + 1, 0);
        }
        self.managers[ticket.index()] = manager;
        Some(ticket)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(self.table).claims.leave(self.ticket, &mut |_| ());
    }
}
