//! Staging slots, within one budget for the whole process.
//!
//! Slots that are not leased stay in their manager's pool, since memory that was touched, pinned or registered once is
//! worth keeping. They count against the budget; when it is short, idle slots of any manager are freed first. A lease
//! that still does not fit waits. No device leases so much that others cannot stage: [`super::shares`] has the rule.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use transload_core::{DeviceId, MemoryId};
use transload_hal::Buffer;

use super::super::signal::Signal;
use super::super::sync::Lock;
use super::super::types::{FirstSlot, Pair, Wanted};
use super::shares::{Claims, Shares};
use super::shelf::{Back, Found, Shelf};

/// The limit on staging memory that the managers which share the budget hold at once.
///
/// Managers share the process's budget unless their builder gives them one of their own.
///
/// A device that holds slots leases more only where at least as much of the budget stays free as the device holds
/// already. A device that holds none leases the first slots of one transfer wherever they fit. So the transfers of one
/// device hold half of the budget, rounded up to a slot, even when the device stops answering, and transfers of other
/// devices go on. Slots count with the devices at both ends of their transfer. Host memory and files count only where both
/// ends are in host memory.
///
/// The budget does not guarantee this:
/// - Each further device that stops answering halves what is left. The first slots of a transfer may then be too large
///   for it. Such a transfer waits, and all transfers behind it wait too.
/// - First slots that take more than half of the budget wait while another device holds the rest. The planner chooses
///   them only where the budget is as small as a few chunks, or for plans with several lanes.
/// - A device that exchanges bytes with a device which stopped answering holds the slots of those transfers too. It waits
///   when they are half of the budget.
/// - Devices with the same `DeviceId` count as one device, in all managers that share the budget.
pub struct StagingBudget {
    limit_bytes: u64,
    account: Lock<Account>,
}

struct Account {
    limit_bytes: u64,
    used_bytes: u64,
    peak_bytes: u64,
    /// What is leased of the budget. The rest is idle.
    shares: Shares,
    pools: Vec<Weak<Slots>>,
}

/// The result of asking for first slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leased {
    /// All slots are leased. Those without a buffer are to be allocated.
    All,
    /// None, since a device has its share.
    NoShare,
    /// None, since the budget has no room.
    NoRoom,
    /// None yet: a slot to be shared is being allocated. The thread that allocates it turns the engine afterwards.
    Coming,
}

/// The result of asking for one more slot.
pub(crate) enum Further {
    Slot(Buffer),
    /// Room for a slot, which is to be allocated.
    Room,
    Nothing,
}

impl StagingBudget {
    /// Makes a budget of `limit_bytes` bytes.
    pub fn new(limit_bytes: u64) -> StagingBudget {
        StagingBudget {
            limit_bytes,
            account: Lock::new(Account {
                limit_bytes,
                used_bytes: 0,
                peak_bytes: 0,
                shares: Shares::new(limit_bytes),
                pools: Vec::new(),
            }),
        }
    }

    /// Returns the most bytes that may be held.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Returns how many bytes are held now, leased or idle.
    pub fn used_bytes(&self) -> u64 {
        self.account.with(|account| account.used_bytes)
    }

    /// Returns the most bytes that were ever held at once.
    pub fn peak_bytes(&self) -> u64 {
        self.account.with(|account| account.peak_bytes)
    }

    /// Leases all slots or none, in one step: a manager that is refused must not hold anything in between, or two
    /// managers could refuse each other for ever.
    fn lease(
        &self,
        slots: &Slots,
        pair: Pair,
        claims: &mut Claims,
        wanted: &mut [FirstSlot],
        evicted: &mut Vec<Buffer>,
    ) -> Leased {
        self.account.with(|account| {
            let (mut missing, mut idle, mut is_coming) = (0u64, 0u64, false);
            for want in wanted.iter_mut() {
                match slots.find(want, pair) {
                    Found::Part(part) => want.buffer = Some(part),
                    Found::Idle(slot) => {
                        idle = idle.saturating_add(want.bytes);
                        want.buffer = Some(slot);
                    }
                    Found::Nothing => missing = missing.saturating_add(want.bytes),
                    Found::Coming => is_coming = true,
                }
            }
            let more = idle.saturating_add(missing);
            let leased = if is_coming {
                Leased::Coming
            } else if !account.shares.allow(pair, more, claims) {
                account.shares.claim(pair, more, claims);
                Leased::NoShare
            } else if !account.reserve(missing, evicted) {
                Leased::NoRoom
            } else {
                account.shares.add(pair, more);
                slots.expect_missing(wanted, pair);
                return Leased::All;
            };
            let taken = wanted.iter_mut().filter_map(|want| want.buffer.take());
            evicted.extend(taken.filter_map(|slot| slots.put(slot, false).useless));
            if leased != Leased::Coming {
                slots.starved.store(true, Ordering::Relaxed);
            }
            leased
        })
    }

    /// Leases one more slot of `bytes` bytes, or room for it.
    fn lease_further(
        &self,
        slots: &Slots,
        pair: Pair,
        claims: &Claims,
        (memory, bytes): (MemoryId, u64),
        evicted: &mut Vec<Buffer>,
    ) -> Further {
        self.account.with(|account| {
            let allowed = account.shares.allow(pair, bytes, claims);
            let take = || slots.shelf.with(|shelf| shelf.take(memory, bytes));
            let further = match allowed.then(take) {
                Some(Some(slot)) => Further::Slot(slot),
                Some(None) if account.reserve(bytes, evicted) => Further::Room,
                _ => {
                    slots.starved.store(true, Ordering::Relaxed);
                    return Further::Nothing;
                }
            };
            account.shares.add(pair, bytes);
            further
        })
    }

    /// Ends the lease of slots of `leased` bytes, of which `gone` bytes are no longer kept. Notifies managers that were
    /// refused: they may have the room now.
    fn release(&self, pair: Pair, leased: u64, gone: u64) {
        self.account.with(|account| {
            account.shares.remove(pair, leased);
            account.release(gone);
        });
    }

    /// Returns the room of idle slots to the budget.
    fn release_idle(&self, bytes: u64) {
        self.account.with(|account| account.release(bytes));
    }

    fn enroll(&self, slots: &Arc<Slots>) {
        self.account.with(|account| {
            account.pools.retain(|known| known.strong_count() > 0);
            account.pools.push(Arc::downgrade(slots));
        });
    }
}

impl Account {
    /// Takes `bytes` out of the budget, freeing idle slots where that helps: these are pushed to `evicted`, to be
    /// dropped where no lock is held. Returns false when `bytes` does not fit.
    fn reserve(&mut self, bytes: u64, evicted: &mut Vec<Buffer>) -> bool {
        while self.used_bytes.saturating_add(bytes) > self.limit_bytes {
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

    fn release(&mut self, bytes: u64) {
        self.used_bytes -= bytes;
        let pools = self.pools.iter().filter_map(Weak::upgrade);
        pools
            .filter(|slots| slots.starved.swap(false, Ordering::Relaxed))
            .for_each(|slots| slots.signal.notify());
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

/// The part of a pool that the budget sees. It is apart from the pool, so that the budget, which looks at all pools
/// under its lock, never drops a pool: that would enter the lock a second time.
struct Slots {
    shelf: Lock<Shelf>,
    /// The manager was refused since it was last notified. Accessed under the account's lock alone.
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

    /// Leases a slot or a part of one, or room for it, for each wanted one, or nothing at all. A transfer that waits
    /// for its share is added to `claims`.
    pub(crate) fn lease(
        &self,
        pair: Pair,
        claims: &mut Claims,
        wanted: &mut [FirstSlot],
        evicted: &mut Vec<Buffer>,
    ) -> Leased {
        let slots = &self.slots;
        self.budget.lease(slots, pair, claims, wanted, evicted)
    }

    /// Leases one more slot of that size in that memory, or room for it.
    pub(crate) fn lease_further(
        &self,
        pair: Pair,
        claims: &Claims,
        wanted: (MemoryId, u64),
        evicted: &mut Vec<Buffer>,
    ) -> Further {
        let slots = &self.slots;
        { &self.budget }.lease_further(slots, pair, claims, wanted, evicted)
    }

    /// Records that a slot which a lease left to be allocated was allocated, or could not be.
    pub(crate) fn handle_allocated(&self, wanted: &Wanted, is_there: bool) {
        let Wanted {
            memory,
            bytes,
            pair,
            ..
        } = *wanted;
        if wanted.part.is_some() {
            let shelf = &self.slots.shelf;
            shelf.with(|shelf| shelf.expect_no_more(memory, bytes, pair));
        }
        if !is_there {
            self.release(pair, bytes);
        }
    }

    /// Returns the transfer's share of a new slot: all of it, or a part, while other transfers of its pair may have the
    /// rest.
    pub(crate) fn share(&self, slot: Buffer, wanted: &Wanted) -> Buffer {
        match wanted.part {
            Some(part) => { &self.slots.shelf }.with(|shelf| shelf.share(slot, part, wanted.pair)),
            None => slot,
        }
    }

    /// Returns leased room for which no slot was allocated.
    pub(crate) fn release(&self, pair: Pair, bytes: u64) {
        self.budget.release(pair, bytes, bytes);
    }

    /// Takes back a slot, or a part of one, that the pair leases no more. A slot that is of no more use is pushed to
    /// `evicted`, to be dropped where no lock is held.
    pub(crate) fn give_back(&self, slot: Buffer, pair: Pair, evicted: &mut Vec<Buffer>) {
        self.put(slot, pair, false, evicted);
    }

    /// The same for a slot to which an operation may still write.
    pub(crate) fn give_back_spoilt(&self, slot: Buffer, pair: Pair, evicted: &mut Vec<Buffer>) {
        self.put(slot, pair, true, evicted);
    }

    fn put(&self, slot: Buffer, pair: Pair, is_spoilt: bool, evicted: &mut Vec<Buffer>) {
        let Back {
            free_bytes,
            useless,
        } = self.slots.put(slot, is_spoilt);
        let gone = useless.as_ref().map_or(0, Buffer::len);
        self.budget.release(pair, free_bytes, gone);
        evicted.extend(useless);
    }

    /// Frees every idle slot.
    pub(crate) fn trim(&self) -> Vec<Buffer> {
        self.give_up(|_| true)
    }

    /// Frees every idle slot in a device's memories.
    pub(crate) fn trim_of(&self, device: DeviceId) -> Vec<Buffer> {
        self.give_up(|memory| memory.device == device)
    }

    fn give_up(&self, is_meant: impl Fn(MemoryId) -> bool) -> Vec<Buffer> {
        let is_meant = |slot: &mut Buffer| is_meant(slot.memory());
        let given_up = |idle: &mut Vec<Buffer>| idle.extract_if(.., is_meant).collect();
        let idle: Vec<Buffer> = self.slots.shelf.with(|shelf| given_up(&mut shelf.idle));
        let bytes = idle.iter().map(Buffer::len).sum();
        self.budget.release_idle(bytes);
        idle
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.trim();
    }
}

impl Slots {
    fn find(&self, want: &FirstSlot, pair: Pair) -> Found {
        let part = want.part.map(|part| (part, pair));
        let find = |shelf: &mut Shelf| shelf.find(want.memory, want.bytes, part);
        self.shelf.with(find)
    }

    /// Records that the missing slots of a lease are being allocated.
    fn expect_missing(&self, leased: &[FirstSlot], pair: Pair) {
        let is_shared = |want: &&FirstSlot| want.buffer.is_none() && want.part.is_some();
        for want in leased.iter().filter(is_shared) {
            self.shelf
                .with(|shelf| shelf.expect(want.memory, want.bytes, pair));
        }
    }

    fn put(&self, slot: Buffer, is_spoilt: bool) -> Back {
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

    fn wanted(bytes: &[u64]) -> Vec<FirstSlot> {
        let want = |bytes: &u64| FirstSlot {
            lane: 0,
            ring: 0,
            memory: transload_core::DeviceId::CPU0.memory(transload_core::MemoryKind::Pinned),
            bytes: *bytes,
            part: None,
            buffer: None,
        };
        bytes.iter().map(want).collect()
    }

    fn device(index: u32) -> Pair {
        let device = DeviceId::new(transload_core::DeviceKind::SIM, index);
        Pair::between(DeviceId::CPU0, device)
    }

    fn lease(pool: &Pool, pair: Pair, bytes: &[u64]) -> Leased {
        let claims = &mut Claims::default();
        pool.lease(pair, claims, &mut wanted(bytes), &mut Vec::new())
    }

    #[test]
    fn a_refused_lease_holds_nothing_and_wakes_nobody() {
        let budget = Arc::new(StagingBudget::new(100));
        let (first, first_signal) = pool(&budget);
        let (second, second_signal) = pool(&budget);
        assert_eq!(lease(&first, device(0), &[60]), Leased::All);
        // The first of the two would fit: if it were held for a moment, the managers would refuse and wake each other
        // for ever.
        assert_eq!(lease(&second, device(1), &[30, 30]), Leased::NoRoom);
        assert_eq!(lease(&first, device(2), &[41]), Leased::NoRoom);
        assert_eq!(lease(&first, device(0), &[1]), Leased::NoShare);
        assert_eq!((first_signal.seen(), second_signal.seen()), (0, 0));
        assert_eq!(budget.used_bytes(), 60);
        first.release(device(0), 60);
        assert_eq!((first_signal.seen(), second_signal.seen()), (1, 1));
        assert_eq!(lease(&second, device(1), &[30, 30]), Leased::All);
        assert_eq!((budget.used_bytes(), budget.peak_bytes()), (60, 60));
    }

    #[test]
    fn a_device_has_one_share_in_all_managers_of_a_budget() {
        let budget = Arc::new(StagingBudget::new(64));
        let (first, first_signal) = pool(&budget);
        let (second, second_signal) = pool(&budget);
        assert_eq!(lease(&first, device(0), &[16]), Leased::All);
        assert_eq!(lease(&second, device(0), &[16]), Leased::All);
        for pool in [&first, &second] {
            assert_eq!(lease(pool, device(0), &[1]), Leased::NoShare);
        }
        assert_eq!(lease(&second, device(1), &[16, 16]), Leased::All);
        first.release(device(0), 16);
        assert_eq!((first_signal.seen(), second_signal.seen()), (1, 1));
        // The other device holds half, and the free quarter is the share of this one's own slots.
        assert_eq!(lease(&second, device(0), &[1]), Leased::NoShare);
        second.release(device(1), 32);
        assert_eq!(lease(&second, device(0), &[16]), Leased::All);
    }

    #[test]
    fn further_slots_are_leased_up_to_the_share_and_idle_ones_count_as_free() {
        let budget = Arc::new(StagingBudget::new(64));
        let (pool, signal) = pool(&budget);
        let memory = wanted(&[1])[0].memory;
        let further = |pair, claims: &Claims| {
            let evicted = &mut Vec::new();
            match pool.lease_further(pair, claims, (memory, 16), evicted) {
                Further::Room => (true, evicted.len()),
                Further::Slot(_) => unreachable!("no slot was put back"),
                Further::Nothing => (false, evicted.len()),
            }
        };
        let none = Claims::default();
        assert_eq!(lease(&pool, device(0), &[16]), Leased::All);
        assert_eq!(further(device(0), &none), (true, 0));
        assert_eq!(further(device(0), &none), (false, 0));
        pool.release(device(0), 16);
        assert_eq!(signal.seen(), 1, "it was refused");
        let mut claims = Claims::default();
        let evicted = &mut Vec::new();
        let leased = pool.lease(device(0), &mut claims, &mut wanted(&[33]), evicted);
        assert_eq!(leased, Leased::NoShare);
        // A transfer that waits for first slots goes before one that could use more.
        assert_eq!(further(device(0), &claims), (false, 0));
        assert_eq!(further(device(0), &none), (true, 0));
    }

    #[test]
    fn a_shared_slot_counts_until_its_last_part_is_back_and_with_one_pair() {
        let budget = Arc::new(StagingBudget::new(4 * 4096));
        let (pool, _) = pool(&budget);
        let part_of = |pair| {
            let mut want = wanted(&[2 * 4096]);
            want[0].part = Some(4096);
            let leased = pool.lease(pair, &mut Claims::default(), &mut want, &mut Vec::new());
            (leased, want.pop().unwrap())
        };
        let (leased, first) = part_of(device(0));
        assert_eq!(leased, Leased::All);
        assert_eq!(part_of(device(0)).0, Leased::Coming);
        let order = Wanted {
            at: (0, 0),
            leg: 0,
            memory: first.memory,
            bytes: first.bytes,
            part: first.part,
            pair: device(0),
        };
        pool.handle_allocated(&order, true);
        let slot = super::super::shelf::tests::buffer(2 * 4096);
        let first = pool.share(slot, &order);
        let second = part_of(device(0))
            .1
            .buffer
            .expect("there is room in the slot");
        // A part costs the device nothing that the slot did not; a slot of its own would be over its share.
        assert_eq!(part_of(device(0)).0, Leased::NoShare);
        let of_another = part_of(device(1));
        assert_eq!(of_another.0, Leased::All);
        assert!(of_another.1.buffer.is_none(), "it has a slot of its own");
        pool.release(device(1), 2 * 4096);
        for (part, leased) in [(first, 2), (second, 0)] {
            pool.give_back(part, device(0), &mut Vec::new());
            let bytes = budget.account.with(|account| account.shares.leased_bytes());
            assert_eq!(bytes, leased * 4096);
        }
    }
}
