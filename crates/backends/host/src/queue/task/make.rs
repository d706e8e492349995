//! Tasks are made of operations: where the operands' bytes are, and how the work is cut.

use std::borrow::Cow;
use std::ptr::NonNull;

use transload_hal::{
    Advice, Buffer, Conversion, DeviceId, ErrorClass, Fault, HostSpan, Layout, MemoryId,
    MemoryKind, Op, Part, Shape, Span, StorageId, Strided, SubmitError, Transform, View,
};

use super::super::cut::Cut;
use super::super::place::Place;
use super::super::strides::{End, Strides};
use super::{Kind, Task};
use crate::memory::file::HostFile;
use crate::raw::Store;
use crate::tuning::{Tuning, piece_bytes};

impl Task {
    /// The task of an operation, tuned for its size and for what is in flight beside it.
    pub(in crate::queue) fn new(
        op: &Op<'_>,
        index: usize,
        tuning: &Tuning,
        in_flight: usize,
    ) -> Result<Self, SubmitError> {
        let unsupported = |reason: Cow<'static, str>| SubmitError::Unsupported { index, reason };
        match *op {
            Op::Copy { src, dst } => {
                let task = Self::copy(src, dst, tuning, in_flight)?;
                task.ok_or_else(|| {
                    unsupported("an operand is neither memory of cpu:0 nor a file".into())
                })
            }
            Op::Pitched { src, dst, span } => {
                let task = Self::pitched(src, dst, span, tuning, in_flight)?;
                task.ok_or_else(|| {
                    unsupported("an operand is neither memory of cpu:0 nor a file".into())
                })
            }
            Op::Convert {
                src,
                dst,
                conversion,
            } => {
                let task = Self::convert(src, dst, conversion, tuning, in_flight)?;
                task.ok_or_else(|| {
                    unsupported(
                        "numbers are converted from bytes that the host reaches, to its memory"
                            .into(),
                    )
                })
            }
            Op::Strided {
                src,
                dst,
                span,
                conversion,
            } => {
                let task = Self::strided(src, dst, span, conversion, tuning, in_flight)?;
                task.ok_or_else(|| {
                    unsupported("an operand is neither memory of cpu:0 nor a file".into())
                })
            }
            // The host's access to its memory needs no preparation.
            Op::AcquireHost { buffer } | Op::ReleaseHost { buffer } => {
                match buffer.host(0, buffer.len()) {
                    Some(_) => Ok(Self::NOTHING),
                    None => Err(unsupported(
                        "a file is read and written by position, not mapped".into(),
                    )),
                }
            }
            // Processors keep each other's caches coherent.
            Op::MakeVisible { .. } => Ok(Self::NOTHING),
            Op::Prefetch { part, .. } => Ok(Self::prefetch(part, tuning)),
            Op::Advise { part, advice } => Ok(Self::advise(part, advice)),
            Op::Transform {
                at,
                span,
                transform,
                position,
            } => match at.buffer.host(at.offset, at.shape.extent_bytes()) {
                Some(extent) => Ok(Self::transform(extent, at.shape, span, transform, position)),
                None => Err(unsupported(
                    "a transform needs memory that the host can reach".into(),
                )),
            },
            _ => Err(unsupported(
                "an operation that this version of the backend does not know".into(),
            )),
        }
    }

    fn copy(
        src: Part<'_>,
        dst: Part<'_>,
        tuning: &Tuning,
        in_flight: usize,
    ) -> Result<Option<Self>, SubmitError> {
        let len_bytes = dst.len_bytes;
        if src.len_bytes != len_bytes {
            let message = format!(
                "{} bytes cannot be copied to {len_bytes} bytes",
                src.len_bytes
            );
            return Err(SubmitError::Refused(Fault::new(
                ErrorClass::Caller,
                message,
            )));
        }
        check_writable(dst.buffer)?;
        let from = place_of(src.buffer, src.offset, len_bytes);
        let to = place_of(dst.buffer, dst.offset, len_bytes);
        let (Some(from), Some(to)) = (from, to) else {
            return Ok(None);
        };
        let storage = dst.buffer.storage_id();
        let (read, written) = (
            src.buffer.position() + src.offset,
            dst.buffer.position() + dst.offset,
        );
        if src.buffer.storage_id() != storage || read.abs_diff(written) >= len_bytes {
            let cut = Cut::new(from, to, len_bytes, tuning, in_flight);
            let cut = cut.for_reader(dst.buffer.memory().kind, tuning);
            return Ok(Some(Self::disjoint(from, to, len_bytes, &cut)));
        }
        let kind = match (from, to) {
            (Place::Memory(src), Place::Memory(dst)) if storage == StorageId::Host => {
                Kind::Move { src, dst }
            }
            _ => Kind::MoveHidden {
                src: from,
                dst: to,
                up: written > read,
            },
        };
        let is_file = from.is_file() || to.is_file();
        // One piece: the parts of an overlapping move depend on each other.
        let small = len_bytes < tuning.inline_below_bytes as u64;
        Ok(Some(Self {
            kind,
            len_bytes,
            step: len_bytes,
            threads: 1,
            inline: small && !is_file,
        }))
    }

    fn disjoint(src: Place, dst: Place, len_bytes: u64, cut: &Cut) -> Self {
        if len_bytes == 0 {
            return Self::NOTHING;
        }
        let kind = Kind::Copy {
            src,
            dst,
            store: cut.store,
        };
        Self::of(kind, len_bytes, cut)
    }

    fn of(kind: Kind, len_bytes: u64, cut: &Cut) -> Self {
        Self {
            kind,
            len_bytes,
            step: cut.step,
            threads: cut.threads,
            inline: cut.inline,
        }
    }

    fn convert(
        src: Part<'_>,
        dst: Part<'_>,
        conversion: Conversion,
        tuning: &Tuning,
        in_flight: usize,
    ) -> Result<Option<Self>, SubmitError> {
        let len_bytes = dst.len_bytes;
        if conversion.converted_bytes(src.len_bytes) != Some(len_bytes) {
            let message = format!(
                "{} bytes of {} are not {len_bytes} bytes of {}",
                src.len_bytes,
                conversion.from(),
                conversion.to()
            );
            return Err(SubmitError::Refused(Fault::new(
                ErrorClass::Caller,
                message,
            )));
        }
        check_writable(dst.buffer)?;
        let from = place_of(src.buffer, src.offset, src.len_bytes);
        let to = place_of(dst.buffer, dst.offset, len_bytes);
        let (Some(from), Some(Place::Memory(dst))) = (from, to) else {
            return Ok(None);
        };
        if len_bytes == 0 {
            return Ok(Some(Self::NOTHING));
        }
        let cut = Cut::new(from, Place::Memory(dst), len_bytes, tuning, in_flight);
        let kind = Kind::Convert {
            src: from,
            dst,
            conversion,
            store: cut.store,
        };
        Ok(Some(Self {
            // Between two numbers.
            step: cut.step.next_multiple_of(8),
            ..Self::of(kind, len_bytes, &cut)
        }))
    }

    fn pitched(
        src: Layout<'_>,
        dst: Layout<'_>,
        span: Span,
        tuning: &Tuning,
        in_flight: usize,
    ) -> Result<Option<Self>, SubmitError> {
        check_writable(dst.buffer)?;
        let from = place_of(src.buffer, src.offset, src.shape.extent_bytes());
        let to = place_of(dst.buffer, dst.offset, dst.shape.extent_bytes());
        let (Some(from), Some(to)) = (from, to) else {
            return Ok(None);
        };
        let payload = src.shape.payload_bytes().min(dst.shape.payload_bytes());
        let len_bytes = span.len.min(payload.saturating_sub(span.offset));
        if len_bytes == 0 {
            return Ok(Some(Self::NOTHING));
        }
        let cut = Cut::new(from, to, len_bytes, tuning, in_flight);
        let kind = Kind::Pitched {
            src: from,
            src_shape: src.shape,
            dst: to,
            dst_shape: dst.shape,
            first: span.offset,
            store: cut.store,
        };
        Ok(Some(Self::of(kind, len_bytes, &cut)))
    }

    fn strided(
        src: View<'_>,
        dst: View<'_>,
        span: Span,
        conversion: Option<Conversion>,
        tuning: &Tuning,
        in_flight: usize,
    ) -> Result<Option<Self>, SubmitError> {
        check_writable(dst.buffer)?;
        let end = |view: View<'_>, len_bytes| {
            let len_bytes = view.array.map_or(len_bytes, Strided::extent_bytes);
            let place = place_of(view.buffer, view.offset, len_bytes)?;
            let array = view.array.map(NonNull::from);
            Some(End { place, array })
        };
        let len_bytes = span.len;
        let source_bytes = conversion.map_or(len_bytes, |of| of.source_bytes(len_bytes));
        let (Some(src), Some(dst)) = (end(src, source_bytes), end(dst, len_bytes)) else {
            return Ok(None);
        };
        if len_bytes == 0 {
            return Ok(Some(Self::NOTHING));
        }
        let as_long = len_bytes.saturating_mul(STRIDED_TIMES);
        let cut = Cut::new(src.place, dst.place, as_long, tuning, in_flight);
        let strides = Strides {
            src,
            dst,
            first: span.offset,
            conversion,
            // A line is written in several parts.
            store: Store::Plain,
        };
        let step = if cut.inline {
            len_bytes
        } else {
            let most = len_bytes.div_ceil(2 * u64::from(cut.threads));
            // SAFETY: the arrays are the operation's, which is being submitted.
            unsafe { strides.whole_lines(cut.step / STRIDED_TIMES, most) }
        };
        Ok(Some(Self {
            // Between two numbers.
            step: step.next_multiple_of(8),
            ..Self::of(Kind::Strided(strides), len_bytes, &cut)
        }))
    }

    fn prefetch(part: Part<'_>, tuning: &Tuning) -> Self {
        if let Some(span) = part.buffer.host(part.offset, part.len_bytes) {
            let kind = Kind::Populate {
                span,
                writable: part.buffer.is_writable(),
            };
            let step = piece_bytes(span.len(), tuning.threads()) as u64;
            let inline = part.len_bytes <= PREFETCHED_INLINE_BYTES;
            return Self {
                kind,
                len_bytes: part.len_bytes,
                step,
                threads: tuning.threads(),
                inline,
            };
        }
        Self::advise(part, Advice::WillNeed)
    }

    fn advise(part: Part<'_>, advice: Advice) -> Self {
        let kind = match place_of(part.buffer, part.offset, part.len_bytes) {
            Some(Place::File(file, offset)) => Kind::AdviseFile {
                file,
                offset,
                advice,
            },
            Some(Place::Memory(_)) | None => match part.buffer.host(part.offset, part.len_bytes) {
                Some(span) => Kind::AdviseMemory { span, advice },
                None => Kind::Nothing,
            },
        };
        // One system call that only records the hint.
        Self {
            kind,
            len_bytes: part.len_bytes,
            step: part.len_bytes.max(1),
            threads: 1,
            inline: true,
        }
    }

    fn transform(
        extent: HostSpan,
        shape: Shape,
        span: Span,
        transform: &dyn Transform,
        position: u64,
    ) -> Self {
        let transform = NonNull::from(transform);
        // SAFETY: only the lifetime changes, and the contract of `Backend::submit` keeps the transform
        // alive until the fence settles, after which no task is run.
        let transform = unsafe {
            std::mem::transmute::<NonNull<dyn Transform + '_>, NonNull<dyn Transform + 'static>>(
                transform,
            )
        };
        let len_bytes = span.len;
        let kind = Kind::Transform {
            extent,
            shape,
            first: span.offset,
            transform,
            position,
        };
        let inline = len_bytes <= TRANSFORMED_INLINE_BYTES;
        Self {
            kind,
            len_bytes,
            step: len_bytes.max(1),
            threads: 1,
            inline,
        }
    }
}

/// A copy of elements at strides takes about as many times as long as one of bytes that lie side by side.
const STRIDED_TIMES: u64 = 4;

/// Fresh pages take some 40 µs per MiB to make.
const PREFETCHED_INLINE_BYTES: u64 = 256 << 10;

/// A checksum of 64 KiB takes a few microseconds; the duration of other transforms is unknown.
const TRANSFORMED_INLINE_BYTES: u64 = 64 << 10;

/// Where the bytes are; `None` where neither the host's loads and stores nor its file calls reach them.
pub(super) fn place_of(buffer: &Buffer, offset: u64, len_bytes: u64) -> Option<Place> {
    if !is_reached(buffer.memory()) {
        return None;
    }
    if let Some(span) = buffer.host(offset, len_bytes) {
        return Some(Place::Memory(span.as_ptr()));
    }
    let file = buffer.native::<HostFile>()?;
    let fits = Span::new(offset, len_bytes).fits(buffer.len());
    fits.then(|| Place::File(NonNull::from(file), buffer.position() + offset))
}

/// Whether the memory belongs to the processors, through any backend, or is mapped for them by a device's backend or, as
/// shared memory, by that of a server on this machine.
pub(crate) fn is_reached(memory: MemoryId) -> bool {
    memory.device == DeviceId::CPU0 || is_mapped(memory) || memory.kind == MemoryKind::Shared
}

/// Whether a device's backend maps the memory for the processors: slots whenever the device does not use
/// them, mapped and managed memory always, once the device was asked to make it visible.
fn is_mapped(memory: MemoryId) -> bool {
    matches!(memory.kind, MemoryKind::Upload | MemoryKind::Readback) || memory.kind.is_hidden()
}

fn check_writable(dst: &Buffer) -> Result<(), SubmitError> {
    if dst.is_writable() {
        return Ok(());
    }
    let message = format!("the destination in {} is read-only", dst.memory());
    Err(SubmitError::Refused(Fault::new(
        ErrorClass::Caller,
        message,
    )))
}
