//! The commands of one submission.

use transload_hal::Rows;

use super::shifter::{CHUNK, Shift, Shifter};
use super::texels::SINGLE_ROWS;
use super::window::{Place, Window};
use crate::storage::WORD;

/// Commands, in the order in which the queue executes them.
pub(crate) struct Program {
    pub(super) steps: Vec<Step>,
    params: Vec<Shift>,
    shifts: Shifts,
    /// How many rows of a texture are worth a command each.
    pub(super) single_rows: u64,
}

/// How bytes get to another place within their words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shifts {
    /// By the shader.
    Shader,
    /// As texels of one byte, through a scratch texture: wgpu copies them from and to any byte of a buffer. Processors
    /// run this at the speed of memory. They take 20 times as long for the shader.
    Texels,
}

/// A place in a buffer, or in the bytes of texels.
#[derive(Clone, Copy)]
pub(crate) enum End<'a> {
    Bytes {
        buffer: &'a wgpu::Buffer,
        offset: u64,
    },
    Texels {
        window: Window<'a>,
        offset: u64,
    },
}

pub(super) enum Step {
    /// Whole words.
    Copy {
        src: Buffer,
        src_at: u64,
        dst: Buffer,
        dst_at: u64,
        len: u64,
    },
    /// From texels to a buffer.
    Read {
        src: Place,
        dst: Buffer,
        layout: wgpu::TexelCopyBufferLayout,
    },
    /// From a buffer to texels.
    Fill {
        src: Buffer,
        layout: wgpu::TexelCopyBufferLayout,
        dst: Place,
    },
    /// From texels to as many of another texture.
    Exchange { src: Place, dst: Place },
    /// From one scratch buffer to the other.
    Shift(usize),
    /// Bytes at any place, through the scratch texture.
    Through {
        src: Buffer,
        from: u64,
        dst: Buffer,
        to: u64,
        len: u64,
    },
    /// Makes what was written visible to the host.
    #[cfg(native)]
    Show(wgpu::Buffer),
}

/// What happens to the other bytes of words that a copy covers in part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Around {
    /// They keep their values.
    Keep,
    /// They may get any value.
    Spoil,
}

#[derive(Clone)]
pub(super) enum Buffer {
    Own(wgpu::Buffer),
    Input,
    Output,
    Middle,
}

impl<'a> End<'a> {
    pub(crate) fn bytes(buffer: &'a wgpu::Buffer, offset: u64) -> End<'a> {
        End::Bytes { buffer, offset }
    }

    /// The same, `by` bytes further on.
    pub(crate) fn after(self, by: u64) -> End<'a> {
        match self {
            End::Bytes { buffer, offset } => End::bytes(buffer, offset + by),
            End::Texels { window, offset } => End::Texels {
                window,
                offset: offset + by,
            },
        }
    }

    /// `rows` rows of `len` bytes, `pitch` bytes from one to the next, as bytes without gaps.
    fn in_line(self, len: u64, rows: u64, pitch: u64) -> Option<End<'a>> {
        match self {
            _ if pitch == len || rows == 1 => Some(self),
            End::Texels { window, offset } if pitch == window.row_bytes() => Some(End::Texels {
                window: window.rectangle(offset, len, rows)?,
                offset: 0,
            }),
            _ => None,
        }
    }
}

impl Program {
    /// Makes an empty program.
    pub(crate) fn new(shifts: Shifts) -> Program {
        Program {
            steps: Vec::new(),
            params: Vec::new(),
            shifts,
            single_rows: match shifts {
                Shifts::Shader => SINGLE_ROWS,
                Shifts::Texels => u64::MAX,
            },
        }
    }

    /// Whether there are no commands.
    #[cfg(browser)]
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether the bytes are whole words in both buffers.
    pub(crate) fn is_whole(src: u64, dst: u64, len: u64) -> bool {
        (src | dst | len).is_multiple_of(WORD)
    }

    /// Whether no word of the destination, a buffer, need be read for rows that come from `src`.
    #[cfg(native)]
    pub(crate) fn fills_whole_words(src: End<'_>, of: &Rows) -> bool {
        let End::Texels { .. } = src else {
            return of.rows == 1 && Program::is_whole(of.from, of.to, of.len);
        };
        let line = src
            .after(of.from)
            .in_line(of.len, of.rows, of.from_pitch)
            .filter(|_| of.rows == 1 || of.to_pitch == of.len);
        match line {
            Some(_) => (of.to | (of.len * of.rows)).is_multiple_of(WORD),
            None => (of.to | of.to_pitch | of.len).is_multiple_of(WORD),
        }
    }

    /// Copies `len` bytes; within one buffer or texture the two ranges may overlap.
    pub(crate) fn copy(&mut self, src: End<'_>, dst: End<'_>, len: u64) {
        if len == 0 {
            return;
        }
        match (src, dst) {
            (
                End::Bytes {
                    buffer: src,
                    offset: from,
                },
                End::Bytes {
                    buffer: dst,
                    offset: to,
                },
            ) => self.copy_bytes((src, from), (dst, to), len),
            (End::Texels { window, offset }, End::Bytes { buffer, offset: to }) => {
                let dst = Buffer::Own(buffer.clone());
                self.read(&window, offset..offset + len, &dst, to, Around::Keep);
            }
            (
                End::Bytes {
                    buffer,
                    offset: from,
                },
                End::Texels { window, offset },
            ) => {
                let src = Buffer::Own(buffer.clone());
                self.fill(&src, from, &window, offset..offset + len);
            }
            (
                End::Texels { window, offset },
                End::Texels {
                    window: onto,
                    offset: to,
                },
            ) => self.exchange(&window, offset..offset + len, &onto, to),
        }
    }

    /// Copies rows, where `src` and `dst` are the ends that offsets count from.
    pub(crate) fn copy_rows(&mut self, src: End<'_>, dst: End<'_>, of: &Rows) {
        let (src, dst) = (src.after(of.from), dst.after(of.to));
        let lines = (
            src.in_line(of.len, of.rows, of.from_pitch),
            dst.in_line(of.len, of.rows, of.to_pitch),
        );
        if let (Some(src), Some(dst)) = lines {
            return self.copy(src, dst, of.len * of.rows);
        }
        for row in 0..of.rows {
            let (src, dst) = (src.after(row * of.from_pitch), dst.after(row * of.to_pitch));
            self.copy(src, dst, of.len);
        }
    }

    fn copy_bytes(
        &mut self,
        (src, from): (&wgpu::Buffer, u64),
        (dst, to): (&wgpu::Buffer, u64),
        len: u64,
    ) {
        let within = src == dst;
        let (src, dst) = (Buffer::Own(src.clone()), Buffer::Own(dst.clone()));
        if !within && Program::is_whole(from, to, len) {
            return self.words((src, from), (dst, to), len);
        }
        let first = to.next_multiple_of(WORD) - to;
        let last = (to + len) % WORD;
        if !within && from % WORD == to % WORD && len >= 4 * WORD {
            // The words between the edges move as they are. Each edge is moved with a word beside it, since `shift`
            // takes longer for less than a word.
            let words = len - first - last;
            self.words(
                (src.clone(), from + first),
                (dst.clone(), to + first),
                words,
            );
            if first > 0 {
                self.shift((&src, from), (&dst, to), first + WORD);
            }
            if last > 0 {
                let at = len - last - WORD;
                self.shift((&src, from + at), (&dst, to + at), last + WORD);
            }
            return;
        }
        let chunks = len.div_ceil(CHUNK);
        // Upwards, unless that would overwrite bytes that are still to be read.
        let up = !within || to <= from;
        for number in 0..chunks {
            let at = CHUNK * if up { number } else { chunks - 1 - number };
            let part = CHUNK.min(len - at);
            self.shift((&src, from + at), (&dst, to + at), part);
        }
    }

    /// Copies `len` bytes at `src` to `dst`. If they are not whole words, the rest of those words gets
    /// arbitrary bytes. Both ends have the same offset within their words.
    pub(crate) fn copy_around(&mut self, src: End<'_>, dst: (&wgpu::Buffer, u64), len: u64) {
        let (dst, to) = (Buffer::Own(dst.0.clone()), dst.1);
        match src {
            End::Bytes { buffer, offset } => {
                let lead = offset % WORD;
                let src = (Buffer::Own(buffer.clone()), offset - lead);
                let words = (lead + len).next_multiple_of(WORD);
                self.words(src, (dst, to - lead), words);
            }
            End::Texels { window, offset } => {
                self.read(&window, offset..offset + len, &dst, to, Around::Spoil);
            }
        }
    }

    /// Makes the writes of the commands so far to a buffer visible to the host. Memory that is mapped
    /// through wgpu needs no such command.
    #[cfg(native)]
    pub(crate) fn show(&mut self, buffer: &wgpu::Buffer) {
        self.steps.push(Step::Show(buffer.clone()));
    }

    /// One chunk through the scratch buffers or the scratch texture.
    fn shift(&mut self, (src, from): (&Buffer, u64), (dst, to): (&Buffer, u64), len: u64) {
        // wgpu records the wrong initialised range of a buffer for texels that begin and end inside one word.
        if self.shifts == Shifts::Texels && len >= WORD {
            let (src, dst) = (src.clone(), dst.clone());
            return self.steps.push(Step::Through {
                src,
                from,
                dst,
                to,
                len,
            });
        }
        let (first, last) = (from / WORD * WORD, (from + len).next_multiple_of(WORD));
        self.words((src.clone(), first), (Buffer::Input, 0), last - first);
        if Program::is_whole(from, to, len) {
            return self.words((Buffer::Input, 0), (dst.clone(), to), len);
        }
        // Within a chunk: they fit into 32 bits.
        let shift = Shift::in_line((from - first) as u32, (to % WORD) as u32, len as u32);
        self.shift_into(shift, dst, to, len, Around::Keep);
    }

    /// Adds one pass of the shader. Its output begins with the word that contains byte `to` of `dst`,
    /// and is copied there.
    pub(super) fn shift_into(
        &mut self,
        shift: Shift,
        dst: &Buffer,
        to: u64,
        len: u64,
        around: Around,
    ) {
        let (head, tail) = (to / WORD * WORD, (to + len).next_multiple_of(WORD));
        let words = tail - head;
        let mut keep = |edge: u64| {
            self.words((dst.clone(), head + edge), (Buffer::Output, edge), WORD);
        };
        // Keeps the bytes beside the payload in the words at both edges.
        if around == Around::Keep {
            if !to.is_multiple_of(WORD) || (words == WORD && len < WORD) {
                keep(0);
            }
            if !(to + len).is_multiple_of(WORD) && words > WORD {
                keep(words - WORD);
            }
        }
        self.shift_by(shift);
        self.words((Buffer::Output, 0), (dst.clone(), head), words);
    }

    pub(super) fn shift_by(&mut self, shift: Shift) {
        self.params.push(shift);
        self.steps.push(Step::Shift(self.params.len() - 1));
    }

    pub(super) fn words(
        &mut self,
        (src, src_at): (Buffer, u64),
        (dst, dst_at): (Buffer, u64),
        len: u64,
    ) {
        self.steps.push(Step::Copy {
            src,
            src_at,
            dst,
            dst_at,
            len,
        });
    }

    /// Whether the scratch buffers are needed.
    pub(crate) fn needs_scratch(&self) -> bool {
        let own = |buffer: &Buffer| matches!(buffer, Buffer::Own(_));
        self.steps.iter().any(|step| match step {
            Step::Copy { src, dst, .. } => !own(src) || !own(dst),
            Step::Read { dst: buffer, .. } | Step::Fill { src: buffer, .. } => !own(buffer),
            Step::Shift(_) | Step::Through { .. } => true,
            Step::Exchange { .. } => false,
            #[cfg(native)]
            Step::Show(_) => false,
        })
    }

    pub(crate) fn encode(
        &self,
        device: &wgpu::Device,
        shifter: Option<&Shifter>,
    ) -> wgpu::CommandBuffer {
        let descriptor = wgpu::CommandEncoderDescriptor {
            label: Some("transload"),
        };
        let mut encoder = device.create_command_encoder(&descriptor);
        let groups = match shifter {
            Some(shifter) if !self.params.is_empty() => shifter.bind(device, &self.params),
            _ => Vec::new(),
        };
        for step in &self.steps {
            match step {
                Step::Copy {
                    src,
                    src_at,
                    dst,
                    dst_at,
                    len,
                } => {
                    let (Some(src), Some(dst)) = (src.of(shifter), dst.of(shifter)) else {
                        continue;
                    };
                    encoder.copy_buffer_to_buffer(src, *src_at, dst, *dst_at, *len);
                }
                Step::Read { src, dst, layout } => {
                    let Some(buffer) = dst.of(shifter) else {
                        continue;
                    };
                    let dst = wgpu::TexelCopyBufferInfo {
                        buffer,
                        layout: *layout,
                    };
                    encoder.copy_texture_to_buffer(src.info(), dst, src.extent);
                }
                Step::Fill { src, layout, dst } => {
                    let Some(buffer) = src.of(shifter) else {
                        continue;
                    };
                    let src = wgpu::TexelCopyBufferInfo {
                        buffer,
                        layout: *layout,
                    };
                    encoder.copy_buffer_to_texture(src, dst.info(), dst.extent);
                }
                Step::Exchange { src, dst } => {
                    encoder.copy_texture_to_texture(src.info(), dst.info(), src.extent);
                }
                Step::Shift(at) => {
                    if let (Some(shifter), Some(group)) = (shifter, groups.get(*at)) {
                        shifter.dispatch(&mut encoder, group, &self.params[*at]);
                    }
                }
                Step::Through {
                    src,
                    from,
                    dst,
                    to,
                    len,
                } => {
                    if let (Some(shifter), Some(src), Some(dst)) =
                        (shifter, src.of(shifter), dst.of(shifter))
                    {
                        shifter.pass(&mut encoder, (src, *from), (dst, *to), *len);
                    }
                }
                #[cfg(native)]
                Step::Show(buffer) => {
                    let read = wgpu::BufferTransition {
                        buffer,
                        state: wgpu::BufferUses::MAP_READ,
                    };
                    encoder.transition_resources([read].into_iter(), [].into_iter());
                }
            }
        }
        encoder.finish()
    }
}

impl Buffer {
    fn of<'a>(&'a self, shifter: Option<&'a Shifter>) -> Option<&'a wgpu::Buffer> {
        match self {
            Buffer::Own(buffer) => Some(buffer),
            Buffer::Input => shifter.map(|shifter| &shifter.input),
            Buffer::Output => shifter.map(|shifter| &shifter.output),
            Buffer::Middle => shifter.map(|shifter| &shifter.middle),
        }
    }
}
