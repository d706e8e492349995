//! The memories of the host: allocation, import and export in each.

#[cfg(any(target_os = "linux", target_os = "android"))]
mod alias;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod arena;
mod exchange;
pub mod file;
pub mod heap;
#[cfg(unix)]
mod mapping;
pub(crate) mod room;
#[cfg(windows)]
pub mod section;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub mod shared;

use std::io;

use transload_hal::{
    AllocError, AllocSpec, Buffer, DeviceId, ErrorClass, Fault, MemoryId, MemoryKind, StorageId,
    StorageInfo,
};

pub(crate) use exchange::{export, import};
use file::{FileError, HostFile};
use heap::HeapMemory;
#[cfg(windows)]
use section::SharedMemory;
#[cfg(any(target_os = "linux", target_os = "android"))]
use shared::SharedMemory;

use crate::device::BACKEND;

/// `cpu:0/pageable`: memory that the process allocates or adopts.
pub const PAGEABLE: MemoryId = DeviceId::CPU0.memory(MemoryKind::Pageable);
/// `cpu:0/shared`: memory with a handle, for other processes and other drivers. On Linux, memory below 1 MiB that was not
/// allocated [for sharing](AllocSpec::for_sharing) gets its handle at the first export. A child process that is forked
/// before that has a copy of the memory.
pub const SHARED: MemoryId = DeviceId::CPU0.memory(MemoryKind::Shared);
/// `cpu:0/file`: files, by positioned reads and writes.
pub const FILE: MemoryId = DeviceId::CPU0.memory(MemoryKind::File);

/// Whether this system has shared memory with handles that this backend can make.
pub(crate) const HAS_SHARED: bool = cfg!(any(target_os = "linux", target_os = "android", windows));
/// Whether this system has files.
pub(crate) const HAS_FILES: bool = cfg!(any(unix, windows));

/// Allocates in any of the host's memories.
pub(crate) fn allocate(memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
    match memory {
        PAGEABLE => {
            let heap = HeapMemory::allocate(memory, spec)?;
            // `allocate` found the length to fit.
            let host = heap.span(spec.len_bytes as usize);
            let info = StorageInfo {
                id: StorageId::Host,
                base: host.addr(),
                len_bytes: spec.len_bytes,
                memory,
                backend: BACKEND,
                writable: true,
                host: Some(host),
            };
            // SAFETY: the heap memory is valid for that span while it lives, and no other code knows its address.
            Ok(unsafe { Buffer::new(info, Box::new(heap)) })
        }
        #[cfg(any(target_os = "linux", target_os = "android", windows))]
        SHARED => SharedMemory::allocate(memory, spec).map(|shared| shared_buffer(memory, shared)),
        FILE => {
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
                    fault: file_fault(&error),
                },
            };
            HostFile::temporary(spec.len_bytes)
                .map(file_buffer)
                .map_err(failed)
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

/// The buffer of a file's range.
pub(crate) fn file_buffer(file: HostFile) -> Buffer {
    let info = StorageInfo {
        id: file.storage_id(),
        base: file.span().offset,
        len_bytes: file.span().len,
        memory: FILE,
        backend: BACKEND,
        writable: file.is_writable(),
        host: None,
    };
    // SAFETY: there is no host span; the identity is the file's own.
    unsafe { Buffer::new(info, Box::new(file)) }
}

/// The buffer of a mapped shared memory or file.
#[cfg(any(target_os = "linux", target_os = "android", windows))]
pub(crate) fn shared_buffer(memory: MemoryId, shared: SharedMemory) -> Buffer {
    let host = shared.host();
    let (id, base) = shared.identity();
    let info = StorageInfo {
        id,
        base,
        len_bytes: host.len() as u64,
        memory,
        backend: BACKEND,
        writable: shared.is_writable(),
        host: Some(host),
    };
    // SAFETY: the mapping is valid for that span while it lives. A new memfd has no other writers; for an imported file,
    // the importer promises that nothing else writes it.
    unsafe { Buffer::new(info, Box::new(shared)) }
}

/// The length as the address space counts it.
fn check_len(memory: MemoryId, len_bytes: u64) -> Result<usize, AllocError> {
    let limit_bytes = isize::MAX as u64;
    match usize::try_from(len_bytes) {
        Ok(len) if len_bytes <= limit_bytes => Ok(len),
        _ => Err(AllocError::TooLarge {
            memory,
            len_bytes,
            limit_bytes,
        }),
    }
}

/// The alignment, at least `least` and at most `limit`.
fn check_alignment(
    memory: MemoryId,
    alignment: u64,
    least: u64,
    limit: u64,
) -> Result<usize, AllocError> {
    if !alignment.is_power_of_two() || alignment > limit {
        return Err(AllocError::Alignment {
            memory,
            alignment,
            limit,
        });
    }
    usize::try_from(alignment.max(least)).map_err(|_| AllocError::Alignment {
        memory,
        alignment,
        limit,
    })
}

/// Converts a system error into a fault; `what` names the action that failed.
pub(crate) fn io_fault(what: &str, error: &io::Error) -> Fault {
    let class = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput => {
            ErrorClass::Caller
        }
        io::ErrorKind::OutOfMemory
        | io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::FileTooLarge => ErrorClass::Exhausted,
        io::ErrorKind::Unsupported => ErrorClass::Unsupported,
        _ => ErrorClass::Failed,
    };
    let told = format!("{what}: {error}");
    let Some(code) = error.raw_os_error() else {
        return Fault::new(class, told);
    };
    // A fault's text contains its code already.
    let message = match told.strip_suffix(&format!(" (os error {code})")) {
        Some(without) => without.to_owned(),
        None => told,
    };
    Fault::new(class, message).with_code(code.into())
}

fn file_fault(error: &FileError) -> Fault {
    match error.source_io() {
        Some(source) => {
            let fault = io_fault("", source);
            Fault {
                message: error.to_string().into(),
                ..fault
            }
        }
        None => Fault::new(ErrorClass::Caller, error.to_string()),
    }
}

#[cfg(test)]
mod tests;
