//! A part of a buffer, of any shape.

use transload_core::Shape;

use crate::Buffer;
use crate::engine::active::Operand;
use crate::error::RegionError;

/// A shape laid over a buffer: what a request copies from or to.
///
/// `&Buffer` turns into the region of all its bytes. For a range of bytes [`Buffer::slice`] is enough:
/// what it returns is a buffer, and so a region. Rows at a pitch, and blocks of them, need
/// [`Region::new`].
#[derive(Clone, Debug)]
pub struct Region {
    pub(crate) buffer: Buffer,
    pub(crate) offset: u64,
    pub(crate) shape: Shape,
}

impl Region {
    /// `shape`, its first byte at `offset` of `buffer`.
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

    /// The buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Where the shape's first byte lies, in bytes from the buffer's start.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The shape.
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
