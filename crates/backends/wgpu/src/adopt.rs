//! What a user hands over of its own, wherever wgpu runs.

use std::any::Any;

use transload_hal::core::MemoryId;
use transload_hal::{Buffer, ExternalKind, ImportError, Owner};

use crate::device::Gpu;
use crate::storage::{PRIVATE, reject_usages, wrap};
use crate::texture::{self, Texels};

/// Takes in an object of wgpu's, of the device's memory.
///
/// # Errors
/// When it is none, or no transfer could use it.
pub(crate) fn adopt(
    gpu: &Gpu,
    memory: MemoryId,
    object: Box<dyn Owner>,
) -> Result<Buffer, ImportError> {
    let object: Box<dyn Any> = object;
    let object = match object.downcast::<wgpu::Buffer>() {
        Ok(owned) => return buffer(gpu, memory, *owned),
        Err(object) => object,
    };
    let object = match object.downcast::<wgpu::Texture>() {
        Ok(owned) => return texture::adopt(gpu, memory, *owned),
        Err(object) => object,
    };
    match object.downcast::<Texels>() {
        Ok(owned) => texture::adopt(gpu, memory, *owned),
        Err(_) => Err(ImportError::Unsupported {
            memory,
            kind: ExternalKind::Object,
            reason: "the object is no wgpu::Buffer, wgpu::Texture or Texels".into(),
        }),
    }
}

fn buffer(gpu: &Gpu, memory: MemoryId, buffer: wgpu::Buffer) -> Result<Buffer, ImportError> {
    reject_usages(memory, &buffer)?;
    if gpu.is_private() {
        return Err(ImportError::Invalid {
            memory,
            kind: ExternalKind::Object,
            reason: PRIVATE.into(),
        });
    }
    // A command that does nothing, and that no other device's buffer may be part of.
    gpu.try_out(memory, |encoder| {
        encoder.clear_buffer(&buffer, 0, Some(0));
    })?;
    let len = buffer.size();
    Ok(wrap(gpu, memory, buffer, len))
}
