//! Buffers of the program's own.

use transload_hal::{Buffer, ExternalKind, HostSpan, ImportError, MemoryId};

use super::{MetalBuffer, info, mode_of};
use crate::gpu::Gpu;

const KIND: ExternalKind = ExternalKind::Object;

/// Imports a buffer of the program's own into the memory that it belongs to.
///
/// # Safety
/// As `Backend::import`: while the manager uses its bytes, nothing else touches them.
pub(crate) unsafe fn adopt(
    gpu: &Gpu,
    memory: MemoryId,
    buffer: MetalBuffer,
) -> Result<Buffer, ImportError> {
    let invalid = |reason: String| ImportError::Invalid {
        memory,
        kind: KIND,
        reason: reason.into(),
    };
    let raw = buffer.raw();
    if !raw.is_of(&gpu.device) {
        return Err(invalid(format!("it is no buffer of {}", gpu.id)));
    }
    let mode = mode_of(gpu, memory.kind).ok_or(ImportError::UnknownMemory { memory })?;
    match raw.mode() {
        Some(own) if own == mode => {}
        Some(own) => {
            return Err(invalid(format!(
                "its storage mode is {own:?}, and that of {memory} is {mode:?}"
            )));
        }
        None => {
            return Err(invalid(format!(
                "its storage mode is of no use here, and that of {memory} is {mode:?}"
            )));
        }
    }
    let buffer = buffer.known(gpu);
    buffer.marks().give_out();
    let raw = buffer.raw();
    let len_bytes = raw.len_bytes();
    let host = raw
        .contents()
        .map(|start| HostSpan::new(start, len_bytes as usize));
    let info = info(memory, raw.handle(), (len_bytes, host));
    // SAFETY: the owner keeps the buffer, and Metal its contents as long as that; the address, or the handle of the
    // object, is the same for several owners; for the rest the caller's promise.
    Ok(unsafe { Buffer::new(info, Box::new(buffer)) })
}
