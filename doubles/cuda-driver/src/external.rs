//! Memory of other interfaces, such as Vulkan.
//!
//! Source: CUDA Driver API, External Resource Interoperability: cuImportExternalMemory,
//! cuExternalMemoryGetMappedBuffer, cuDestroyExternalMemory.
//!
//! Only the driver that made an opaque file descriptor can interpret it, and on a machine with a GPU that is NVIDIA's
//! driver. Here it belongs to a Vulkan driver that renders on the host, and is a file in memory. Their contents, as
//! inspected:
//! - SwiftShader, as of Chromium 156: the memory, from the file's beginning;
//! - lavapipe, as of Mesa 22.3: a header, and the memory from the page after it. The header begins with the file's
//!   length and the place where the memory begins, 8 bytes each (`os_malloc_aligned_fd` in Mesa's sources);
//! - a piece of memory of `cuMemCreate`: the memory, with a label after it.
//!
//! Memory that is backed by real device memory cannot be imported here.

mod functions;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, fstat};
use rustix::io::pread;
use transload_cuda::raw::{CUcontext, CUdevice, CUresult};

pub use self::functions::*;
use crate::bytes::Bytes;
use crate::shared::{Kind, Label};

/// Memory of another interface.
#[derive(Debug)]
pub(crate) struct External {
    /// It ends with this context (CUDA Driver API, cuCtxDestroy).
    context: CUcontext,
    device: CUdevice,
    /// The whole file, which may hold more than the memory.
    bytes: Arc<Bytes>,
    /// The offset of the memory in the file.
    offset: u64,
    size: u64,
}

impl External {
    /// # Errors
    /// `INVALID_HANDLE` for a file that is no memory, `INVALID_VALUE` for one that holds less than `size`,
    /// `OPERATING_SYSTEM` for one that cannot be mapped.
    fn new(
        (context, device): (CUcontext, CUdevice),
        file: OwnedFd,
        size: u64,
    ) -> Result<External, CUresult> {
        let range = memory_in(file.as_fd()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if size == 0 || size > range.end - range.start {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let bytes = Bytes::of_file(file, 0, (range.start + size) as usize);
        Ok(External {
            context,
            device,
            bytes: bytes.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?,
            offset: range.start,
            size,
        })
    }
}

/// The range of the memory in a file; `None` for a file that is not in memory, or that holds no known memory.
fn memory_in(file: BorrowedFd<'_>) -> Option<std::ops::Range<u64>> {
    let stat = fstat(file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    if let Some(label) = Label::read(file) {
        return (label.kind == Kind::Piece).then_some(0..label.size);
    }
    let len = u64::try_from(stat.st_size).ok()?;
    let mut header = [0; 16];
    let read = pread(file, &mut header, 0).ok()?;
    let word = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes);
    let (stored_len, start) = (word(0).ok()?, word(8).ok()?);
    let has_header = read == header.len() && stored_len == len;
    if has_header && start != 0 && start < len && start.is_multiple_of(PAGE) {
        return Some(start..len);
    }
    Some(0..len)
}

const PAGE: u64 = 4096;
