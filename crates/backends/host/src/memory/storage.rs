//! What the host's memories share: buffers over addresses, checks of what is asked for, and errors.

use transload_hal::{
    AllocError, Buffer, ExternalKind, HOST, HostSpan, ImportError, MemoryId, Owner, StorageId,
    StorageInfo,
};

/// The buffer of bytes at an address; `identity` is their storage, and the position of the first byte in it.
///
/// # Safety
/// As `Buffer::new` for the span and the owner.
pub(super) unsafe fn buffer_at(
    memory: MemoryId,
    (id, base): (StorageId, u64),
    host: HostSpan,
    writable: bool,
    owner: Box<dyn Owner>,
) -> Buffer {
    let info = StorageInfo {
        id,
        base,
        len_bytes: host.len() as u64,
        memory,
        backend: HOST,
        writable,
        host: Some(host),
    };
    // SAFETY: the caller's promise.
    unsafe { Buffer::new(info, owner) }
}

/// The length as the address space counts it.
pub(super) fn check_len(memory: MemoryId, len_bytes: u64) -> Result<usize, AllocError> {
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
pub(super) fn check_alignment(
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

/// Why memory was not allocated. Only a lack of room is one of the memory: the process may lack descriptors, too, or be
/// forbidden to have such memory.
#[cfg(any(target_os = "linux", target_os = "android", windows))]
pub(super) fn not_allocated(
    memory: MemoryId,
    len_bytes: u64,
    error: &std::io::Error,
) -> AllocError {
    let fault = transload_hal::Fault::of_io("the system gave none", error);
    match error.kind() {
        std::io::ErrorKind::OutOfMemory
        | std::io::ErrorKind::StorageFull
        | std::io::ErrorKind::QuotaExceeded => AllocError::OutOfMemory {
            memory,
            len_bytes,
            fault,
        },
        _ => AllocError::Failed { memory, fault },
    }
}

/// Why an external cannot be taken in.
pub(super) fn invalid(memory: MemoryId, kind: ExternalKind, reason: String) -> ImportError {
    ImportError::Invalid {
        memory,
        kind,
        reason: reason.into(),
    }
}
