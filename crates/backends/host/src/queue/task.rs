//! One operation in the form in which threads run it: addresses instead of buffers, cut into pieces.

mod make;

use std::ptr::NonNull;

use transload_hal::{Advice, Conversion, Fault, HostSpan, Op, Shape, Span, Transform};

use super::place::{self, Place};
use super::strides::Strides;
use crate::memory::direct::Row;
use crate::memory::file::HostFile;
use crate::memory::hint;
use crate::raw::{self, Store};
use crate::tuning::Tuning;
pub(crate) use make::is_reached;

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
    Convert {
        src: Place,
        dst: *mut u8,
        conversion: Conversion,
        store: Store,
    },
    Strided(Strides),
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
        matches!(
            self.kind,
            Kind::Copy { .. } | Kind::Pitched { .. } | Kind::Convert { .. } | Kind::Strided(_)
        )
    }

    /// Whether an end of the copy is a file.
    pub(super) fn has_file(&self) -> bool {
        match self.kind {
            Kind::Copy { src, dst, .. } | Kind::Pitched { src, dst, .. } => {
                src.is_file() || dst.is_file()
            }
            Kind::Convert { src, .. } => src.is_file(),
            Kind::Strided(of) => of.src.place.is_file() || of.dst.place.is_file(),
            _ => false,
        }
    }

    /// The file that it reads into memory, and what of it, if it does that.
    pub(super) fn reads(&self) -> Option<(NonNull<HostFile>, Row)> {
        let (file, offset, dst, conversion, store) = match self.kind {
            Kind::Copy {
                src: Place::File(file, offset),
                dst: Place::Memory(dst),
                store,
            } => (file, offset, dst, None, store),
            Kind::Convert {
                src: Place::File(file, offset),
                dst,
                conversion,
                store,
            } => (file, offset, dst, Some(conversion), store),
            _ => return None,
        };
        let len_bytes = conversion.map_or(self.len_bytes, |of| of.source_bytes(self.len_bytes));
        let row = Row {
            offset,
            len_bytes,
            dst,
            conversion,
            store,
        };
        Some((file, row))
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
                let rows = Strides::of_rows((src, src_shape), (dst, dst_shape), first);
                if let Some(rows) = rows {
                    // SAFETY: a part of the operands.
                    return unsafe { rows.copy(Span::new(at, len)) };
                }
                let runs = src_shape.runs(0, &dst_shape, 0, span);
                if let (Place::File(file, offset), Place::Memory(dst)) = (src, dst) {
                    let rows = runs.map(|run| Row {
                        offset: offset + run.offset,
                        len_bytes: run.len_bytes,
                        dst: dst.wrapping_add(run.other_offset as usize),
                        conversion: None,
                        store,
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
            Kind::Convert {
                src,
                dst,
                conversion,
                store,
            } => {
                let (from, len) = (conversion.source_bytes(at), conversion.source_bytes(len));
                let dst = dst.wrapping_add(at as usize);
                // SAFETY: a part of the operands, whole numbers.
                unsafe { place::convert(src.plus(from), dst, len, conversion, store) }
            }
            // SAFETY: a part of the operands.
            Kind::Strided(strides) => unsafe { strides.copy(Span::new(at, len)) },
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
pub(super) const STREAMED_RUN_BYTES: u64 = 4096;

/// The largest copy that is ever taken from the pool and given to its submitter: about a millisecond, and
/// about as long as a thread that lost its processor sleeps.
const NARROWED_BYTES: u64 = 16 << 20;
