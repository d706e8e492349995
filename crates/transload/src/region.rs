//! Regions: parts of a buffer, of any shape.

use transload_core::Shape;

use crate::Buffer;
use crate::engine::types::Operand;
use crate::error::RegionError;

/// A shape laid over a buffer: the source or the destination of a request.
///
/// `&Buffer` converts into the region of all its bytes. For a range of bytes use [`Buffer::slice`]: it returns a
/// buffer, which is a region. [`Region::rect`] is a rectangle of an image; other rows at a pitch, and blocks of them,
/// need [`Region::new`].
#[derive(Clone, Debug)]
pub struct Region {
    pub(crate) buffer: Buffer,
    pub(crate) offset: u64,
    pub(crate) shape: Shape,
}

/// A rectangle of an image whose rows lie at a pitch in a buffer; see [`Region::rect`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rect {
    /// The column of the first element of each row.
    pub x: u64,
    /// The first row.
    pub y: u64,
    /// The number of elements of each row.
    pub width: u64,
    /// The number of rows.
    pub height: u64,
    /// The size of an element: 4 for a texel of RGBA8.
    pub element_bytes: u64,
    /// The bytes from the start of one row of the image to the start of the next. It is the image's width times
    /// `element_bytes` where rows have no padding.
    pub row_pitch_bytes: u64,
}

impl Region {
    /// Returns the rectangle of an image that starts with the buffer's first byte.
    ///
    /// ```
    /// # #[cfg(feature = "std")] {
    /// # use transload::{Rect, Region, TransferManager};
    /// # let manager = TransferManager::builder().host().build()?;
    /// // 640 × 480 texels of 4 bytes, and the 16 × 16 of them that start in column 100 of row 50.
    /// let image = manager.adopt(vec![0u8; 640 * 480 * 4])?;
    /// let rect = Rect { x: 100, y: 50, width: 16, height: 16, element_bytes: 4, row_pitch_bytes: 640 * 4 };
    /// let texels = manager.read_to_vec(Region::rect(&image, rect)?)?;
    /// assert_eq!(texels.len(), 16 * 16 * 4);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the rectangle ends past the end of the image's rows, or its last row past the buffer's end.
    pub fn rect(buffer: &Buffer, rect: Rect) -> Result<Region, RegionError> {
        let Rect {
            x,
            y,
            width,
            height,
            element_bytes,
            row_pitch_bytes,
        } = rect;
        let memory = buffer.memory();
        let past_row = RegionError::PastRow {
            memory,
            x,
            width,
            element_bytes,
            row_pitch_bytes,
        };
        let past_end = RegionError::PastLastRow {
            memory,
            y,
            height,
            row_pitch_bytes,
            limit: buffer.len(),
        };
        let columns = x.checked_add(width).ok_or(past_row)?;
        let row_end = columns.checked_mul(element_bytes).ok_or(past_row)?;
        if row_end > row_pitch_bytes {
            return Err(past_row);
        }
        // Neither product is larger than the row's end. Rows do not overlap, so a shape is only refused as too large.
        let (skipped_bytes, width_bytes) = (x * element_bytes, width * element_bytes);
        let shape = Shape::pitched(width_bytes, height, row_pitch_bytes).map_err(|_| past_end)?;
        let offset = y
            .checked_mul(row_pitch_bytes)
            .and_then(|start| start.checked_add(skipped_bytes))
            .ok_or(past_end)?;
        Region::new(buffer, offset, shape).map_err(|_| past_end)
    }

    /// Makes the region of `shape`, whose first byte is at `offset` of `buffer`.
    ///
    /// # Errors
    /// When the shape ends past the buffer's end.
    pub fn new(buffer: &Buffer, offset: u64, shape: Shape) -> Result<Region, RegionError> {
        if !transload_core::Span::new(offset, shape.extent_bytes()).fits(buffer.len()) {
            return Err(RegionError::OutOfBounds {
                memory: buffer.memory(),
                offset,
                len: shape.extent_bytes(),
                limit: buffer.len(),
            });
        }
        Ok(Region {
            buffer: buffer.clone(),
            offset,
            shape,
        })
    }

    /// Returns the buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Returns where the shape's first byte lies, in bytes from the buffer's start.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn operand(&self) -> Operand {
        Operand {
            buffer: self.buffer.raw.clone(),
            offset: self.offset,
            shape: self.shape,
        }
    }
}

impl From<&Buffer> for Region {
    fn from(buffer: &Buffer) -> Region {
        Region {
            buffer: buffer.clone(),
            offset: 0,
            shape: Shape::contiguous(buffer.len()),
        }
    }
}

impl From<Buffer> for Region {
    fn from(buffer: Buffer) -> Region {
        Region::from(&buffer)
    }
}
