//! Operations, checked and taken apart into runs of bytes.

use transload_hal::{Buffer, Fault, Layout, Op, SubmitError};
use transload_hal::{MemoryKind, Rows, Span};

use super::gpu::Gpu;
use super::readback::{PendingReadback, Piece};
use super::upload;
use crate::endpoints::{self, native, position, reach, refusal, unsupported};
use crate::raw::{End, Program};
use crate::storage::WORD;
use crate::texture;

/// The operations of one submission.
pub(super) struct Moves<'a> {
    list: Vec<Move<'a>>,
    /// The submission contains an operation that asks whether all earlier work is over.
    is_asked: bool,
    /// The number of bytes that pass the readback buffer.
    out_bytes: u64,
}

/// Bytes from one buffer to another.
struct Move<'a> {
    src: Layout<'a>,
    dst: Layout<'a>,
    span: Span,
    way: Way,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From host memory.
    In,
    /// To host memory.
    Out,
    Within,
}

/// The largest texel in bytes; commands need texels at multiples of their size.
const LARGEST_BLOCK: u64 = 16;

impl<'a> Moves<'a> {
    /// # Errors
    /// If an operation does not belong to this device, cannot be done by it, or breaks its contract.
    pub(super) fn of(gpu: &Gpu, ops: &[Op<'a>]) -> Result<Moves<'a>, SubmitError> {
        let mut list = Vec::with_capacity(ops.len());
        let mut is_asked = false;
        for (index, op) in ops.iter().enumerate() {
            if let Op::MakeVisible { .. } = op {
                is_asked = true;
                continue;
            }
            let made = endpoints::of(op).and_then(|ends| Move::new(gpu, op, ends));
            list.push(made.map_err(|fault| refusal(index, fault))?);
        }
        list.retain(|of| of.span.len > 0);
        let of_way = |way| list.iter().filter(move |of| of.way == way);
        let out = of_way(Way::Out).flat_map(|of| of.rows().map(move |rows| of.passage(&rows)));
        let out_bytes = out.fold(0u64, |sum, (_, bytes)| sum.saturating_add(bytes));
        let limit = gpu.device.limits().max_buffer_size;
        if out_bytes > limit {
            let message = format!("{out_bytes} bytes at once pass no buffer, of at most {limit}");
            return Err(SubmitError::Refused(unsupported(message)));
        }
        Ok(Moves {
            list,
            is_asked,
            out_bytes,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty() && !self.is_asked
    }

    /// Whether host memory is read or written, which no queue orders.
    pub(super) fn touches_host(&self) -> bool {
        self.list.iter().any(|of| of.way != Way::Within)
    }

    /// The buffers that must live until the submission is over.
    pub(super) fn buffers(&self) -> Vec<Buffer> {
        let ends = self.list.iter().flat_map(|of| [&of.src, &of.dst]);
        ends.map(|end| end.buffer.clone()).collect()
    }

    /// Submits all operations to the queue. Bytes for the host arrive later.
    ///
    /// # Safety
    /// As for `Backend::submit`.
    pub(super) unsafe fn start(&self, gpu: &Gpu) -> Option<PendingReadback> {
        let mut program = Program::new(gpu.shifts);
        let outlet = (self.out_bytes > 0).then(|| gpu.readbacks.take(&gpu.device, self.out_bytes));
        let (mut pieces, mut at) = (Vec::new(), 0);
        for of in &self.list {
            match (of.way, &outlet) {
                (Way::In, _) => {
                    let Some(dst) = native(of.dst.buffer) else {
                        continue;
                    };
                    for rows in of.rows() {
                        // SAFETY: the engine's promise: the operand lies within its buffer, which the host
                        // reaches, as `Move::new` checked, and nothing writes it meanwhile.
                        unsafe { upload::write_rows(gpu, of.src.buffer, dst, &rows) };
                    }
                }
                (Way::Out, Some(outlet)) => {
                    for rows in of.rows() {
                        at += of.fetch(&rows, &mut program, (outlet, at), &mut pieces);
                    }
                }
                _ => of.write(&mut program),
            }
        }
        if !program.is_empty() {
            upload::run(gpu, &program);
        }
        outlet.map(|outlet| PendingReadback::expect(outlet, self.out_bytes, pieces))
    }
}

impl<'a> Move<'a> {
    /// # Errors
    /// As [`Moves::of`].
    fn new(
        gpu: &Gpu,
        op: &Op<'_>,
        (src, dst, span): (Layout<'a>, Layout<'a>, Span),
    ) -> Result<Move<'a>, Fault> {
        let way = match (is_host(&src), is_host(&dst)) {
            (true, false) => Way::In,
            (false, true) => Way::Out,
            _ => Way::Within,
        };
        if way != Way::In {
            reach_own(gpu, op, &src)?;
        }
        if way != Way::Out {
            reach_own(gpu, op, &dst)?;
        }
        let made = Move {
            src,
            dst,
            span,
            way,
        };
        endpoints::allow(&made.src, &made.dst, made.rows())?;
        Ok(made)
    }

    /// The runs of bytes, and as rows what may be a rectangle of a texture. Those of a device count from the
    /// first byte of the storage, those of the host from the first of the view.
    fn rows(&self) -> impl Iterator<Item = Rows> + use<> {
        let (src, dst) = match self.way {
            Way::In => (self.src.offset, position(&self.dst)),
            Way::Out => (position(&self.src), self.dst.offset),
            Way::Within => (position(&self.src), position(&self.dst)),
        };
        let runs = self.src.shape.runs(src, &self.dst.shape, dst, self.span);
        let texels = [&self.src, &self.dst].map(|end| texture::window(end.buffer));
        runs.rows(self.way != Way::Within || texels.iter().any(Option::is_some))
    }

    /// Adds the commands of a move between two ends on the device.
    fn write(&self, program: &mut Program) {
        let (Some(src), Some(dst)) = (native(self.src.buffer), native(self.dst.buffer)) else {
            return;
        };
        for rows in self.rows() {
            program.copy_rows(src, dst, &rows);
        }
    }

    /// The distance between rows in the readback buffer, and the bytes that all rows take there.
    fn passage(&self, rows: &Rows) -> (u64, u64) {
        let stride = match texture::window(self.src.buffer) {
            Some(_) if packs(rows) => rows.len,
            Some(_) => rows.len.next_multiple_of(LARGEST_BLOCK),
            // Each row has the same offset within its words as in the source, so that no byte has to shift.
            None => (rows.len + WORD - 1).next_multiple_of(WORD),
        };
        let bytes = (stride * rows.rows).next_multiple_of(LARGEST_BLOCK);
        (stride, bytes)
    }

    /// Adds the commands that copy rows to byte `at` of the outlet, and records where the host copies them
    /// from there. Returns the number of bytes that they take in the outlet.
    fn fetch(
        &self,
        rows: &Rows,
        program: &mut Program,
        (outlet, at): (&wgpu::Buffer, u64),
        pieces: &mut Vec<Piece>,
    ) -> u64 {
        let (stride, bytes) = self.passage(rows);
        let Some(src) = native(self.src.buffer) else {
            return bytes;
        };
        let is_one = matches!(src, End::Texels { .. }) && packs(rows);
        if is_one {
            let to = Rows {
                to: at,
                to_pitch: stride,
                ..*rows
            };
            program.copy_rows(src, End::bytes(outlet, 0), &to);
        }
        for row in 0..rows.rows {
            let from = rows.from + row * rows.from_pitch;
            let lead = match src {
                End::Bytes { .. } => from % WORD,
                End::Texels { .. } => 0,
            };
            let place = at + row * stride + lead;
            if !is_one {
                program.copy_around(src.after(from), (outlet, place), rows.len);
            }
            let to = rows.to + row * rows.to_pitch;
            let home = self.dst.buffer.host(to, rows.len);
            pieces.extend(home.map(|to| Piece { at: place, to }));
        }
        bytes
    }
}

/// Whether rows of texels can lie in the outlet without gaps: nothing of it can be read, so each must be whole
/// words there.
fn packs(rows: &Rows) -> bool {
    rows.rows > 1 && rows.len.is_multiple_of(WORD)
}

/// Whether an end is host memory that can be reached, as far as its last byte.
fn is_host(end: &Layout<'_>) -> bool {
    let is_cpu = end.buffer.memory().device.is_host();
    let extent = end.shape.extent_bytes();
    is_cpu && end.buffer.host(end.offset, extent).is_some()
}

/// Checks that an end belongs to this device, and that the browser had room for it.
fn reach_own(gpu: &Gpu, op: &Op<'_>, end: &Layout<'_>) -> Result<(), Fault> {
    reach(gpu.id, &[MemoryKind::Device], op, end)?;
    match gpu.refusal(end.buffer.storage_id()) {
        Some(fault) => Err(fault),
        None => Ok(()),
    }
}
