//! Imports of a user's own objects, natively and in the browser.

use std::any::Any;

use transload_hal::MemoryId;
use transload_hal::{Buffer, External, ExternalKind, ImportError};

use crate::gpu::Gpu;
use crate::storage::{PRIVATE, reject_unusable};
use crate::texture::{self, Texels};

/// Imports a wgpu object of the device's memory.
///
/// # Errors
/// If it is no such object, or no transfer could use it.
pub(crate) fn import(
    gpu: &Gpu,
    memory: MemoryId,
    external: External,
) -> Result<Buffer, ImportError> {
    let kind = external.kind();
    let unsupported = |reason: &'static str| ImportError::Unsupported {
        memory,
        kind,
        reason: reason.into(),
    };
    let External::Object(object) = external else {
        return Err(unsupported(
            "it takes only a wgpu::Buffer, a wgpu::Texture or Texels",
        ));
    };
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
        Err(_) => Err(unsupported(
            "the object is no wgpu::Buffer, wgpu::Texture or Texels",
        )),
    }
}

fn buffer(gpu: &Gpu, memory: MemoryId, buffer: wgpu::Buffer) -> Result<Buffer, ImportError> {
    reject_unusable(memory, &buffer)?;
    if gpu.is_private() {
        return Err(ImportError::Invalid {
            memory,
            kind: ExternalKind::Object,
            reason: PRIVATE.into(),
        });
    }
    // A command that does nothing, and that wgpu refuses for a buffer of another device.
    gpu.try_out(memory, |encoder| {
        encoder.clear_buffer(&buffer, 0, Some(0));
    })?;
    let len = buffer.size();
    Ok(gpu.wrap(memory, buffer, len))
}
