//! The storages behind the buffers of this backend.

mod adopt;
mod buffer;
mod coherence;
mod hosted;
mod texture;

pub(crate) use adopt::{adopt, share};
pub use buffer::MetalBuffer;
pub(crate) use coherence::{Coherence, CoherenceMap, Synchronization};
pub(crate) use hosted::Hosted;
pub use texture::MetalTexture;
pub(crate) use texture::adopt_texture;

use transload_hal::MemoryKind;
use transload_hal::{
    AllocError, AllocSpec, Buffer, ErrorClass, Fault, HostSpan, MemoryId, StorageId, StorageInfo,
};

use crate::fault::nothing_of;
use crate::gpu::Gpu;
use crate::raw::{Mode, Raw, pooled};
use crate::types::{BACKEND, WORD};

/// The strictest alignment that a device demands of an offset into a buffer (Apple, Metal Feature Set Tables: minimum
/// constant buffer offset alignment, 256 bytes on Macs), whose first byte has every one.
pub(crate) const ALIGNMENT: u64 = 256;

/// Which of host and device reach a memory of a device; `None` for a memory that the device does not have.
pub(crate) fn mode_of(gpu: &Gpu, kind: MemoryKind) -> Option<Mode> {
    match kind {
        MemoryKind::Device => Some(Mode::Private),
        MemoryKind::Mapped => Some(Mode::Shared),
        MemoryKind::Managed if gpu.has_managed() => Some(Mode::Managed),
        _ => None,
    }
}

/// Allocates in a memory of a device.
pub(crate) fn allocate(
    gpu: &Gpu,
    memory: MemoryId,
    spec: &AllocSpec,
) -> Result<Buffer, AllocError> {
    let mode = mode_of(gpu, memory.kind).ok_or(AllocError::UnknownMemory { memory })?;
    let (len_bytes, limit_bytes) = (spec.len_bytes, gpu.facts.max_buffer_bytes);
    if len_bytes > limit_bytes {
        return Err(AllocError::TooLarge {
            memory,
            len_bytes,
            limit_bytes,
        });
    }
    if !spec.alignment.is_power_of_two() || spec.alignment > ALIGNMENT {
        return Err(AllocError::Alignment {
            memory,
            alignment: spec.alignment,
            limit: ALIGNMENT,
        });
    }
    if let Some(fault) = gpu.lost() {
        return Err(AllocError::Lost {
            device: gpu.id,
            fault: fault.clone(),
        });
    }
    // Metal makes nothing empty, and what is copied by words has whole ones.
    let room = len_bytes.max(1).next_multiple_of(WORD).min(limit_bytes);
    let is_combined = spec.write_combined && mode == Mode::Shared;
    let made = pooled(|_| gpu.device.buffer(room, mode, is_combined));
    let raw = made.ok_or_else(|| AllocError::OutOfMemory {
        memory,
        len_bytes,
        fault: nothing_of("newBufferWithLength"),
    })?;
    let host = match host_of(&raw, mode, len_bytes) {
        Ok(host) => host,
        Err(message) => {
            let fault = Fault::new(ErrorClass::Failed, message);
            return Err(AllocError::Failed { memory, fault });
        }
    };
    let info = info(memory, raw.handle(), (len_bytes, host));
    let owner = MetalBuffer::own(raw).known(gpu);
    // SAFETY: Metal keeps the buffer where it is until its last reference goes, which the owner holds; its address or
    // handle names it, and code that gets it from the owner promises to keep the order.
    Ok(unsafe { Buffer::new(info, Box::new(owner)) })
}

/// The address at which the host reaches the bytes; `None` if it does not reach them.
fn host_of(raw: &Raw, mode: Mode, len_bytes: u64) -> Result<Option<HostSpan>, String> {
    if mode == Mode::Private {
        return Ok(None);
    }
    let start = raw
        .contents()
        .ok_or("Metal says nowhere where the contents are")?;
    if !(start.addr().get() as u64).is_multiple_of(ALIGNMENT) {
        return Err(format!("the contents lie at {start:?}, which is odd"));
    }
    Ok(Some(HostSpan::new(start, len_bytes as usize)))
}

/// What is known of an object of Metal's. Bytes that the host reaches are known by their address, since they may be
/// seen without the object, too; others by the object.
fn info(memory: MemoryId, handle: u64, (len_bytes, host): (u64, Option<HostSpan>)) -> StorageInfo {
    let native = StorageId::Native {
        backend: BACKEND.0,
        handle,
    };
    let (id, base) = host.map_or((native, 0), |host| (StorageId::Host, host.addr()));
    StorageInfo {
        id,
        base,
        len_bytes,
        memory,
        backend: BACKEND,
        writable: true,
        host,
    }
}
