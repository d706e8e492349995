//! Files in memory that other processes take in: what one is, is written at its end.
//!
//! A client may pass any file descriptor. A label distinguishes files that a double made, in this process or in
//! another, from all others. The file is sealed, so that it keeps the length in the label while any process maps it.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    FileType, MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::{Errno, pread, pwrite};

/// The kind of a file, and its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    pub(crate) kind: Kind,
    /// How many bytes come before the label.
    pub(crate) size: u64,
    /// Of the device that it is of; zeros if it is of none.
    pub(crate) uuid: [u8; 16],
    /// A number that means something to the kind.
    pub(crate) word: u32,
}

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A piece of memory of `cuMemCreate`; its word are the handle types that it may be given out as.
    Piece,
    /// Where an allocation lies that was exported.
    Memory,
    /// The records of an event: a [page of numbers](crate::numbers).
    Event,
    /// The memory of a pool of `cuMemPoolCreate`, as long as its device's. Its word means nothing.
    Pool,
    /// A semaphore that is signalled or not: a page of numbers too.
    BinarySemaphore,
    /// A semaphore with a value: a page of numbers too.
    TimelineSemaphore,
}

/// A client's file descriptor, as one of our own to the same file; nothing if it is none.
pub(crate) fn client_file(fd: c_int) -> Option<OwnedFd> {
    if fd < 0 {
        return None;
    }
    // SAFETY: not -1. Whether the client has it open is asked here, and nothing is done with it after.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    borrowed.try_clone_to_owned().ok()
}

impl Label {
    /// A new file of that label, zeros before it.
    ///
    /// # Errors
    /// When the system gives none.
    pub(crate) fn file(&self) -> Result<OwnedFd, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("transload CUDA driver double", flags)?;
        let end = self.size.checked_add(LABEL).ok_or(Errno::NOMEM)?;
        ftruncate(&file, end)?;
        let written = pwrite(&file, &self.encode(), self.size)?;
        if written != LEN {
            return Err(Errno::IO);
        }
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    }

    /// The label of a file that a double made; nothing for any other.
    pub(crate) fn read(file: impl AsFd) -> Option<Label> {
        let stat = fstat(&file).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let size = u64::try_from(stat.st_size).ok()?.checked_sub(LABEL)?;
        let mut bytes = [0; LEN];
        let read = pread(&file, &mut bytes, size).ok()?;
        let label = Label::decode(&bytes)?;
        (read == LEN && label.size == size).then_some(label)
    }

    fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let parts: [&[u8]; 5] = [
            MAGIC,
            &(self.kind as u32).to_le_bytes(),
            &self.word.to_le_bytes(),
            &self.size.to_le_bytes(),
            &self.uuid,
        ];
        let mut at = 0;
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        bytes
    }

    fn decode(bytes: &[u8; LEN]) -> Option<Label> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (kind, rest) = rest.split_first_chunk()?;
        let (word, rest) = rest.split_first_chunk()?;
        let (size, uuid) = rest.split_first_chunk()?;
        let kind = u32::from_le_bytes(*kind);
        Some(Label {
            kind: *KINDS.iter().find(|known| **known as u32 == kind)?,
            size: u64::from_le_bytes(*size),
            uuid: uuid.try_into().ok()?,
            word: u32::from_le_bytes(*word),
        })
    }
}

const KINDS: [Kind; 6] = [
    Kind::Piece,
    Kind::Memory,
    Kind::Event,
    Kind::Pool,
    Kind::BinarySemaphore,
    Kind::TimelineSemaphore,
];
/// The last character is the version of what follows.
const MAGIC: &[u8; 16] = b"transload cuda 1";
/// The label takes a page of its own, so that the bytes before it can be mapped without it.
const LABEL: u64 = 4096;
const LEN: usize = MAGIC.len() + 4 + 4 + 8 + 16;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::physical::memory_file;

    #[test]
    fn a_file_of_ours_is_told_from_any_other() {
        let label = Label {
            kind: Kind::Piece,
            size: 3 * 4096,
            uuid: *b"0123456789abcdef",
            word: 0x0102_0304,
        };
        let file = label.file().unwrap();
        assert_eq!(Label::read(&file), Some(label));
        assert_eq!(ftruncate(&file, 4096), Err(Errno::PERM), "it is sealed");
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(Label::read(&reader), None);
        assert_eq!(Label::read(memory_file(4 * 4096).unwrap()), None);
        assert_eq!(Label::read(memory_file(7).unwrap()), None);
        assert_eq!(Label::read(fs::File::open("/dev/zero").unwrap()), None);
    }
}
