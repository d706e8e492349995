//! A cache of plans.

use alloc::sync::Arc;
use core::fmt;

use hashbrown::HashMap;

use crate::{PlanKey, PlanSet};

/// A bounded memory of [`PlanSet`]s under their [`PlanKey`].
///
/// Each key holds the whole set with every size range, so a look-up never has to guess whether a plan fits a payload:
/// [`PlanSet::choose`] decides that by the exact size.
///
/// Plans hold for one state of the machine. The engine calls [`PlanCache::invalidate`] when that state changes (a
/// backend registered, a link put into quarantine or let out of it, new measurements). This forgets all plans and
/// starts a new epoch; a holder of a plan elsewhere compares epochs.
///
/// A hit hashes the key once and allocates nothing. When the cache is full, the set that was looked up longest ago is
/// removed; finding it takes time proportional to the capacity, which is small next to the planning before it.
pub struct PlanCache {
    entries: HashMap<PlanKey, Entry>,
    capacity: usize,
    /// Counts look-ups and insertions, to order them.
    clock: u64,
    epoch: u64,
    stats: CacheStats,
}

struct Entry {
    plans: Arc<PlanSet>,
    used_at: u64,
}

/// Counts of a cache since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CacheStats {
    /// Look-ups that found plans.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
    /// Sets that were removed to make room.
    pub evictions: u64,
    /// How often all sets were forgotten.
    pub invalidations: u64,
}

impl PlanCache {
    /// How many sets are kept unless the builder says otherwise: the pairs of 16 memories. A set of an 8-GPU machine
    /// takes 6 to 50 KiB, more with more memories that one can stage in.
    pub const DEFAULT_CAPACITY: usize = 256;

    /// Makes an empty cache for `capacity` sets, at least 1. Allocates nothing yet.
    pub fn new(capacity: usize) -> PlanCache {
        PlanCache {
            entries: HashMap::new(),
            capacity: capacity.max(1),
            clock: 0,
            epoch: 0,
            stats: CacheStats::default(),
        }
    }

    /// Returns the plans under `key`, which count as used now. Allocates nothing.
    pub fn get(&mut self, key: &PlanKey) -> Option<Arc<PlanSet>> {
        self.clock += 1;
        match self.entries.get_mut(key) {
            Some(entry) => {
                entry.used_at = self.clock;
                self.stats.hits += 1;
                Some(Arc::clone(&entry.plans))
            }
            None => {
                self.stats.misses += 1;
                None
            }
        }
    }

    /// Keeps `plans` under `key`, replacing the set there. In a full cache the set that was used longest ago is
    /// removed.
    pub fn insert(&mut self, key: PlanKey, plans: Arc<PlanSet>) {
        self.clock += 1;
        if self.entries.len() >= self.capacity && !self.entries.contains_key(&key) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used_at);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.entries.remove(&oldest);
                self.stats.evictions += 1;
            }
        }
        let used_at = self.clock;
        self.entries.insert(key, Entry { plans, used_at });
    }

    /// Forgets all plans and starts a new epoch, in which earlier plans do not hold.
    pub fn invalidate(&mut self) {
        self.entries.clear();
        self.epoch += 1;
        self.stats.invalidations += 1;
    }

    /// Returns how often the plans have become invalid.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns how many sets are kept.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether no set is kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns how many sets are kept at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the counts of the cache.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }
}

impl Default for PlanCache {
    fn default() -> PlanCache {
        PlanCache::new(PlanCache::DEFAULT_CAPACITY)
    }
}

impl fmt::Debug for PlanCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanCache")
            .field("len", &self.len())
            .field("capacity", &self.capacity)
            .field("epoch", &self.epoch)
            .field("stats", &self.stats)
            .finish()
    }
}

#[cfg(test)]
mod tests;
