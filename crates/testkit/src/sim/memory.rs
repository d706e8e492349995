//! Simulated memory: blocks of real bytes, and the use of each memory.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use transload_hal::{HostSpan, MemoryId};

/// The byte that fills fresh memory, so that no test mistakes it for zeros. Allocations above 64 MiB hold zeros: they
/// take no real memory until they are touched.
pub const POISON: u8 = 0xDB;

const POISON_LIMIT: usize = 64 << 20;

/// One block of the test process's own memory.
pub(super) struct Block {
    span: HostSpan,
    layout: Layout,
    /// Operations in flight that read or write the block.
    pub(super) in_flight: AtomicU32,
    /// Storages that show the block: the allocation, and imports of its exports.
    pub(super) owners: AtomicU32,
    /// Unique among the blocks of one sim.
    pub(super) id: u64,
}

impl Block {
    /// `None` when the process has no room or the layout is impossible.
    pub(super) fn new(id: u64, len: usize, alignment: usize) -> Option<Block> {
        let layout = Layout::from_size_align(len.max(1), alignment).ok()?;
        let start = if len <= POISON_LIMIT {
            // SAFETY: the layout's size is at least 1.
            unsafe { alloc(layout) }
        } else {
            // SAFETY: the layout's size is at least 1.
            unsafe { alloc_zeroed(layout) }
        };
        let span = HostSpan::new(NonNull::new(start)?, len);
        if len <= POISON_LIMIT {
            // SAFETY: the block is `len` bytes long and no other code knows it yet.
            unsafe { span.fill(POISON) };
        }
        Some(Block {
            span,
            layout,
            in_flight: AtomicU32::new(0),
            owners: AtomicU32::new(0),
            id,
        })
    }

    pub(super) fn span(&self) -> HostSpan {
        self.span
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `start` came from the global allocator with this layout, and is freed once.
        unsafe { dealloc(self.span.as_ptr(), self.layout) }
    }
}

/// Keeps a block while an operation uses it.
pub(super) struct Hold(Arc<Block>);

impl Hold {
    pub(super) fn new(block: &Arc<Block>) -> Hold {
        block.in_flight.fetch_add(1, Ordering::Relaxed);
        Hold(Arc::clone(block))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The use of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryUse {
    /// The memory.
    pub memory: MemoryId,
    /// Its size in bytes.
    pub total_bytes: u64,
    /// Bytes that are allocated now.
    pub live_bytes: u64,
    /// The largest number of bytes allocated at once.
    pub peak_bytes: u64,
    /// The number of live allocations.
    pub live_allocations: u64,
    /// The number of all allocations so far.
    pub allocations: u64,
}

impl MemoryUse {
    pub(super) fn new(memory: MemoryId, total_bytes: u64) -> MemoryUse {
        MemoryUse {
            memory,
            total_bytes,
            live_bytes: 0,
            peak_bytes: 0,
            live_allocations: 0,
            allocations: 0,
        }
    }

    pub(super) fn take(&mut self, len_bytes: u64) -> bool {
        match self.live_bytes.checked_add(len_bytes) {
            Some(live) if live <= self.total_bytes => {
                self.live_bytes = live;
                self.peak_bytes = self.peak_bytes.max(live);
                self.live_allocations += 1;
                self.allocations += 1;
                true
            }
            _ => false,
        }
    }

    /// Undoes a `take` that led to no allocation.
    pub(super) fn undo(&mut self, len_bytes: u64) {
        self.give_back(len_bytes);
        self.allocations -= 1;
    }

    pub(super) fn give_back(&mut self, len_bytes: u64) {
        self.live_bytes -= len_bytes;
        self.live_allocations -= 1;
    }
}

/// An act that an engine above a backend must never commit, and that the sim saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Violation {
    /// The last view of a storage was dropped while an operation used it.
    FreedInFlight {
        /// The storage's memory.
        memory: MemoryId,
    },
    /// Two operations that touch the same bytes were in flight at once, and one of them writes.
    Race {
        /// The memory that the later operation writes.
        memory: MemoryId,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::FreedInFlight { memory } => {
                write!(f, "simulated: a storage in {memory} was freed in flight")
            }
            Violation::Race { memory } => {
                write!(f, "simulated: an operation raced with another in {memory}")
            }
        }
    }
}

/// The number of a new block, unique in the process, because it names a storage.
pub(super) fn next_block() -> u64 {
    static BLOCKS: AtomicU64 = AtomicU64::new(1);
    BLOCKS.fetch_add(1, Ordering::Relaxed)
}
