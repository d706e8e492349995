//! Textures of the program's own.

use std::fmt;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::MTLTexture;
use transload_hal::{Buffer, ExternalKind, ImportError, MemoryId, MemoryKind};

use super::info;
use crate::gpu::Gpu;
use crate::raw::{DropPooled, Image, pooled};

/// A `MTLTexture` of the program's own, for the texels of its first level: row after row without padding.
/// `TransferManager::import` imports a texture of two dimensions whose texels have whole bytes, as `External::Object`,
/// into `metal:N/device`. A texture that shows the bytes of a buffer or of another texture is refused: the other object
/// can be imported as well, and the engine could not know that the two share bytes.
///
/// Transfers take whole texels: a range or a row that begins or ends inside one is refused.
pub struct MetalTexture(DropPooled<Result<Image, Unusable>>);

/// A texture that cannot be used as bytes, and why not.
type Unusable = (Retained<ProtocolObject<dyn MTLTexture>>, String);

// SAFETY: a texture that is no image is only given back; references are counted atomically.
unsafe impl Send for MetalTexture {}
// SAFETY: as above.
unsafe impl Sync for MetalTexture {}

impl MetalTexture {
    /// Wraps a texture. Other references to the texture stay valid.
    #[must_use]
    pub fn new(texture: Retained<ProtocolObject<dyn MTLTexture>>) -> MetalTexture {
        let image = pooled(|_| Image::of(texture.clone()));
        MetalTexture(DropPooled::new(image.map_err(|reason| (texture, reason))))
    }

    /// Returns the texture, for commands of the program's own.
    ///
    /// # Safety
    /// As [`MetalBuffer::get`](crate::MetalBuffer::get).
    #[must_use]
    pub unsafe fn get(&self) -> &ProtocolObject<dyn MTLTexture> {
        match &*self.0 {
            Ok(image) => image.raw(),
            Err((raw, _)) => raw,
        }
    }

    /// Returns the texture. `transload::Buffer::into_inner` gives the `MetalTexture` back once no view is left.
    #[must_use]
    pub fn into_inner(self) -> Retained<ProtocolObject<dyn MTLTexture>> {
        match self.0.into_inner() {
            Ok(image) => image.into_raw(),
            Err((raw, _)) => raw,
        }
    }

    pub(crate) fn image(&self) -> Option<&Image> {
        self.0.as_ref().ok()
    }
}

impl fmt::Debug for MetalTexture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.image().map(|image| (image.width, image.height));
        f.debug_struct("MetalTexture")
            .field("size", &size)
            .finish_non_exhaustive()
    }
}

/// Imports a texture of the program's own.
///
/// # Safety
/// As `Backend::import`: while the manager uses its texels, nothing else touches them.
pub(crate) unsafe fn adopt_texture(
    gpu: &Gpu,
    memory: MemoryId,
    texture: MetalTexture,
) -> Result<Buffer, ImportError> {
    let invalid = |reason: String| ImportError::Invalid {
        memory,
        kind: ExternalKind::Object,
        reason: reason.into(),
    };
    if memory.kind != MemoryKind::Device {
        return Err(invalid("texels are a device's own".into()));
    }
    let image = match &*texture.0 {
        Ok(image) => image,
        Err((_, reason)) => return Err(invalid(reason.clone())),
    };
    if !image.is_of(&gpu.device) {
        return Err(invalid(format!("it is no texture of {}", gpu.id)));
    }
    let info = info(memory, image.handle(), (image.len_bytes(), None));
    // SAFETY: the owner keeps the texture, which the handle names, and the host reaches none of it; for the rest the
    // caller's promise.
    Ok(unsafe { Buffer::new(info, Box::new(texture)) })
}
