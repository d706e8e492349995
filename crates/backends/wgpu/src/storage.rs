//! What buffers of wgpu are to the hal, wherever wgpu runs.

use transload_hal::core::MemoryId;
use transload_hal::{
    AllocError, Buffer, ErrorClass, ExternalKind, Fault, ImportError, StorageId, StorageInfo,
};

use crate::device::{BACKEND, Gpu};

/// wgpu copies words.
pub(crate) const WORD: u64 = 4;

/// The strictest alignment that WebGPU lets an adapter demand of an offset into a buffer, whose first byte
/// has every one.
pub(crate) const OFFSETS: u64 = 256;

/// What may be done with buffers that the manager allocates: all that needs no feature.
pub(crate) const USAGES: wgpu::BufferUsages = wgpu::BufferUsages::COPY_SRC
    .union(wgpu::BufferUsages::COPY_DST)
    .union(wgpu::BufferUsages::STORAGE)
    .union(wgpu::BufferUsages::UNIFORM)
    .union(wgpu::BufferUsages::VERTEX)
    .union(wgpu::BufferUsages::INDEX)
    .union(wgpu::BufferUsages::INDIRECT);

/// Why a device takes in nothing of its user's.
pub(crate) const PRIVATE: &str = "it is of another device: this one's handles were given to nobody, \
                                  which `Wgpu::handles` does, and `Wgpu::with_devices` takes yours";

pub(crate) fn failed(error: &dyn std::fmt::Display) -> Fault {
    Fault::new(ErrorClass::Failed, error.to_string())
}

pub(crate) fn refused(memory: MemoryId, len_bytes: u64, fault: Fault) -> AllocError {
    match fault.class {
        ErrorClass::Exhausted => AllocError::OutOfMemory {
            memory,
            len_bytes,
            fault,
        },
        ErrorClass::Lost => AllocError::Lost {
            device: memory.device,
            fault,
        },
        _ => AllocError::Failed { memory, fault },
    }
}

/// # Errors
/// When a buffer of a user's was created without the usages that copies need.
pub(crate) fn reject_usages(memory: MemoryId, buffer: &wgpu::Buffer) -> Result<(), ImportError> {
    let needed = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let usage = buffer.usage();
    if usage.contains(needed) {
        return Ok(());
    }
    let lacks = needed.difference(usage);
    Err(ImportError::Invalid {
        memory,
        kind: ExternalKind::Object,
        reason: format!("its usages {usage:?} lack {lacks:?}").into(),
    })
}

pub(crate) fn wrap(gpu: &Gpu, memory: MemoryId, buffer: wgpu::Buffer, len: u64) -> Buffer {
    let handle = handle_of(memory, &buffer);
    // SAFETY: the host cannot reach it; the handle names the buffer.
    unsafe { gpu.storage(info(memory, handle, len), buffer) }
}

/// Clones of one object of wgpu's hash alike, so that they are one storage. wgpu hashes the number that
/// the object has among those of its sort and of its instance, which the device and the sort tell apart.
/// Two objects that happen to hash alike would wait for each other.
pub(crate) fn handle_of<T: std::hash::Hash>(memory: MemoryId, object: &T) -> u64 {
    use std::hash::BuildHasher as _;
    let state = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
    state.hash_one((memory.device, std::any::type_name::<T>(), object))
}

pub(crate) fn info(memory: MemoryId, handle: u64, len: u64) -> StorageInfo {
    StorageInfo {
        id: StorageId::Native {
            backend: BACKEND.0,
            handle,
        },
        base: 0,
        len_bytes: len,
        memory,
        backend: BACKEND,
        writable: true,
        host: None,
    }
}
