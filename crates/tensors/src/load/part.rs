//! Parts of tensors: which bytes of the file a slice has.

use std::ops::Range;

use transload::{Axis, Conversion};

use super::LoadError;
use crate::bytes::Bytes;
use crate::{DType, TensorInfo};

/// The elements along each dimension.
pub(crate) type Ranges = Vec<Range<u64>>;

/// What arrives of a tensor, where it is not the tensor as its file has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(super) dtype: DType,
    pub(super) ranges: Ranges,
    pub(crate) shape: Vec<u64>,
}

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
        let (mut pitch, mut offset) = (block_bytes, info.offset);
        let mut dimensions = Vec::with_capacity(self.ranges.len());
        let last = self.ranges.len().wrapping_sub(1);
        for (dimension, (range, size)) in self.ranges.iter().zip(&info.shape).enumerate().rev() {
            let unit = if dimension == last { block } else { 1 };
            // Within the tensor, whose bytes were counted.
            offset += range.start / unit * pitch;
            // A file has less than 2⁶³ bytes.
            dimensions.push(Axis::new((range.end - range.start) / unit, pitch as i64));
            pitch *= size / unit;
        }
        dimensions.reverse();
        Bytes::strided(offset, block_bytes, &dimensions).map_err(|error| LoadError::Slice {
            tensor: info.name.clone(),
            shape: info.shape.clone(),
            reason: error.to_string(),
        })
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
