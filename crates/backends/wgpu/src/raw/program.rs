//! The commands of one submission.

use std::sync::Arc;

use super::{CHUNK, Params, Shifter};
use crate::memory::WORD;

/// Commands, in the order in which the queue carries them out.
#[derive(Default)]
pub(crate) struct Program {
    steps: Vec<Step>,
    params: Vec<Params>,
}

/// A place in a buffer.
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    pub(crate) buffer: &'a wgpu::Buffer,
    pub(crate) offset: u64,
}

enum Step {
    /// Whole words.
    Copy {
        src: Buffer,
        src_at: u64,
        dst: Buffer,
        dst_at: u64,
        len: u64,
    },
    /// From one scratch buffer to the other.
    Shift(usize),
    /// Makes what was written visible to the host.
    Show(wgpu::Buffer),
}

enum Buffer {
    Own(wgpu::Buffer),
    Input,
    Output,
}

impl Program {
    /// Whether the bytes are whole words in both buffers.
    pub(crate) fn is_whole(src: u64, dst: u64, len: u64) -> bool {
        (src | dst | len).is_multiple_of(WORD)
    }

    /// Copies `len` bytes; within one buffer the two ranges may overlap.
    pub(crate) fn copy(&mut self, src: End<'_>, dst: End<'_>, len: u64) {
        if len == 0 {
            return;
        }
        let within = src.buffer == dst.buffer;
        if !within && Program::is_whole(src.offset, dst.offset, len) {
            return self.words(
                (Buffer::Own(src.buffer.clone()), src.offset),
                (Buffer::Own(dst.buffer.clone()), dst.offset),
                len,
            );
        }
        let chunks = len.div_ceil(CHUNK);
        // Upwards, unless that would overwrite what is still to be read.
        let up = !within || dst.offset <= src.offset;
        for number in 0..chunks {
            let at = CHUNK * if up { number } else { chunks - 1 - number };
            let part = CHUNK.min(len - at);
            let shifted = |end: End<'_>| (end.buffer.clone(), end.offset + at);
            self.shift(shifted(src), shifted(dst), part);
        }
    }

    /// Copies the whole words that `len` bytes at `src` lie in to those that `dst` lies in. Both lie
    /// alike within their words.
    pub(crate) fn copy_around(&mut self, src: End<'_>, dst: End<'_>, len: u64) {
        let lead = src.offset % WORD;
        self.words(
            (Buffer::Own(src.buffer.clone()), src.offset - lead),
            (Buffer::Own(dst.buffer.clone()), dst.offset - lead),
            (lead + len).next_multiple_of(WORD),
        );
    }

    /// Makes what the commands so far wrote to a buffer visible to the host. What is mapped through
    /// wgpu needs no such command.
    pub(crate) fn show(&mut self, buffer: &wgpu::Buffer) {
        self.steps.push(Step::Show(buffer.clone()));
    }

    /// One chunk through the scratch buffers.
    fn shift(
        &mut self,
        (src, from): (wgpu::Buffer, u64),
        (dst, to): (wgpu::Buffer, u64),
        len: u64,
    ) {
        let (first, last) = (from / WORD * WORD, (from + len).next_multiple_of(WORD));
        self.words((Buffer::Own(src), first), (Buffer::Input, 0), last - first);
        if Program::is_whole(from, to, len) {
            return self.words((Buffer::Input, 0), (Buffer::Own(dst), to), len);
        }
        let (head, tail) = (to / WORD * WORD, (to + len).next_multiple_of(WORD));
        let words = tail - head;
        // What the words at both edges hold beside the payload.
        if !to.is_multiple_of(WORD) || words == WORD {
            self.words((Buffer::Own(dst.clone()), head), (Buffer::Output, 0), WORD);
        }
        if !(to + len).is_multiple_of(WORD) && words > WORD {
            let edge = words - WORD;
            self.words(
                (Buffer::Own(dst.clone()), head + edge),
                (Buffer::Output, edge),
                WORD,
            );
        }
        // Within a chunk: they fit into 32 bits.
        self.params
            .push([(from - first) as u32, (to - head) as u32, len as u32, 0]);
        self.steps.push(Step::Shift(self.params.len() - 1));
        self.words((Buffer::Output, 0), (Buffer::Own(dst), head), words);
    }

    fn words(&mut self, (src, src_at): (Buffer, u64), (dst, dst_at): (Buffer, u64), len: u64) {
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
            Step::Shift(_) => true,
            Step::Show(_) => false,
        })
    }

    pub(crate) fn encode(
        &self,
        device: &wgpu::Device,
        shifter: Option<&Arc<Shifter>>,
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
                Step::Shift(at) => {
                    if let (Some(shifter), Some(group)) = (shifter, groups.get(*at)) {
                        shifter.dispatch(&mut encoder, group, &self.params[*at]);
                    }
                }
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
    fn of<'a>(&'a self, shifter: Option<&'a Arc<Shifter>>) -> Option<&'a wgpu::Buffer> {
        match self {
            Buffer::Own(buffer) => Some(buffer),
            Buffer::Input => shifter.map(|shifter| &shifter.input),
            Buffer::Output => shifter.map(|shifter| &shifter.output),
        }
    }
}
