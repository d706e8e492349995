//! A small texture that bytes pass through.
//!
//! On macOS a copy from buffer to buffer begins and ends at multiples of four bytes (Apple, `MTLBlitCommandEncoder`,
//! `copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:`). A copy from a buffer to a texture, or back, begins
//! at any texel, and a texel of this one is a byte.

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBlitCommandEncoder as _, MTLDevice as _, MTLOrigin, MTLPixelFormat, MTLSize, MTLStorageMode,
    MTLTexture, MTLTextureDescriptor,
};

use super::{Blit, Device, Raw};

/// Bytes of a row. Every device has textures as wide.
const WIDTH: u64 = 4096;

/// Rows.
const HEIGHT: u64 = 256;

/// A texture of a megabyte.
pub(crate) struct Bounce(Retained<ProtocolObject<dyn MTLTexture>>);

// SAFETY: a name that only encoders are told of, one thread at a time, under the lock of its lane; references are
// counted atomically.
unsafe impl Send for Bounce {}

impl Bounce {
    pub(crate) fn new(device: &Device) -> Option<Bounce> {
        // SAFETY: the format is one of those that every device has, and both lengths are positive.
        let descriptor = unsafe {
            MTLTextureDescriptor::texture2DDescriptorWithPixelFormat_width_height_mipmapped(
                MTLPixelFormat::R8Uint,
                WIDTH as usize,
                HEIGHT as usize,
                false,
            )
        };
        descriptor.setStorageMode(MTLStorageMode::Private);
        device.0.newTextureWithDescriptor(&descriptor).map(Bounce)
    }

    /// How many of `len` bytes pass the texture at once.
    pub(crate) fn piece(len: u64) -> u64 {
        match len {
            0..WIDTH => len,
            _ => (len - len % WIDTH).min(WIDTH * HEIGHT),
        }
    }

    /// Copies `len` bytes, a [`Bounce::piece`], in two steps.
    ///
    /// # Safety
    /// As [`Blit::copy`], but the ranges may overlap.
    pub(crate) unsafe fn copy(
        &self,
        blit: &Blit,
        (src, from): (&Raw, u64),
        (dst, to): (&Raw, u64),
        len: u64,
    ) {
        let width = len.min(WIDTH) as usize;
        let size = MTLSize {
            width,
            height: len as usize / width,
            depth: 1,
        };
        let origin = MTLOrigin { x: 0, y: 0, z: 0 };
        // SAFETY: the caller's promise, and the texture has room for a piece.
        unsafe {
            blit.0
                .copyFromBuffer_sourceOffset_sourceBytesPerRow_sourceBytesPerImage_sourceSize_toTexture_destinationSlice_destinationLevel_destinationOrigin(
                    &src.0,
                    from as usize,
                    width,
                    len as usize,
                    size,
                    &self.0,
                    0,
                    0,
                    origin,
                );
        }
        // SAFETY: as above; an encoder's copies take effect in order.
        unsafe {
            blit.0
                .copyFromTexture_sourceSlice_sourceLevel_sourceOrigin_sourceSize_toBuffer_destinationOffset_destinationBytesPerRow_destinationBytesPerImage(
                    &self.0,
                    0,
                    0,
                    origin,
                    size,
                    &dst.0,
                    to as usize,
                    width,
                    len as usize,
                );
        }
    }
}
