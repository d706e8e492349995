//! Staging slots, within one budget for the whole process.
//!
//! Slots that nobody leases stay in their manager's pool, since memory that was touched, pinned or
//! registered once is worth keeping. They count against the budget; when it is short, idle slots of
//! any manager are given up first. What still does not fit waits.

mod shelf;

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use transload_core::{DeviceId, MemoryId};
use transload_hal::Buffer;

use super::active::Boarded;
use super::admit::Wanted;
use super::signal::Signal;
use super::sync::Lock;
use shelf::{Found, Shelf};

/// How much staging memory may be held at once, by everybody who shares the budget.
///
/// Managers share the process's budget unless their builder gives them one of their own.
pub struct StagingBudget {
    limit_bytes: u64,
    account: Lock<Account>,
}

#[derive(Default)]
struct Account {
    used_bytes: u64,
    peak_bytes: u64,
    pools: Vec<Weak<Slots>>,
}

impl StagingBudget {
    /// A budget of `limit_bytes` bytes.
    pub fn new(limit_bytes: u64) -> StagingBudget {
        StagingBudget {
            limit_bytes,
            account: Lock::new(Account::default()),
        }
    }

    /// The most that may be held, in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// What is held now, leased or idle, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.account.with(|account| account.used_bytes)
    }

    /// The most that was ever held at once, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.account.with(|account| account.peak_bytes)
    }

    /// Leases all that is wanted or nothing, in one step: a manager that tries in vain must not
    /// hold anything in between, or two that try could refuse each other for ever.
    fn lease(&self, slots: &Slots, wanted: &mut [Boarded], evicted: &mut Vec<Buffer>) -> bool {
        self.account.with(|account| {
            let (mut missing, mut waits) = (0u64, false);
            for want in wanted.iter_mut() {
                match slots.find(want) {
                    Found::Slot(slot) => want.buffer = Some(slot),
                    Found::Nothing => missing = missing.saturating_add(want.bytes),
                    // Whoever allocates it turns the engine afterwards: nobody has to be woken.
                    Found::Coming => waits = true,
                }
            }
            let reserved = !waits && account.reserve(missing, self.limit_bytes, evicted);
            if reserved {
                slots.expect_missing(wanted);
                return true;
            }
            let taken = wanted.iter_mut().filter_map(|want| want.buffer.take());
            evicted.extend(taken.filter_map(|slot| slots.put(slot, false)));
            if !waits {
                slots.starved.store(true, Ordering::Relaxed);
            }
            false
        })
    }

    /// Takes `bytes` out of the budget, giving up idle slots where that helps; they are pushed to
    /// `evicted`, to be dropped where no lock is held. False when it does not fit.
    fn reserve(&self, slots: &Slots, bytes: u64, evicted: &mut Vec<Buffer>) -> bool {
        self.account.with(|account| {
            let reserved = account.reserve(bytes, self.limit_bytes, evicted);
            if !reserved {
                slots.starved.store(true, Ordering::Relaxed);
            }
            reserved
        })
    }

    /// Gives `bytes` back, or tells that a slot became idle where they are none: whoever was refused
    /// may have the room now.
    fn release(&self, bytes: u64) {
        self.account.with(|account| {
            account.used_bytes -= bytes;
            let pools = account.pools.iter().filter_map(Weak::upgrade);
            pools
                .filter(|slots| slots.starved.swap(false, Ordering::Relaxed))
                .for_each(|slots| slots.signal.notify());
        });
    }

    fn enroll(&self, slots: &Arc<Slots>) {
        self.account.with(|account| {
            account.pools.retain(|known| known.strong_count() > 0);
            account.pools.push(Arc::downgrade(slots));
        });
    }
}

impl Account {
    fn reserve(&mut self, bytes: u64, limit_bytes: u64, evicted: &mut Vec<Buffer>) -> bool {
        while self.used_bytes.saturating_add(bytes) > limit_bytes {
            let pools = self.pools.iter().filter_map(Weak::upgrade);
            let Some(idle) = { pools }.find_map(|slots| slots.shelf.with(|shelf| shelf.idle.pop()))
            else {
                return false;
            };
            self.used_bytes -= idle.len();
            evicted.push(idle);
        }
        self.used_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        true
    }
}

impl core::fmt::Debug for StagingBudget {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("StagingBudget")
            .field("limit_bytes", &self.limit_bytes)
            .field("used_bytes", &self.used_bytes())
            .field("peak_bytes", &self.peak_bytes())
            .finish()
    }
}

/// The slots of one manager.
pub(crate) struct Pool {
    budget: Arc<StagingBudget>,
    slots: Arc<Slots>,
}

/// What the budget sees of a pool. Apart from it, so that the budget, which looks at all pools under
/// its lock, is never the one to drop a pool: that would enter the lock a second time.
struct Slots {
    shelf: Lock<Shelf>,
    /// Refused since the last time that it was notified. Touched under the account's lock alone.
    starved: AtomicBool,
    signal: Arc<Signal>,
}

impl Pool {
    pub(crate) fn new(budget: Arc<StagingBudget>, signal: Arc<Signal>) -> Arc<Pool> {
        let slots = Arc::new(Slots {
            shelf: Lock::new(Shelf::default()),
            starved: AtomicBool::new(false),
            signal,
        });
        budget.enroll(&slots);
        Arc::new(Pool { budget, slots })
    }

    pub(crate) fn budget(&self) -> &Arc<StagingBudget> {
        &self.budget
    }

    /// A slot or a part of one, or room for a slot, for everything that is wanted, or nothing at all. Those that are left
    /// without a buffer are to be allocated.
    pub(crate) fn lease(&self, wanted: &mut [Boarded], evicted: &mut Vec<Buffer>) -> bool {
        self.budget.lease(&self.slots, wanted, evicted)
    }

    /// An idle slot of that size in that memory.
    pub(crate) fn take(&self, memory: MemoryId, bytes: u64) -> Option<Buffer> {
        self.slots.shelf.with(|shelf| shelf.take(memory, bytes))
    }

    /// A slot that a lease left to be allocated is there, or cannot be had.
    pub(crate) fn handle_allocated(&self, wanted: &Wanted, is_there: bool) {
        let (memory, bytes) = (wanted.memory, wanted.bytes);
        if wanted.part.is_some() {
            let shelf = &self.slots.shelf;
            shelf.with(|shelf| shelf.expect_no_more(memory, bytes));
        }
        if !is_there {
            self.release(bytes);
        }
    }

    /// What a transfer gets of a new slot: all of it, or so many bytes while others may have the rest.
    pub(crate) fn share(&self, slot: Buffer, part: Option<u64>) -> Buffer {
        match part {
            Some(part) => self.slots.shelf.with(|shelf| shelf.share(slot, part)),
            None => slot,
        }
    }

    /// Room for one more slot. See [`StagingBudget::reserve`].
    pub(crate) fn reserve(&self, bytes: u64, evicted: &mut Vec<Buffer>) -> bool {
        self.budget.reserve(&self.slots, bytes, evicted)
    }

    /// Room that was reserved and no slot came of it, or a slot that is gone.
    pub(crate) fn release(&self, bytes: u64) {
        self.budget.release(bytes);
    }

    /// A slot, or a part of one, that is leased no more. What is of no more use is pushed to `evicted`, to be dropped
    /// where no lock is held.
    pub(crate) fn give_back(&self, slot: Buffer, evicted: &mut Vec<Buffer>) {
        self.put(slot, false, evicted);
    }

    /// The same of one that something may still write to.
    pub(crate) fn give_back_spoilt(&self, slot: Buffer, evicted: &mut Vec<Buffer>) {
        self.put(slot, true, evicted);
    }

    fn put(&self, slot: Buffer, is_spoilt: bool, evicted: &mut Vec<Buffer>) {
        let useless = self.slots.put(slot, is_spoilt);
        self.budget.release(useless.as_ref().map_or(0, Buffer::len));
        evicted.extend(useless);
    }

    /// Gives up every idle slot.
    pub(crate) fn trim(&self) -> Vec<Buffer> {
        self.give_up(|_| true)
    }

    /// Gives up every idle slot in a device's memories.
    pub(crate) fn trim_of(&self, device: DeviceId) -> Vec<Buffer> {
        self.give_up(|memory| memory.device == device)
    }

    fn give_up(&self, is_meant: impl Fn(MemoryId) -> bool) -> Vec<Buffer> {
        let is_meant = |slot: &mut Buffer| is_meant(slot.memory());
        let given_up = |idle: &mut Vec<Buffer>| idle.extract_if(.., is_meant).collect();
        let idle: Vec<Buffer> = self.slots.shelf.with(|shelf| given_up(&mut shelf.idle));
        let bytes = idle.iter().map(Buffer::len).sum();
        self.budget.release(bytes);
        idle
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.trim();
    }
}

impl Slots {
    fn find(&self, want: &Boarded) -> Found {
        let find = |shelf: &mut Shelf| shelf.find(want.memory, want.bytes, want.part);
        self.shelf.with(find)
    }

    /// What a lease lacks is being allocated.
    fn expect_missing(&self, leased: &[Boarded]) {
        let is_shared = |want: &&Boarded| want.buffer.is_none() && want.part.is_some();
        for want in leased.iter().filter(is_shared) {
            self.shelf
                .with(|shelf| shelf.expect(want.memory, want.bytes));
        }
    }

    fn put(&self, slot: Buffer, is_spoilt: bool) -> Option<Buffer> {
        self.shelf.with(|shelf| shelf.put(slot, is_spoilt))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pool(budget: &Arc<StagingBudget>) -> (Arc<Pool>, Arc<Signal>) {
        let signal = Arc::new(Signal::default());
        (Pool::new(Arc::clone(budget), Arc::clone(&signal)), signal)
    }

    fn wanted(bytes: &[u64]) -> Vec<Boarded> {
        let want = |bytes: &u64| Boarded {
            lane: 0,
            ring: 0,
            memory: transload_core::DeviceId::CPU0.memory(transload_core::MemoryKind::Pinned),
            bytes: *bytes,
            part: None,
            buffer: None,
        };
        bytes.iter().map(want).collect()
    }

    #[test]
    fn a_refused_lease_holds_nothing_and_wakes_nobody() {
        let budget = Arc::new(StagingBudget::new(100));
        let (first, first_signal) = pool(&budget);
        let (second, second_signal) = pool(&budget);
        assert!(first.lease(&mut wanted(&[60]), &mut Vec::new()));
        // The first of the two would fit: were it held for a moment, the managers would refuse and
        // wake each other for ever.
        assert!(!second.lease(&mut wanted(&[30, 30]), &mut Vec::new()));
        assert!(!first.lease(&mut wanted(&[41]), &mut Vec::new()));
        assert_eq!((first_signal.seen(), second_signal.seen()), (0, 0));
        assert_eq!(budget.used_bytes(), 60);
        first.release(60);
        assert_eq!((first_signal.seen(), second_signal.seen()), (1, 1));
        assert!(second.lease(&mut wanted(&[30, 30]), &mut Vec::new()));
        assert_eq!((budget.used_bytes(), budget.peak_bytes()), (60, 60));
    }
}
