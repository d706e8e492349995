//! Operations, checked and taken apart into runs of bytes.

use transload_hal::core::{DeviceId, MemoryKind, Rows, Span};
use transload_hal::{Buffer, DeviceKind, ErrorClass, Fault, HostSpan, Layout, Op, SubmitError};

use crate::device::Gpu;
use crate::guest::{Direction, Guest};
use crate::inventory::GUEST_KINDS;
use crate::memory::{Slot, WORD, failed};
use crate::raw::{End, Program, Window};
use crate::texture;

/// The operations of one submission.
pub(crate) struct Moves<'a> {
    list: Vec<Move<'a>>,
    /// What the host is going to look at, which moves nothing.
    shown: Vec<&'a wgpu::Buffer>,
}

/// Bytes from one buffer to another.
struct Move<'a> {
    src: Layout<'a>,
    dst: Layout<'a>,
    span: Span,
    /// The end that is host memory, reached in place, and which way its bytes go.
    host: Option<(HostSpan, Direction)>,
}

/// What a slot held around the bytes that are to come, for each slot that needs it.
pub(crate) struct Kept {
    slot: Buffer,
    /// The first byte of the slot that `bytes` holds, a whole word.
    from: u64,
    bytes: wgpu::Buffer,
}

/// The adapter that an operation is for.
pub(crate) fn device_of(op: &Op<'_>) -> Option<DeviceId> {
    let ends = match op {
        Op::Copy { src, dst } => [src.buffer, dst.buffer],
        Op::Pitched { src, dst, .. } => [src.buffer, dst.buffer],
        Op::MakeVisible { part } => [part.buffer; 2],
        _ => return None,
    };
    let devices = ends.map(|buffer| buffer.memory().device);
    devices
        .into_iter()
        .find(|device| device.kind == DeviceKind::WGPU)
}

impl<'a> Moves<'a> {
    /// # Errors
    /// When one of them is none of this device's, cannot be done by it, or breaks its contract.
    pub(crate) fn of(gpu: &Gpu, ops: &[Op<'a>]) -> Result<Moves<'a>, SubmitError> {
        let device = gpu.id;
        let mut list = Vec::with_capacity(ops.len());
        let mut shown = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            let made = match op {
                Op::Copy { src, dst } if src.len_bytes != dst.len_bytes => {
                    let (from, to) = (src.len_bytes, dst.len_bytes);
                    let message = format!("{from} bytes cannot be copied to {to}");
                    Err(Fault::new(ErrorClass::Caller, message))
                }
                Op::Copy { src, dst } => {
                    let span = Span::new(0, src.len_bytes);
                    Move::new(gpu, op, Layout::from(*src), Layout::from(*dst), span)
                }
                Op::Pitched { src, dst, span } => Move::new(gpu, op, *src, *dst, *span),
                Op::MakeVisible { part } => match native(part.buffer) {
                    Some(End::Bytes { buffer, .. }) if part.buffer.memory().device == device => {
                        shown.push(buffer);
                        continue;
                    }
                    _ => Err(unsupported(format!("{op:?} is of no buffer of {device}"))),
                },
                other => Err(unsupported(format!("wgpu does nothing like {other:?}"))),
            };
            list.push(made.map_err(|fault| match fault.class {
                ErrorClass::Unsupported => SubmitError::Unsupported {
                    index,
                    reason: fault.message,
                },
                _ => SubmitError::Refused(fault),
            })?);
        }
        list.retain(|of| of.span.len > 0);
        Ok(Moves { list, shown })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.shown.is_empty()
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
    pub(crate) fn invite(&self, gpu: &Gpu) -> Result<Vec<Guest>, Fault> {
        let mut guests = Vec::new();
        for of in &self.list {
            let (Some((span, direction)), Ok(importer)) = (of.host, &gpu.importer) else {
                continue;
            };
            let other = of.device_end(direction).1;
            // SAFETY: the operand lies within its buffer, which the engine keeps alive until the
            // fence has settled, that is until the guest has left; and it keeps others away.
            guests.push(unsafe { Guest::new(gpu, importer, span, direction, other) }?);
        }
        Ok(guests)
    }

    /// Slots that a device copies into cannot be read by it. Where runs begin or end inside a word of
    /// one, what the words around them hold is taken from the host's side, which `wait` brings back.
    pub(crate) fn keep_edges(&self, gpu: &Gpu, wait: impl Fn()) -> Result<Vec<Kept>, Fault> {
        let mut kept: Vec<Kept> = Vec::new();
        for of in &self.list {
            let slot = of.dst.buffer;
            let is_kept = kept.iter().any(|kept| kept.slot.same_storage(slot));
            if slot.native::<Slot>().is_none() || is_kept {
                continue;
            }
            let into = self
                .list
                .iter()
                .filter(|other| other.dst.buffer.same_storage(slot));
            if into.clone().all(Move::lands_on_words) {
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
                return Err(failed(&"a slot is not mapped although nobody uses it"));
            }
            bytes.unmap();
            kept.push(Kept {
                slot: slot.clone(),
                from,
                bytes,
            });
        }
        Ok(kept)
    }

    pub(crate) fn write(&self, program: &mut Program, kept: &[Kept], guests: &[Guest]) {
        let mut guests = guests.iter();
        for of in &self.list {
            if let Some((_, direction)) = of.host {
                let (buffer, offset) = of.device_end(direction);
                if let (Some(guest), Some(end)) = (guests.next(), native(buffer)) {
                    guest.write(program, end.after(offset));
                }
                continue;
            }
            let kept = kept
                .iter()
                .find(|kept| kept.slot.same_storage(of.dst.buffer));
            of.write(program, kept);
        }
        for buffer in &self.shown {
            program.show(buffer);
        }
        for kept in kept {
            if let Some(slot) = native(&kept.slot) {
                let src = End::bytes(&kept.bytes, 0);
                program.copy(src, slot.after(kept.from), kept.bytes.size());
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
        src: Layout<'a>,
        dst: Layout<'a>,
        span: Span,
    ) -> Result<Move<'a>, Fault> {
        let in_line = src.shape.is_contiguous() && dst.shape.is_contiguous();
        let guest = |end, direction| {
            let place = in_place(gpu, end, span).filter(|_| in_line)?;
            Some((place, direction))
        };
        let host = guest(&src, Direction::In).or_else(|| guest(&dst, Direction::Out));
        let by_host = host.map(|(_, direction)| direction);
        if by_host != Some(Direction::In) {
            reach(gpu, op, &src, MemoryKind::Upload)?;
        }
        if by_host != Some(Direction::Out) {
            reach(gpu, op, &dst, MemoryKind::Readback)?;
        }
        if !dst.buffer.is_writable() {
            let message = format!("a buffer of {} may not be written", dst.buffer.memory());
            return Err(Fault::new(ErrorClass::Caller, message));
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
        match made.reads_unreadable() {
            Some(message) => Err(Fault::new(ErrorClass::Caller, message)),
            None => Ok(made),
        }
    }
}

impl Move<'_> {
    /// Whether a run is more than wgpu's own commands can do.
    fn needs_shader(&self) -> bool {
        let mut program = Program::new(u64::MAX);
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

    /// Adds the commands for it, into what is kept of the slot if anything is.
    fn write(&self, program: &mut Program, kept: Option<&Kept>) {
        let (Some(src), Some(dst)) = (native(self.src.buffer), native(self.dst.buffer)) else {
            return;
        };
        for rows in self.rows() {
            match kept {
                Some(kept) => {
                    let to = rows.to - kept.from;
                    let dst = End::bytes(&kept.bytes, 0);
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

    /// Whether no word of the destination, a buffer, need be read.
    fn lands_on_words(&self) -> bool {
        let src = native(self.src.buffer);
        src.is_some_and(|src| self.rows().all(|rows| Program::lands_on_words(src, &rows)))
    }

    /// Host memory goes in pieces that end where its pages do. Why it cannot, where the rest of a texel
    /// would have to be read then.
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

    /// What must be read of a texture that cannot be read.
    fn reads_unreadable(&self) -> Option<String> {
        if texture::window(self.src.buffer).is_some_and(|window| window.is_unreadable()) {
            return Some("a texture that was created without COPY_SRC cannot be read".to_owned());
        }
        let window = texture::window(self.dst.buffer).filter(Window::is_unreadable)?;
        let block = window.block.bytes;
        let cut = self.rows().find(|rows| {
            let ends = rows.to | rows.len | rows.to_pitch;
            !ends.is_multiple_of(block)
        })?;
        Some(format!(
            "{} bytes at byte {} of a texture are no whole blocks of {block} bytes; the rest of those \
             would have to be read, and it was created without COPY_SRC",
            cut.len, cut.to
        ))
    }
}

/// Makes sure that an end is this device's, or a slot of that kind, as far as its last byte.
fn reach(gpu: &Gpu, op: &Op<'_>, end: &Layout<'_>, slot: MemoryKind) -> Result<(), Fault> {
    let memory = end.buffer.memory();
    let kinds = [MemoryKind::Device, MemoryKind::Mapped, slot];
    if memory.device != gpu.id || !kinds.contains(&memory.kind) {
        let reason = format!("{} does not reach {memory} for {op:?}", gpu.id);
        return Err(unsupported(reason));
    }
    let Some(native) = native(end.buffer) else {
        let reason = format!("a buffer of {memory} was not made by this backend");
        return Err(unsupported(reason));
    };
    let until = position(end).saturating_add(end.shape.extent_bytes());
    if let End::Bytes { buffer, .. } = native
        && until.div_ceil(WORD) > buffer.size() / WORD
    {
        let size = buffer.size();
        let reason = format!(
            "wgpu copies whole words, and the last one before byte {until} lies past the {size} bytes of \
             the buffer"
        );
        return Err(unsupported(reason));
    }
    Ok(())
}

fn unsupported(reason: String) -> Fault {
    Fault::new(ErrorClass::Unsupported, reason)
}

/// Where the payload bytes `span` lie, if they are host memory that the device can reach in place.
fn in_place(gpu: &Gpu, end: &Layout<'_>, span: Span) -> Option<HostSpan> {
    let memory = end.buffer.memory();
    let host = memory.device.kind == DeviceKind::CPU && GUEST_KINDS.contains(&memory.kind);
    if !host || gpu.importer.is_err() {
        return None;
    }
    end.buffer.host(end.offset + span.offset, span.len)
}

fn position(end: &Layout<'_>) -> u64 {
    end.buffer.span().offset + end.offset
}

/// The first byte of a storage of this backend.
fn native(buffer: &Buffer) -> Option<End<'_>> {
    if let Some(window) = texture::window(buffer) {
        return Some(End::Texels { window, offset: 0 });
    }
    let slot = buffer.native::<Slot>().map(|slot| &slot.buffer);
    let own = slot.or_else(|| buffer.native::<wgpu::Buffer>())?;
    Some(End::bytes(own, 0))
}
