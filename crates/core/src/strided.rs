//! Where the elements of an array lie: at strides of either sign, in up to eight dimensions.

mod pair;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::{Shape, Span};

/// One dimension of an array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Axis {
    /// How many there are.
    pub count: u64,
    /// The bytes from one to the next, which may be negative or 0.
    pub stride_bytes: i64,
}

/// Where the elements of an array lie, relative to its lowest byte: what NumPy, PyTorch, DLPack and Arrow call strides.
///
/// The *payload* is the bytes of all elements, the last dimension changing first. Dimensions of one element are dropped,
/// and dimensions that adjoin are merged, so that equal layouts compare equal.
///
/// Invariants, held by the constructor: payload and extent fit `u64`; no axis has fewer than two elements, unless the array
/// is empty and has no axis and elements of 0 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Strided {
    element_bytes: u64,
    /// The first `dimensions` of them, the outermost first; the others are [`Axis::NONE`].
    axes: [Axis; Strided::MOST_DIMENSIONS],
    dimensions: u8,
    /// From the lowest byte to the first element.
    first: u64,
    extent_bytes: u64,
}

/// Why the description of an array was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StridedError {
    /// The array has too many dimensions.
    #[error("the array has {dimensions} dimensions, and at most {limit} are copied", limit = Strided::MOST_DIMENSIONS)]
    TooManyDimensions {
        /// How many it has.
        dimensions: usize,
    },
    /// The elements have 2^64 bytes or more, or lie 2^64 bytes apart or more.
    #[error(
        "elements of {element_bytes} bytes with dimension {dimension} of {count} at a stride of {stride_bytes} bytes have or span 2^64 bytes or more"
    )]
    TooLarge {
        /// Bytes of an element.
        element_bytes: u64,
        /// The dimension with which the limit is passed, counted from 0 for the outermost one.
        dimension: usize,
        /// How many there are in that dimension.
        count: u64,
        /// The bytes from one to the next.
        stride_bytes: i64,
    },
}

/// Some numbers of a [`Strided`] that are an array of their own: part of one dimension, and all of the dimensions behind it. The
/// numbers of an element are the last dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portion {
    /// Which number of the payload is the first one.
    pub position: u64,
    /// Before this dimension the portion has one place.
    dimension: usize,
    counts: [u64; Strided::MOST_DIMENSIONS + 1],
    dimensions: usize,
}

impl Portion {
    /// Returns how many there are along each dimension, the outermost first.
    pub fn counts(&self) -> &[u64] {
        &self.counts[self.dimension..self.dimensions]
    }

    /// Returns how many numbers there are.
    pub fn numbers(&self) -> u64 {
        self.counts().iter().product()
    }

    /// Returns the strides of the portion's dimensions where its numbers, of `number_bytes` bytes, lie end to end.
    pub fn packed(&self, number_bytes: u64) -> impl Iterator<Item = i64> + '_ {
        let behind = |at: usize| self.counts()[at + 1..].iter().product::<u64>();
        // A payload of more bytes than an `i64` counts lies in no memory.
        (0..self.counts().len()).map(move |at| (behind(at) * number_bytes) as i64)
    }
}

impl Axis {
    const NONE: Axis = Axis {
        count: 1,
        stride_bytes: 0,
    };

    /// Makes an axis.
    pub const fn new(count: u64, stride_bytes: i64) -> Axis {
        Axis {
            count,
            stride_bytes,
        }
    }

    /// Returns the bytes from the first to the last one, with the sign of the stride.
    fn reach(self) -> i128 {
        i128::from(self.count.saturating_sub(1)) * i128::from(self.stride_bytes)
    }
}

impl Strided {
    /// The most dimensions of an array.
    pub const MOST_DIMENSIONS: usize = 8;

    const EMPTY: Strided = Strided {
        element_bytes: 0,
        axes: [Axis::NONE; Strided::MOST_DIMENSIONS],
        dimensions: 0,
        first: 0,
        extent_bytes: 0,
    };

    /// Makes the array of elements of `element_bytes` bytes along `axes`, the outermost first. Without axes it is one element; it
    /// is empty where a count or `element_bytes` is 0. Elements may overlap: [`Strided::repeats`] tells.
    ///
    /// ```
    /// use transload_core::{Axis, Strided};
    ///
    /// // The transposed view of 3 rows of 5 numbers of 4 bytes.
    /// let view = Strided::new(4, &[Axis::new(5, 4), Axis::new(3, 20)])?;
    /// assert_eq!((view.payload_bytes(), view.extent_bytes()), (60, 60));
    /// # Ok::<(), transload_core::StridedError>(())
    /// ```
    ///
    /// # Errors
    /// More than eight dimensions of more than one element; 2^64 bytes or more, as payload or from the lowest to the highest one.
    pub fn new(element_bytes: u64, axes: &[Axis]) -> Result<Strided, StridedError> {
        if element_bytes == 0 || axes.iter().any(|axis| axis.count == 0) {
            return Ok(Strided::EMPTY);
        }
        let most = i128::from(u64::MAX);
        let mut payload = u128::from(element_bytes);
        let (mut below, mut above) = (0, i128::from(element_bytes));
        for (dimension, axis) in axes.iter().enumerate() {
            let reach = axis.reach();
            payload *= u128::from(axis.count);
            below += reach.clamp(-most, 0);
            above += reach.clamp(0, most);
            if payload > u128::from(u64::MAX) || above - below > most {
                return Err(StridedError::TooLarge {
                    element_bytes,
                    dimension,
                    count: axis.count,
                    stride_bytes: axis.stride_bytes,
                });
            }
        }
        let mut made = Strided {
            element_bytes,
            first: -below as u64,
            extent_bytes: (above - below) as u64,
            ..Strided::EMPTY
        };
        for axis in axes.iter().rev().filter(|axis| axis.count > 1) {
            made.enclose(*axis).ok_or(StridedError::TooManyDimensions {
                dimensions: axes.iter().filter(|axis| axis.count > 1).count(),
            })?;
        }
        let dimensions = made.dimensions();
        made.axes[..dimensions].reverse();
        Ok(made)
    }

    /// Returns the array of a shape's bytes.
    pub fn of_shape(shape: &Shape) -> Option<Strided> {
        let pitch = |pitch: u64| i64::try_from(pitch).ok();
        let axes = [
            Axis::new(
                shape.planes(),
                if shape.planes() > 1 {
                    pitch(shape.plane_pitch())?
                } else {
                    0
                },
            ),
            Axis::new(
                shape.rows(),
                if shape.rows() > 1 {
                    pitch(shape.row_pitch())?
                } else {
                    0
                },
            ),
        ];
        Strided::new(shape.width_bytes(), &axes).ok()
    }

    /// Adds a dimension around those that `axes` has, the innermost first. `None` if there are too many.
    fn enclose(&mut self, axis: Axis) -> Option<()> {
        let stride = i128::from(axis.stride_bytes);
        let at = self.dimensions();
        match at.checked_sub(1).map(|last| &mut self.axes[last]) {
            None if stride == i128::from(self.element_bytes) => self.element_bytes *= axis.count,
            Some(inner) if stride == i128::from(inner.count) * i128::from(inner.stride_bytes) => {
                inner.count *= axis.count;
            }
            _ => {
                *self.axes.get_mut(at)? = axis;
                self.dimensions += 1;
            }
        }
        Some(())
    }

    fn dimensions(&self) -> usize {
        usize::from(self.dimensions)
    }

    /// Returns the dimensions that are left, the outermost first.
    pub fn axes(&self) -> &[Axis] {
        &self.axes[..self.dimensions()]
    }

    /// Returns the bytes that lie without a gap, in payload order, at each place of the axes: an element, or several.
    pub const fn element_bytes(&self) -> u64 {
        self.element_bytes
    }

    /// Returns how many bytes a copy moves.
    pub fn payload_bytes(&self) -> u64 {
        let counts = self.axes().iter().map(|axis| axis.count);
        self.element_bytes * counts.product::<u64>()
    }

    /// Returns the bytes from the lowest to the highest one.
    pub const fn extent_bytes(&self) -> u64 {
        self.extent_bytes
    }

    /// Returns how far behind the lowest byte the first element lies: 0 where no stride is negative.
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Returns the shape of the same bytes in the same order, if there is one.
    pub fn shape(&self) -> Option<Shape> {
        let pitch = |axis: Axis| u64::try_from(axis.stride_bytes).ok();
        match *self.axes() {
            [] => Some(Shape::contiguous(self.element_bytes)),
            [rows] => Shape::pitched(self.element_bytes, rows.count, pitch(rows)?).ok(),
            [planes, rows] => Shape::pitched_3d(
                self.element_bytes,
                rows.count,
                pitch(rows)?,
                planes.count,
                pitch(planes)?,
            )
            .ok(),
            _ => None,
        }
    }

    /// Returns whether two elements may share a byte. Exact where, in the order of their strides, each dimension steps over all
    /// those before it, as in views of an array, and for up to [`Strided::COMPARED`] elements; beyond, it says that they may.
    pub fn repeats(&self) -> bool {
        let mut axes = self.axes;
        let axes = &mut axes[..self.dimensions()];
        axes.sort_unstable_by_key(|axis| axis.stride_bytes.unsigned_abs());
        let mut extent = i128::from(self.element_bytes);
        let may_repeat = axes.iter().any(|axis| {
            let overlaps = i128::from(axis.stride_bytes.unsigned_abs()) < extent;
            extent += axis.reach().abs();
            overlaps
        });
        let elements = self.payload_bytes() / self.element_bytes.max(1);
        if !may_repeat || elements > Strided::COMPARED || axes[0].stride_bytes == 0 {
            return may_repeat;
        }
        let places = (0..elements).map(|number| self.locate(number * self.element_bytes).0);
        let mut places: Vec<u64> = places.collect();
        places.sort_unstable();
        places
            .windows(2)
            .any(|pair| pair[1] - pair[0] < self.element_bytes)
    }

    /// The most elements that [`Strided::repeats`] compares one by one, which takes some milliseconds.
    pub const COMPARED: u64 = 1 << 16;

    /// Returns whether the elements lie end to end, in payload order.
    pub fn is_contiguous(&self) -> bool {
        let mut bytes = i128::from(self.element_bytes);
        self.axes().iter().rev().all(|axis| {
            let adjoins = i128::from(axis.stride_bytes) == bytes;
            bytes *= i128::from(axis.count);
            adjoins
        })
    }

    /// Returns whether a byte of this array, whose lowest one is at `base`, may be one of `other`, whose lowest one is at
    /// `other_base`. Exact for arrays whose ranges are apart, and for interleaved ones whose strides are all multiples of a number
    /// that keeps them apart, as even and odd columns.
    pub fn may_meet(&self, base: u64, other: &Strided, other_base: u64) -> bool {
        let ends = [(self, base), (other, other_base)].map(|(of, base)| {
            let base = u128::from(base);
            (base, base + u128::from(of.extent_bytes))
        });
        if ends[0].0 >= ends[1].1 || ends[1].0 >= ends[0].1 {
            return false;
        }
        let strides = self.axes().iter().chain(other.axes());
        let common = strides.fold(0, |common, axis| {
            divisor(common, axis.stride_bytes.unsigned_abs())
        });
        let [first, second] = [(self, base), (other, other_base)]
            .map(|(of, base)| i128::from(base) + i128::from(of.first));
        // From an element of this array to the next one of the other, modulo what all strides are multiples of.
        let ahead = (second - first).checked_rem_euclid(common.into());
        ahead.is_none_or(|ahead| {
            let ahead = ahead as u64;
            ahead < self.element_bytes || common - ahead < other.element_bytes
        })
    }

    /// Returns where the payload byte `at` lies, and how many payload bytes follow it without a gap, itself included. `at` is below
    /// the payload.
    pub fn locate(&self, at: u64) -> (u64, u64) {
        let element = self.element_bytes.max(1);
        let (mut number, inside) = (at / element, at % element);
        let mut offset = i128::from(self.first) + i128::from(inside);
        for axis in self.axes().iter().rev() {
            offset += i128::from(number % axis.count) * i128::from(axis.stride_bytes);
            number /= axis.count;
        }
        // Within the extent.
        (offset as u64, element - inside)
    }

    /// Returns the numbers `span` of the payload, of `number_bytes` bytes, as portions in payload order: at most two for each
    /// dimension, and one more. `span` is cut off at the payload. Elements are whole numbers. Allocates nothing.
    pub fn portions(&self, number_bytes: u64, span: Span) -> impl Iterator<Item = Portion> + '_ {
        let mut counts = [1; Strided::MOST_DIMENSIONS + 1];
        let dimensions = self.dimensions() + 1;
        for (count, axis) in counts.iter_mut().zip(self.axes()) {
            *count = axis.count;
        }
        counts[self.dimensions()] = self.element_bytes / number_bytes;
        let payload = counts.iter().product::<u64>();
        let end = span.end().unwrap_or(u64::MAX).min(payload);
        let mut at = span.offset.min(end);
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let mut portion = Portion {
                position: at,
                dimension: 0,
                counts,
                dimensions,
            };
            // The outermost dimension of which a whole step begins here and fits.
            let mut each = payload;
            for (dimension, count) in counts[..dimensions].iter().enumerate() {
                each /= count;
                if at.is_multiple_of(each) && each <= end - at {
                    portion.dimension = dimension;
                    portion.counts[dimension] = ((end - at) / each).min(count - at / each % count);
                    break;
                }
            }
            at += portion.numbers();
            Some(portion)
        })
    }

    /// Returns where a portion begins, from the lowest byte on, and the strides of its dimensions. The portion is of an array
    /// with as many numbers along each dimension; those of this one have `number_bytes` bytes.
    pub fn strides_of(
        &self,
        portion: &Portion,
        number_bytes: u64,
    ) -> (u64, impl Iterator<Item = i64> + '_) {
        let (begin, _) = self.locate(portion.position * number_bytes);
        let strides = self.axes().iter().map(|axis| axis.stride_bytes);
        let strides = strides.chain([number_bytes as i64]);
        (begin, strides.skip(portion.dimension))
    }
}

/// Returns the greatest common divisor.
const fn divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
