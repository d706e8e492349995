//! Imports of the program's buffers and of host memory.

use std::any::Any;
use std::sync::Arc;

use transload_hal::{
    Buffer, ErrorClass, ExternalKind, Fault, HostSpan, ImportError, MemoryId, Owner, StorageId,
    StorageInfo,
};

use super::hosted::{Gone, Wrapped};
use super::{MetalBuffer, info, mode_of};
use crate::gpu::Gpu;
use crate::raw::{Raw, ReleaseBlock, page_bytes, pooled};

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
        kind: ExternalKind::Object,
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
    buffer.coherence().give_out();
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

/// Lets a device reach the caller's host memory in place.
///
/// # Safety
/// As `Backend::import`.
pub(crate) unsafe fn share(
    gpu: &Gpu,
    memory: MemoryId,
    (span, writable): (HostSpan, bool),
    owner: Box<dyn Owner>,
) -> Result<Buffer, ImportError> {
    let page = page_bytes();
    let (address, len) = (span.addr(), span.len() as u64);
    if len == 0 || !address.is_multiple_of(page) || !len.is_multiple_of(page) {
        let reason = format!("{len} bytes at {address:#x} are not whole pages of {page} bytes");
        return Err(ImportError::Invalid {
            memory,
            kind: ExternalKind::Host,
            reason: reason.into(),
        });
    }
    let failed = |fault| ImportError::Failed {
        memory,
        kind: ExternalKind::Host,
        fault,
    };
    if let Some(fault) = gpu.lost() {
        return Err(failed(fault.clone()));
    }
    let gone = Arc::new(Gone::default());
    let tell = Arc::clone(&gone);
    let block = ReleaseBlock::new(move || tell.tell());
    // SAFETY: the owner keeps the memory, and goes, or is taken out, when the block was called.
    let made = pooled(|_| unsafe { Raw::wrapping(&gpu.device, span, &block) });
    let raw = made.ok_or_else(|| {
        failed(Fault::new(
            ErrorClass::Unsupported,
            "Metal does not take this memory: newBufferWithBytesNoCopy gave nothing",
        ))
    })?;
    let guard = Wrapped::new(&gpu.hosted, raw.handle(), gone);
    gpu.hosted.add(address, raw);
    // If the owner is another buffer, the identity is that buffer's.
    let (id, base) = match (&*owner as &dyn Any).downcast_ref::<Buffer>() {
        Some(buffer) => (buffer.storage_id(), buffer.position()),
        None => (StorageId::Host, address),
    };
    let info = StorageInfo {
        id,
        base,
        writable,
        ..info(memory, 0, (len, Some(span)))
    };
    // SAFETY: the caller says that the span is valid as long as the owner lives, and Metal lets go of it first.
    Ok(unsafe { Buffer::guarded(info, owner, Box::new(guard)) })
}
