//! A device's memory: one sparse file, divided into allocations.
//!
//! Another process can map a part of it, which IPC needs. The host has it mapped at an address that no client gets, so
//! the host cannot access the addresses that clients have.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use range_alloc::RangeAllocator;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Parts begin and end at multiples of this: a page, so that each can be mapped by itself.
pub(crate) const GRAIN: u64 = 4096;

/// Below this size a freed part keeps its pages and its bytes: a client that reads memory that it never wrote sees the
/// bytes of another allocation, as on a device.
const GIVEN_BACK: u64 = 1 << 20;

/// A device's memory.
#[derive(Clone, Debug)]
pub(crate) struct Physical(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: OwnedFd,
    start: *mut u8,
    size: u64,
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    free: RangeAllocator<u64>,
    used: u64,
}

// SAFETY: the start is an address; what is there is reached through `Extent`s, which do not overlap.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Physical {
    /// That much memory, none of it touched yet.
    ///
    /// # Errors
    /// When the system gives no file, or no addresses for it.
    pub(crate) fn new(size: u64) -> Result<Physical, Errno> {
        let size = size.next_multiple_of(GRAIN);
        let file = memory_file(size)?;
        let start = map_shared(file.as_fd(), 0, size as usize)?;
        Ok(Physical(Arc::new(Inner {
            file,
            start,
            size,
            parts: Mutex::new(Parts {
                free: RangeAllocator::new(0..size),
                used: 0,
            }),
        })))
    }

    /// Free and all bytes.
    pub(crate) fn info(&self) -> (u64, u64) {
        let used = self.0.parts().used;
        (self.0.size - used, self.0.size)
    }

    /// Allocates a part of it; `None` if no part that is large enough is free.
    pub(crate) fn allocate(&self, len: u64) -> Option<Extent> {
        let rounded = len.checked_next_multiple_of(GRAIN)?;
        let mut parts = self.0.parts();
        if rounded > self.0.size - parts.used {
            return None;
        }
        let range = parts.free.allocate_range(rounded).ok()?;
        parts.used += rounded;
        drop(parts);
        Some(Extent {
            of: Arc::clone(&self.0),
            range,
            len,
        })
    }

    /// Charges that many bytes to it for memory in a file of its own; `None` if less is left.
    pub(crate) fn charge(&self, len: u64) -> Option<Charge> {
        let len = len.checked_next_multiple_of(GRAIN)?;
        let mut parts = self.0.parts();
        if len > self.0.size - parts.used {
            return None;
        }
        parts.used += len;
        drop(parts);
        Some(Charge {
            of: Arc::clone(&self.0),
            len,
        })
    }
}

impl Inner {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a device's memory, given back when it goes.
#[derive(Debug)]
pub(crate) struct Extent {
    of: Arc<Inner>,
    range: Range<u64>,
    len: u64,
}

impl Extent {
    pub(crate) fn start(&self) -> *mut u8 {
        self.of.start.wrapping_add(self.range.start as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// The device's file, and where in it this part begins.
    pub(crate) fn file(&self) -> (BorrowedFd<'_>, u64) {
        (self.of.file.as_fd(), self.range.start)
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        let len = self.range.end - self.range.start;
        if len >= GIVEN_BACK {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // If the system cannot punch a hole, the pages stay; there is no other effect.
            let _ = fallocate(&self.of.file, punch, self.range.start, len);
        }
        let mut parts = self.of.parts();
        parts.used -= len;
        parts.free.free_range(self.range.clone());
    }
}

/// A charge to a device's memory for bytes that lie elsewhere, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    of: Arc<Inner>,
    len: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.parts().used -= self.len;
    }
}

/// A sparse file in memory.
///
/// # Errors
/// When the system gives none.
pub(crate) fn memory_file(size: u64) -> Result<OwnedFd, Errno> {
    let file = memfd_create("transload CUDA driver double", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, size)?;
    Ok(file)
}

/// Maps a range of a file for reading and writing, shared with all other mappings of it.
///
/// # Errors
/// When it cannot be mapped.
pub(crate) fn map_shared(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<*mut u8, Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping touches nothing that is there.
    let start = unsafe { mmap(ptr::null_mut(), len, protection, flags, file, offset) }?;
    Ok(start.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_come_back() {
        let memory = Physical::new(10 * GRAIN).unwrap();
        let parts: Vec<_> = (0..10).map(|_| memory.allocate(1).unwrap()).collect();
        assert_eq!(memory.info(), (0, 10 * GRAIN));
        assert!(memory.allocate(1).is_none());
        let mut starts: Vec<_> = parts.iter().map(|part| part.start().addr()).collect();
        starts.sort_unstable();
        assert!(
            starts
                .windows(2)
                .all(|pair| pair[1] - pair[0] == GRAIN as usize)
        );
        drop(parts);
        assert_eq!(memory.info(), (10 * GRAIN, 10 * GRAIN));
        assert_eq!(
            memory.allocate(10 * GRAIN).unwrap().len(),
            10 * GRAIN as usize
        );
        assert!(memory.allocate(10 * GRAIN + 1).is_none());
        assert!(memory.allocate(u64::MAX).is_none());
    }

    #[test]
    fn what_lies_elsewhere_counts() {
        let memory = Physical::new(10 * GRAIN).unwrap();
        let charge = memory.charge(7 * GRAIN).unwrap();
        assert_eq!(memory.info(), (3 * GRAIN, 10 * GRAIN));
        assert!(memory.allocate(4 * GRAIN).is_none());
        assert!(memory.charge(4 * GRAIN).is_none());
        assert!(memory.charge(u64::MAX).is_none());
        let part = memory.allocate(3 * GRAIN).unwrap();
        drop(charge);
        assert_eq!(memory.info(), (7 * GRAIN, 10 * GRAIN));
        assert!(memory.allocate(7 * GRAIN).is_some());
        drop(part);
    }
}
