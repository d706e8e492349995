//! One operation: the bytes that it touches, and its effect at the end of its time.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use transload_hal::{
    Buffer, ErrorClass, Fault, HostSpan, Layout, Op, Part, Shape, Span, Transform,
};

use super::Shared;
use super::memory::{Allocation, Hold};
use super::script::{OpFault, OpKind, scripted};

/// The position of an operand's bytes in the test process.
pub(super) struct Operand {
    span: HostSpan,
    _hold: Option<Hold>,
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
pub(super) struct TransformRef(*const dyn Transform);

// SAFETY: `Transform` is `Send + Sync` wherever threads exist (`MaybeSend`, `MaybeSync`), and the
// pointer is only ever used for shared access.
unsafe impl Send for TransformRef {}

impl Work {
    /// Returns the bytes that the operation touches, or the reason why it cannot be executed.
    pub(super) fn of(sim: &Shared, op: &Op<'_>) -> Result<Work, Refusal> {
        match op {
            Op::Copy { src, dst } => {
                if src.len_bytes != dst.len_bytes {
                    return Err(Refusal::caller("a copy's two operands differ in length"));
                }
                writable(dst.buffer)?;
                Ok(Work::Copy {
                    src: of_part(sim, src)?,
                    dst: of_part(sim, dst)?,
                })
            }
            Op::Pitched { src, dst, span } => {
                writable(dst.buffer)?;
                let payload = src.shape.payload_bytes().min(dst.shape.payload_bytes());
                if !span.fits(payload) {
                    return Err(Refusal::caller("a pitched copy's span ends past a payload"));
                }
                Ok(Work::Pitched {
                    src: of_layout(sim, src)?,
                    src_shape: src.shape,
                    dst: of_layout(sim, dst)?,
                    dst_shape: dst.shape,
                    span: *span,
                })
            }
            Op::Transform {
                at,
                span,
                transform,
                position,
            } => {
                if !span.fits(at.shape.payload_bytes()) {
                    return Err(Refusal::caller("a transform's span ends past the payload"));
                }
                let extent = at.shape.extent_bytes();
                if at.buffer.host(at.offset, extent).is_none() {
                    return Err(Refusal::unsupported(
                        "simulated transforms look at host-addressable memory alone",
                    ));
                }
                let transform: *const (dyn Transform + '_) = *transform;
                // SAFETY: only the lifetime changes; `submit`'s contract keeps the transform alive
                // until the fence settles, and the work is dropped by then.
                let transform: *const (dyn Transform + 'static) =
                    unsafe { std::mem::transmute(transform) };
                Ok(Work::Transform {
                    at: of_layout(sim, at)?,
                    shape: at.shape,
                    span: *span,
                    transform: TransformRef(transform),
                    position: *position,
                })
            }
            Op::Prefetch { part, .. } | Op::Advise { part, .. } => {
                of_part(sim, part)?;
                Ok(Work::Hint)
            }
            Op::MakeVisible { part } => {
                of_part(sim, part)?;
                Ok(Work::Visible)
            }
            _ => Err(Refusal::unsupported(
                "simulated memory needs no mapping: it is host-addressable or it is not",
            )),
        }
    }

    pub(super) fn kind(&self) -> OpKind {
        match self {
            Work::Copy { .. } => OpKind::Copy,
            Work::Pitched { .. } => OpKind::Pitched,
            Work::Transform { .. } => OpKind::Transform,
            Work::Hint | Work::Visible => OpKind::Hint,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Work::Copy { src, .. } => src.span.len() as u64,
            Work::Pitched { span, .. } => span.len,
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

fn of_part(sim: &Shared, part: &Part<'_>) -> Result<Operand, Refusal> {
    operand(sim, part.buffer, part.offset, part.len_bytes)
}

fn of_layout(sim: &Shared, layout: &Layout<'_>) -> Result<Operand, Refusal> {
    let extent = layout.shape.extent_bytes();
    operand(sim, layout.buffer, layout.offset, extent)
}

fn operand(sim: &Shared, buffer: &Buffer, offset: u64, len: u64) -> Result<Operand, Refusal> {
    if !Span::new(offset, len).fits(buffer.len()) {
        return Err(Refusal::caller("an operand ends past its buffer"));
    }
    if let Some(allocation) = own(sim, buffer) {
        let at = buffer.span().offset + offset;
        let span = allocation.block.span().slice(at, len);
        return Ok(Operand {
            // A view lies within its storage, and the operand within the view.
            span: span.ok_or_else(|| Refusal::caller("an operand ends past its storage"))?,
            _hold: Some(Hold::new(&allocation.block)),
        });
    }
    match buffer.host(offset, len) {
        Some(span) => Ok(Operand { span, _hold: None }),
        None => Err(Refusal::unsupported(
            "an operand is neither simulated memory of this machine nor host-addressable",
        )),
    }
}

/// The sim's own allocation behind a buffer, unless the buffer shows other memory by now.
pub(super) fn own<'a>(sim: &Shared, buffer: &'a Buffer) -> Option<&'a Allocation> {
    buffer.native::<Allocation>().filter(|allocation| {
        std::ptr::eq(Arc::as_ptr(&allocation.sim), sim)
            && buffer.info().id == sim.storage_id(allocation).0
            && buffer.info().base == sim.storage_id(allocation).1
    })
}

fn writable(buffer: &Buffer) -> Result<(), Refusal> {
    if buffer.is_writable() {
        Ok(())
    } else {
        Err(Refusal::caller("a destination is read-only"))
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
