//! Small allocations of shared memory: pages of an arena, which cost no descriptor (Linux).
//!
//! An arena is private memory of the process, because nothing outside the process can name its pages. When an
//! allocation is exported, [`Pages::show`] puts a file of its own in the place of its pages, at the same address.
//!
//! Arenas are private and not shared mappings because of `fork`. Parent and child each go on with a copy of the
//! list below. In a shared mapping both would give out the same pages.

use std::collections::BTreeMap;
use std::io;
use std::iter;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::mapping::{Mapping, replace_by_file, replace_by_zeroes, whole_pages};

/// The lengths and alignments that arenas serve end here. An export copies an allocation once: 0.5 ms for this length
/// (AMD EPYC with 2 cores, `cargo test`). With the 1,024 descriptors of a usual limit, longer allocations reach 1 GiB.
pub(super) const MOST_BYTES: usize = 1 << 20;

/// The length of an arena. It holds 16 allocations of the largest size and 4,096 pages of 4 KiB. Pages take memory
/// from their first use on, so an arena costs address space only.
const ARENA_BYTES: usize = 16 << 20;

/// Zeroed pages of an arena, at an address that stays; dropping them gives them back to the arena.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages are this value's alone until it is dropped; it hands out addresses, and the code that uses an
// address answers for exclusion between threads.
unsafe impl Send for Pages {}
// SAFETY: as above; `show` leaves address and bytes as they are.
unsafe impl Sync for Pages {}

impl Pages {
    /// Takes pages for `len` bytes, the first one at a multiple of `align`, a power of two; both at most
    /// [`MOST_BYTES`]. Maps an arena where all others are full.
    pub(super) fn allocate(len: usize, align: usize) -> io::Result<Self> {
        debug_assert!(len <= MOST_BYTES && align <= MOST_BYTES);
        let len = whole_pages(len)?;
        let mut arenas = lock();
        let mut known = arenas.values_mut();
        if let Some(pages) = known.find_map(|arena| arena.take(len, align)) {
            return Ok(pages);
        }
        let mut arena = Arena::new()?;
        let taken = arena.take(len, align);
        arenas.insert(arena.mapping.start().addr().get(), arena);
        taken.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// The first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Maps `file` from its first byte on in the place of these pages. A failure leaves the pages as they are.
    ///
    /// # Safety
    /// The file has the bytes of these pages and keeps its length. Until this returns, no thread and no device writes
    /// the bytes: the write would go to the pages that disappear. Reads may go on. The kernel replaces the mapping under
    /// the lock that every page fault takes, so each load finds the old page or the new one, and both hold the same
    /// bytes. A device that has pinned the old pages for a read reads the same bytes, too.
    pub(super) unsafe fn show(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: the pages are this value's own; the caller promises that the bytes stay the same.
        unsafe { replace_by_file(self.start, self.len, file) }
    }
}

impl Drop for Pages {
    /// Zeroes the pages, so that an export of a later allocation shows no byte of this one, and gives their memory back
    /// to the system.
    fn drop(&mut self) {
        // SAFETY: the pages are this value's own, and no view of them is left.
        let is_zeroed = unsafe { replace_by_zeroes(self.start, self.len) }.is_ok();
        // Unmapped when the lock is free again.
        let _emptied = give(self, is_zeroed);
    }
}

/// A mapping, and which of its bytes are not given out.
#[derive(Debug)]
struct Arena {
    mapping: Mapping,
    /// By offset, in ascending order; no two ranges touch.
    free: Vec<Range<usize>>,
    /// Allocations that live.
    live: usize,
}

impl Arena {
    fn new() -> io::Result<Self> {
        Ok(Self {
            // Then offsets are aligned as addresses are.
            mapping: Mapping::anonymous(ARENA_BYTES, MOST_BYTES)?,
            free: iter::once(0..ARENA_BYTES).collect(),
            live: 0,
        })
    }

    /// The first place where `len` bytes fit.
    fn take(&mut self, len: usize, align: usize) -> Option<Pages> {
        let at = take_first(&mut self.free, len, align)?;
        self.live += 1;
        let start = self.mapping.start().as_ptr().wrapping_add(at);
        // Within the mapping, so not null.
        let start = NonNull::new(start).unwrap_or(self.mapping.start());
        Some(Pages { start, len })
    }

    fn is_idle(&self) -> bool {
        self.live == 0
    }
}

/// Takes pages back, and returns their arena where nothing of it is in use and another idle one is there. Pages that
/// could not be zeroed are not given out again.
fn give(pages: &Pages, is_zeroed: bool) -> Option<Arena> {
    let address = pages.start.addr().get();
    let mut arenas = lock();
    let (&base, arena) = arenas.range_mut(..=address).next_back()?;
    arena.live -= 1;
    if is_zeroed {
        let at = address - base;
        give_back(&mut arena.free, at..at + pages.len);
    }
    let is_whole = arena.free.first() == Some(&(0..ARENA_BYTES));
    if !arena.is_idle() || is_whole && arenas.values().filter(|arena| arena.is_idle()).count() == 1
    {
        return None;
    }
    arenas.remove(&base)
}

/// Removes the first `len` bytes at a multiple of `align` from `free`, and returns where they begin.
fn take_first(free: &mut Vec<Range<usize>>, len: usize, align: usize) -> Option<usize> {
    let fits = |(index, range): (usize, &Range<usize>)| {
        let at = range.start.next_multiple_of(align);
        (at + len <= range.end).then(|| (index, at, range.clone()))
    };
    let (index, at, range) = free.iter().enumerate().find_map(fits)?;
    let rest = [range.start..at, at + len..range.end];
    let rest = rest.into_iter().filter(|rest| !rest.is_empty());
    free.splice(index..=index, rest);
    Some(at)
}

/// Adds `range` to `free` and joins it with the ranges that it touches.
fn give_back(free: &mut Vec<Range<usize>>, range: Range<usize>) {
    let first = free.partition_point(|known| known.end < range.start);
    let past = free.partition_point(|known| known.start <= range.end);
    let touched = &free[first..past];
    let start = touched
        .first()
        .map_or(range.start, |known| known.start.min(range.start));
    let end = touched
        .last()
        .map_or(range.end, |known| known.end.max(range.end));
    free.splice(first..past, iter::once(start..end));
}

/// Every arena of this process, by its first address.
static ARENAS: Mutex<BTreeMap<usize, Arena>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<usize, Arena>> {
    ARENAS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes by a map of single bytes.
    fn take_from_map(free: &mut [bool], len: usize, align: usize) -> Option<usize> {
        let mut starts = (0..free.len()).step_by(align);
        let at = starts.find(|&at| {
            let wanted = free.get(at..at + len);
            wanted.is_some_and(|bytes| bytes.iter().all(|is_free| *is_free))
        })?;
        free[at..at + len].fill(false);
        Some(at)
    }

    proptest! {
        #[test]
        fn ranges_are_those_of_a_map_of_bytes(
            steps in proptest::collection::vec((1..9usize, 0..4u32, any::<bool>(), any::<usize>()), 1..200),
        ) {
            const LEN: usize = 64;
            let mut free = iter::once(0..LEN).collect();
            let mut map = [true; LEN];
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (len, align, is_take, which) in steps {
                if is_take {
                    let at = take_first(&mut free, len, 1 << align);
                    prop_assert_eq!(at, take_from_map(&mut map, len, 1 << align));
                    taken.extend(at.map(|at| at..at + len));
                } else if !taken.is_empty() {
                    let range = taken.swap_remove(which % taken.len());
                    map[range.clone()].fill(true);
                    give_back(&mut free, range);
                }
                let ends = |pair: &[Range<usize>]| pair[0].end < pair[1].start;
                prop_assert!(free.windows(2).all(ends), "{free:?}");
                let mut seen = [false; LEN];
                free.iter().for_each(|range| seen[range.clone()].fill(true));
                prop_assert_eq!(seen, map);
            }
        }
    }

    #[test]
    fn one_idle_arena_is_kept() {
        let all: Vec<_> = (0..70)
            .map(|_| Pages::allocate(MOST_BYTES, 1).unwrap())
            .collect();
        // Other tests of the process may have arenas, too.
        assert!(lock().len() >= 5);
        drop(all);
        assert!(lock().values().filter(|arena| arena.is_idle()).count() <= 1);
    }
}
