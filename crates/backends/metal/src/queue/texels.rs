//! Copies to and from the texels of textures.

use transload_hal::Fault;

use super::write::{PIECE, Side, Writer, unsupported};
use crate::raw::Raw;

impl Writer<'_> {
    /// Copies bytes of which at least one end is texels. If the other end is no buffer, or does not begin at a
    /// multiple of a texel there, the bytes go piece by piece through a buffer.
    ///
    /// # Safety
    /// As [`Blit::copy`].
    pub(super) unsafe fn copy_texels(
        &mut self,
        (src, from): (&Side, u64),
        (dst, to): (&Side, u64),
        len: u64,
    ) -> Result<(), Fault> {
        let texel = src.texel_bytes().max(dst.texel_bytes());
        for (side, at) in [(src, from), (dst, to)] {
            let own = side.texel_bytes();
            if own > 1 && !(at.is_multiple_of(own) && len.is_multiple_of(own)) {
                let message =
                    format!("{len} bytes from {at} on are no whole texels of {own} bytes");
                return Err(unsupported(message));
            }
        }
        let direct = match (src, dst) {
            (Side::Bytes(raw, _), Side::Texels(..)) if from.is_multiple_of(texel) => {
                Some((raw.clone(), from))
            }
            (Side::Texels(..), Side::Bytes(raw, _)) if to.is_multiple_of(texel) => {
                Some((raw.clone(), to))
            }
            _ => None,
        };
        if let Some(between) = direct {
            // SAFETY: the caller's promise.
            unsafe { self.copy_through((src, from), (dst, to), (&between.0, between.1), len) };
            return Ok(());
        }
        let scratch = self.scratch()?;
        let mut done = 0;
        while done < len {
            let piece = PIECE.min(len - done);
            let (from, to) = (from + done, to + done);
            if let Side::Bytes(src, _) = src {
                // SAFETY: as above; the scratch is this lane's, and an encoder's copies take effect in order.
                unsafe { self.copy((src, from), (&scratch, 0), piece) }?;
            }
            // SAFETY: as above.
            unsafe { self.copy_through((src, from), (dst, to), (&scratch, 0), piece) };
            if let Side::Bytes(dst, _) = dst {
                // SAFETY: as above.
                unsafe { self.copy((&scratch, 0), (dst, to), piece) }?;
            }
            done += piece;
        }
        Ok(())
    }

    /// Copies texels to a buffer, or from there, or both.
    ///
    /// # Safety
    /// As [`Blit::copy`].
    unsafe fn copy_through(
        &self,
        (src, from): (&Side, u64),
        (dst, to): (&Side, u64),
        (between, at): (&Raw, u64),
        len: u64,
    ) {
        if let Side::Texels(image, _) = src {
            let mut at = at;
            for texels in image.runs(from, len) {
                // SAFETY: the caller's promise.
                unsafe { image.read(self.blit, texels, (between, at)) };
                at += texels.count() * image.texel_bytes;
            }
        }
        if let Side::Texels(image, _) = dst {
            let mut at = at;
            for texels in image.runs(to, len) {
                // SAFETY: as above.
                unsafe { image.write(self.blit, (between, at), texels) };
                at += texels.count() * image.texel_bytes;
            }
        }
    }
}
