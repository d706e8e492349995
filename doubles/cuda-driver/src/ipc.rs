//! Memory and events that other processes of this machine use too.
//!
//! Source: CUDA Driver API, Memory Management: cuIpcGetMemHandle, cuIpcOpenMemHandle, cuIpcCloseMemHandle,
//! cuIpcGetEventHandle, cuIpcOpenEventHandle.
//!
//! A handle [names](Name) a file descriptor of the process that exported it, which other processes open through
//! `/proc/PID/fd`. The processes must only belong to one user: opening needs permission to read a process, not to trace
//! it. The shared state lives in files: the device's memory is one file, an event's records are a
//! [page of numbers](crate::numbers).

mod event;
mod memory;
mod record;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process;

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;
use transload_cuda::raw::{CUcontext, CUdevice, CUdeviceptr, CUresult};

pub use self::event::*;
pub use self::memory::*;
pub(crate) use self::record::{Last, SharedEvent};

/// A file descriptor of a process, as handles contain it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    sort: u8,
    process: u32,
    fd: u32,
    /// The file's number, which distinguishes it from a later file under the same descriptor.
    inode: u64,
}

/// Opened memory, by address.
#[derive(Debug, Default)]
pub(crate) struct Ipc {
    opened: BTreeMap<CUdeviceptr, Opened>,
}

/// Memory of another process.
#[derive(Clone, Copy, Debug)]
struct Opened {
    name: Name,
    context: CUcontext,
    device: CUdevice,
    /// The number of closes that are left.
    holders: usize,
}

/// The kinds of objects that handles name.
const MEMORY: u8 = 1;
const EVENT: u8 = 2;

/// The prefix of handles; its last character is the version of the rest.
const MAGIC: &[u8; 15] = b"transload ipc 1";

impl Name {
    /// # Errors
    /// `OPERATING_SYSTEM` when the system does not tell the file's number.
    fn of(sort: u8, file: BorrowedFd<'_>) -> Result<Name, CUresult> {
        Ok(Name {
            sort,
            process: process::id(),
            fd: file.as_raw_fd().unsigned_abs(),
            inode: inode(file).ok_or(CUresult::CUDA_ERROR_OPERATING_SYSTEM)?,
        })
    }

    fn encode(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..15].copy_from_slice(MAGIC);
        bytes[15] = self.sort;
        bytes[16..20].copy_from_slice(&self.process.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.fd.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.inode.to_le_bytes());
        bytes
    }

    /// # Errors
    /// `INVALID_HANDLE` for what is no handle of that sort, `INVALID_CONTEXT` for one of this process: it has
    /// what the handle names already.
    fn decode(sort: u8, bytes: &[u8; 64]) -> Result<Name, CUresult> {
        let wrong = CUresult::CUDA_ERROR_INVALID_HANDLE;
        let rest = bytes.strip_prefix(MAGIC).ok_or(wrong)?;
        let (found, rest) = rest.split_first().ok_or(wrong)?;
        let (process, rest) = rest.split_first_chunk().ok_or(wrong)?;
        let (fd, rest) = rest.split_first_chunk().ok_or(wrong)?;
        let (inode, rest) = rest.split_first_chunk().ok_or(wrong)?;
        if *found != sort || rest.iter().any(|byte| *byte != 0) {
            return Err(wrong);
        }
        let name = Name {
            sort,
            process: u32::from_le_bytes(*process),
            fd: u32::from_le_bytes(*fd),
            inode: u64::from_le_bytes(*inode),
        };
        if name.process == process::id() {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        Ok(name)
    }

    /// Opens the file that it names.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when it is gone, or its process; `MAP_FAILED` when this process may not.
    fn open(self) -> Result<OwnedFd, CUresult> {
        let path = format!("/proc/{}/fd/{}", self.process, self.fd);
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let file = file.map_err(|error| match error {
            Errno::ACCESS | Errno::PERM => CUresult::CUDA_ERROR_MAP_FAILED,
            _ => CUresult::CUDA_ERROR_INVALID_HANDLE,
        })?;
        let same = inode(file.as_fd()) == Some(self.inode);
        same.then_some(file)
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }
}

fn inode(file: BorrowedFd<'_>) -> Option<u64> {
    fstat(file).ok().map(|stat| stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written_and_nothing_else_is_one() {
        let name = Name {
            sort: MEMORY,
            process: u32::MAX,
            fd: 7,
            inode: 1 << 40,
        };
        let bytes = name.encode();
        assert_eq!(Name::decode(MEMORY, &bytes), Ok(name));
        let wrong = Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(Name::decode(EVENT, &bytes), wrong);
        for at in [0, 14, 15, 32, 63] {
            let mut bytes = bytes;
            bytes[at] ^= 1;
            assert_eq!(Name::decode(MEMORY, &bytes), wrong, "byte {at}");
        }
        assert_eq!(
            name.open().unwrap_err(),
            CUresult::CUDA_ERROR_INVALID_HANDLE
        );
        let own = Name {
            process: process::id(),
            ..name
        };
        assert_eq!(
            Name::decode(MEMORY, &own.encode()),
            Err(CUresult::CUDA_ERROR_INVALID_CONTEXT)
        );
    }
}
