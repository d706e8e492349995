//! Where the bytes of tensors lie, in files and in memory.

use std::ops::Range;

use transload::host::HostFile;
use transload::model::StridedError;
use transload::{Axis, Buffer, Region, Span, Strided};

use crate::{ModelFile, TensorInfo};

/// Where bytes lie in a file or a buffer.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    /// In one span.
    Span(Range<u64>),
    /// In spans, read one after another.
    Spans(Vec<Range<u64>>),
    /// In elements at strides, the lowest byte of which is at an offset.
    Strided(u64, Strided),
}

impl Bytes {
    /// Returns elements of `width` bytes that repeat along dimensions: of each, from the outermost one on, how many there are, and
    /// how many bytes lie from one to the next. The first element begins at `offset`, and no stride is negative. All bytes lie below
    /// 2⁶³.
    pub(crate) fn strided(offset: u64, width: u64, axes: &[Axis]) -> Result<Bytes, StridedError> {
        let array = Strided::new(width, axes)?;
        Ok(match array.is_contiguous() {
            true => Bytes::Span(offset..offset + array.payload_bytes()),
            false => Bytes::Strided(offset, array),
        })
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
            Bytes::Strided(offset, array) => offset + array.extent_bytes(),
        }
    }

    /// Returns how many there are.
    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Bytes::Span(span) => span.end - span.start,
            Bytes::Spans(spans) => spans.iter().map(|span| span.end - span.start).sum(),
            Bytes::Strided(_, array) => array.payload_bytes(),
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
            Bytes::Strided(_, array) if long(array.element_bytes()) == 0 => 0,
            Bytes::Strided(_, array) => array.payload_bytes(),
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
            Bytes::Strided(_, array) => {
                let (width, all) = (array.element_bytes(), array.payload_bytes());
                let two = [0, width].map(|at| span(array.locate(at).0, width));
                // Rows are all as far apart; a few more or less where planes and reads begin.
                match file.read_bytes(two.into_iter()) > 2 * width {
                    true => array.extent_bytes(),
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
            Bytes::Strided(offset, array) => Region::strided(file, offset + array.first(), array)?,
        })
    }
}
