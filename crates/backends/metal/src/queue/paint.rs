//! Copies to and from the texels of textures.

use std::borrow::Cow;

use transload_hal::{ErrorClass, Fault};

use super::write::{PIECE, Writer, overlaps};
use crate::raw::{Image, Raw};

/// One end of a copy as a Metal object, and its first byte.
pub(super) enum Side {
    Bytes(Raw, u64),
    Texels(Image, u64),
}

impl Side {
    /// A byte of the operand, in the object.
    pub(super) fn at(&self, offset: u64) -> u64 {
        match self {
            Side::Bytes(_, first) | Side::Texels(_, first) => first + offset,
        }
    }

    fn texel_bytes(&self) -> u64 {
        match self {
            Side::Bytes(..) => 1,
            Side::Texels(image, _) => image.texel_bytes,
        }
    }

    /// Whether so many bytes from `from` on here, and from `to` on at another side of the same storage, have some in
    /// common.
    pub(super) fn overlaps(&self, from: u64, other: &Side, to: u64, len: u64) -> bool {
        match (self, other) {
            (Side::Bytes(src, _), Side::Bytes(dst, _)) => overlaps(((src, from), (dst, to)), len),
            _ => from.abs_diff(to) < len,
        }
    }
}

pub(super) fn unsupported(message: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(ErrorClass::Unsupported, message)
}

impl Writer<'_> {
    /// Copies bytes of which at least one end is texels. If the other end is no buffer, or does not begin at a
    /// multiple of a texel there, the bytes go piece by piece through a buffer.
    ///
    /// # Safety
    /// As [`Blit::copy`].
    pub(super) unsafe fn paint(
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
            unsafe { self.through((src, from), (dst, to), (&between.0, between.1), len) };
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
            unsafe { self.through((src, from), (dst, to), (&scratch, 0), piece) };
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
    unsafe fn through(
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
