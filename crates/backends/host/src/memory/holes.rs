//! Holes of files: ranges that have no blocks on the disk, and are read as zeros.
//!
//! A copy leaves out what is a hole in its destination and zeros in its source, so a sparse file stays sparse, and takes the
//! time of its content alone. The file system's word decides, and not who made the file: what is a hole already needs no
//! zeros, whatever other programs wrote elsewhere in the file.

#[cfg(any(target_os = "linux", target_os = "android"))]
use std::fs::File;

use super::file::HostFile;

/// The holes of a file that has some.
#[derive(Debug)]
pub(crate) struct Holes {
    /// An opening of its own: a search for holes moves the position of an opening, and programs may use that of theirs.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    file: File,
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    never: std::convert::Infallible,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Holes {
    /// Looks whether the file has holes. `None` where it has none, and where the system does not tell.
    pub(crate) fn of(file: &HostFile) -> Option<Self> {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        /// The unit of `st_blocks` (stat(3type)).
        const BLOCK_BYTES: u64 = 512;
        /// The file systems whose word counts the bytes that are not on the disk yet: ext2 to ext4, XFS, Btrfs and tmpfs
        /// (`include/uapi/linux/magic.h`). A FUSE server does not know of those (`FUSE_WRITEBACK_CACHE`), OpenZFS called them
        /// holes (its issue 15526), and network and overlay file systems hide who answers.
        const TRUSTED: [u32; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994];
        let raw = file.raw();
        let found = raw.metadata().ok()?;
        if found.blocks().saturating_mul(BLOCK_BYTES) >= found.len() {
            return None;
        }
        let system = rustix::fs::fstatfs(raw).ok()?;
        if !TRUSTED.contains(&(system.f_type as u32)) {
            return None;
        }
        let file = File::open(format!("/proc/self/fd/{}", raw.as_raw_fd())).ok()?;
        Some(Self { file })
    }

    /// The first byte from `offset` on, and before `end`, that is in no hole; else `end`.
    pub(crate) fn data(&self, offset: u64, end: u64) -> u64 {
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(at) => at.min(end),
            // A hole up to the end of the file, or no file any more at `offset`: the read there fails.
            Err(rustix::io::Errno::NXIO) => {
                let len = self.file.metadata().map_or(0, |found| found.len());
                if len >= end { end } else { offset }
            }
            Err(_) => offset,
        }
    }

    /// The first byte from `offset` on, and before `end`, that is in a hole; else `end`.
    pub(crate) fn next(&self, offset: u64, end: u64) -> u64 {
        rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(offset))
            .map_or(end, |at| at.min(end))
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Holes {
    /// No other system was tried, so every byte is copied there.
    pub(crate) fn of(_: &HostFile) -> Option<Self> {
        None
    }

    pub(crate) fn data(&self, _: u64, _: u64) -> u64 {
        match self.never {}
    }

    pub(crate) fn next(&self, _: u64, _: u64) -> u64 {
        match self.never {}
    }
}

/// The unit in which zeros are looked for. Shorter pieces are written as they are: the calls to the system that look for a
/// hole cost more than they save.
pub(crate) const LEAST_BYTES: u64 = 64 << 10;

/// Whether all bytes are 0. Compares the bytes with themselves, one further on, because the standard library's comparison
/// of slices is the fastest loop at hand, in debug builds too.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    match bytes {
        [] => true,
        [first, rest @ ..] => *first == 0 && rest == &bytes[..rest.len()],
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn holes_count_only_on_a_file_system_that_is_known() {
        // On tmpfs, and on hugetlbfs, which nothing here knows.
        for (flags, known) in [(MemfdFlags::empty(), true), (MemfdFlags::HUGETLB, false)] {
            let Ok(file) = memfd_create("holes", flags).map(File::from) else {
                continue;
            };
            file.set_len(64 << 20).unwrap();
            let file = HostFile::from_file(file, "holes", true).unwrap();
            assert_eq!(Holes::of(&file).is_some(), known, "{flags:?}");
        }
    }
}
