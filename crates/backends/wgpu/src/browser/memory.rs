//! The storages behind the buffers of this backend.

use std::rc::Rc;

use transload_hal::{AllocError, AllocSpec, Buffer};
use transload_hal::{MemoryId, MemoryKind};

use super::errors::Scopes;
use super::gpu::Gpu;
use crate::storage::{OFFSETS, USAGES, WORD, check_spec, refused};

/// Allocates in the memory of `gpu`. The browser reports only later whether it has room; if not,
/// transfers of the buffer fail with that reason.
pub(super) fn allocate(
    gpu: &Rc<Gpu>,
    memory: MemoryId,
    spec: &AllocSpec,
) -> Result<Buffer, AllocError> {
    if memory.kind != MemoryKind::Device {
        return Err(AllocError::UnknownMemory { memory });
    }
    let len = spec.len_bytes;
    check_spec(&gpu.device, memory, spec, OFFSETS)?;
    if let Some(fault) = gpu.lost.get() {
        return Err(refused(memory, len, fault.clone()));
    }
    let scopes = Scopes::of(&gpu.device);
    let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("transload"),
        size: len.next_multiple_of(WORD).max(WORD),
        usage: USAGES,
        mapped_at_creation: false,
    });
    let buffer = gpu.wrap(memory, buffer, len);
    gpu.watch_allocation(buffer.storage_id(), scopes);
    Ok(buffer)
}
