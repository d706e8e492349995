//! One operation: the bytes that it touches, and its effect at the end of its time.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use transload_hal::{ErrorClass, Fault, HostSpan, Shape, Span, Strided, Transform};

use super::memory::Hold;
use super::script::{OpFault, OpKind, scripted};

/// The position of an operand's bytes in the test process.
pub(super) struct Operand {
    pub(super) span: HostSpan,
    pub(super) _hold: Option<Hold>,
}

pub(super) enum Work {
    Copy {
        src: Operand,
        dst: Operand,
    },
    Pitched {
        src: Operand,
        src_shape: Shape,
        dst: Operand,
        dst_shape: Shape,
        span: Span,
    },
    Strided {
        src: Operand,
        src_array: Option<Box<Strided>>,
        dst: Operand,
        dst_array: Option<Box<Strided>>,
        span: Span,
    },
    Transform {
        at: Operand,
        shape: Shape,
        span: Span,
        transform: TransformRef,
        position: u64,
    },
    Hint,
    /// Waits for all work of the device.
    Visible,
}

/// A transform whose borrow the caller of `submit` extends until the fence settles.
pub(super) struct TransformRef(pub(super) *const dyn Transform);

// SAFETY: `Transform` is `Send + Sync` wherever threads exist (`MaybeSend`, `MaybeSync`), and the
// pointer is only ever used for shared access.
unsafe impl Send for TransformRef {}

impl Work {
    pub(super) fn kind(&self) -> OpKind {
        match self {
            Work::Copy { .. } => OpKind::Copy,
            Work::Pitched { .. } => OpKind::Pitched,
            Work::Strided { .. } => OpKind::Strided,
            Work::Transform { .. } => OpKind::Transform,
            Work::Hint | Work::Visible => OpKind::Hint,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Work::Copy { src, .. } => src.span.len() as u64,
            Work::Pitched { span, .. } | Work::Strided { span, .. } => span.len,
            Work::Transform { span, .. } => span.len,
            Work::Hint | Work::Visible => 0,
        }
    }

    /// Whether the two operations must not overlap in time: one of them writes bytes that the other touches. Rows of
    /// interleaved shapes are compared one by one.
    pub(super) fn races(&self, other: &Work) -> bool {
        self.writes_into(other) || other.writes_into(self)
    }

    fn writes_into(&self, other: &Work) -> bool {
        let Some((base, shape)) = self.written() else {
            return false;
        };
        let meets = |(other_base, other_shape): (u64, Shape)| {
            shape.overlaps(base, &other_shape, other_base)
        };
        other.written().is_some_and(meets) || other.read().is_some_and(meets)
    }

    fn written(&self) -> Option<(u64, Shape)> {
        match self {
            Work::Copy { dst, .. } => Some(dst.contiguous()),
            Work::Pitched {
                dst,
                dst_shape,
                span,
                ..
            } => dst.shaped(dst_shape, *span),
            // Chunks of one array lie among each other.
            Work::Strided {
                dst_array: Some(_), ..
            } => None,
            Work::Strided { dst, .. } => Some(dst.contiguous()),
            Work::Transform { .. } | Work::Hint | Work::Visible => None,
        }
    }

    fn read(&self) -> Option<(u64, Shape)> {
        match self {
            Work::Copy { src, .. } => Some(src.contiguous()),
            Work::Pitched {
                src,
                src_shape,
                span,
                ..
            } => src.shaped(src_shape, *span),
            Work::Strided {
                src_array: Some(_), ..
            } => None,
            Work::Strided { src, .. } => Some(src.contiguous()),
            Work::Transform {
                at, shape, span, ..
            } => at.shaped(shape, *span),
            Work::Hint | Work::Visible => None,
        }
    }

    /// Moves the bytes.
    pub(super) fn finish(&self, fault: Option<OpFault>) -> Result<(), Fault> {
        let failing = match fault {
            Some(OpFault::FailAfter { bytes, class }) => Some((bytes, class)),
            _ => None,
        };
        let moved = failing
            .map_or(u64::MAX, |(bytes, _)| bytes)
            .min(self.bytes());
        match self {
            Work::Copy { src, dst } => copy(src.span, 0, dst.span, 0, moved),
            Work::Strided {
                src,
                src_array,
                dst,
                dst_array,
                span,
            } => {
                let place = |array: &Option<Box<Strided>>, at| match array {
                    Some(array) => array.locate(span.offset + at).0,
                    None => at,
                };
                for at in 0..moved {
                    copy(
                        src.span,
                        place(src_array, at),
                        dst.span,
                        place(dst_array, at),
                        1,
                    );
                }
            }
            Work::Pitched {
                src,
                src_shape,
                dst,
                dst_shape,
                span,
            } => {
                let span = Span::new(span.offset, moved);
                for run in src_shape.runs(0, dst_shape, 0, span) {
                    copy(
                        src.span,
                        run.offset,
                        dst.span,
                        run.other_offset,
                        run.len_bytes,
                    );
                }
            }
            Work::Transform {
                at,
                shape,
                span,
                transform,
                position,
            } if failing.is_none() => {
                let mut position = *position;
                for run in shape.runs(0, shape, 0, *span) {
                    inspect(at.span, run.offset, run.len_bytes, transform, position)?;
                    position += run.len_bytes;
                }
            }
            Work::Transform { .. } | Work::Hint | Work::Visible => {}
        }
        if let Some(OpFault::Corrupt { at_byte }) = fault {
            self.corrupt(at_byte);
        }
        match failing {
            Some((_, class)) => Err(scripted(class)),
            None => Ok(()),
        }
    }

    fn corrupt(&self, at_byte: u64) {
        let bytes = self.bytes();
        if bytes == 0 {
            return;
        }
        let at = at_byte % bytes;
        match self {
            Work::Copy { dst, .. } => flip(dst.span, at),
            Work::Strided {
                dst,
                dst_array,
                span,
                ..
            } => {
                let place = |array: &Strided| array.locate(span.offset + at).0;
                flip(dst.span, dst_array.as_deref().map_or(at, place));
            }
            Work::Pitched {
                dst,
                dst_shape,
                span,
                ..
            } => {
                let one = Span::new(span.offset + at, 1);
                for run in dst_shape.runs(0, dst_shape, 0, one) {
                    flip(dst.span, run.offset);
                }
            }
            Work::Transform { .. } | Work::Hint | Work::Visible => {}
        }
    }
}

impl Operand {
    fn contiguous(&self) -> (u64, Shape) {
        (self.span.addr(), Shape::contiguous(self.span.len() as u64))
    }

    /// The part of a shape that holds the payload bytes `span`. If the span cuts rows, the whole shape would report
    /// false races, so such a cut counts as empty.
    fn shaped(&self, shape: &Shape, span: Span) -> Option<(u64, Shape)> {
        (span.offset == 0 && span.len == shape.payload_bytes()).then(|| (self.span.addr(), *shape))
    }
}

/// The reason why an operation was refused.
pub(super) struct Refusal {
    pub(super) class: ErrorClass,
    pub(super) reason: Cow<'static, str>,
}

impl Refusal {
    pub(super) fn caller(reason: &'static str) -> Refusal {
        Refusal {
            class: ErrorClass::Caller,
            reason: reason.into(),
        }
    }

    pub(super) fn unsupported(reason: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal {
            class: ErrorClass::Unsupported,
            reason: reason.into(),
        }
    }
}

fn copy(src: HostSpan, src_offset: u64, dst: HostSpan, dst_offset: u64, len: u64) {
    let (Some(src), Some(dst)) = (src.slice(src_offset, len), dst.slice(dst_offset, len)) else {
        unreachable!("operands were measured when the operation was accepted");
    };
    // SAFETY: both lie within buffers that `submit`'s caller keeps alive until the fence settles; the caller lets no
    // conflicting operation or code touch them; the lengths are equal.
    unsafe { src.copy_to(dst) }
}

fn flip(dst: HostSpan, at: u64) {
    let Some(byte) = dst.slice(at, 1) else {
        unreachable!("the position was taken modulo the length");
    };
    // SAFETY: as in `copy`.
    let byte = unsafe { byte.as_mut_slice() };
    byte[0] ^= 0xFF;
}

fn inspect(
    extent: HostSpan,
    offset: u64,
    len: u64,
    transform: &TransformRef,
    position: u64,
) -> Result<(), Fault> {
    let Some(at) = extent.slice(offset, len) else {
        unreachable!("operands were measured when the operation was accepted");
    };
    // SAFETY: as in `copy`; no operation writes the bytes that a transform reads.
    let bytes = unsafe { at.as_slice() };
    // SAFETY: alive until the fence settles, by `submit`'s contract.
    let transform = unsafe { &*transform.0 };
    // A panic in a transform must not unwind through the machine into unrelated code that steps the clock.
    catch_unwind(AssertUnwindSafe(|| transform.inspect(bytes, position)))
        .unwrap_or_else(|_| Err(Fault::new(ErrorClass::Failed, "a transform panicked")))
}
