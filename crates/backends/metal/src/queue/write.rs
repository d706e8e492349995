//! Translates moves into commands.

use std::borrow::Cow;
use std::sync::Arc;

use transload_hal::{ErrorClass, Fault};

use super::flight::{Resources, Shared};
use super::moves::{HostOperand, Own};
use super::{End, Move};
use crate::fault::nothing_of;
use crate::memory::Synchronization;
use crate::raw::{Blit, Bounce, Device, Image, Mode, Raw, ReleaseBlock};
use crate::types::WORD;

/// The multiples at which copies between buffers begin and end: of four bytes on macOS, of one elsewhere (Apple,
/// `MTLBlitCommandEncoder`, `copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:`). Programs for iOS that a
/// Mac runs, through Catalyst or in the simulator, are taken to have its Metal. A power of two.
const GRAIN: u64 = match cfg!(any(
    target_os = "macos",
    target_abi = "macabi",
    target_abi = "sim",
    transload_metal_double
)) {
    true => WORD,
    false => 1,
};

/// The length of the pieces in which overlapping copies move.
pub(super) const PIECE: u64 = 1 << 20;

/// The resources of a lane for copies that need more than a plain command, made at first use.
#[derive(Default)]
pub(super) struct Kit {
    bounce: Option<Bounce>,
    scratch: Option<Raw>,
}

/// Writes the commands of one submission.
pub(super) struct Writer<'a> {
    pub(super) device: &'a Device,
    pub(super) blit: &'a Blit,
    pub(super) kit: &'a mut Kit,
    pub(super) resources: &'a mut Resources,
    pub(super) shared: &'a Shared,
    pub(super) place: usize,
    pub(super) gone: &'a ReleaseBlock,
}

/// One end of a copy as a Metal object, and its first byte.
pub(super) enum Side {
    Bytes(Raw, u64),
    Texels(Image, u64),
}

impl Side {
    /// A byte of the operand, in the object.
    fn at(&self, offset: u64) -> u64 {
        match self {
            Side::Bytes(_, first) | Side::Texels(_, first) => first + offset,
        }
    }

    pub(super) fn texel_bytes(&self) -> u64 {
        match self {
            Side::Bytes(..) => 1,
            Side::Texels(image, _) => image.texel_bytes,
        }
    }

    /// Whether so many bytes from `from` on here, and from `to` on at another side of the same storage, have some in
    /// common.
    fn overlaps(&self, from: u64, other: &Side, to: u64, len: u64) -> bool {
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
    /// Writes one move.
    ///
    /// # Safety
    /// As `Backend::submit`.
    pub(super) unsafe fn write(&mut self, one: Move) -> Result<(), Fault> {
        let (from, to, shapes, span, is_within) = match one {
            Move::Copy {
                from,
                to,
                shapes,
                span,
                is_within,
            } => (from, to, shapes, span, is_within),
            Move::Show { managed, .. } => {
                return managed.map_or(Ok(()), |of| self.show(&of));
            }
            // The host executes these.
            Move::Taken { .. } | Move::Modified { .. } => return Ok(()),
        };
        let (src, dst) = (self.reach(from)?, self.reach(to)?);
        for run in Move::runs(shapes.as_ref(), span) {
            let (from, to) = (src.at(run.offset), dst.at(run.other_offset));
            let len = run.len_bytes;
            let is_over_itself = is_within && src.overlaps(from, &dst, to, len);
            match (&src, &dst) {
                (Side::Bytes(src, _), Side::Bytes(dst, _)) if is_over_itself => {
                    // SAFETY: the run lies within the operands, which are the caller's promise.
                    unsafe { self.slide((src, from), (dst, to), len) }?;
                }
                (Side::Bytes(src, _), Side::Bytes(dst, _)) => {
                    // SAFETY: as above.
                    unsafe { self.copy((src, from), (dst, to), len) }?;
                }
                _ if is_over_itself => {
                    return Err(unsupported("texels do not move over themselves"));
                }
                // SAFETY: as above.
                _ => unsafe { self.copy_texels((&src, from), (&dst, to), len) }?,
            }
        }
        Ok(())
    }

    /// Brings the host's copy up to date if the device wrote meanwhile.
    fn show(&mut self, of: &Own) -> Result<(), Fault> {
        let Some(coherence) = &of.coherence else {
            return Ok(());
        };
        match coherence.begin() {
            Synchronization::NotNeeded => Ok(()),
            Synchronization::Begun(written) => {
                self.resources.shown.push((Arc::clone(coherence), written));
                self.blit.synchronize(&of.raw);
                Ok(())
            }
            Synchronization::Blocked => Err(unsupported(
                "the host is writing other bytes of this managed buffer, all of which a synchronization brings back",
            )),
        }
    }

    /// Returns an end as a Metal object; wraps host memory for this submission.
    fn reach(&mut self, end: End) -> Result<Side, Fault> {
        match end {
            End::Own { of, at, .. } => Ok(Side::Bytes(of.raw, at)),
            End::Texels { of, at, .. } => Ok(Side::Texels(of, at)),
            End::Host(operand) => {
                let wrapped = self.wrap(&operand)?;
                self.resources.wrapped.push(wrapped.clone());
                Ok(Side::Bytes(wrapped, operand.lead))
            }
        }
    }

    fn wrap(&mut self, operand: &HostOperand) -> Result<Raw, Fault> {
        self.shared.expect_release(self.place);
        let pages = operand.pages();
        // SAFETY: the operand is valid until the fence settles, by the promise of `submit`, and the fence settles when
        // the block was called; the rest of its first and last page is there as long as the page is.
        let wrapped =
            pages.and_then(|pages| unsafe { Raw::wrapping(self.device, pages, self.gone) });
        wrapped.ok_or_else(|| {
            self.shared.forget_release(self.place);
            unsupported(
                "Metal does not take this host memory: newBufferWithBytesNoCopy gave nothing",
            )
        })
    }

    /// Copies bytes between ranges that do not overlap.
    ///
    /// # Safety
    /// As [`Blit::copy`].
    pub(super) unsafe fn copy(
        &mut self,
        (src, from): (&Raw, u64),
        (dst, to): (&Raw, u64),
        len: u64,
    ) -> Result<(), Fault> {
        let (head, body) = cut(from, to, len);
        for (at, len) in [(0, head), (head + body, len - head - body)] {
            // SAFETY: the caller's promise.
            unsafe { self.pass((src, from + at), (dst, to + at), len) }?;
        }
        if body > 0 {
            // SAFETY: as above.
            unsafe { self.blit.copy((src, from + head), (dst, to + head), body) };
        }
        Ok(())
    }

    /// Copies bytes at any offset, through a texture.
    ///
    /// # Safety
    /// As [`Blit::copy`].
    unsafe fn pass(
        &mut self,
        (src, from): (&Raw, u64),
        (dst, to): (&Raw, u64),
        len: u64,
    ) -> Result<(), Fault> {
        if len == 0 {
            return Ok(());
        }
        if self.kit.bounce.is_none() {
            self.kit.bounce = Bounce::new(self.device);
        }
        let none = || nothing_of("newTextureWithDescriptor");
        let bounce = self.kit.bounce.as_ref().ok_or_else(none)?;
        let mut at = 0;
        while at < len {
            let piece = Bounce::piece(len - at);
            // SAFETY: the caller's promise.
            unsafe { bounce.copy(self.blit, (src, from + at), (dst, to + at), piece) };
            at += piece;
        }
        Ok(())
    }

    /// The lane's scratch buffer.
    pub(super) fn scratch(&mut self) -> Result<Raw, Fault> {
        if self.kit.scratch.is_none() {
            self.kit.scratch = self.device.buffer(PIECE + WORD, Mode::Private, false);
        }
        let none = || nothing_of("newBufferWithLength");
        self.kit.scratch.clone().ok_or_else(none)
    }

    /// Copies bytes within a storage between overlapping ranges, piece by piece from the end that is overwritten
    /// first.
    ///
    /// # Safety
    /// As [`Blit::copy`], but the ranges may overlap.
    unsafe fn slide(
        &mut self,
        (src, from): (&Raw, u64),
        (dst, to): (&Raw, u64),
        len: u64,
    ) -> Result<(), Fault> {
        let scratch = self.scratch()?;
        let is_ahead = position(dst, to) > position(src, from);
        let mut done = 0;
        while done < len {
            let piece = PIECE.min(len - done);
            let at = match is_ahead {
                true => len - done - piece,
                false => done,
            };
            // Within their words as at the source.
            let kept = (&scratch, (from + at) % WORD);
            // SAFETY: the caller's promise; the scratch is this lane's, and an encoder's copies take effect in order.
            unsafe { self.copy((src, from + at), kept, piece) }?;
            // SAFETY: as above.
            unsafe { self.copy(kept, (dst, to + at), piece) }?;
            done += piece;
        }
        Ok(())
    }
}

/// Where a byte of a buffer lies, comparable with others of its storage: wrappings of host memory are buffers of their
/// own over the same addresses.
fn position(of: &Raw, at: u64) -> u64 {
    let start = of.contents().map_or(0, |start| start.addr().get() as u64);
    start + at
}

fn overlaps(((src, from), (dst, to)): ((&Raw, u64), (&Raw, u64)), len: u64) -> bool {
    position(src, from).abs_diff(position(dst, to)) < len
}

/// How many bytes go before the part that begins and ends on grains at both sides, and how long that part is.
fn cut(from: u64, to: u64, len: u64) -> (u64, u64) {
    const WITHIN: u64 = GRAIN - 1;
    if from & WITHIN != to & WITHIN {
        return (len, 0);
    }
    let head = (from.next_multiple_of(GRAIN) - from).min(len);
    (head, (len - head) & !WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_grains_at_both_sides_goes_by_itself() {
        for from in 0..9 {
            for to in 0..9 {
                for len in 0..20 {
                    let (head, body) = cut(from, to, len);
                    assert!(head + body <= len && body % GRAIN == 0);
                    if body > 0 {
                        assert_eq!((from + head) % GRAIN, 0);
                        assert_eq!((to + head) % GRAIN, 0);
                        assert!(len - head - body < GRAIN && head < GRAIN);
                    } else if from % GRAIN == to % GRAIN {
                        assert!(len < 2 * GRAIN);
                    }
                }
            }
        }
    }
}
