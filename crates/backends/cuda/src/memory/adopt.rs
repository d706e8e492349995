//! The user's own memory, imported by its address.

use std::ptr::NonNull;

use transload_hal::{
    Buffer, ExternalKind, HostSpan, ImportError, MemoryId, Owner, StorageId, StorageInfo,
};

use super::pointer::{Known, Sort, mapped, query};
use super::storage::info;
use crate::gpu::{Gpu, Opened, any};
use crate::ids::DEVICES;
use crate::raw::{CUdeviceptr, CUmemAccess_flags};

const KIND: ExternalKind = ExternalKind::DevicePointer;

/// A range of bytes at an address that the driver knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointer {
    pub(super) address: CUdeviceptr,
    pub(super) len_bytes: u64,
    pub(super) writable: bool,
}

/// Makes a buffer of memory that the driver knows, after asking the driver what the memory is.
///
/// # Safety
/// As `Backend::import`.
pub(super) unsafe fn adopt(
    gpus: &[Gpu],
    memory: MemoryId,
    pointer: Pointer,
    owner: Box<dyn Owner>,
) -> Result<Buffer, ImportError> {
    let failed = |fault| ImportError::Failed {
        memory,
        kind: KIND,
        fault,
    };
    let gpu = gpus.iter().find(|gpu| gpu.id == memory.device);
    let opened = match gpu {
        Some(gpu) => gpu.open(),
        None => any(gpus),
    };
    let opened = opened.map_err(failed)?;
    let _current = opened.context.enter().map_err(failed)?;
    let asked = query(&opened.context.driver, pointer.address);
    let known = asked.map_err(|error| failed(opened.blame(error)))?;
    let known = check(opened, memory, pointer, known)?;
    let (address, len_bytes) = (pointer.address, pointer.len_bytes);
    let shares_managed = gpu.is_some_and(|gpu| gpu.facts.shares_managed);
    let host = match known.sort {
        Sort::Device => None,
        Sort::Managed => Some(address).filter(|_| shares_managed),
        Sort::Host => Some(known.host_address),
    };
    let (id, base) = match known.sort {
        Sort::Device => (DEVICES, address),
        // The addresses of managed memory are valid on the host.
        Sort::Managed => (StorageId::Host, address),
        Sort::Host => (StorageId::Host, known.host_address),
    };
    let host = host.and_then(|host| {
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(host as usize))?;
        Some(HostSpan::new(start, len_bytes as usize))
    });
    let info = StorageInfo {
        host,
        writable: pointer.writable,
        ..info(memory, id, base, len_bytes)
    };
    // SAFETY: the driver has so many bytes there, which the owner keeps by the caller's promise, and where the host
    // must not touch them while the device works, no address is given.
    Ok(unsafe { Buffer::new(info, owner) })
}

/// Checks that the memory is what the caller says.
fn check(
    opened: &Opened,
    memory: MemoryId,
    pointer: Pointer,
    known: Option<Known>,
) -> Result<Known, ImportError> {
    let Pointer {
        address, len_bytes, ..
    } = pointer;
    let invalid = |reason: String| ImportError::Invalid {
        memory,
        kind: KIND,
        reason: reason.into(),
    };
    let known = known.ok_or_else(|| {
        invalid(format!(
            "the driver knows no memory at {address:#x}: it was freed, or is the host's own"
        ))
    })?;
    if known.home() != memory {
        let home = known.home();
        return Err(invalid(format!("{address:#x} is an address in {home}")));
    }
    let is_device = known.sort == Sort::Device;
    if is_device && !known.context.is_null() && known.context != opened.context.handle {
        // CUDA does not document what holds for a pointer that is used in another context of its device.
        return Err(ImportError::Unsupported {
            memory,
            kind: KIND,
            reason: format!(
                "{address:#x} was allocated in a context of the program's own, and only memory of the device's \
                 primary context, of pools or of mappings can be taken in"
            )
            .into(),
        });
    }
    let access = known.access.filter(|_| is_device);
    if access == Some(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        return Err(invalid(format!(
            "{} has no access to {address:#x}",
            memory.device
        )));
    }
    if access == Some(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ) && pointer.writable {
        return Err(invalid(format!(
            "{} may only read at {address:#x}",
            memory.device
        )));
    }
    let left = known.left(address);
    let left = match is_device && left >= len_bytes {
        true => mapped(&opened.context.driver, address, len_bytes),
        false => left,
    };
    if left < len_bytes {
        let (start, size) = (known.range.start, known.range.end - known.range.start);
        return Err(invalid(format!(
            "{left} bytes are left at {address:#x} of the {size} that begin at {start:#x}, not {len_bytes}"
        )));
    }
    Ok(known)
}
