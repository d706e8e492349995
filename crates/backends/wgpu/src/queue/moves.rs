//! Operations, checked and taken apart into runs of bytes.

use transload_hal::{Buffer, Fault, GUEST_KINDS, HostSpan, Layout, Op, SubmitError};
use transload_hal::{MemoryKind, Rows, Span};

use crate::endpoints::{self, native, position, reach, refusal, unsupported};
use crate::gpu::Gpu;
use crate::host_import::{Direction, HostImport};
use crate::memory::Slot;
use crate::raw::{End, Program, Shifts, Window};
use crate::storage::{WORD, failed};
use crate::texture;

/// The operations of one submission.
pub(crate) struct Moves<'a> {
    list: Vec<Move<'a>>,
    /// Buffers that the host is going to use; these operations move no bytes.
    shown: Vec<&'a Buffer>,
}

/// Bytes from one buffer to another.
struct Move<'a> {
    src: Layout<'a>,
    dst: Layout<'a>,
    span: Span,
    /// The end that is host memory, reached in place, and which way its bytes go.
    host: Option<(HostSpan, Direction)>,
}

/// The bytes that a slot held around the ones to be written, for each slot that needs them.
pub(crate) struct SlotEdges {
    slot: Buffer,
    /// The first byte of the slot that `bytes` holds, a whole word.
    from: u64,
    bytes: wgpu::Buffer,
}

impl<'a> Moves<'a> {
    /// # Errors
    /// If an operation does not belong to this device, cannot be done by it, or breaks its contract.
    pub(crate) fn of(gpu: &Gpu, ops: &[Op<'a>]) -> Result<Moves<'a>, SubmitError> {
        let device = gpu.id;
        let mut list = Vec::with_capacity(ops.len());
        let mut shown = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            let made = match op {
                Op::MakeVisible { part } => match native(part.buffer) {
                    Some(End::Bytes { .. }) if part.buffer.memory().device == device => {
                        shown.push(part.buffer);
                        continue;
                    }
                    _ => Err(unsupported(format!("{op:?} is of no buffer of {device}"))),
                },
                _ => endpoints::of(op).and_then(|ends| Move::new(gpu, op, ends)),
            };
            list.push(made.map_err(|fault| refusal(index, fault))?);
        }
        list.retain(|of| of.span.len > 0);
        Ok(Moves { list, shown })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.shown.is_empty()
    }

    /// Whether there are so many copies, and nothing else.
    pub(crate) fn are(&self, copies: usize) -> bool {
        self.list.len() == copies && self.shown.is_empty()
    }

    /// Whether only buffers are shown that no commands of the program's own can use.
    pub(crate) fn show_only_own(&self) -> bool {
        self.list.is_empty() && !self.shown.iter().any(|buffer| buffer.is_exposed())
    }

    /// The slots that take part, each once.
    pub(crate) fn slots(&self) -> Vec<Buffer> {
        let mut slots: Vec<Buffer> = Vec::new();
        for end in self
            .list
            .iter()
            .flat_map(|of| [of.src.buffer, of.dst.buffer])
        {
            let known = slots.iter().any(|slot| slot.same_storage(end));
            if end.native::<Slot>().is_some() && !known {
                slots.push(end.clone());
            }
        }
        slots
    }

    /// Whether host memory is read or written in place.
    pub(crate) fn touches_host(&self) -> bool {
        self.list.iter().any(|of| of.host.is_some())
    }

    /// Makes the device see the host memory that takes part, in the order of the moves.
    pub(crate) fn import_host(&self, gpu: &Gpu) -> Result<Vec<HostImport>, Fault> {
        let mut imports = Vec::new();
        for of in &self.list {
            let (Some((span, direction)), Ok(importer)) = (of.host, &gpu.importer) else {
                continue;
            };
            let other = of.device_end(direction).1;
            // SAFETY: the operand lies within its buffer, which the engine keeps alive until the
            // fence has settled, that is until the import has finished; and it keeps others away.
            imports.push(unsafe { HostImport::new(gpu, importer, span, direction, other) }?);
        }
        Ok(imports)
    }

    /// A device cannot read the slots that it copies into. If runs begin or end inside a word of one,
    /// the bytes around them are read through the host's mapping, for which `wait` waits.
    pub(crate) fn keep_edges(&self, gpu: &Gpu, wait: impl Fn()) -> Result<Vec<SlotEdges>, Fault> {
        let mut edges: Vec<SlotEdges> = Vec::new();
        for slot in &self.slots() {
            let into = self
                .list
                .iter()
                .filter(|other| other.dst.buffer.same_storage(slot));
            if into.clone().all(Move::fills_whole_words) {
                continue;
            }
            wait();
            let rows = || into.clone().flat_map(Move::rows);
            let from = rows().map(|rows| rows.to).min().unwrap_or(0) / WORD * WORD;
            let end = |rows: Rows| rows.to + (rows.rows - 1) * rows.to_pitch + rows.len;
            let until = rows().map(end).max().unwrap_or(0);
            let size = until.next_multiple_of(WORD) - from;
            let bytes = gpu.catching(|| {
                gpu.device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("transload edges"),
                    size,
                    usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
                    mapped_at_creation: true,
                })
            })?;
            let read = match (slot.native::<Slot>(), bytes.get_mapped_range_mut(..)) {
                (Some(of), Ok(mut view)) => of.read(from, &mut view),
                _ => false,
            };
            if !read {
                return Err(failed(
                    &"a slot is not mapped although no guard or operation uses it",
                ));
            }
            bytes.unmap();
            edges.push(SlotEdges {
                slot: slot.clone(),
                from,
                bytes,
            });
        }
        Ok(edges)
    }

    pub(crate) fn write(&self, program: &mut Program, edges: &[SlotEdges], imports: &[HostImport]) {
        let mut imports = imports.iter();
        for of in &self.list {
            if let Some((_, direction)) = of.host {
                let (buffer, offset) = of.device_end(direction);
                if let (Some(import), Some(end)) = (imports.next(), native(buffer)) {
                    import.write(program, end.after(offset));
                }
                continue;
            }
            let edges = edges
                .iter()
                .find(|edges| edges.slot.same_storage(of.dst.buffer));
            of.write(program, edges);
        }
        // A copy shows what it writes, so that the host sees the bytes once the fence has settled.
        let written = self.list.iter().map(|of| of.dst.buffer);
        let mapped = written.filter(|buffer| buffer.memory().kind == MemoryKind::Mapped);
        for buffer in self.shown.iter().copied().chain(mapped) {
            if let Some(End::Bytes { buffer, .. }) = native(buffer) {
                program.show(buffer);
            }
        }
        for edges in edges {
            if let Some(slot) = native(&edges.slot) {
                let src = End::bytes(&edges.bytes, 0);
                program.copy(src, slot.after(edges.from), edges.bytes.size());
            }
        }
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
        let in_line = src.shape.is_contiguous() && dst.shape.is_contiguous();
        let import = |end, direction| {
            let place = in_place(gpu, end, span).filter(|_| in_line)?;
            Some((place, direction))
        };
        let host = import(&src, Direction::In).or_else(|| import(&dst, Direction::Out));
        let by_host = host.map(|(_, direction)| direction);
        if by_host != Some(Direction::In) {
            reach(gpu.id, &of_device(MemoryKind::Upload), op, &src)?;
        }
        if by_host != Some(Direction::Out) {
            reach(gpu.id, &of_device(MemoryKind::Readback), op, &dst)?;
        }
        let made = Move {
            src,
            dst,
            span,
            host,
        };
        if !gpu.computes() && made.needs_shader() {
            let reason = "it computes nothing, and without a shader only whole words go from one buffer \
                          to another, and whole texels to or from a texture";
            return Err(unsupported(format!("{}: {reason}", gpu.id)));
        }
        if let Some(reason) = made.is_cut_inside_texels() {
            return Err(unsupported(reason));
        }
        endpoints::allow(&made.src, &made.dst, made.rows())?;
        Ok(made)
    }
}

impl Move<'_> {
    /// Whether a run needs more than wgpu's own commands.
    fn needs_shader(&self) -> bool {
        let mut program = Program::new(Shifts::Texels);
        self.write(&mut program, None);
        program.needs_scratch()
    }

    /// The device's end of a move to or from host memory, and the storage's byte that it begins at.
    fn device_end(&self, direction: Direction) -> (&Buffer, u64) {
        let end = match direction {
            Direction::In => &self.dst,
            Direction::Out => &self.src,
        };
        (end.buffer, position(end) + self.span.offset)
    }

    /// Adds the commands for the move; uses the edges of the slot, if any.
    fn write(&self, program: &mut Program, edges: Option<&SlotEdges>) {
        let (Some(src), Some(dst)) = (native(self.src.buffer), native(self.dst.buffer)) else {
            return;
        };
        for rows in self.rows() {
            match edges {
                Some(edges) => {
                    let to = rows.to - edges.from;
                    let dst = End::bytes(&edges.bytes, 0);
                    program.copy_rows(src, dst, &Rows { to, ..rows });
                }
                None => program.copy_rows(src, dst, &rows),
            }
        }
    }

    /// The runs of bytes of the two storages, and as rows what may be a rectangle of a texture.
    fn rows(&self) -> impl Iterator<Item = Rows> + use<> {
        let (src, dst) = (position(&self.src), position(&self.dst));
        let runs = self.src.shape.runs(src, &self.dst.shape, dst, self.span);
        let texels = [&self.src, &self.dst].map(|end| texture::window(end.buffer));
        runs.rows(texels.iter().any(Option::is_some))
    }

    /// Whether the move fills whole words of the destination buffer, so that none must be read first.
    fn fills_whole_words(&self) -> bool {
        let src = native(self.src.buffer);
        src.is_some_and(|src| {
            self.rows()
                .all(|rows| Program::fills_whole_words(src, &rows))
        })
    }

    /// Returns why the move cannot use host memory in place, if it cannot. Host memory moves in pieces
    /// that end at page boundaries; a piece that ends inside a texel would have to read the rest of the
    /// texel.
    fn is_cut_inside_texels(&self) -> Option<String> {
        let (span, _) = self.host?;
        let window = texture::window(self.dst.buffer).filter(Window::is_unreadable)?;
        let block = window.block.bytes;
        (!span.addr().is_multiple_of(block)).then(|| {
            format!(
                "host memory at no multiple of {block} bytes would be cut inside texels, and the texture \
                 was created without COPY_SRC"
            )
        })
    }
}

/// A device's own memory, and its slots of that kind.
fn of_device(slot: MemoryKind) -> [MemoryKind; 3] {
    [MemoryKind::Device, MemoryKind::Mapped, slot]
}

/// Where the payload bytes `span` lie, if they are host memory that the device can reach in place.
fn in_place(gpu: &Gpu, end: &Layout<'_>, span: Span) -> Option<HostSpan> {
    let memory = end.buffer.memory();
    let host = memory.device.is_host() && GUEST_KINDS.contains(&memory.kind);
    if !host || gpu.importer.is_err() {
        return None;
    }
    end.buffer.host(end.offset + span.offset, span.len)
}
