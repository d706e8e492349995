//! The real place of bytes: mapped memory, ranges of it, and copies between them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::access::Access;
use crate::physical::{Charge, Extent, map_shared};

/// Memory of this process that stands for memory of some kind. It lives until its last user has gone: an allocation
/// that is freed during a copy lives until the copy is done.
#[derive(Debug)]
pub(crate) struct Bytes {
    start: NonNull<u8>,
    len: usize,
    held: Held,
    /// The page that describes them to other processes, once they were exported; it ends with them.
    pub(crate) exported: OnceLock<OwnedFd>,
}

/// The owner of the memory.
#[derive(Debug)]
enum Held {
    /// An own mapping without a file, unmapped at the end.
    Mapping,
    /// An own mapping of a file from that offset, unmapped at the end; with its charge to a device's memory.
    File {
        file: OwnedFd,
        offset: u64,
        _charge: Option<Charge>,
    },
    /// A part of a device's memory.
    Extent(Extent),
    /// Client memory, which the client promised to keep.
    Client,
}

impl Held {
    fn file(file: OwnedFd, offset: u64, charge: Option<Charge>) -> Held {
        Held::File {
            file,
            offset,
            _charge: charge,
        }
    }
}

// SAFETY: the bytes are only reached through raw pointers, by `Place`; its SAFETY comment says that callers
// order these accesses.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Memory that the host reaches, zeros at first.
    ///
    /// # Errors
    /// When the system gives none.
    pub(crate) fn anonymous(len: usize) -> Result<Arc<Bytes>, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping touches nothing that is there.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                protection,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Ok(Bytes::new(start.cast(), len, Held::Mapping))
    }

    /// A range of a file, mapped. `offset` is a multiple of the page size.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub(crate) fn of_file(file: OwnedFd, offset: u64, len: usize) -> Result<Arc<Bytes>, Errno> {
        let start = map_shared(file.as_fd(), offset, len)?;
        Ok(Bytes::new(start, len, Held::file(file, offset, None)))
    }

    /// A range of a file that counts as a part of a device's memory, mapped.
    ///
    /// # Errors
    /// As [`Bytes::of_file`].
    pub(crate) fn of_charged_file(
        file: OwnedFd,
        offset: u64,
        len: usize,
        charge: Charge,
    ) -> Result<Arc<Bytes>, Errno> {
        let start = map_shared(file.as_fd(), offset, len)?;
        Ok(Bytes::new(
            start,
            len,
            Held::file(file, offset, Some(charge)),
        ))
    }

    /// A part of a device's memory.
    pub(crate) fn of_device(extent: Extent) -> Arc<Bytes> {
        let (start, len) = (extent.start(), extent.len());
        Bytes::new(start, len, Held::Extent(extent))
    }

    /// Memory of the client's.
    ///
    /// # Safety
    /// The memory stays until the client was told that no work uses it any more.
    pub(crate) unsafe fn of_client(start: *mut u8, len: usize) -> Arc<Bytes> {
        Bytes::new(start, len, Held::Client)
    }

    fn new(start: *mut u8, len: usize, held: Held) -> Arc<Bytes> {
        Arc::new(Bytes {
            start: NonNull::new(start).unwrap_or(NonNull::dangling()),
            len,
            held,
            exported: OnceLock::new(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The file that holds the bytes, and where in it they begin, if another process could map them.
    pub(crate) fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.held {
            Held::File { file, offset, .. } => Some((file.as_fd(), *offset)),
            Held::Extent(extent) => Some(extent.file()),
            Held::Mapping | Held::Client => None,
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Held::Mapping | Held::File { .. } = self.held {
            // SAFETY: the mapping is ours, and nothing refers to it any more.
            let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
            debug_assert!(unmapped.is_ok(), "a mapping of ours is unmapped");
        }
    }
}

/// The memory that an address is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    /// Host memory, unknown to the driver.
    Pageable,
    /// Host memory, allocated by the driver or registered with it.
    Pinned,
    /// Managed memory, of the host and every device.
    Managed,
    /// Memory of the device with that ordinal.
    Device(usize),
}

/// A range of bytes, found by its address and kept alive.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) memory: Memory,
    /// The access of devices to all of it.
    pub(crate) access: Access,
    len: usize,
    pieces: Vec<Piece>,
}

/// A part of a place that lies in one piece.
#[derive(Clone, Debug)]
struct Piece {
    start: *mut u8,
    len: usize,
    /// The owner of the bytes; none for pageable memory, which the client keeps.
    _keeper: Option<Arc<Bytes>>,
}

// SAFETY: a place is an address that is only used by `copy` and the like, whose callers order them.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    /// An empty place, to be filled by [`Place::push`].
    pub(crate) fn new(memory: Memory) -> Place {
        Place {
            memory,
            access: Access::ALL,
            len: 0,
            pieces: Vec::new(),
        }
    }

    /// Pageable memory of the client's.
    pub(crate) fn pageable(start: *mut u8, len: usize) -> Place {
        Place {
            memory: Memory::Pageable,
            access: Access::ALL,
            len,
            pieces: vec![Piece {
                start,
                len,
                _keeper: None,
            }],
        }
    }

    /// Adds a range of some bytes at the end. The range lies within them.
    pub(crate) fn push(&mut self, bytes: &Arc<Bytes>, offset: usize, len: usize) {
        debug_assert!(offset + len <= bytes.len());
        self.len += len;
        self.pieces.push(Piece {
            start: bytes.start().wrapping_add(offset),
            len,
            _keeper: Some(Arc::clone(bytes)),
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The runs of memory that make up `len` bytes from `offset` on.
    fn runs(&self, offset: usize, len: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        debug_assert!(offset + len <= self.len);
        let (mut skip, mut left) = (offset, len);
        self.pieces.iter().filter_map(move |piece| {
            let skipped = skip.min(piece.len);
            skip -= skipped;
            let taken = left.min(piece.len - skipped);
            left -= taken;
            (taken > 0).then(|| (piece.start.wrapping_add(skipped), taken))
        })
    }

    /// Reads bytes out.
    ///
    /// # Safety
    /// The bytes are readable, and nothing writes them meanwhile, unless the client accepts the outcome of that
    /// race.
    pub(crate) unsafe fn read(&self, offset: usize, into: &mut [u8]) {
        let mut at = 0;
        for (start, len) in self.runs(offset, into.len()) {
            let into = &mut into[at..at + len];
            // SAFETY: the run lies within the place, and the slice is as long.
            unsafe { ptr::copy_nonoverlapping(start, into.as_mut_ptr(), len) };
            at += len;
        }
    }

    /// Writes bytes in.
    ///
    /// # Safety
    /// The bytes are writable, and nothing uses them meanwhile, unless the client accepts the outcome of that
    /// race.
    pub(crate) unsafe fn write(&self, offset: usize, from: &[u8]) {
        let mut at = 0;
        for (start, len) in self.runs(offset, from.len()) {
            let from = &from[at..at + len];
            // SAFETY: the run lies within the place, and the slice is as long.
            unsafe { ptr::copy(from.as_ptr(), start, len) };
            at += len;
        }
    }
}

/// Copies bytes from one place to another. The two may overlap.
///
/// # Safety
/// Both ranges lie within their places, the source is readable and the destination writable. The client orders other
/// accesses to them.
pub(crate) unsafe fn copy(
    src: &Place,
    src_offset: usize,
    dst: &Place,
    dst_offset: usize,
    len: usize,
) {
    let mut from = src.runs(src_offset, len);
    let mut to = dst.runs(dst_offset, len);
    let (mut src_run, mut dst_run) = (from.next(), to.next());
    while let (Some((src_at, src_len)), Some((dst_at, dst_len))) = (src_run, dst_run) {
        let both = src_len.min(dst_len);
        // SAFETY: both runs are at least so long.
        unsafe { ptr::copy(src_at, dst_at, both) };
        let after =
            |at: *mut u8, len: usize| (len > both).then(|| (at.wrapping_add(both), len - both));
        src_run = after(src_at, src_len).or_else(|| from.next());
        dst_run = after(dst_at, dst_len).or_else(|| to.next());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(parts: &[&[u8]]) -> Place {
        let mut place = Place::new(Memory::Pinned);
        for part in parts {
            let bytes = Bytes::anonymous(part.len()).unwrap();
            place.push(&bytes, 0, part.len());
            let offset = place.len() - part.len();
            // SAFETY: nothing else has these bytes.
            unsafe { place.write(offset, part) };
        }
        place
    }

    fn bytes(place: &Place) -> Vec<u8> {
        let mut bytes = vec![0; place.len()];
        // SAFETY: nothing else has these bytes.
        unsafe { place.read(0, &mut bytes) };
        bytes
    }

    #[test]
    fn a_copy_goes_across_the_pieces_of_both_ends() {
        let src = place(&[b"ab", b"cdefg", b"h"]);
        for len in 0..=8 {
            for src_offset in 0..=8 - len {
                for dst_offset in 0..=8 - len {
                    let dst = place(&[b"...", b".", b"...."]);
                    // SAFETY: nothing else has these bytes.
                    unsafe { copy(&src, src_offset, &dst, dst_offset, len) };
                    let mut expected = *b"........";
                    expected[dst_offset..dst_offset + len]
                        .copy_from_slice(&b"abcdefgh"[src_offset..src_offset + len]);
                    assert_eq!(bytes(&dst), expected);
                }
            }
        }
    }
}
