//! The memory that a pool holds: the parts in use, the freed parts, and the streams in whose order they were
//! freed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use range_alloc::RangeAllocator;
use rustix::fs::{FallocateFlags, fallocate};

use crate::bytes::Bytes;
use crate::engine::Ticket;
use crate::physical::Physical;
use crate::space::ALIGNMENT;
use crate::vmm::GRANULARITY;

/// The memory of a pool, in a file that other processes can map. It counts as a part of a device's memory as long
/// as the pool holds it.
#[derive(Debug)]
pub(super) struct Reserve {
    pub(super) file: OwnedFd,
    /// The part of the file that is not held.
    room: RangeAllocator<u64>,
    of: Physical,
    /// The most that may be held; 0 for no limit.
    most: u64,
    /// The held memory, by its offset in the file.
    chunks: BTreeMap<u64, Chunk>,
    freed: Vec<Freed>,
    /// The number of held bytes.
    reserved: u64,
    /// The number of allocated bytes.
    live: u64,
    /// The most bytes that were held, and used, since the count was reset.
    pub(super) reserved_high: u64,
    pub(super) used_high: u64,
}

/// Memory that is held.
#[derive(Debug)]
struct Chunk {
    bytes: Arc<Bytes>,
    free: RangeAllocator<u64>,
}

/// A part of a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Block {
    chunk: u64,
    range: Range<u64>,
}

impl Block {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Where in the file it begins.
    pub(super) fn start(&self) -> u64 {
        self.chunk + self.range.start
    }
}

/// A freed block: once `done` is over, no work of its stream uses it.
#[derive(Debug)]
struct Freed {
    block: Block,
    stream: u64,
    done: Ticket,
}

/// Memory for an allocation.
pub(super) struct Taken {
    pub(super) block: Block,
    pub(super) bytes: Arc<Bytes>,
    pub(super) offset: usize,
    /// The work that an allocation waits for in any stream except the one in which the memory was freed.
    pub(super) after: Option<Ticket>,
}

/// The memory freed in other streams that may be used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reuse {
    /// Memory that happens to be free by now.
    pub(super) opportunistic: bool,
    /// Memory for which the allocation then waits.
    pub(super) internal: bool,
}

impl Reserve {
    /// Nothing yet, in a file that has room for as much as the device has.
    pub(super) fn new(file: OwnedFd, of: Physical, most: u64) -> Reserve {
        Reserve {
            file,
            room: RangeAllocator::new(0..of.info().1),
            of,
            most: most.next_multiple_of(GRANULARITY),
            chunks: BTreeMap::new(),
            freed: Vec::new(),
            reserved: 0,
            live: 0,
            reserved_high: 0,
            used_high: 0,
        }
    }

    pub(super) fn most(&self) -> u64 {
        self.most
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The allocated bytes, and those freed in streams that have not reached that point.
    pub(super) fn used(&self) -> u64 {
        let freed = self.freed.iter().filter(|freed| !freed.done.is_done());
        self.live + freed.map(|freed| freed.block.len()).sum::<u64>()
    }

    /// Memory for a stream: memory freed in it before, else free memory, else memory that will be free, else more of
    /// the device's. `None` if the device or the pool has no more.
    pub(super) fn take(&mut self, size: u64, stream: u64, reuse: Reuse) -> Option<Taken> {
        let len = size.checked_next_multiple_of(ALIGNMENT)?;
        // Below here lengths are added to places.
        if len > self.of.info().1 {
            return None;
        }
        if reuse.opportunistic {
            self.settle();
        }
        let freed_there = self.take_freed(len, |freed| freed.stream == stream);
        let (block, after) = match freed_there {
            Some((block, _)) => (block, None),
            None => match self.take_free(len) {
                Some(block) => (block, None),
                None => match self.take_freed(len, |_| reuse.internal) {
                    Some((block, done)) => (block, Some(done)),
                    None => (self.take_new(len)?, None),
                },
            },
        };
        self.live += len;
        self.used_high = self.used_high.max(self.used());
        let bytes = Arc::clone(&self.chunks.get(&block.chunk)?.bytes);
        let offset = block.range.start as usize;
        Some(Taken {
            block,
            bytes,
            offset,
            after,
        })
    }

    /// The smallest freed block that is large enough; the rest of it stays freed.
    fn take_freed(&mut self, len: u64, may: impl Fn(&Freed) -> bool) -> Option<(Block, Ticket)> {
        let fits = |freed: &&mut Freed| freed.block.len() >= len && may(freed);
        let best = self.freed.iter_mut().filter(fits);
        let best = best.min_by_key(|freed| freed.block.len())?;
        let start = best.block.range.start;
        let block = Block {
            chunk: best.block.chunk,
            range: start..start + len,
        };
        best.block.range.start += len;
        let done = best.done.clone();
        self.freed.retain(|freed| freed.block.len() > 0);
        Some((block, done))
    }

    fn take_free(&mut self, len: u64) -> Option<Block> {
        self.chunks.iter_mut().find_map(|(at, chunk)| {
            let range = chunk.free.allocate_range(len).ok()?;
            Some(Block { chunk: *at, range })
        })
    }

    /// Holds more memory; releases unused memory if there is too little otherwise.
    fn take_new(&mut self, len: u64) -> Option<Block> {
        let whole = len.checked_next_multiple_of(GRANULARITY)?;
        if !self.hold(whole) {
            self.trim(0);
            if !self.hold(whole) {
                return None;
            }
        }
        self.take_free(len)
    }

    fn hold(&mut self, len: u64) -> bool {
        if self.most != 0 && self.reserved + len > self.most {
            return false;
        }
        let held = self.of.charge(len).and_then(|charge| {
            let range = self.room.allocate_range(len).ok()?;
            let file = self.file.try_clone().ok();
            let bytes = file.and_then(|file| {
                Bytes::of_charged_file(file, range.start, len as usize, charge).ok()
            });
            if bytes.is_none() {
                self.room.free_range(range.clone());
            }
            Some((range.start, bytes?))
        });
        let Some((at, bytes)) = held else {
            return false;
        };
        let free = RangeAllocator::new(0..len);
        self.chunks.insert(at, Chunk { bytes, free });
        self.reserved += len;
        self.reserved_high = self.reserved_high.max(self.reserved);
        true
    }

    /// Frees a block for any stream at once.
    pub(super) fn free(&mut self, block: Block) {
        self.live -= block.len();
        self.give(block);
    }

    /// Frees a block once a stream has come so far.
    pub(super) fn free_after(&mut self, block: Block, stream: u64, done: Ticket) {
        self.live -= block.len();
        self.freed.push(Freed {
            block,
            stream,
            done,
        });
    }

    fn give(&mut self, block: Block) {
        if let Some(chunk) = self.chunks.get_mut(&block.chunk) {
            chunk.free.free_range(block.range);
        }
    }

    /// Makes memory that is free by now free for any stream.
    pub(super) fn settle(&mut self) {
        let done = |freed: &mut Freed| freed.done.is_done();
        let settled: Vec<_> = self.freed.extract_if(.., done).collect();
        for freed in settled {
            self.give(freed.block);
        }
    }

    /// Lets go of memory that is not in use, as long as that much is held.
    pub(super) fn trim(&mut self, keep: u64) {
        self.settle();
        let chunks = self.chunks.iter().filter(|(_, of)| of.free.is_empty());
        let chunks: Vec<_> = chunks
            .map(|(at, of)| (*at, of.bytes.len() as u64))
            .collect();
        for (at, len) in chunks {
            if self.reserved - len < keep {
                continue;
            }
            self.chunks.remove(&at);
            self.reserved -= len;
            self.room.free_range(at..at + len);
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Where the system cannot, the pages stay, and that is all.
            let _ = fallocate(&self.file, punch, at, len);
        }
    }
}
