//! Imports and exports of memory, without copying.

#[cfg(all(feature = "cudarc", any(target_os = "linux", windows)))]
use std::any::Any;

use transload_hal::{Buffer, External, ExternalKind, ImportError, MemoryId, MemoryKind, Owner};

use super::adopt::{Pointer, adopt};
use super::ipc::{self, Ipc};
use super::registered::{Registrations, register};
use super::storage::address;
use crate::gpu::Gpu;
use crate::ids::{BACKEND, PINNED};

/// The state that imported buffers share.
#[derive(Default)]
pub(crate) struct Exchange {
    registrations: Registrations,
    ipc: Ipc,
}

/// Makes a buffer of an external:
///
/// - host memory into `cpu:0/pinned`: registered in place, unless it is already registered;
/// - memory that the driver knows by its address into the memory that it belongs to;
/// - memory of another process into a device's.
///
/// # Safety
/// As `Backend::import`.
pub(crate) unsafe fn import(
    gpus: &[Gpu],
    exchange: &Exchange,
    memory: MemoryId,
    external: External,
) -> Result<Buffer, ImportError> {
    let kind = external.kind();
    let gpu = gpus.iter().find(|gpu| gpu.id == memory.device);
    let is_known = match memory.kind {
        MemoryKind::Device => gpu.is_some(),
        MemoryKind::Managed => gpu.is_some_and(|gpu| gpu.facts.has_managed),
        _ => memory == PINNED,
    };
    if !is_known {
        return Err(ImportError::UnknownMemory { memory });
    }
    match external {
        External::Host {
            span,
            writable,
            owner,
        } if memory == PINNED => {
            // SAFETY: the caller's promise.
            unsafe { register(gpus, &exchange.registrations, (span, writable), owner) }
        }
        External::Device {
            address,
            len_bytes,
            writable,
            owner,
        } => {
            let pointer = Pointer {
                address,
                len_bytes,
                writable,
            };
            // SAFETY: as above.
            unsafe { adopt(gpus, memory, pointer, owner) }
        }
        External::Ipc(handle)
            if memory.kind == MemoryKind::Device && handle.kind() == ExternalKind::CudaIpc =>
        {
            // SAFETY: as above.
            unsafe { ipc::import(gpus, &exchange.ipc, memory, handle) }
        }
        External::Object(object) => take(gpus, memory, object),
        _ => Err(ImportError::Unsupported {
            memory,
            kind,
            reason: match memory.kind {
                MemoryKind::Device => "it takes device pointers and CUDA IPC handles",
                MemoryKind::Managed => "it takes device pointers",
                _ => "it takes host memory and device pointers",
            }
            .into(),
        }),
    }
}

/// Imports an object of another library that was made for this backend.
fn take(gpus: &[Gpu], memory: MemoryId, object: Box<dyn Owner>) -> Result<Buffer, ImportError> {
    #[cfg(all(feature = "cudarc", any(target_os = "linux", windows)))]
    let object = {
        let object: Box<dyn Any> = object;
        match object.downcast::<crate::cudarc::Slice>() {
            Ok(slice) => {
                let pointer = Pointer {
                    address: slice.address,
                    len_bytes: slice.len_bytes,
                    writable: true,
                };
                // SAFETY: the slice owns the memory and was idle when it was taken over, and no other code has
                // it.
                return unsafe { adopt(gpus, memory, pointer, slice.owner) };
            }
            Err(object) => object,
        }
    };
    // Without the feature no device is asked.
    let _ = gpus;
    drop(object);
    Err(ImportError::Unsupported {
        memory,
        kind: ExternalKind::Object,
        reason: "device pointers are imported, and cudarc's slices are adopted with the feature `cudarc`".into(),
    })
}

/// Exports a buffer for other users; its bytes stay where they are.
pub(crate) fn export(
    gpus: &[Gpu],
    exchange: &Exchange,
    buffer: &Buffer,
    kind: ExternalKind,
) -> Result<External, ImportError> {
    let memory = buffer.memory();
    if buffer.backend() != BACKEND {
        return Err(ImportError::UnknownMemory { memory });
    }
    let owner = Box::new(buffer.clone());
    let writable = buffer.is_writable();
    match (kind, buffer.host(0, buffer.len())) {
        (ExternalKind::Host, Some(span)) if memory == PINNED => Ok(External::Host {
            span,
            writable,
            owner,
        }),
        (ExternalKind::DevicePointer, _) if memory != PINNED => Ok(External::Device {
            address: address(buffer),
            len_bytes: buffer.len(),
            writable,
            owner,
        }),
        (ExternalKind::CudaIpc, _) => ipc::export(gpus, &exchange.ipc, buffer).map(External::Ipc),
        _ => Err(ImportError::Unsupported {
            memory,
            kind,
            reason: match memory.kind {
                MemoryKind::Device => {
                    "it is given out as a device pointer and as a CUDA IPC handle"
                }
                MemoryKind::Managed => "it is given out as a device pointer",
                _ => "it is given out as host memory",
            }
            .into(),
        }),
    }
}
