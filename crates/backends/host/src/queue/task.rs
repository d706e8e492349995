//! One operation in the form in which threads run it: addresses instead of buffers, cut into pieces.

use std::borrow::Cow;
use std::ptr::NonNull;

use transload_hal::{
    Advice, Buffer, DeviceId, ErrorClass, Fault, HostSpan, Layout, MemoryId, MemoryKind, Op, Part,
    Shape, Span, StorageId, SubmitError, Transform,
};

use super::cut::Cut;
use super::place::{self, Place, Row};
use crate::memory::file::HostFile;
use crate::memory::hint;
use crate::raw::{self, Store};
use crate::tuning::{Tuning, piece_bytes};

/// The work of a thread, without a lifetime: the contract of `Backend::submit` keeps all memory behind the addresses alive
/// and free of other accesses until the fence settles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    kind: Kind,
    /// Payload bytes.
    pub(super) len_bytes: u64,
    /// Bytes of a piece; the last one may be shorter.
    step: u64,
    /// The most threads that make the copy faster.
    pub(super) threads: u32,
    /// Whether the submitter may run it: it takes no longer than its copy, and waits for no disk.
    pub(super) inline: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Nothing,
    Copy {
        src: Place,
        dst: Place,
        store: Store,
    },
    /// A move within one storage, at addresses that show the overlap.
    Move {
        src: *mut u8,
        dst: *mut u8,
    },
    /// A move within one storage, reached through files or several mappings.
    MoveHidden {
        src: Place,
        dst: Place,
        up: bool,
    },
    Pitched {
        src: Place,
        src_shape: Shape,
        dst: Place,
        dst_shape: Shape,
        first: u64,
        store: Store,
    },
    Populate {
        span: HostSpan,
        writable: bool,
    },
    AdviseMemory {
        span: HostSpan,
        advice: Advice,
    },
    AdviseFile {
        file: NonNull<HostFile>,
        offset: u64,
        advice: Advice,
    },
    Transform {
        extent: HostSpan,
        shape: Shape,
        first: u64,
        transform: NonNull<dyn Transform>,
        position: u64,
    },
}

// SAFETY: a task is addresses. The thread that runs a piece relies on the contract of `Backend::submit`, which gives the
// operands to the backend, on whichever of its threads, until the fence settles. Transforms are `Sync` wherever there is a
// second thread (`MaybeSync`).
unsafe impl Send for Task {}
// SAFETY: as above.
unsafe impl Sync for Task {}

impl Task {
    /// The task of an operation, tuned for its size and for what is in flight beside it.
    pub(super) fn new(
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

    const NOTHING: Self = Self {
        kind: Kind::Nothing,
        len_bytes: 0,
        step: 1,
        threads: 1,
        inline: true,
    };

    /// How many pieces the task is cut into, at least one.
    pub(super) fn pieces(&self) -> u32 {
        u32::try_from(self.len_bytes.div_ceil(self.step))
            .unwrap_or(u32::MAX)
            .max(1)
    }

    /// Whether it is a copy between memory that several threads would share, of a size at which waiting for a sleeping
    /// thread matters.
    pub(super) fn is_narrowable(&self) -> bool {
        let fits = self.len_bytes <= NARROWED_BYTES && self.threads > 1;
        fits && matches!(self.kind, Kind::Copy { .. }) && !self.has_file()
    }

    /// The same copy on one thread: the waiting thread, if it comes first. It uses plain stores instead of string moves,
    /// which are 6 % slower if others use the last-level cache too (measured on the EPYC under load, 1 MiB).
    pub(super) fn narrowed(self) -> Self {
        let kind = match self.kind {
            Kind::Copy {
                src,
                dst,
                store: Store::Rep,
            } => Kind::Copy {
                src,
                dst,
                store: Store::Plain,
            },
            kind => kind,
        };
        Self {
            kind,
            threads: 1,
            ..self
        }
    }

    /// Whether it copies, and each byte may be copied at any time.
    pub(super) fn is_copy(&self) -> bool {
        matches!(self.kind, Kind::Copy { .. } | Kind::Pitched { .. })
    }

    /// Whether an end of the copy is a file.
    pub(super) fn has_file(&self) -> bool {
        match self.kind {
            Kind::Copy { src, dst, .. } | Kind::Pitched { src, dst, .. } => {
                src.is_file() || dst.is_file()
            }
            _ => false,
        }
    }

    /// The file that it reads into memory, and what of it, if it does that.
    pub(super) fn reads(&self) -> Option<(NonNull<HostFile>, Row)> {
        let (Place::File(file, offset), Place::Memory(dst)) = (match self.kind {
            Kind::Copy { src, dst, .. } => (src, dst),
            _ => return None,
        }) else {
            return None;
        };
        let len_bytes = self.len_bytes;
        Some((
            file,
            Row {
                offset,
                len_bytes,
                dst,
            },
        ))
    }

    /// The payload bytes of a piece.
    pub(super) fn span_of(&self, piece: u32) -> Span {
        let at = self.leading_bytes(piece);
        Span::new(at, self.step.min(self.len_bytes - at))
    }

    /// The payload bytes of the first `pieces` pieces.
    pub(super) fn leading_bytes(&self, pieces: u32) -> u64 {
        u64::from(pieces)
            .saturating_mul(self.step)
            .min(self.len_bytes)
    }

    /// Runs a piece of it.
    ///
    /// # Safety
    /// The contract of `Backend::submit` holds for the operation: its fence has not settled. Each piece
    /// runs once.
    pub(super) unsafe fn run(&self, piece: u32) -> Result<(), Fault> {
        let Span {
            offset: at, len, ..
        } = self.span_of(piece);
        match self.kind {
            Kind::Nothing => Ok(()),
            Kind::Copy { src, dst, store } => {
                // SAFETY: a part of the operands.
                unsafe { place::copy(src.plus(at), dst.plus(at), len, store) }
            }
            Kind::Move { src, dst } => {
                // SAFETY: the task has one piece, so these are the operands.
                unsafe { raw::copy_overlapping(dst, src, len as usize) };
                Ok(())
            }
            Kind::MoveHidden { src, dst, up } => {
                // SAFETY: as above.
                unsafe { place::copy_overlapping(src, dst, len, up) }
            }
            Kind::Pitched {
                src,
                src_shape,
                dst,
                dst_shape,
                first,
                store,
            } => {
                let span = Span::new(first + at, len);
                let runs = src_shape.runs(0, &dst_shape, 0, span);
                if let (Place::File(file, offset), Place::Memory(dst)) = (src, dst) {
                    let rows = runs.map(|run| Row {
                        offset: offset + run.offset,
                        len_bytes: run.len_bytes,
                        dst: dst.wrapping_add(run.other_offset as usize),
                    });
                    // SAFETY: runs lie within the shapes, and those within the operands.
                    return unsafe { place::gather(file, rows) };
                }
                for run in runs {
                    let store = if run.len_bytes < STREAMED_RUN_BYTES {
                        Store::Plain
                    } else {
                        store
                    };
                    let (from, to) = (src.plus(run.offset), dst.plus(run.other_offset));
                    // SAFETY: runs lie within the shapes, and those within the operands.
                    unsafe { place::copy(from, to, run.len_bytes, store) }?;
                }
                Ok(())
            }
            Kind::Populate { span, writable } => {
                if let Some(part) = span.slice(at, len) {
                    hint::populate(part, writable);
                }
                Ok(())
            }
            Kind::AdviseMemory { span, advice } => {
                hint::advise_memory(span, advice);
                Ok(())
            }
            Kind::AdviseFile {
                file,
                offset,
                advice,
            } => {
                // SAFETY: the operand's buffer keeps the file alive.
                hint::advise_file(unsafe { file.as_ref() }, offset, self.len_bytes, advice);
                Ok(())
            }
            Kind::Transform {
                extent,
                shape,
                first,
                transform,
                position,
            } => {
                // SAFETY: the transform is alive until the fence settles.
                let transform = unsafe { transform.as_ref() };
                let mut position = position;
                for run in shape.runs(0, &shape, 0, Span::new(first, len)) {
                    // Runs lie within the shape, and the shape within its extent.
                    let Some(part) = extent.slice(run.offset, run.len_bytes) else {
                        break;
                    };
                    // SAFETY: nothing writes the operand meanwhile.
                    transform.inspect(unsafe { part.as_slice() }, position)?;
                    position += run.len_bytes;
                }
                Ok(())
            }
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
            return Ok(Some(Self::disjoint(from, to, len_bytes, tuning, in_flight)));
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

    fn disjoint(src: Place, dst: Place, len_bytes: u64, tuning: &Tuning, in_flight: usize) -> Self {
        if len_bytes == 0 {
            return Self::NOTHING;
        }
        let cut = Cut::new(src, dst, len_bytes, tuning, in_flight);
        let kind = Kind::Copy {
            src,
            dst,
            store: cut.store,
        };
        Self {
            kind,
            len_bytes,
            step: cut.step,
            threads: cut.threads,
            inline: cut.inline,
        }
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
        Ok(Some(Self {
            kind,
            len_bytes,
            step: cut.step,
            threads: cut.threads,
            inline: cut.inline,
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

/// Executes the operation at once if it is a copy between separate memory of fewer than `Tuning::inline_below_bytes` bytes
/// with a writable destination. Returns false, without doing anything, for every other operation, valid or not.
///
/// Equivalent to making and running a task, for copies for which making the task costs more than running it.
///
/// # Safety
/// As for `Backend::submit`, with nothing left to wait for.
pub(super) unsafe fn copy_small(op: &Op<'_>, tuning: &Tuning, in_flight: usize) -> bool {
    let Op::Copy { src, dst } = *op else {
        return false;
    };
    let len = dst.len_bytes;
    if src.len_bytes != len || len >= tuning.inline_below_bytes as u64 || !dst.buffer.is_writable()
    {
        return false;
    }
    if !is_reached(src.buffer.memory()) || !is_reached(dst.buffer.memory()) {
        return false;
    }
    let from = src.buffer.host(src.offset, len);
    let to = dst.buffer.host(dst.offset, len);
    let (Some(from), Some(to)) = (from, to) else {
        return false;
    };
    let (read, written) = (
        src.buffer.position() + src.offset,
        dst.buffer.position() + dst.offset,
    );
    if read.abs_diff(written) < len && src.buffer.storage_id() == dst.buffer.storage_id() {
        return false;
    }
    let store = tuning.choose(to.len(), in_flight).store;
    // SAFETY: the operands are memory of that length, separate as just checked; the rest is the
    // caller's contract.
    unsafe { raw::copy(to.as_ptr(), from.as_ptr(), to.len(), store) };
    true
}

/// Runs shorter than this are stored plainly: a store fence after each would cost more than streaming
/// saves.
const STREAMED_RUN_BYTES: u64 = 4096;

/// The largest copy that is ever taken from the pool and given to its submitter: about a millisecond, and
/// about as long as a thread that lost its processor sleeps.
const NARROWED_BYTES: u64 = 16 << 20;

/// Fresh pages take some 40 µs per MiB to make.
const PREFETCHED_INLINE_BYTES: u64 = 256 << 10;

/// A checksum of 64 KiB takes a few microseconds; the duration of other transforms is unknown.
const TRANSFORMED_INLINE_BYTES: u64 = 64 << 10;

/// Where the bytes are; `None` where neither the host's loads and stores nor its file calls reach them.
fn place_of(buffer: &Buffer, offset: u64, len_bytes: u64) -> Option<Place> {
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

/// Whether the memory belongs to the processors, through any backend, or is mapped for them by a device's backend.
pub(crate) fn is_reached(memory: MemoryId) -> bool {
    memory.device == DeviceId::CPU0 || is_mapped(memory)
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
