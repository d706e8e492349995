//! One end of a transfer: a shape laid over a buffer, or pieces of it in a list's order, whose numbers may be converted; and the
//! operations of copies from or to such pieces.

use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::{Conversion, Shape, Span};
use transload_hal::{Buffer, Layout, Op, Part};

use crate::error::RegionError;

/// One end of a transfer: a shape laid over a buffer, or pieces of it.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) buffer: Buffer,
    /// Where the shape's first byte lies, counted from the start of the view.
    pub(crate) offset: u64,
    pub(crate) shape: Shape,
    /// Where the payload lies, if it is pieces in a list's order, or numbers that are converted; `shape` is then that of the
    /// payload.
    pub(crate) scattered: Option<Arc<Scattered>>,
}

/// Where the pieces of a payload lie.
#[derive(Clone, Debug)]
pub(crate) struct Scattered {
    pieces: Pieces,
    /// What the source's bytes become in the payload.
    pub(crate) conversion: Option<Conversion>,
    /// The bytes from the first byte of the lowest piece to the last one of the highest.
    extent: Span,
    /// Bytes that two pieces share.
    pub(crate) repeated: Option<Span>,
}

/// Pieces, in payload order.
#[derive(Clone, Debug)]
enum Pieces {
    /// From the operand's first byte to each of them, and how long all are.
    Equal(Arc<[u64]>, u64),
    /// From the operand's first byte to each of them, and where it ends among all.
    Unequal(Arc<[(u64, u64)]>),
    /// The rows of a shape.
    Rows(Shape),
}

impl Scattered {
    /// Makes the list of blocks with those numbers. Their ends are at most `u64::MAX`.
    pub(crate) fn blocks(block_bytes: u64, numbers: &[u32]) -> Scattered {
        let starts = numbers
            .iter()
            .map(|number| u64::from(*number) * block_bytes);
        Scattered::new(Pieces::Equal(starts.collect(), block_bytes))
    }

    /// Makes the list of those pieces, none of which is empty. Their ends and all their bytes are at most `u64::MAX`.
    pub(crate) fn pieces(pieces: impl Iterator<Item = Span>) -> Scattered {
        let pieces = pieces.scan(0, |end, piece| {
            *end += piece.len;
            Some((piece.offset, *end))
        });
        Scattered::new(Pieces::Unequal(pieces.collect()))
    }

    /// Makes the list of the rows of a shape.
    pub(crate) fn rows(shape: Shape) -> Scattered {
        Scattered {
            pieces: Pieces::Rows(shape),
            conversion: None,
            extent: Span::new(0, shape.extent_bytes()),
            repeated: None,
        }
    }

    fn new(pieces: Pieces) -> Scattered {
        let mut list = Scattered {
            pieces,
            conversion: None,
            extent: Span::new(0, 0),
            repeated: None,
        };
        let mut sorted: Vec<Span> = list.iter().collect();
        sorted.sort_unstable_by_key(|piece| piece.offset);
        let first = sorted.first().map_or(0, |piece| piece.offset);
        let mut end = first;
        for piece in sorted {
            let len = end.saturating_sub(piece.offset).min(piece.len);
            if len > 0 && list.repeated.is_none() {
                list.repeated = Some(Span::new(piece.offset, len));
            }
            end = end.max(piece.offset + piece.len);
        }
        list.extent = Span::new(first, end - first);
        list
    }

    /// Returns the pieces; of rows, the bytes from the first to the last one.
    fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        let (equal, unequal, rows): (&[u64], &[(u64, u64)], Option<Span>) = match &self.pieces {
            Pieces::Equal(starts, _) => (starts, &[], None),
            Pieces::Unequal(pieces) => (&[], pieces, None),
            Pieces::Rows(_) => (&[], &[], Some(self.extent)),
        };
        let len = match self.pieces {
            Pieces::Equal(_, len) => len,
            _ => 0,
        };
        let equal = equal.iter().map(move |start| Span::new(*start, len));
        let unequal = unequal.iter().scan(0, |before, (start, end)| {
            let piece = Span::new(*start, end - *before);
            *before = *end;
            Some(piece)
        });
        equal.chain(unequal).chain(rows)
    }

    /// Returns whether each piece is whole numbers of so many bytes.
    pub(crate) fn is_whole(&self, element_bytes: u64) -> bool {
        let is_whole = |len: u64| len.is_multiple_of(element_bytes);
        match &self.pieces {
            Pieces::Equal(_, len) => is_whole(*len),
            Pieces::Unequal(pieces) => pieces.iter().all(|(_, end)| is_whole(*end)),
            Pieces::Rows(shape) => is_whole(shape.width_bytes()),
        }
    }

    /// Returns where the payload byte `at` lies, and how many payload bytes follow it in its piece, itself included.
    fn locate(&self, at: u64) -> (u64, u64) {
        let Some(conversion) = self.conversion else {
            return self.locate_byte(at);
        };
        let (start, left) = self.locate_byte(conversion.source_bytes(at));
        // Pieces are whole numbers, and all of them together become the payload.
        (start, conversion.converted_bytes(left).unwrap_or(u64::MAX))
    }

    fn locate_byte(&self, at: u64) -> (u64, u64) {
        match &self.pieces {
            Pieces::Equal(starts, len) => {
                let start = starts.get((at / len) as usize).copied();
                (start.unwrap_or(0) + at % len, len - at % len)
            }
            Pieces::Unequal(pieces) => {
                let piece = pieces.partition_point(|(_, end)| *end <= at);
                let begin = piece.checked_sub(1).map_or(0, |before| pieces[before].1);
                let (start, end) = pieces.get(piece).copied().unwrap_or((0, u64::MAX));
                (start + (at - begin), end - at)
            }
            Pieces::Rows(shape) => shape.locate(at),
        }
    }
}

impl Operand {
    /// Returns whether the payload lies in one piece.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.scattered.is_none() && self.shape.is_contiguous()
    }

    /// Returns how its numbers are converted.
    pub(crate) fn conversion(&self) -> Option<Conversion> {
        self.scattered.as_ref()?.conversion
    }

    /// Has its numbers converted on the way. Fails when they are no whole numbers, or become more than 2^64 bytes.
    pub(crate) fn converted(self, conversion: Conversion) -> Result<Operand, RegionError> {
        let list = match &self.scattered {
            Some(list) => Scattered::clone(list),
            None => Scattered::rows(self.shape),
        };
        let found_bytes = self.shape.payload_bytes();
        let (element_bytes, memory) = (conversion.from().len_bytes(), self.buffer.memory());
        let whole = list.is_whole(element_bytes);
        let payload = conversion.converted_bytes(found_bytes);
        match payload.filter(|_| whole) {
            None => Err(RegionError::Elements {
                memory,
                found_bytes,
                element_bytes,
            }),
            Some(payload) => Ok(Operand {
                shape: Shape::contiguous(payload),
                scattered: Some(Arc::new(Scattered {
                    conversion: Some(conversion),
                    ..list
                })),
                ..self
            }),
        }
    }

    /// Returns the bytes of the buffer from the first to the last one of the operand.
    pub(crate) fn extent(&self) -> Span {
        match &self.scattered {
            None => Span::new(self.offset, self.shape.extent_bytes()),
            Some(list) => {
                let Span { offset, len } = list.extent;
                Span::new(self.offset + offset, len)
            }
        }
    }

    /// Returns whether any byte of both operands, which lie in one storage, is the same one.
    pub(crate) fn meets(&self, other: &Operand) -> bool {
        let mut spans: Vec<(Span, bool)> = self.spans().map(|span| (span, false)).collect();
        spans.extend(other.spans().map(|span| (span, true)));
        spans.sort_unstable_by_key(|(span, _)| span.offset);
        // The end of each operand's bytes so far.
        let mut ends = [0; 2];
        spans.into_iter().any(|(span, is_other)| {
            let meets = span.len > 0 && ends[usize::from(!is_other)] > span.offset;
            let end = &mut ends[usize::from(is_other)];
            *end = (*end).max(span.offset + span.len);
            meets
        })
    }

    /// Returns the ranges of the storage that the operand's bytes lie in. Rows at a pitch are one range.
    fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        let base = self.buffer.position();
        let list = self.scattered.as_ref();
        let whole = list.is_none().then(|| self.extent());
        let pieces = list.into_iter().flat_map(|list| list.iter());
        let pieces = pieces.map(|piece| Span::new(self.offset + piece.offset, piece.len));
        let spans = whole.into_iter().chain(pieces);
        spans.map(move |span| Span::new(base + span.offset, span.len))
    }
}

/// One end of a copy, of which the payload's byte `first` is the operand's first one.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) operand: Operand,
    pub(crate) first: u64,
}

impl End {
    fn is_pitched(&self) -> bool {
        !self.operand.shape.is_contiguous()
    }

    /// How many payload bytes from `at` on lie in one piece, or in rows.
    fn left(&self, at: u64) -> u64 {
        let list = self.operand.scattered.as_ref();
        list.map_or(u64::MAX, |list| list.locate(at - self.first).1)
    }

    fn part(&self, at: u64, len_bytes: u64) -> Part<'_> {
        let inside = at - self.first;
        let list = self.operand.scattered.as_ref();
        let inside = list.map_or(inside, |list| list.locate(inside).0);
        Part {
            buffer: &self.operand.buffer,
            offset: self.operand.offset + inside,
            len_bytes,
        }
    }
}

/// Returns the operations of a conversion.
fn conversions<'a>(src: &'a End, dst: &'a End, span: Span, conversion: Conversion) -> Vec<Op<'a>> {
    let (mut ops, mut at) = (Vec::new(), span.offset);
    let end = span.offset + span.len;
    while at < end {
        // A destination at a pitch is located as rows are.
        let (offset, left) = match dst.is_pitched() {
            true => dst.operand.shape.locate(at - dst.first),
            false => {
                let part = dst.part(at, 0);
                (part.offset - dst.operand.offset, dst.left(at))
            }
        };
        let len = (end - at).min(src.left(at)).min(left);
        let src = Part {
            len_bytes: conversion.source_bytes(len),
            ..src.part(at, 0)
        };
        let dst = Part {
            buffer: &dst.operand.buffer,
            offset: dst.operand.offset + offset,
            len_bytes: len,
        };
        ops.push(Op::Convert {
            src,
            dst,
            conversion,
        });
        at += len;
    }
    ops
}

/// Returns the operations of a copy of the payload bytes `span`, in payload order. Pieces that adjoin at both ends are one
/// operation.
pub(crate) fn copies<'a>(src: &'a End, dst: &'a End, span: Span) -> Vec<Op<'a>> {
    if let Some(conversion) = src.operand.conversion() {
        return conversions(src, dst, span, conversion);
    }
    let (mut ops, mut at) = (Vec::new(), span.offset);
    let end = span.offset + span.len;
    while at < end {
        let len = (end - at).min(src.left(at)).min(dst.left(at));
        match (src.is_pitched(), dst.is_pitched()) {
            (true, _) => push_rows(&mut ops, src, Span::new(at, len), |rows, position, len| {
                (rows, dst.part(position, len).into())
            }),
            (_, true) => push_rows(&mut ops, dst, Span::new(at, len), |rows, position, len| {
                (src.part(position, len).into(), rows)
            }),
            (false, false) => push(&mut ops, src.part(at, len), dst.part(at, len)),
        }
        at += len;
    }
    ops
}

fn push<'a>(ops: &mut Vec<Op<'a>>, src: Part<'a>, dst: Part<'a>) {
    if let Some(Op::Copy { src: a, dst: b }) = ops.last_mut()
        && a.offset + a.len_bytes == src.offset
        && b.offset + b.len_bytes == dst.offset
    {
        a.len_bytes += src.len_bytes;
        b.len_bytes += dst.len_bytes;
        return;
    }
    ops.push(Op::Copy { src, dst });
}

/// Adds the copies between a part of `pitched` and bytes without gaps.
fn push_rows<'a>(
    ops: &mut Vec<Op<'a>>,
    pitched: &'a End,
    part: Span,
    ends: impl Fn(Layout<'a>, u64, u64) -> (Layout<'a>, Layout<'a>),
) {
    let (operand, first) = (&pitched.operand, pitched.first);
    for block in operand
        .shape
        .blocks(Span::new(part.offset - first, part.len))
    {
        let rows = Layout {
            buffer: &operand.buffer,
            offset: operand.offset + block.offset,
            shape: block.shape,
        };
        let len = block.shape.payload_bytes();
        let (src, dst) = ends(rows, first + block.position, len);
        let span = Span::new(0, len);
        ops.push(Op::Pitched { src, dst, span });
    }
}
