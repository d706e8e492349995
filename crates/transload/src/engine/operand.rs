//! One end of a transfer: a shape laid over a buffer, or pieces of it in a list's order; and the operations of copies from or
//! to such pieces.

use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::{Shape, Span};
use transload_hal::{Buffer, Layout, Op, Part};

/// One end of a transfer: a shape laid over a buffer, or pieces of it.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) buffer: Buffer,
    /// Where the shape's first byte lies, counted from the start of the view.
    pub(crate) offset: u64,
    pub(crate) shape: Shape,
    /// Where the payload lies, if it is pieces in a list's order; `shape` is then that of the payload.
    pub(crate) scattered: Option<Arc<Scattered>>,
}

/// Where the pieces of a payload lie.
#[derive(Debug)]
pub(crate) struct Scattered {
    /// From the operand's first byte to each piece, in payload order.
    starts: Vec<u64>,
    lens: Lens,
    /// The bytes from the first byte of the lowest piece to the last one of the highest.
    extent: Span,
    /// Bytes that two pieces share.
    pub(crate) repeated: Option<Span>,
}

/// How long the pieces are.
#[derive(Debug)]
enum Lens {
    /// All have so many bytes.
    Equal(u64),
    /// Where each ends in the payload.
    Ends(Vec<u64>),
}

impl Scattered {
    /// Makes the list of blocks with those numbers. Their ends are at most `u64::MAX`.
    pub(crate) fn blocks(block_bytes: u64, numbers: &[u32]) -> Scattered {
        let starts = numbers
            .iter()
            .map(|number| u64::from(*number) * block_bytes);
        Scattered::new(starts.collect(), Lens::Equal(block_bytes))
    }

    /// Makes the list of those pieces, none of which is empty. Their ends and all their bytes are at most `u64::MAX`.
    pub(crate) fn pieces(pieces: impl Iterator<Item = Span> + Clone) -> Scattered {
        let starts = pieces.clone().map(|piece| piece.offset).collect();
        let ends = pieces.scan(0, |end, piece| {
            *end += piece.len;
            Some(*end)
        });
        Scattered::new(starts, Lens::Ends(ends.collect()))
    }

    fn new(starts: Vec<u64>, lens: Lens) -> Scattered {
        let mut list = Scattered {
            starts,
            lens,
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

    fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        let starts = self.starts.iter().enumerate();
        starts.map(|(at, start)| {
            let len = match &self.lens {
                Lens::Equal(len) => *len,
                Lens::Ends(ends) => ends[at] - at.checked_sub(1).map_or(0, |before| ends[before]),
            };
            Span::new(*start, len)
        })
    }

    /// Returns where the payload byte `at` lies, and how many payload bytes follow it in its piece, itself included.
    fn locate(&self, at: u64) -> (u64, u64) {
        let (piece, inside, left) = match &self.lens {
            Lens::Equal(len) => ((at / len) as usize, at % len, len - at % len),
            Lens::Ends(ends) => {
                let piece = ends.partition_point(|end| *end <= at);
                let begin = piece.checked_sub(1).map_or(0, |before| ends[before]);
                let end = ends.get(piece).copied().unwrap_or(u64::MAX);
                (piece, at - begin, end - at)
            }
        };
        let start = self.starts.get(piece).copied().unwrap_or(0);
        (start + inside, left)
    }
}

impl Operand {
    /// Returns whether the payload lies in one piece.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.scattered.is_none() && self.shape.is_contiguous()
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

/// Returns the operations of a copy of the payload bytes `span`, in payload order. Pieces that adjoin at both ends are one
/// operation.
pub(crate) fn copies<'a>(src: &'a End, dst: &'a End, span: Span) -> Vec<Op<'a>> {
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
