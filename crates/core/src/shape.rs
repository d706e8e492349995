//! The shape of a region: one run of bytes, or rows at a pitch in up to three dimensions.

mod blocks;
mod overlap;
mod rows;
mod runs;

pub use blocks::{Block, Blocks};
pub use rows::{Rows, Together};
pub use runs::{Run, Runs};

use crate::Span;

/// Where a region's bytes lie, relative to its first byte.
///
/// A shape is `planes` × `rows` × `width_bytes`; row `r` of plane `p` starts at
/// `p * plane_pitch + r * row_pitch`. Its *payload* is the bytes of all rows in that order. Shapes
/// are kept in normal form (dimensions that touch are merged), so that equal layouts compare equal.
///
/// Invariants, held by the constructors: rows and planes do not overlap, and the extent fits `u64`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    width_bytes: u64,
    rows: u64,
    planes: u64,
    row_pitch: u64,
    plane_pitch: u64,
}

/// Why a shape was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// Rows would overlap.
    #[error("rows of {width_bytes} bytes overlap at a row pitch of {row_pitch} bytes")]
    RowsOverlap {
        /// Bytes in a row.
        width_bytes: u64,
        /// Distance from one row to the next.
        row_pitch: u64,
    },
    /// Planes would overlap.
    #[error("planes of {plane_bytes} bytes overlap at a plane pitch of {plane_pitch} bytes")]
    PlanesOverlap {
        /// From the first byte of a plane to the end of its last row.
        plane_bytes: u64,
        /// Distance from one plane to the next.
        plane_pitch: u64,
    },
    /// The shape's end lies past `u64::MAX`.
    #[error("a shape of {planes} × {rows} × {width_bytes} bytes ends past 2^64 - 1")]
    TooLarge {
        /// Bytes in a row.
        width_bytes: u64,
        /// Rows in a plane.
        rows: u64,
        /// Planes.
        planes: u64,
    },
}

impl Shape {
    /// One run of `len_bytes` bytes.
    pub const fn contiguous(len_bytes: u64) -> Shape {
        Shape {
            width_bytes: len_bytes,
            rows: 1,
            planes: 1,
            row_pitch: len_bytes,
            plane_pitch: len_bytes,
        }
    }

    /// `rows` rows of `width_bytes` bytes, `row_pitch` bytes from one to the next.
    ///
    /// # Errors
    /// As [`Shape::pitched_3d`].
    pub fn pitched(width_bytes: u64, rows: u64, row_pitch: u64) -> Result<Shape, ShapeError> {
        Shape::pitched_3d(width_bytes, rows, row_pitch, 1, 0)
    }

    /// `planes` planes of `rows` rows of `width_bytes` bytes. A pitch is not looked at where its
    /// dimension is 1.
    ///
    /// # Errors
    /// Rows or planes that overlap, or an extent or payload past `u64::MAX`.
    pub fn pitched_3d(
        width_bytes: u64,
        rows: u64,
        row_pitch: u64,
        planes: u64,
        plane_pitch: u64,
    ) -> Result<Shape, ShapeError> {
        if width_bytes == 0 || rows == 0 || planes == 0 {
            return Ok(Shape::contiguous(0));
        }
        let too_large = ShapeError::TooLarge {
            width_bytes,
            rows,
            planes,
        };
        if rows > 1 && row_pitch < width_bytes {
            return Err(ShapeError::RowsOverlap {
                width_bytes,
                row_pitch,
            });
        }
        let plane_bytes = (rows - 1)
            .checked_mul(row_pitch)
            .and_then(|skip| skip.checked_add(width_bytes))
            .ok_or(too_large)?;
        if planes > 1 && plane_pitch < plane_bytes {
            return Err(ShapeError::PlanesOverlap {
                plane_bytes,
                plane_pitch,
            });
        }
        (planes - 1)
            .checked_mul(plane_pitch)
            .and_then(|skip| skip.checked_add(plane_bytes))
            .ok_or(too_large)?;
        // The payload is no larger than the extent, so it fits too.
        let shape = Shape {
            width_bytes,
            rows,
            planes,
            row_pitch,
            plane_pitch,
        };
        Ok(shape.normalised())
    }

    /// Returns how many bytes a copy of this shape moves.
    pub const fn payload_bytes(&self) -> u64 {
        self.width_bytes * self.rows * self.planes
    }

    /// From the first byte of the first row to the end of the last one.
    pub const fn extent_bytes(&self) -> u64 {
        if self.payload_bytes() == 0 {
            return 0;
        }
        (self.planes - 1) * self.plane_pitch + (self.rows - 1) * self.row_pitch + self.width_bytes
    }

    /// Returns whether payload and extent are the same.
    pub const fn is_contiguous(&self) -> bool {
        self.rows == 1 && self.planes == 1
    }

    /// Returns how many bytes a row has.
    pub const fn width_bytes(&self) -> u64 {
        self.width_bytes
    }

    /// Returns how many rows a plane has.
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns how many planes there are.
    pub const fn planes(&self) -> u64 {
        self.planes
    }

    /// Returns the distance from one row to the next in bytes.
    pub const fn row_pitch(&self) -> u64 {
        self.row_pitch
    }

    /// Returns the distance from one plane to the next in bytes.
    pub const fn plane_pitch(&self) -> u64 {
        self.plane_pitch
    }

    /// Returns the runs that a copy of the payload bytes `span` makes between this shape at `offset` and
    /// `other` at `other_offset`: each as long as both sides allow, in payload order.
    ///
    /// `span` is cut off at the smaller of the two payloads.
    pub fn runs(&self, offset: u64, other: &Shape, other_offset: u64, span: Span) -> Runs {
        Runs::new(*self, offset, *other, other_offset, span)
    }

    /// Returns the payload bytes `span` as blocks that are shapes themselves, in payload order: at most
    /// five, since a range may start and end inside a row and inside a plane. `span` is cut off at
    /// the payload.
    pub fn blocks(&self, span: Span) -> Blocks {
        Blocks::new(*self, span)
    }

    /// Returns whether a byte of this shape at `base` is a byte of `other` at `other_base`.
    ///
    /// Exact for contiguous shapes, for equal row pitches in two dimensions, and for up to
    /// [`Shape::OVERLAP_ROWS`] rows of any shape; beyond it two interleaved shapes count as
    /// overlapping, which orders two copies that might have run together and is never unsafe.
    pub fn overlaps(&self, base: u64, other: &Shape, other_base: u64) -> bool {
        overlap::overlaps(self, base, other, other_base)
    }

    /// The most rows, of both shapes together, that [`Shape::overlaps`] walks. A walk of 4096 rows
    /// takes some 10 µs, which is what a copy of that many rows costs many times over.
    pub const OVERLAP_ROWS: u64 = 4096;

    /// Returns where the payload byte `at` lies, and how many payload bytes follow it without a gap
    /// (itself included). `at` is below the payload.
    pub fn locate(&self, at: u64) -> (u64, u64) {
        let row = at / self.width_bytes;
        let column = at % self.width_bytes;
        let (plane, row) = (row / self.rows, row % self.rows);
        (
            plane * self.plane_pitch + row * self.row_pitch + column,
            self.width_bytes - column,
        )
    }

    fn normalised(mut self) -> Shape {
        if self.rows > 1 && self.row_pitch == self.width_bytes {
            self.width_bytes *= self.rows;
            self.rows = 1;
        }
        if self.rows == 1 {
            // What is left of the third dimension becomes the second.
            self.rows = self.planes;
            self.row_pitch = self.plane_pitch;
            self.planes = 1;
            if self.rows > 1 && self.row_pitch == self.width_bytes {
                self.width_bytes *= self.rows;
                self.rows = 1;
            }
        } else if self.planes > 1 && Some(self.plane_pitch) == self.rows.checked_mul(self.row_pitch)
        {
            self.rows *= self.planes;
            self.planes = 1;
        }
        if self.rows == 1 {
            self.row_pitch = self.width_bytes;
        }
        if self.planes == 1 {
            self.plane_pitch = self.row_pitch.saturating_mul(self.rows);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_touch_are_one_run() {
        assert_eq!(Shape::pitched(16, 4, 16).unwrap(), Shape::contiguous(64));
        assert_eq!(
            Shape::pitched_3d(16, 4, 16, 3, 64).unwrap(),
            Shape::contiguous(192)
        );
        assert_eq!(
            Shape::pitched_3d(16, 4, 32, 3, 128).unwrap(),
            Shape::pitched(16, 12, 32).unwrap()
        );
        assert_eq!(
            Shape::pitched_3d(16, 1, 0, 3, 32).unwrap(),
            Shape::pitched(16, 3, 32).unwrap()
        );
        assert_eq!(Shape::pitched(16, 1, 0).unwrap(), Shape::contiguous(16));
    }

    #[test]
    fn empty_dimensions_make_an_empty_shape() {
        for (width, rows, planes) in [(0, 4, 4), (4, 0, 4), (4, 4, 0)] {
            let shape = Shape::pitched_3d(width, rows, 1, planes, 1).unwrap();
            assert_eq!((shape.payload_bytes(), shape.extent_bytes()), (0, 0));
        }
    }

    #[test]
    fn overlapping_and_wrapping_shapes_are_refused() {
        assert!(matches!(
            Shape::pitched(16, 2, 15),
            Err(ShapeError::RowsOverlap {
                width_bytes: 16,
                row_pitch: 15
            })
        ));
        assert!(matches!(
            Shape::pitched_3d(16, 2, 16, 2, 31),
            Err(ShapeError::PlanesOverlap {
                plane_bytes: 32,
                plane_pitch: 31
            })
        ));
        for (width, rows, pitch) in [
            (2, u64::MAX, 2),
            (u64::MAX, 2, u64::MAX),
            (1, 3, u64::MAX / 2 + 1),
        ] {
            assert!(matches!(
                Shape::pitched(width, rows, pitch),
                Err(ShapeError::TooLarge { .. })
            ));
        }
    }

    #[test]
    fn the_extent_ends_with_the_last_row_and_not_with_its_pitch() {
        let shape = Shape::pitched(10, 3, 16).unwrap();
        assert_eq!(shape.payload_bytes(), 30);
        assert_eq!(shape.extent_bytes(), 42);
        // The pitch after a last plane may lie past the end of the address space.
        let last = Shape::pitched(1, 2, u64::MAX - 1).unwrap();
        assert_eq!(last.extent_bytes(), u64::MAX);
    }
}
