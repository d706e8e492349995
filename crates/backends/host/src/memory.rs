//! The memories of the host: allocation, import and export in each.

#[cfg(any(target_os = "linux", target_os = "android"))]
mod alias;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod arena;
pub(crate) mod direct;
mod exchange;
pub mod file;
pub mod heap;
pub(crate) mod hint;
pub(crate) mod holes;
pub(crate) mod lent;
#[cfg(unix)]
mod mapping;
#[cfg(windows)]
pub mod section;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub mod shared;
pub(crate) mod storage;
#[cfg(unix)]
mod store;

use transload_hal::{
    AllocError, AllocSpec, Buffer, DeviceId, HOST, MemoryId, MemoryKind, StorageId, StorageInfo,
};

pub(crate) use exchange::{export, import};
use file::{FileError, HostFile};
use heap::HeapMemory;
#[cfg(windows)]
use section::SharedMemory;
#[cfg(any(target_os = "linux", target_os = "android"))]
use shared::SharedMemory;

use storage::{buffer_at, check_alignment};

/// `cpu:0/pageable`: memory that the process allocates or adopts.
pub const PAGEABLE: MemoryId = DeviceId::CPU0.memory(MemoryKind::Pageable);
/// `cpu:0/shared`: memory with a handle, for other processes and other drivers. On Linux, memory below 1 MiB that was not
/// allocated [for sharing](AllocSpec::for_sharing) gets its handle at the first export. A child process that is forked
/// before that has a copy of the memory.
pub const SHARED: MemoryId = DeviceId::CPU0.memory(MemoryKind::Shared);
/// `cpu:0/file`: files, by positioned reads and writes.
pub const FILE: MemoryId = DeviceId::CPU0.memory(MemoryKind::File);

/// `cpu:0/disk`: files that are read past the system's cache ([`HostFile::read_directly`]), and written as other files.
pub const DISK: MemoryId = DeviceId::CPU0.memory(MemoryKind::Disk);

/// Whether this system has shared memory with handles that this backend can make.
pub(crate) const HAS_SHARED: bool = cfg!(any(target_os = "linux", target_os = "android", windows));
/// Whether this system has files.
pub(crate) const HAS_FILES: bool = cfg!(any(unix, windows));
/// Whether this system reads files past its cache.
pub(crate) const HAS_DISK: bool = cfg!(any(target_os = "linux", target_vendor = "apple", windows));

/// Allocates in any of the host's memories.
pub(crate) fn allocate(memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
    match memory {
        PAGEABLE => {
            let heap = HeapMemory::allocate(memory, spec)?;
            // `allocate` found the length to fit.
            let host = heap.span(spec.len_bytes as usize);
            let identity = (StorageId::Host, host.addr());
            // SAFETY: the heap memory is valid for that span while it lives, and no other code knows its address.
            Ok(unsafe { buffer_at(memory, identity, host, true, Box::new(heap)) })
        }
        #[cfg(any(target_os = "linux", target_os = "android", windows))]
        SHARED => SharedMemory::allocate(memory, spec).map(|shared| shared.into_buffer(memory)),
        FILE | DISK if HAS_FILES && (memory == FILE || HAS_DISK) => {
            check_alignment(memory, spec.alignment, 1, heap::MAX_ALIGNMENT)?;
            let failed = |error: FileError| match error {
                FileError::TooLong {
                    len_bytes,
                    limit_bytes: Some(limit_bytes),
                    ..
                } => AllocError::TooLarge {
                    memory,
                    len_bytes,
                    limit_bytes,
                },
                error => AllocError::Failed {
                    memory,
                    fault: error.to_fault(),
                },
            };
            let file = HostFile::temporary(spec.len_bytes).map_err(failed)?;
            let refused = |what: String| AllocError::Unsupported {
                memory,
                what: what.into(),
            };
            file_buffer(memory, file).map_err(refused)
        }
        #[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
        SHARED => Err(AllocError::Unsupported {
            memory,
            what: "shared memory with a handle is made through memfds and sections, which Linux and Windows have"
                .into(),
        }),
        _ => Err(AllocError::UnknownMemory { memory }),
    }
}

/// Makes the buffer of a file's range in a memory of files, or tells why it is not read so.
pub(crate) fn file_buffer(memory: MemoryId, mut file: HostFile) -> Result<Buffer, String> {
    match memory {
        DISK => { file.read_directly() }.map_err(|error| {
            format!(
                "{} is not read past the cache: {error}",
                file.path().display()
            )
        })?,
        _ => file.read_through_cache(),
    }
    let info = StorageInfo {
        id: file.storage_id(),
        base: file.span().offset,
        len_bytes: file.span().len,
        memory,
        backend: HOST,
        writable: file.is_writable(),
        host: None,
    };
    // SAFETY: there is no host span; the identity is the file's own.
    Ok(unsafe { Buffer::new(info, Box::new(file)) })
}

#[cfg(test)]
mod tests;
