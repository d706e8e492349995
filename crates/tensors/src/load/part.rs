//! Parts of tensors: which bytes of the file a slice has.

use std::ops::Range;

use transload::host::HostFile;
use transload::{Buffer, Conversion, Region, Shape, Span};

use super::LoadError;
use crate::{DType, ModelFile, TensorInfo};

/// The elements along each dimension.
pub(super) type Ranges = Vec<Range<u64>>;

/// What arrives of a tensor, where it is not the tensor as its file has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) dtype: DType,
    pub(super) ranges: Ranges,
    pub(super) shape: Vec<u64>,
}

/// Where bytes lie in a file.
#[derive(Clone, Debug)]
pub(super) enum Bytes {
    /// In one span.
    Span(Range<u64>),
    /// In spans, read one after another.
    Spans(Vec<Range<u64>>),
    /// In rows from an offset on.
    Rows(u64, Shape),
}

/// More spans than rows can say are listed, so many at most: a list takes 16 bytes for each.
const MOST_SPANS: u64 = 1 << 20;

impl Part {
    /// Returns the same with elements of another type, and how they are converted, if they are.
    pub(super) fn converted(
        self,
        info: &TensorInfo,
        to: DType,
    ) -> Result<(Part, Option<Conversion>), LoadError> {
        if to == info.dtype {
            return Ok((self, None));
        }
        let none = || LoadError::Convert {
            tensor: info.name.clone(),
            from: info.dtype,
            to,
        };
        let (Some(from), Some(element)) = (info.dtype.element(), to.element()) else {
            return Err(none());
        };
        let conversion = Conversion::new(from, element).map_err(|_| none())?;
        Ok((Part { dtype: to, ..self }, Some(conversion)))
    }

    /// Makes the part of a tensor with these elements along its first dimensions, and all along the others.
    pub(super) fn new(info: &TensorInfo, mut ranges: Ranges) -> Result<Part, LoadError> {
        let refused = |reason: String| LoadError::Slice {
            tensor: info.name.clone(),
            shape: info.shape.clone(),
            reason,
        };
        if ranges.len() > info.shape.len() {
            let (found, limit) = (ranges.len(), info.shape.len());
            return Err(refused(format!(
                "{found} ranges were given for {limit} dimensions"
            )));
        }
        let rest = info.shape[ranges.len()..].iter();
        ranges.extend(rest.map(|size| 0..*size));
        for (dimension, (range, size)) in ranges.iter().zip(&info.shape).enumerate() {
            if range.start > range.end || range.end > *size {
                return Err(refused(format!(
                    "{range:?} is outside dimension {dimension}, which has {size} elements"
                )));
            }
        }
        let (block, _) = info.dtype.block();
        let is_whole = { ranges.iter().zip(&info.shape) }.all(|(range, size)| *range == (0..*size));
        if let (false, Some(range), Some(size)) = (is_whole, ranges.last(), info.shape.last()) {
            let ends = [*size, range.start, range.end];
            if ends.iter().any(|end| end % block != 0) {
                return Err(refused(format!(
                    "{range:?} of the last dimension are no whole blocks: {} comes in blocks of {block} elements",
                    info.dtype
                )));
            }
        }
        let shape = ranges.iter().map(|range| range.end - range.start).collect();
        Ok(Part {
            dtype: info.dtype,
            ranges,
            shape,
        })
    }

    /// Returns where its bytes lie in the file. A row of them is as long as they lie without a gap.
    pub(super) fn bytes(&self, info: &TensorInfo) -> Result<Bytes, LoadError> {
        if self.shape == info.shape {
            return Ok(Bytes::of_tensor(info));
        }
        // The other dimensions of a tensor without elements may be as large as they like.
        if self.shape.contains(&0) {
            return Ok(Bytes::Span(info.offset..info.offset));
        }
        let (block, block_bytes) = info.dtype.block();
        // Rows of elements within rows, from the innermost on: how many, and from one to the next.
        let (mut width, mut pitch, mut offset) = (block_bytes, block_bytes, info.offset);
        let mut levels: Vec<(u64, u64)> = Vec::new();
        let last = self.ranges.len().wrapping_sub(1);
        for (dimension, (range, size)) in self.ranges.iter().zip(&info.shape).enumerate().rev() {
            let unit = if dimension == last { block } else { 1 };
            let (start, count, size) = (
                range.start / unit,
                (range.end - range.start) / unit,
                size / unit,
            );
            // Within the tensor, whose bytes were counted.
            offset += start * pitch;
            match levels.last_mut() {
                None if width == pitch => width *= count,
                Some((rows, row_pitch)) if *rows * *row_pitch == pitch => *rows *= count,
                _ if count == 1 => {}
                _ => levels.push((count, pitch)),
            }
            pitch *= size;
        }
        let (rows, planes) = match levels[..] {
            [] => return Ok(Bytes::Span(offset..offset + width)),
            [rows] => (rows, (1, 0)),
            [rows, planes] => (rows, planes),
            [..] => return self.spans(info, (offset, width), &levels),
        };
        let shape = Shape::pitched_3d(width, rows.0, rows.1, planes.0, planes.1);
        let Ok(shape) = shape else {
            unreachable!("the rows of a tensor do not overlap, and end within its file");
        };
        Ok(Bytes::Rows(offset, shape))
    }

    /// Lists the rows.
    fn spans(
        &self,
        info: &TensorInfo,
        (offset, width): (u64, u64),
        levels: &[(u64, u64)],
    ) -> Result<Bytes, LoadError> {
        let count = levels
            .iter()
            .fold(1u64, |all, (count, _)| all.saturating_mul(*count));
        if count > MOST_SPANS {
            return Err(LoadError::Slice {
                tensor: info.name.clone(),
                shape: info.shape.clone(),
                reason: format!(
                    "the slice lies in {count} rows of more than three dimensions, and at most {MOST_SPANS} are listed"
                ),
            });
        }
        let start = |number: u64| {
            let walk = levels.iter().fold((number, offset), |(left, at), level| {
                let (count, pitch) = level;
                (left / count, at + left % count * pitch)
            });
            walk.1
        };
        let spans = (0..count).map(|number| start(number)..start(number) + width);
        Ok(Bytes::Spans(spans.collect()))
    }
}

/// Cuts a tensor, or the slice of one, along a dimension, so that no part is more than a block longer than another.
pub(super) fn split_along(
    info: &TensorInfo,
    ranges: Option<Ranges>,
    dimension: usize,
    parts: usize,
) -> Result<Vec<Ranges>, LoadError> {
    let refused = |reason: String| LoadError::Slice {
        tensor: info.name.clone(),
        shape: info.shape.clone(),
        reason,
    };
    let Part { ranges, .. } = Part::new(info, ranges.unwrap_or_default())?;
    let Some(whole) = ranges.get(dimension).cloned() else {
        let limit = ranges.len();
        return Err(refused(format!(
            "it cannot be split along dimension {dimension}: it has {limit}, counted from 0"
        )));
    };
    let unit = match dimension + 1 == ranges.len() {
        true => info.dtype.block().0,
        false => 1,
    };
    let count = (whole.end - whole.start) / unit;
    if count < parts as u64 {
        let what = match unit {
            1 => "elements".into(),
            unit => format!("blocks of {unit} elements"),
        };
        return Err(refused(format!(
            "it has {count} {what} along dimension {dimension}, too few for {parts} places"
        )));
    }
    let at = |part: usize| {
        let units = u128::from(count) * part as u128 / parts as u128;
        whole.start + units as u64 * unit
    };
    let cut = (0..parts).map(|part| {
        let mut ranges = ranges.clone();
        ranges[dimension] = at(part)..at(part + 1);
        ranges
    });
    Ok(cut.collect())
}

impl Bytes {
    /// Returns those of a whole tensor.
    pub(super) fn of_tensor(info: &TensorInfo) -> Bytes {
        Bytes::Span(info.offset..info.offset + info.len_bytes)
    }

    /// Returns where the last of them ends in the file.
    pub(super) fn end(&self) -> u64 {
        match self {
            Bytes::Span(span) => span.end,
            Bytes::Spans(spans) => spans.iter().map(|span| span.end).max().unwrap_or(0),
            Bytes::Rows(offset, shape) => offset + shape.extent_bytes(),
        }
    }

    /// Returns how many there are.
    pub(super) fn len_bytes(&self) -> u64 {
        match self {
            Bytes::Span(span) => span.end - span.start,
            Bytes::Spans(spans) => spans.iter().map(|span| span.end - span.start).sum(),
            Bytes::Rows(_, shape) => shape.payload_bytes(),
        }
    }

    /// Returns how many of them lie in pieces that may be read past the cache.
    pub(super) fn long_bytes(&self) -> u64 {
        let long = |len: u64| {
            if len >= HostFile::DIRECT_BYTES {
                len
            } else {
                0
            }
        };
        match self {
            Bytes::Span(span) => long(span.end - span.start),
            Bytes::Spans(spans) => spans.iter().map(|span| long(span.end - span.start)).sum(),
            Bytes::Rows(_, shape) if long(shape.width_bytes()) == 0 => 0,
            Bytes::Rows(_, shape) => shape.payload_bytes(),
        }
    }

    /// Returns how many bytes are read for them.
    pub(super) fn read_bytes(&self, file: &ModelFile) -> u64 {
        let span = |start, len| Span::new(start, len);
        match self {
            Bytes::Span(only) => only.end - only.start,
            Bytes::Spans(spans) => {
                let spans = spans.iter().map(|of| span(of.start, of.end - of.start));
                file.read_bytes(spans)
            }
            Bytes::Rows(_, shape) => {
                let (width, all) = (shape.width_bytes(), shape.payload_bytes());
                let two = shape.runs(0, shape, 0, span(0, all.min(2 * width)));
                let two = two.map(|row| span(row.offset, row.len_bytes));
                // Rows are all as far apart; a few more or less where planes and reads begin.
                match file.read_bytes(two) > 2 * width {
                    true => shape.extent_bytes(),
                    false => all,
                }
            }
        }
    }

    /// Returns the region of a file.
    pub(super) fn of(&self, file: &Buffer) -> Result<Region, transload::Error> {
        Ok(match self {
            Bytes::Span(only) => Region::from(file.slice(only.clone())?),
            Bytes::Spans(spans) => Region::spans(file, spans)?,
            Bytes::Rows(offset, shape) => Region::new(file, *offset, *shape)?,
        })
    }
}
