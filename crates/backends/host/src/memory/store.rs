//! Freed blocks of ordinary memory, which the next allocation gets. The first touch of a new page costs three to ten times
//! what a copy into it does: 128 MiB take 55 ms in pages of 4 KiB, 22 ms in huge ones, 15 ms where they were touched before (AMD
//! EPYC with 2 cores, one thread that fills).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use transload_hal::{PerProcess, Room, Taken};

use super::mapping::Mapping;

/// The store keeps so much at most.
const MOST_BYTES: usize = 1 << 30;

/// And this part of the memory that the process may use.
const SHARE_OF_TOTAL: u64 = 16;

/// A block of ordinary memory, with the room that it takes. All its bytes are those that the process has written, or 0.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) mapping: Mapping,
    pub(super) _taken: Taken,
}

impl Block {
    fn len(&self) -> usize {
        self.mapping.len()
    }
}

/// The freed blocks of this process. A child of `fork` has its own: its parent's may have been changed by another thread in that
/// moment.
static STORE: PerProcess<Mutex<Store>> = PerProcess::new();

#[derive(Debug, Default)]
struct Store {
    /// By length, then by the number of the freeing.
    blocks: BTreeMap<(usize, u64), Block>,
    /// The lengths by the number of the freeing, oldest first.
    ages: BTreeMap<u64, usize>,
    bytes: usize,
    freed: u64,
}

/// Returns a block of at least `len` bytes, of which no more than an eighth is too much, at a multiple of `align`.
pub(super) fn take(len: usize, align: usize) -> Option<Block> {
    lock(STORE.get()?).take(len, align)
}

/// Keeps a block for later, and gives what is too much, oldest first, back to the system.
pub(super) fn give(block: Block) {
    let store = STORE.get_or_init(|| {
        Room::reserve(trim);
        Mutex::default()
    });
    let bound = bound();
    // Unmapped when the lock is free again.
    let _old = lock(store).give(block, bound);
}

/// Gives all freed blocks back to the system, and returns how many bytes those were.
pub(super) fn trim() -> u64 {
    let Some(store) = STORE.get() else {
        return 0;
    };
    let old = std::mem::take(&mut *lock(store));
    old.bytes as u64
}

/// The most that is kept: a sixteenth of the memory and of the address space that the process may use, and 1 GiB.
fn bound() -> usize {
    // No lock, which a child of `fork` could inherit: threads that come first may all find it out.
    static BOUND: AtomicUsize = AtomicUsize::new(usize::MAX);
    let known = BOUND.load(Ordering::Relaxed);
    if known != usize::MAX {
        return known;
    }
    let space = rustix::process::getrlimit(rustix::process::Resource::As).current;
    let total = Room::now().total_bytes.unwrap_or(0);
    let share = total.min(space.unwrap_or(u64::MAX)) / SHARE_OF_TOTAL;
    let bound = usize::try_from(share).map_or(MOST_BYTES, |share| share.min(MOST_BYTES));
    BOUND.store(bound, Ordering::Relaxed);
    bound
}

fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    fn take(&mut self, len: usize, align: usize) -> Option<Block> {
        let most = len.saturating_add(len / 8);
        let fits = |block: &Block| block.mapping.start().as_ptr().addr().is_multiple_of(align);
        let mut known = self.blocks.range((len, 0)..=(most, u64::MAX));
        let key = *known.find(|(_, block)| fits(block))?.0;
        let block = self.blocks.remove(&key)?;
        self.ages.remove(&key.1);
        self.bytes -= block.len();
        Some(block)
    }

    fn give(&mut self, block: Block, bound: usize) -> Vec<Block> {
        let len = block.len();
        if len > bound {
            return vec![block];
        }
        let mut old = Vec::new();
        while self.bytes > bound - len {
            let Some((number, len)) = self.ages.pop_first() else {
                break;
            };
            old.extend(self.blocks.remove(&(len, number)));
            self.bytes -= len;
        }
        self.freed += 1;
        self.blocks.insert((len, self.freed), block);
        self.ages.insert(self.freed, len);
        self.bytes += len;
        old
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(len: usize) -> Block {
        Block {
            mapping: Mapping::anonymous(len, 1).unwrap(),
            _taken: Taken::default(),
        }
    }

    const PAGE: usize = 1 << 16;

    proptest! {
        #[test]
        fn the_store_keeps_to_its_bound_and_gives_the_oldest_back(
            steps in proptest::collection::vec((1..20usize, any::<bool>()), 1..300),
        ) {
            const BOUND: usize = 64;
            let mut store = Store::default();
            // Lengths in pages, oldest first.
            let mut model: Vec<usize> = Vec::new();
            for (pages, is_take) in steps {
                if is_take {
                    let got = store.take(pages * PAGE, 1).map(|block| block.len() / PAGE);
                    let fits = |len: &&usize| (pages..=pages + pages / 8).contains(*len);
                    let wanted = model.iter().filter(fits).min().copied();
                    prop_assert_eq!(got, wanted);
                    let at = model.iter().position(|len| Some(*len) == wanted);
                    at.map(|at| model.remove(at));
                } else {
                    let old = store.give(block(pages * PAGE), BOUND * PAGE);
                    let mut gone = Vec::new();
                    while model.iter().sum::<usize>() + pages > BOUND {
                        gone.push(model.remove(0));
                    }
                    model.push(pages);
                    let old: Vec<usize> = old.iter().map(|block| block.len() / PAGE).collect();
                    prop_assert_eq!(old, gone);
                }
                prop_assert_eq!(store.bytes, model.iter().sum::<usize>() * PAGE);
                prop_assert_eq!((store.ages.len(), store.blocks.len()), (model.len(), model.len()));
            }
        }
    }

    #[test]
    fn what_is_larger_than_the_bound_goes_back_at_once_and_nothing_else_does() {
        let mut store = Store::default();
        assert!(store.give(block(PAGE), 4 * PAGE).is_empty());
        assert_eq!(store.give(block(5 * PAGE), 4 * PAGE).len(), 1);
        assert_eq!(store.bytes, PAGE);
    }

    #[test]
    fn an_alignment_that_a_block_does_not_have_is_not_served() {
        let mut store = Store::default();
        store.give(block(PAGE), PAGE);
        let start = store
            .blocks
            .values()
            .next()
            .unwrap()
            .mapping
            .start()
            .as_ptr()
            .addr();
        assert!(store.take(PAGE, start.next_power_of_two() * 2).is_none());
        assert!(store.take(PAGE, 1 << start.trailing_zeros()).is_some());
    }
}
