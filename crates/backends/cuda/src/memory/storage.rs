//! What the kinds of memory share: limits, refusals, and the description of a storage.

use transload_hal::{
    AllocError, AllocSpec, Buffer, ErrorClass, Fault, MemoryId, StorageId, StorageInfo,
};

use crate::ids::BACKEND;
use crate::raw::CUdeviceptr;

/// "Any address of a variable residing in global memory or returned by one of the memory allocation routines from the
/// driver or runtime API is always aligned to at least 256 bytes" (CUDA C++ Programming Guide, Device Memory Accesses).
pub(crate) const ALIGNMENT: u64 = 256;

/// The strictest alignment that a caller can ask for: the largest page of a device.
const MAX_ALIGNMENT: u64 = 2 << 20;

/// The address of the first byte of a view of device memory.
pub(crate) fn address(buffer: &Buffer) -> CUdeviceptr {
    buffer.position()
}

pub(super) fn check(
    memory: MemoryId,
    spec: &AllocSpec,
    limit_bytes: u64,
) -> Result<(), AllocError> {
    if spec.len_bytes > limit_bytes {
        return Err(AllocError::TooLarge {
            memory,
            len_bytes: spec.len_bytes,
            limit_bytes,
        });
    }
    if !spec.alignment.is_power_of_two() || spec.alignment > MAX_ALIGNMENT {
        return Err(AllocError::Alignment {
            memory,
            alignment: spec.alignment,
            limit: MAX_ALIGNMENT,
        });
    }
    Ok(())
}

/// The number of bytes to ask the driver for, so that an aligned range of the length lies in them. It is never 0,
/// because the driver refuses empty allocations.
pub(super) fn with_room(spec: &AllocSpec) -> usize {
    let lead = match spec.alignment {
        0..=ALIGNMENT => 0,
        strict => strict - ALIGNMENT,
    };
    (spec.len_bytes.max(1) + lead) as usize
}

pub(super) fn refused(memory: MemoryId, len_bytes: u64, fault: Fault) -> AllocError {
    match fault.class {
        ErrorClass::Exhausted => AllocError::OutOfMemory {
            memory,
            len_bytes,
            fault,
        },
        // The fault of a lost device names the device itself, which may be another one than the memory's.
        _ => AllocError::Failed { memory, fault },
    }
}

pub(super) fn info(memory: MemoryId, id: StorageId, base: u64, len_bytes: u64) -> StorageInfo {
    StorageInfo {
        id,
        base,
        len_bytes,
        memory,
        backend: BACKEND,
        writable: true,
        host: None,
    }
}
