//! Where the bytes of tensors lie, in files and in memory.

use std::fmt;
use std::ops::Range;

use transload::host::HostFile;
use transload::{Buffer, Region, Shape, Span};

use crate::{ModelFile, TensorInfo};

/// Where bytes lie in a file or a buffer.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    /// In one span.
    Span(Range<u64>),
    /// In spans, read one after another.
    Spans(Vec<Range<u64>>),
    /// In rows from an offset on.
    Rows(u64, Shape),
}

impl Bytes {
    /// Returns elements of `width` bytes that repeat along dimensions: of each, from the innermost one on, how many there are,
    /// and how many bytes lie from one to the next. The first element begins at `offset`. Dimensions that adjoin are merged:
    /// a row is as long as its bytes lie without a gap. All bytes lie below 2⁶⁴, and no dimension is empty.
    pub(crate) fn strided(
        offset: u64,
        mut width: u64,
        dimensions: impl IntoIterator<Item = (u64, i128)>,
    ) -> Result<Bytes, TooManyRows> {
        let mut levels: Vec<(u64, i128)> = Vec::new();
        let dimensions = dimensions.into_iter().filter(|(count, _)| *count > 1);
        for (count, pitch) in dimensions {
            match levels.last_mut() {
                None if pitch == i128::from(width) => width *= count,
                Some((rows, row_pitch)) if i128::from(*rows) * *row_pitch == pitch => {
                    *rows *= count;
                }
                _ => levels.push((count, pitch)),
            }
        }
        let (rows, planes) = match levels[..] {
            [] => return Ok(Bytes::Span(offset..offset + width)),
            [rows] => (rows, (1, 0)),
            [rows, planes] => (rows, planes),
            [..] => return Bytes::listed(offset, width, &levels),
        };
        // A shape has no rows that overlap or go backwards.
        let pitch = |level: (u64, i128)| u64::try_from(level.1).ok();
        let shape = pitch(rows)
            .zip(pitch(planes))
            .and_then(|(row, plane)| Shape::pitched_3d(width, rows.0, row, planes.0, plane).ok());
        match shape {
            Some(shape) => Ok(Bytes::Rows(offset, shape)),
            None => Bytes::listed(offset, width, &levels),
        }
    }

    /// Lists the rows.
    fn listed(offset: u64, width: u64, levels: &[(u64, i128)]) -> Result<Bytes, TooManyRows> {
        let counts = levels.iter().map(|(count, _)| *count);
        let count = counts.fold(1, u64::saturating_mul);
        if count > MOST_SPANS {
            return Err(TooManyRows(count));
        }
        let start = |number: u64| {
            let walk = levels.iter().fold(
                (number, i128::from(offset)),
                |(left, at), (count, pitch)| (left / count, at + i128::from(left % count) * pitch),
            );
            walk.1 as u64
        };
        let spans = (0..count).map(|number| start(number)..start(number) + width);
        Ok(Bytes::Spans(spans.collect()))
    }

    /// Returns those of a whole tensor.
    pub(crate) fn of_tensor(info: &TensorInfo) -> Bytes {
        Bytes::Span(info.offset..info.offset + info.len_bytes)
    }

    /// Returns where the last of them ends.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Bytes::Span(span) => span.end,
            Bytes::Spans(spans) => spans.iter().map(|span| span.end).max().unwrap_or(0),
            Bytes::Rows(offset, shape) => offset + shape.extent_bytes(),
        }
    }

    /// Returns how many there are.
    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Bytes::Span(span) => span.end - span.start,
            Bytes::Spans(spans) => spans.iter().map(|span| span.end - span.start).sum(),
            Bytes::Rows(_, shape) => shape.payload_bytes(),
        }
    }

    /// Returns how many of them lie in pieces that may be read past the cache.
    pub(crate) fn long_bytes(&self) -> u64 {
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
    pub(crate) fn read_bytes(&self, file: &ModelFile) -> u64 {
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

    /// Returns the region of a file or a buffer.
    pub(crate) fn of(&self, file: &Buffer) -> Result<Region, transload::Error> {
        Ok(match self {
            Bytes::Span(only) => Region::from(file.slice(only.clone())?),
            Bytes::Spans(spans) => Region::spans(file, spans)?,
            Bytes::Rows(offset, shape) => Region::new(file, *offset, *shape)?,
        })
    }
}

/// So many rows that no shape says and that are too many to list.
pub(crate) struct TooManyRows(pub(crate) u64);

/// The text continues "the tensor lies in".
impl fmt::Display for TooManyRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0;
        write!(
            f,
            "{count} rows of more than three dimensions, or that overlap or go backwards, and at most {MOST_SPANS} are listed"
        )
    }
}

/// More spans than rows can say are listed, so many at most: a list takes 16 bytes for each.
const MOST_SPANS: u64 = 1 << 20;
