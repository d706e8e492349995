//! Staging slots, within one budget for the whole process.
//!
//! Slots that nobody leases stay in their manager's pool, since memory that was touched, pinned or
//! registered once is worth keeping. They count against the budget; when it is short, idle slots of
//! any manager are given up first. What still does not fit waits.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use transload_core::MemoryId;
use transload_hal::Buffer;

use super::signal::Signal;
use super::sync::Lock;

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
    /// Somebody was refused since the last release.
    starved: bool,
    pools: Vec<Weak<Pool>>,
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

    /// Takes `bytes` out of the budget, giving up idle slots where that helps; they are pushed to
    /// `evicted`, to be dropped where no lock is held. False when it does not fit.
    fn reserve(&self, bytes: u64, evicted: &mut Vec<Buffer>) -> bool {
        self.account.with(|account| {
            while account.used_bytes.saturating_add(bytes) > self.limit_bytes {
                let idle = account
                    .pools
                    .iter()
                    .filter_map(Weak::upgrade)
                    .find_map(|pool| pool.evict());
                let Some(idle) = idle else {
                    account.starved = true;
                    return false;
                };
                account.used_bytes -= idle.len();
                evicted.push(idle);
            }
            account.used_bytes += bytes;
            account.peak_bytes = account.peak_bytes.max(account.used_bytes);
            true
        })
    }

    fn release(&self, bytes: u64) {
        let wake = self.account.with(|account| {
            account.used_bytes -= bytes;
            core::mem::take(&mut account.starved).then(|| account.pools.clone())
        });
        wake.into_iter()
            .flatten()
            .filter_map(|pool| pool.upgrade())
            .for_each(|pool| pool.signal.notify());
    }

    /// A slot became idle: whoever was refused may have its room now.
    fn idle(&self) {
        let starved = self.account.with(|account| account.starved);
        if starved {
            self.release(0);
        }
    }

    fn enroll(&self, pool: &Arc<Pool>) {
        self.account.with(|account| {
            account.pools.retain(|known| known.strong_count() > 0);
            account.pools.push(Arc::downgrade(pool));
        });
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
    idle: Lock<Vec<Buffer>>,
    signal: Arc<Signal>,
}

impl Pool {
    pub(crate) fn new(budget: Arc<StagingBudget>, signal: Arc<Signal>) -> Arc<Pool> {
        let pool = Arc::new(Pool {
            budget,
            idle: Lock::new(Vec::new()),
            signal,
        });
        pool.budget.enroll(&pool);
        pool
    }

    pub(crate) fn budget(&self) -> &Arc<StagingBudget> {
        &self.budget
    }

    /// An idle slot of that size in that memory.
    pub(crate) fn take(&self, memory: MemoryId, bytes: u64) -> Option<Buffer> {
        self.idle.with(|idle| {
            let at = idle
                .iter()
                .position(|slot| slot.memory() == memory && slot.len() == bytes)?;
            Some(idle.swap_remove(at))
        })
    }

    /// Room for one more slot. See [`StagingBudget::reserve`].
    pub(crate) fn reserve(&self, bytes: u64, evicted: &mut Vec<Buffer>) -> bool {
        self.budget.reserve(bytes, evicted)
    }

    /// Room that was reserved and no slot came of it, or a slot that is gone.
    pub(crate) fn release(&self, bytes: u64) {
        self.budget.release(bytes);
    }

    /// A slot that is leased no more.
    pub(crate) fn give_back(&self, slot: Buffer) {
        self.idle.with(|idle| idle.push(slot));
        self.budget.idle();
    }

    /// Gives up every idle slot.
    pub(crate) fn trim(&self) -> Vec<Buffer> {
        let idle = self.idle.with(core::mem::take);
        let bytes = idle.iter().map(Buffer::len).sum();
        self.budget.release(bytes);
        idle
    }

    fn evict(&self) -> Option<Buffer> {
        self.idle.with(Vec::pop)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.trim();
    }
}
