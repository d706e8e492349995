//! One end of a transfer: a shape laid over a buffer, pieces of it in a list's order, or elements at strides, whose numbers may be
//! converted; and the operations of copies from or to such ends.

use alloc::sync::Arc;
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use transload_core::{Conversion, DeviceId, Form, Portion, Shape, Span, Strided};
use transload_hal::{Buffer, Layout, Op, Part, View};

use crate::error::RegionError;

/// One end of a transfer: a shape laid over a buffer, or pieces of it.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) buffer: Buffer,
    /// Where the shape's first byte lies, counted from the start of the view.
    pub(crate) offset: u64,
    pub(crate) shape: Shape,
    /// Where the payload lies, if it is pieces in a list's order, elements at strides, or numbers that are converted; `shape` is then
    /// that of the payload.
    pub(crate) scattered: Option<Arc<Scattered>>,
}

/// Where the pieces or elements of a payload lie.
#[derive(Clone, Debug)]
pub(crate) struct Scattered {
    pieces: Pieces,
    /// What the source's bytes become in the payload.
    pub(crate) conversion: Option<Conversion>,
    /// The bytes from the first byte of the lowest piece to the last one of the highest.
    extent: Span,
    /// Bytes that two pieces of a list share.
    repeated: Option<Span>,
}

/// Pieces, in payload order.
#[derive(Clone, Debug)]
enum Pieces {
    /// From the operand's first byte to each of them, and how long all are.
    Equal(Arc<[u64]>, u64),
    /// From the operand's first byte to each of them, and where it ends among all.
    Unequal(Arc<[(u64, u64)]>),
    /// Elements at strides, the lowest byte of which is the operand's first one.
    Strided(Strided),
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

    /// Makes the one of elements at strides.
    pub(crate) fn strided(array: Strided) -> Scattered {
        let extent = Span::new(0, array.extent_bytes());
        Scattered {
            pieces: Pieces::Strided(array),
            conversion: None,
            extent,
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

    /// Returns the pieces; of elements at strides, the bytes from the lowest to the highest one.
    fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        let (equal, unequal, whole): (&[u64], &[(u64, u64)], Option<Span>) = match &self.pieces {
            Pieces::Equal(starts, _) => (starts, &[], None),
            Pieces::Unequal(pieces) => (&[], pieces, None),
            Pieces::Strided(_) => (&[], &[], Some(self.extent)),
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
        equal.chain(unequal).chain(whole)
    }

    /// Returns bytes that two pieces share, or all bytes of elements that share some.
    pub(crate) fn repeated(&self) -> Option<Span> {
        match &self.pieces {
            Pieces::Strided(array) => array.repeats().then_some(self.extent),
            _ => self.repeated,
        }
    }

    /// Returns whether each piece is whole numbers of so many bytes.
    pub(crate) fn is_whole(&self, element_bytes: u64) -> bool {
        let is_whole = |len: u64| len.is_multiple_of(element_bytes);
        match &self.pieces {
            Pieces::Equal(_, len) => is_whole(*len),
            Pieces::Unequal(pieces) => pieces.iter().all(|(_, end)| is_whole(*end)),
            Pieces::Strided(array) => is_whole(array.element_bytes()),
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
            Pieces::Strided(array) => array.locate(at),
        }
    }
}

impl Operand {
    /// Returns whether the payload lies in one piece.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.scattered.is_none() && self.shape.is_contiguous()
    }

    /// Returns whether both are the same bytes in the same order.
    pub(crate) fn reads_as(&self, other: &Operand) -> bool {
        let is_same = match (&self.scattered, &other.scattered) {
            (None, None) => true,
            (Some(own), Some(others)) => {
                let arrays = (self.array(), other.array());
                let is_array = matches!(arrays, (Some(own), Some(others)) if own == others);
                Arc::ptr_eq(own, others) || is_array && own.conversion == others.conversion
            }
            _ => false,
        };
        is_same && (self.offset, self.shape) == (other.offset, other.shape)
    }

    /// Returns how the bytes lie.
    pub(crate) fn form(&self) -> Form {
        match self.strided() {
            Some(_) => Form::Elements,
            None if self.is_contiguous() => Form::Contiguous,
            None => Form::Rows,
        }
    }

    /// Returns the strides, if the payload is elements at strides.
    pub(crate) fn strided(&self) -> Option<&Strided> {
        match &self.scattered.as_ref()?.pieces {
            Pieces::Strided(array) if !array.is_contiguous() => Some(array),
            _ => None,
        }
    }

    /// Returns the elements of any operand that is no list: those of rows, or of one piece, too.
    fn array(&self) -> Option<Strided> {
        match self.scattered.as_ref().map(|list| &list.pieces) {
            Some(Pieces::Strided(array)) => Some(*array),
            Some(_) => None,
            None => Strided::of_shape(&self.shape),
        }
    }

    /// Has the payload be the elements of `array`, which are the same ones in another order.
    fn reorder(&mut self, array: Strided) {
        self.shape = Shape::contiguous(self.shape.payload_bytes());
        self.scattered = Some(Arc::new(Scattered {
            conversion: self.conversion(),
            ..Scattered::strided(array)
        }));
    }

    /// Returns how its numbers are converted.
    pub(crate) fn conversion(&self) -> Option<Conversion> {
        self.scattered.as_ref()?.conversion
    }

    /// Has its numbers converted on the way. Fails when they are no whole numbers, or become more than 2^64 bytes.
    pub(crate) fn converted(self, conversion: Conversion) -> Result<Operand, RegionError> {
        let list = match &self.scattered {
            Some(list) => Some(Scattered::clone(list)),
            None => Strided::of_shape(&self.shape).map(Scattered::strided),
        };
        let found_bytes = self.shape.payload_bytes();
        let (element_bytes, memory) = (conversion.from().len_bytes(), self.buffer.memory());
        let list = list.filter(|list| list.is_whole(element_bytes));
        match list.zip(conversion.converted_bytes(found_bytes)) {
            None => Err(RegionError::Elements {
                memory,
                found_bytes,
                element_bytes,
            }),
            Some((list, payload)) => Ok(Operand {
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

    /// Returns whether any byte of both operands, which lie in one storage, is the same one; of elements at strides, whether it
    /// [may be](Strided::may_meet).
    pub(crate) fn meets(&self, other: &Operand) -> bool {
        if let (Some(own), Some(others)) = (self.array(), other.array()) {
            let base = |of: &Operand| of.buffer.position() + of.offset;
            return own.may_meet(base(self), &others, base(other));
        }
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

/// Puts the payloads of a copy into one order, that of the strides of one end, if one of them is elements at strides or rows whose
/// numbers are converted. Each end is then as simple as it can be told.
pub(crate) fn pair(src: &mut Operand, dst: &mut Operand) {
    let conversion = src.conversion();
    let is_wanted = |end: &Operand| match conversion {
        Some(_) => end.form() != Form::Contiguous && end.array().is_some(),
        None => end.form() == Form::Elements,
    };
    if !is_wanted(src) && !is_wanted(dst) {
        return;
    }
    let (Some(from), Some(to)) = (src.array(), dst.array()) else {
        return;
    };
    let sizes = conversion.map_or([1; 2], |of| [of.from().len_bytes(), of.to().len_bytes()]);
    // The host's threads put elements into any order, devices copy what lies in one piece or in rows.
    let by_src = dst.buffer.memory().device == DeviceId::CPU0
        && src.buffer.memory().device != DeviceId::CPU0
        && !from.repeats();
    let by = usize::from(!by_src);
    let [from, to] = Strided::paired([&from, &to], sizes, by).unwrap_or([from, to]);
    let shapes = from
        .shape()
        .zip(to.shape())
        .filter(|_| conversion.is_none());
    if let Some((from, to)) = shapes {
        (src.shape, src.scattered) = (from, None);
        (dst.shape, dst.scattered) = (to, None);
        return;
    }
    for (end, array) in [(src, from), (dst, to)] {
        if array.is_contiguous() && end.conversion().is_none() {
            end.scattered = None;
            end.shape = Shape::contiguous(end.shape.payload_bytes());
        } else {
            end.reorder(array);
        }
    }
}

/// One end of a copy, of which the payload's byte `first` is the operand's first one.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) operand: Operand,
    pub(crate) first: u64,
}

impl End {
    /// Returns whether an end is elements at strides, and none is a list.
    pub(crate) fn are_strided(src: &End, dst: &End) -> bool {
        let is_list = |end: &End| end.list().is_some();
        (src.is_strided() || dst.is_strided()) && !is_list(src) && !is_list(dst)
    }

    fn is_pitched(&self) -> bool {
        !self.operand.shape.is_contiguous()
    }

    fn is_strided(&self) -> bool {
        self.operand.strided().is_some()
    }

    /// Returns the list, if the payload is pieces in a list's order.
    fn list(&self) -> Option<&Scattered> {
        let list = self.operand.scattered.as_deref();
        list.filter(|list| !matches!(list.pieces, Pieces::Strided(_)))
    }

    /// How many payload bytes from `at` on lie in one piece, in rows, or at strides.
    fn left(&self, at: u64) -> u64 {
        self.list()
            .map_or(u64::MAX, |list| list.locate(at - self.first).1)
    }

    /// Returns the end as an operand of the copy of the payload bytes from `at` on.
    fn view(&self, at: u64) -> View<'_> {
        let array = self.operand.strided();
        let offset = match array {
            Some(_) => self.operand.offset,
            None => self.part(at, 0).offset,
        };
        View {
            buffer: &self.operand.buffer,
            offset,
            array,
        }
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

/// Returns the operations of a copy of the payload bytes `span`, in payload order: by elements if what does it takes them,
/// else by rows. Pieces that adjoin at both ends are one operation.
pub(crate) fn copies<'a>(src: &'a End, dst: &'a End, span: Span, by_elements: bool) -> Vec<Op<'a>> {
    if src.is_strided() || dst.is_strided() {
        let (mut ops, mut at) = (Vec::new(), span.offset);
        let end = span.offset + span.len;
        while at < end {
            let part = Span::new(at, (end - at).min(src.left(at)).min(dst.left(at)));
            match by_elements {
                true => ops.push(strided(src, dst, part)),
                false => push_elements(&mut ops, src, dst, part),
            }
            at += part.len;
        }
        return ops;
    }
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

/// Returns the operation by which the host's threads copy elements at strides.
pub(crate) fn strided<'a>(src: &'a End, dst: &'a End, span: Span) -> Op<'a> {
    Op::Strided {
        src: src.view(span.offset),
        dst: dst.view(span.offset),
        span,
        conversion: src.operand.conversion(),
    }
}

/// Adds the copies of elements at strides as rows of as many of them as lie so at both ends.
fn push_elements<'a>(ops: &mut Vec<Op<'a>>, src: &'a End, dst: &'a End, span: Span) {
    let arrays = [src, dst].map(|end| end.operand.strided());
    let counts = |array: &Strided| {
        let counts = array.axes().iter().map(|axis| axis.count);
        counts
            .chain([array.element_bytes()])
            .collect::<ArrayVec<u64, DIMENSIONS>>()
    };
    let common = match arrays {
        [Some(from), Some(to)] => Some(to).filter(|_| counts(from) == counts(to)),
        [from, to] => to.or(from),
    };
    let Some(common) = common else {
        let mut at = span.offset;
        while at < span.offset + span.len {
            let run = |end: &End| match end.operand.strided() {
                Some(array) => array.locate(at),
                None => (0, u64::MAX),
            };
            let [from, to] = [src, dst].map(run);
            let len = (span.offset + span.len - at).min(from.1).min(to.1);
            let part = |end: &'a End, inside| {
                let View { buffer, offset, .. } = end.view(at);
                Part {
                    buffer,
                    offset: offset + inside,
                    len_bytes: len,
                }
            };
            push(ops, part(src, from.0), part(dst, to.0));
            at += len;
        }
        return;
    };
    for portion in common.portions(1, span) {
        let [from, to] = [src, dst].map(|end| Steps::new(end, &portion, span.offset));
        // The outer dimensions are walked; the inner ones, of bytes, rows and planes, are a shape at both ends.
        let counts = portion.counts();
        let inner = (1..=counts.len().min(3)).rev().find_map(|inner| {
            let at = counts.len() - inner;
            let shapes = [&from, &to].map(|steps| shape(&counts[at..], &steps.strides[at..]));
            Some((at, shapes[0]?, shapes[1]?))
        });
        // One row always is.
        let Some((outer, from_shape, to_shape)) = inner else {
            continue;
        };
        for number in 0..counts[..outer].iter().product::<u64>() {
            let layout = |steps: &Steps<'a>, shape| Layout {
                buffer: steps.buffer,
                offset: steps.place(number, &counts[..outer]),
                shape,
            };
            let (src, dst) = (layout(&from, from_shape), layout(&to, to_shape));
            let span = Span::new(0, from_shape.payload_bytes());
            ops.push(Op::Pitched { src, dst, span });
        }
    }
}

/// Dimensions of an array, and the bytes of its elements.
const DIMENSIONS: usize = Strided::MOST_DIMENSIONS + 1;

/// Where a portion of a copy's bytes lies at one end.
struct Steps<'a> {
    buffer: &'a Buffer,
    offset: u64,
    strides: ArrayVec<i64, DIMENSIONS>,
}

impl<'a> Steps<'a> {
    fn new(end: &'a End, portion: &Portion, first: u64) -> Steps<'a> {
        let View {
            buffer,
            offset,
            array,
        } = end.view(first);
        let (inside, strides) = match array {
            Some(array) => {
                let (inside, strides) = array.strides_of(portion, 1);
                (inside, strides.collect())
            }
            None => (portion.position - first, portion.packed(1).collect()),
        };
        Steps {
            buffer,
            offset: offset + inside,
            strides,
        }
    }

    /// Returns where the place of that number along the dimensions of `counts` begins.
    fn place(&self, mut number: u64, counts: &[u64]) -> u64 {
        let steps = counts.iter().zip(&self.strides).rev();
        let offset = steps.fold(i128::from(self.offset), |at, (count, stride)| {
            let step = i128::from(number % count) * i128::from(*stride);
            number /= count;
            at + step
        });
        // Within the region.
        offset as u64
    }
}

/// Returns the shape of bytes, rows and planes, the innermost last, if their strides go upwards.
fn shape(counts: &[u64], strides: &[i64]) -> Option<Shape> {
    let at = |from_last: usize| {
        let at = counts.len().checked_sub(from_last)?;
        Some((counts[at], u64::try_from(strides[at]).ok()?))
    };
    let (width, _) = at(1)?;
    let level = |from_last| match counts.len() < from_last {
        true => Some((1, 0)),
        false => at(from_last),
    };
    let (rows, planes) = (level(2)?, level(3)?);
    Shape::pitched_3d(width, rows.0, rows.1, planes.0, planes.1).ok()
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
