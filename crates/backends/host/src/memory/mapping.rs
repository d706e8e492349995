//! Ranges of the address space that this process mapped, and their release.

use std::ffi::c_void;
use std::io;
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::mm::mmap;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Mapped pages; dropping them unmaps.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is an address range that this value alone unmaps; it hands out addresses, and the code that uses
// them ensures exclusion between threads.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method changes the mapping through a shared reference.
unsafe impl Sync for Mapping {}

/// How a file is mapped.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileAccess {
    /// Loads only; they see what others write to the file.
    ReadOnly,
    /// Loads only, of a file that no process can write.
    Sealed,
    /// Loads and stores, seen by every process that maps or reads the file.
    Shared,
    /// Loads and stores; the first store to a page makes a private copy of it.
    Private,
}

impl Mapping {
    /// `len` zeroed bytes (at least 1) of private memory whose address is a multiple of `align`, a power
    /// of two. No page is touched.
    pub(crate) fn anonymous(len: usize, align: usize) -> io::Result<Self> {
        let len = whole_pages(len)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        if align <= page_bytes() {
            // SAFETY: without a wanted address a new mapping disturbs no existing one.
            let start =
                unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
            return Self::from_raw(start, len);
        }
        Self::reserve(len, align, access)
    }

    /// `len` bytes (at least 1) of a file from `offset` on, a multiple of the page size, at an address
    /// that is a multiple of `align`.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn of_file(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        align: usize,
        access: FileAccess,
    ) -> io::Result<Self> {
        let len = whole_pages(len)?;
        let (protection, flags) = match access {
            FileAccess::ReadOnly => (ProtFlags::READ, MapFlags::SHARED),
            FileAccess::Sealed => (ProtFlags::READ, MapFlags::PRIVATE),
            FileAccess::Shared => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            FileAccess::Private => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE),
        };
        if align <= page_bytes() {
            // SAFETY: without a wanted address a new mapping disturbs no existing one.
            let start =
                unsafe { mmap(std::ptr::null_mut(), len, protection, flags, file, offset) }?;
            return Self::from_raw(start, len);
        }
        let place = Self::reserve(len, align, ProtFlags::empty())?;
        let start = place.start.as_ptr().cast();
        // SAFETY: the wanted range is exactly the reservation, which `place` owns and nothing uses; it goes on owning
        // the pages that replace it.
        unsafe {
            mmap(
                start,
                len,
                protection,
                flags | MapFlags::FIXED,
                file,
                offset,
            )
        }?;
        Ok(place)
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How many bytes are mapped, in whole pages.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Maps more than needed and unmaps what lies around the aligned part.
    fn reserve(len: usize, align: usize, access: ProtFlags) -> io::Result<Self> {
        let room = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: without a wanted address a new mapping disturbs no existing one.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), room, access, MapFlags::PRIVATE) }?;
        let whole = Self::from_raw(start, room)?;
        let head = whole.start.as_ptr().align_offset(align);
        let base = whole.start.as_ptr();
        std::mem::forget(whole);
        let kept = base.wrapping_add(head);
        release(base, head);
        release(kept.wrapping_add(len), room - head - len);
        Self::from_raw(kept.cast(), len)
    }

    fn from_raw(start: *mut c_void, len: usize) -> io::Result<Self> {
        // The kernel maps address 0 only on request; treated as a refusal all the same.
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        release(self.start.as_ptr(), self.len);
    }
}

/// Unmaps whole pages that this module mapped and that nothing uses any more.
fn release(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: callers pass parts of their own mappings. An error (the process is out of mappings
        // to split one) leaves the pages mapped, which wastes address space and is otherwise harmless.
        let _ = unsafe { munmap(start.cast(), len) };
    }
}

/// Maps `file` from its first byte on in the place of `len` mapped bytes, whole pages, at the same address. The kernel
/// refuses a descriptor that it cannot map, and a mapping past the limit of the process, before it takes the old pages
/// out.
///
/// # Safety
/// The pages are the caller's own part of a [`Mapping`]. Views of them that are left find the bytes of the file there,
/// of which there are as many.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) unsafe fn replace_by_file(
    start: NonNull<u8>,
    len: usize,
    file: BorrowedFd<'_>,
) -> io::Result<()> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the caller owns the range that is replaced, and says what its views find there.
    unsafe { mmap(start.as_ptr().cast(), len, access, flags, file, 0) }?;
    Ok(())
}

/// Puts untouched zero pages of private memory in the place of `len` mapped bytes, whole pages. The memory of the old
/// pages goes back to the system.
///
/// # Safety
/// The pages are the caller's own part of a [`Mapping`], and no view of them is left.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) unsafe fn replace_by_zeroes(start: NonNull<u8>, len: usize) -> io::Result<()> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: the caller owns the range that is replaced, and no view of it is left.
    unsafe { mmap_anonymous(start.as_ptr().cast(), len, access, flags) }?;
    Ok(())
}

/// Bytes in a page.
pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// `len`, at least 1, up to the end of its last page.
pub(crate) fn whole_pages(len: usize) -> io::Result<usize> {
    let len = len.max(1).checked_next_multiple_of(page_bytes());
    len.filter(|len| isize::try_from(*len).is_ok())
        .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(mapping: &Mapping, at: usize) -> u8 {
        assert!(at < mapping.len);
        // SAFETY: inside the mapping, which only this test touches.
        unsafe { mapping.start.as_ptr().wrapping_add(at).read() }
    }

    #[test]
    fn alignments_past_the_page_size_are_kept_and_memory_is_zeroed() {
        for align in [1, 64, 4096, 1 << 16, 2 << 20, 1 << 30] {
            let mapping = Mapping::anonymous(100_000, align).unwrap();
            assert_eq!(mapping.start().as_ptr().align_offset(align), 0, "{align}");
            assert_eq!((byte(&mapping, 0), byte(&mapping, 99_999)), (0, 0));
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn files_are_mapped_at_any_alignment() {
        use std::io::Write;
        use std::os::fd::AsFd;

        let path = std::env::temp_dir().join(format!("transload-mapping-{}", std::process::id()));
        let mut file = std::fs::File::create_new(&path).unwrap();
        file.write_all(&[7; 5000]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for align in [1, 1 << 20] {
            let mapping =
                Mapping::of_file(file.as_fd(), 0, 5000, align, FileAccess::ReadOnly).unwrap();
            assert_eq!(mapping.start().as_ptr().align_offset(align), 0);
            assert_eq!(byte(&mapping, 4999), 7);
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        assert!(Mapping::anonymous(usize::MAX, 1).is_err());
        assert!(Mapping::anonymous(usize::MAX / 2, 1).is_err());
        assert!(Mapping::anonymous(1, 1 << (usize::BITS - 1)).is_err());
    }
}
