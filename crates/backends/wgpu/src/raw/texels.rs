//! Commands for copies to and from textures.
//!
//! wgpu wants the rows of an image in a buffer 256 bytes apart, or a multiple of that, and copies whole
//! blocks. If the rows have that distance, and for single rows, its commands reach the buffer in place.
//! All other copies go through an image with such rows in one scratch buffer, and through the shader,
//! which keeps the bytes without gaps in the other.

use std::ops::Range;

use super::program::{Around, Buffer, Program, Step};
use super::shifter::{CHUNK, Shift};
use super::window::{Rect, Window};
use crate::storage::WORD;

/// Bytes between the rows of an image are a multiple of this.
const PITCH: u64 = wgpu::COPY_BYTES_PER_ROW_ALIGNMENT as u64;

/// Up to this many rows of one copy get a command each; more go through the shader. A pass of that is
/// three commands, and more than one row per command waits for the row before: wgpu puts a barrier
/// between two copies into one buffer.
///
/// On software adapters any number of rows is faster by commands: on lavapipe 22.3 and SwiftShader 156,
/// 1080 rows of 1919 texels of `Rgba8Unorm` took 2 ms as commands, and 60 ms and 220 ms through the
/// shader.
pub(crate) const SINGLE_ROWS: u64 = 4;

/// The part of a copy that goes through the scratch buffers at once.
struct Image {
    /// The bytes of the window that are copied.
    range: Range<u64>,
    /// Whole blocks around them that the image holds: rows, or a part of one.
    held: Range<u64>,
    /// The bytes of a row of the image, and from one to the next.
    row: u64,
    pitch: u64,
}

impl Image {
    /// Takes as many bytes from the front of `range` as fit: at least two rows, by the limit of a window.
    fn first_of(window: &Window<'_>, range: &Range<u64>) -> Image {
        let row = window.row_bytes();
        let pitch = row.next_multiple_of(PITCH);
        let top = range.start / row * row;
        let below = top + CHUNK / pitch * row;
        if range.end > top + row {
            let range = range.start..range.end.min(below);
            let held = top..range.end.next_multiple_of(row);
            return Image {
                range,
                held,
                row,
                pitch,
            };
        }
        let range = range.start..range.end.min(top + row);
        let held = window.around(&range);
        let row = held.end - held.start;
        Image {
            range,
            held,
            row,
            pitch: row.next_multiple_of(PITCH),
        }
    }

    /// Where a byte of the window lies in the image.
    fn place(&self, at: u64) -> u64 {
        let at = at - self.held.start;
        at / self.row * self.pitch + at % self.row
    }

    fn rows(&self) -> u64 {
        (self.held.end - self.held.start) / self.row
    }

    fn size(&self) -> u64 {
        (self.rows() - 1) * self.pitch + self.row
    }

    /// The first byte that is copied, counted from the first that is held.
    fn skipped(&self) -> u64 {
        self.range.start - self.held.start
    }

    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Program {
    /// From texels to a buffer.
    pub(super) fn read(
        &mut self,
        src: &Window<'_>,
        range: Range<u64>,
        dst: &Buffer,
        to: u64,
        around: Around,
    ) {
        // wgpu records the wrong initialised range of a buffer for a copy that begins and ends inside
        // one word.
        let place = |at: u64| to + at - range.start;
        let is_noted = |rect: Rect| {
            let (start, end) = (place(rect.at), place(rect.at) + rect.bytes(src.block));
            start.next_multiple_of(WORD) <= end / WORD * WORD
        };
        let singly = self
            .directly(src, &range, to)
            .filter(|singly| src.rects(range.clone(), *singly).all(is_noted));
        if let Some(singly) = singly {
            for rect in src.rects(range.clone(), singly) {
                self.steps.push(Step::Read {
                    src: src.place(&rect),
                    dst: dst.clone(),
                    layout: layout(place(rect.at), src.row_bytes(), &rect),
                });
            }
            return;
        }
        let mut rest = range.clone();
        while !rest.is_empty() {
            let mut image = Image::first_of(src, &rest);
            let to = to + rest.start - range.start;
            if image.range.end < rest.end {
                // The next one begins with a word.
                image.range.end -= (to + image.len()) % WORD;
            }
            rest.start = image.range.end;
            self.read_image(src, &image, dst, to, around);
        }
    }

    fn read_image(
        &mut self,
        src: &Window<'_>,
        image: &Image,
        dst: &Buffer,
        to: u64,
        around: Around,
    ) {
        for rect in src.rects(image.held.clone(), false) {
            self.steps.push(Step::Read {
                src: src.place(&rect),
                dst: Buffer::Input,
                layout: layout(image.place(rect.at), image.pitch, &rect),
            });
        }
        let lead = to % WORD;
        let shift = Shift {
            row: image.row as u32,
            src: 0,
            src_pitch: image.pitch as u32,
            dst: (lead as u32).wrapping_sub(image.skipped() as u32),
            dst_pitch: image.row as u32,
            first: image.skipped() as u32,
            end: (image.skipped() + image.len()) as u32,
            words: (lead + image.len()).div_ceil(WORD) as u32,
        };
        self.shift_into(shift, dst, to, image.len(), around);
    }

    /// From a buffer to texels.
    pub(super) fn fill(&mut self, src: &Buffer, from: u64, dst: &Window<'_>, range: Range<u64>) {
        if let Some(singly) = self.directly(dst, &range, from) {
            for rect in dst.rects(range.clone(), singly) {
                self.steps.push(Step::Fill {
                    src: src.clone(),
                    layout: layout(from + rect.at - range.start, dst.row_bytes(), &rect),
                    dst: dst.place(&rect),
                });
            }
            return;
        }
        let mut rest = range.clone();
        while !rest.is_empty() {
            let image = Image::first_of(dst, &rest);
            let from = from + rest.start - range.start;
            rest.start = image.range.end;
            self.fill_image(src, from, dst, &image);
        }
    }

    fn fill_image(&mut self, src: &Buffer, from: u64, dst: &Window<'_>, image: &Image) {
        let lead = from % WORD;
        let words = (lead + image.len()).next_multiple_of(WORD);
        self.words((src.clone(), from - lead), (Buffer::Input, 0), words);
        let covered = dst.around(&image.range);
        let block = dst.block.bytes;
        // Blocks at either end that the bytes do not fill.
        let (first, last) = (covered.start, covered.end - block);
        let cut = [
            (first, first < image.range.start),
            (last, image.range.end < covered.end),
        ];
        let mut read = None;
        for (at, is_cut) in cut {
            if !is_cut || read == Some(at) {
                continue;
            }
            read = Some(at);
            for rect in dst.rects(at..at + block, true) {
                self.steps.push(Step::Read {
                    src: dst.place(&rect),
                    dst: Buffer::Output,
                    layout: layout(image.place(at), image.pitch, &rect),
                });
            }
        }
        self.shift_by(Shift {
            row: image.row as u32,
            src: (lead as u32).wrapping_sub(image.skipped() as u32),
            src_pitch: image.row as u32,
            dst: 0,
            dst_pitch: image.pitch as u32,
            first: image.skipped() as u32,
            end: (image.skipped() + image.len()) as u32,
            words: image.size().div_ceil(WORD) as u32,
        });
        for rect in dst.rects(covered, false) {
            self.steps.push(Step::Fill {
                src: Buffer::Output,
                layout: layout(image.place(rect.at), image.pitch, &rect),
                dst: dst.place(&rect),
            });
        }
    }

    /// From texels to texels; within one texture the two may overlap.
    pub(super) fn exchange(
        &mut self,
        src: &Window<'_>,
        from: Range<u64>,
        dst: &Window<'_>,
        to: u64,
    ) {
        let len = from.end - from.start;
        let onto = to..to + len;
        let whole = |window: &Window<'_>, range: &Range<u64>| window.around(range) == *range;
        let beside = src.is_beside(dst);
        if !beside && src.is_like(dst) && whole(src, &from) && whole(dst, &onto) {
            let pairs = || {
                let from = src.rects(from.clone(), false);
                from.zip(dst.rects(onto.clone(), false))
            };
            if pairs().all(|(from, to)| from.size == to.size) {
                for (from, to) in pairs() {
                    self.steps.push(Step::Exchange {
                        src: src.place(&from),
                        dst: dst.place(&to),
                    });
                }
                return;
            }
        }
        let chunks = len.div_ceil(CHUNK);
        let up = !beside || dst.position() + to <= src.position() + from.start;
        for number in 0..chunks {
            let at = CHUNK * if up { number } else { chunks - 1 - number };
            let part = CHUNK.min(len - at);
            let start = from.start + at;
            self.read(src, start..start + part, &Buffer::Middle, 0, Around::Spoil);
            self.fill(&Buffer::Middle, 0, dst, to + at..to + at + part);
        }
    }

    /// Whether commands can copy between `range` and byte `at` of a buffer, and whether row by row.
    fn directly(&self, window: &Window<'_>, range: &Range<u64>, at: u64) -> Option<bool> {
        let whole = window.around(range) == *range && at.is_multiple_of(window.block.bytes);
        let row = window.row_bytes();
        let rows = range.end.div_ceil(row) - range.start / row;
        match whole {
            true if row.is_multiple_of(PITCH) => Some(false),
            true if rows <= self.single_rows => Some(true),
            _ => None,
        }
    }
}

/// The layout of a part's rows in a buffer. Fields that are not needed stay unset, because wgpu would
/// validate them.
fn layout(offset: u64, pitch: u64, rect: &Rect) -> wgpu::TexelCopyBufferLayout {
    wgpu::TexelCopyBufferLayout {
        offset,
        bytes_per_row: (rect.rows() > 1).then_some(pitch as u32),
        rows_per_image: (rect.size[2] > 1).then_some(rect.size[1]),
    }
}

#[cfg(test)]
mod tests;
