//! Textures of the program's own, whose texels are bytes.

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBlitCommandEncoder as _, MTLDevice as _, MTLOrigin, MTLPixelFormat, MTLResource as _,
    MTLSize, MTLTexture, MTLTextureType,
};

use super::{Blit, Device, Raw};

/// A retained texture and its properties.
#[derive(Clone)]
pub(crate) struct Image {
    raw: Retained<ProtocolObject<dyn MTLTexture>>,
    /// In texels.
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) texel_bytes: u64,
}

// SAFETY: as for `Raw`: the object is asked what it was made with, when it is taken in, and named to encoders.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

/// Some texels, row by row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Texels {
    pub(crate) x: u64,
    pub(crate) y: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

impl Texels {
    pub(crate) fn count(self) -> u64 {
        self.width * self.height
    }

    /// The `count` texels from `first` on of an image that is `width` texels wide: the rest of a row, whole rows, and
    /// the beginning of one.
    pub(crate) fn runs(width: u64, first: u64, count: u64) -> impl Iterator<Item = Texels> {
        let (mut at, end) = (first, first + count);
        std::iter::from_fn(move || {
            let (x, y, left) = (at % width, at / width, end - at);
            let some = match (x, left) {
                (_, 0) => return None,
                (0, _) if left >= width => (width, left / width),
                _ => (left.min(width - x), 1),
            };
            at += some.0 * some.1;
            Some(Texels {
                x,
                y,
                width: some.0,
                height: some.1,
            })
        })
    }
}

impl Image {
    /// # Errors
    /// The reason why its texels are not a range of bytes.
    pub(crate) fn of(raw: Retained<ProtocolObject<dyn MTLTexture>>) -> Result<Image, String> {
        let (sort, samples) = (raw.textureType(), raw.sampleCount());
        if sort != MTLTextureType::Type2D || samples != 1 {
            let plain = MTLTextureType::Type2D;
            return Err(format!(
                "it is of {sort:?} with {samples} samples a texel, and only {plain:?}, of two dimensions, with one sample is \
                 rows of texels"
            ));
        }
        if raw.buffer().is_some() || raw.parentTexture().is_some() {
            return Err("its texels are bytes of a buffer or of another texture".into());
        }
        let format = raw.pixelFormat();
        let texel_bytes = texel_bytes(format)
            .ok_or_else(|| format!("texels of {format:?} have no whole bytes each"))?;
        Ok(Image {
            width: raw.width() as u64,
            height: raw.height() as u64,
            texel_bytes,
            raw,
        })
    }

    pub(crate) fn raw(&self) -> &ProtocolObject<dyn MTLTexture> {
        &self.raw
    }

    pub(crate) fn into_raw(self) -> Retained<ProtocolObject<dyn MTLTexture>> {
        self.raw
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.width * self.height * self.texel_bytes
    }

    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.raw.device().registryID() == device.0.registryID()
    }

    /// The texels of `len` bytes from byte `at` on.
    pub(crate) fn runs(&self, at: u64, len: u64) -> impl Iterator<Item = Texels> + use<> {
        let texel = self.texel_bytes;
        Texels::runs(self.width, at / texel, len / texel)
    }

    /// Names the texture as long as it lives.
    pub(crate) fn handle(&self) -> u64 {
        Retained::as_ptr(&self.raw).addr() as u64
    }

    /// Copies packed texels of a buffer, from a multiple of their size on, to their place.
    ///
    /// # Safety
    /// As [`Blit::copy`], of the buffer and of the texels.
    pub(crate) unsafe fn write(&self, blit: &Blit, (src, from): (&Raw, u64), texels: Texels) {
        let (origin, size) = place(texels);
        let row = (texels.width * self.texel_bytes) as usize;
        // SAFETY: the caller's promise.
        unsafe {
            blit.0
                .copyFromBuffer_sourceOffset_sourceBytesPerRow_sourceBytesPerImage_sourceSize_toTexture_destinationSlice_destinationLevel_destinationOrigin(
                    &src.0,
                    from as usize,
                    row,
                    row * size.height,
                    size,
                    &self.raw,
                    0,
                    0,
                    origin,
                );
        }
    }

    /// Copies texels to a buffer, packed, at a multiple of their size.
    ///
    /// # Safety
    /// As [`Image::write`].
    pub(crate) unsafe fn read(&self, blit: &Blit, texels: Texels, (dst, to): (&Raw, u64)) {
        let (origin, size) = place(texels);
        let row = (texels.width * self.texel_bytes) as usize;
        // SAFETY: the caller's promise.
        unsafe {
            blit.0
                .copyFromTexture_sourceSlice_sourceLevel_sourceOrigin_sourceSize_toBuffer_destinationOffset_destinationBytesPerRow_destinationBytesPerImage(
                    &self.raw,
                    0,
                    0,
                    origin,
                    size,
                    &dst.0,
                    to as usize,
                    row,
                    row * size.height,
                );
        }
    }
}

fn place(texels: Texels) -> (MTLOrigin, MTLSize) {
    let origin = MTLOrigin {
        x: texels.x as usize,
        y: texels.y as usize,
        z: 0,
    };
    let size = MTLSize {
        width: texels.width as usize,
        height: texels.height as usize,
        depth: 1,
    };
    (origin, size)
}

/// How many bytes a texel has; `None` for formats of blocks, of planes, and of bits (Apple, `MTLPixelFormat`).
fn texel_bytes(format: MTLPixelFormat) -> Option<u64> {
    Some(match format.0 {
        1 | 10..=14 => 1,
        20..=25 | 30..=34 | 40..=43 => 2,
        53..=55 | 60..=65 | 70..=74 | 80 | 81 | 90..=94 => 4,
        103..=105 | 110..=115 => 8,
        123..=125 => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texels_are_taken_by_whole_rows_where_there_are_some() {
        for (first, count) in [(0, 0), (0, 7), (0, 70), (3, 4), (3, 5), (6, 30), (9, 61)] {
            let mut at = first;
            let mut runs = 0;
            for texels in Texels::runs(7, first, count) {
                assert_eq!(texels.y * 7 + texels.x, at);
                assert!(texels.x + texels.width <= 7);
                assert!(texels.height == 1 || texels.width == 7);
                at += texels.count();
                runs += 1;
            }
            assert_eq!(at, first + count);
            assert!(runs <= 3);
        }
    }
}
