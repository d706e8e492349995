//! Regions: parts of a buffer, of any shape.

use alloc::sync::Arc;
use core::ops::Range;
use core::ptr::NonNull;

use transload_core::{Shape, Span, Strided};
use transload_hal::HostSpan;

use crate::Buffer;
use crate::engine::operand::Operand;
use crate::engine::operand::Scattered;
use crate::error::RegionError;

/// A shape laid over a buffer: the source or the destination of a request.
///
/// `&Buffer` converts into the region of all its bytes. For a range of bytes use [`Buffer::slice`]: it returns a
/// buffer, which is a region. [`Region::rect`] is a rectangle of an image, [`Region::strided`] any view of an array,
/// [`Region::blocks`] and [`Region::spans`] are pieces in the order of a list; other rows at a pitch, and planes of them, need
/// [`Region::new`].
#[derive(Clone, Debug)]
pub struct Region {
    pub(crate) buffer: Buffer,
    pub(crate) offset: u64,
    pub(crate) shape: Shape,
    pub(crate) scattered: Option<Arc<Scattered>>,
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
        if !Span::new(offset, shape.extent_bytes()).fits(buffer.len()) {
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
            scattered: None,
        })
    }

    /// Makes the region of an array's elements, at strides of either sign in up to eight dimensions: a transposed or reversed view,
    /// every second column, pixels of an image whose channels come first. `offset` is where the first element lies, that with all
    /// indices 0; elements before it have negative strides.
    ///
    /// A copy moves each element to the one with the same number, counted with the last dimension changing first. The host's
    /// threads copy elements, of any two memories that they reach, and into and out of the slots for others.
    /// A source may have elements that share bytes, such as those of a stride of 0; a destination may not. In the order of
    /// transfers the region counts as all bytes from its lowest one to its highest one.
    ///
    /// ```
    /// # #[cfg(feature = "std")] {
    /// # use transload::{Axis, Region, Strided, TransferManager};
    /// # let manager = TransferManager::builder().host().build()?;
    /// // 2 rows of 3 bytes, and the same bytes column by column.
    /// let rows = manager.adopt(vec![1u8, 2, 3, 4, 5, 6])?;
    /// let columns = Strided::new(1, &[Axis::new(3, 1), Axis::new(2, 3)])?;
    /// assert_eq!(manager.read_to_vec(Region::strided(&rows, 0, &columns)?)?, [1, 4, 2, 5, 3, 6]);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When an element lies before the buffer's first byte or past its end.
    pub fn strided(buffer: &Buffer, offset: u64, array: &Strided) -> Result<Region, RegionError> {
        let len = array.extent_bytes();
        let lowest = offset.checked_sub(array.first());
        let lowest = lowest.filter(|lowest| Span::new(*lowest, len).fits(buffer.len()));
        let Some(lowest) = lowest else {
            return Err(RegionError::ElementsOutOfBounds {
                memory: buffer.memory(),
                offset,
                before: array.first(),
                len,
                limit: buffer.len(),
            });
        };
        if let Some(shape) = array.shape() {
            return Region::new(buffer, lowest, shape);
        }
        Ok(Region {
            buffer: buffer.clone(),
            offset: lowest,
            shape: Shape::contiguous(array.payload_bytes()),
            scattered: Some(Arc::new(Scattered::strided(*array))),
        })
    }

    /// Returns blocks of `block_bytes` bytes in the order of `numbers`: block 0 starts with the buffer's first byte, block 1
    /// follows it. As the source of a copy it gathers them, as the destination it scatters. A source may name a block more
    /// than once; a copy to a destination that does is refused, and so is one whose ends share a byte. The list may be
    /// empty.
    ///
    /// One transfer carries them all. [Prepare](crate::TransferManager::prepare) a copy of the same blocks that is repeated:
    /// this function sorts the list, and what it makes is shared by all transfers. A block under way takes some 300 bytes
    /// of the process's memory. In the order of transfers the region counts
    /// as all bytes from its lowest block to its highest one.
    ///
    /// ```
    /// # #[cfg(feature = "std")] {
    /// # use transload::{Region, TransferManager};
    /// # let manager = TransferManager::builder().host().build()?;
    /// // A cache of 100 pages, of which a sequence has three.
    /// let pages = manager.adopt(vec![0u8; 100 * 4096])?;
    /// let sequence = manager.read_to_vec(Region::blocks(&pages, 4096, &[7, 3, 64])?)?;
    /// assert_eq!(sequence.len(), 3 * 4096);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When blocks have no bytes, one ends past the buffer's end, or together they have more than 2^64 bytes.
    pub fn blocks(
        buffer: &Buffer,
        block_bytes: u64,
        numbers: &[u32],
    ) -> Result<Region, RegionError> {
        let memory = buffer.memory();
        let limit = buffer.len().checked_div(block_bytes);
        let limit = limit.ok_or(RegionError::EmptyBlocks { memory })?;
        if let Some(past) = numbers.iter().find(|number| u64::from(**number) >= limit) {
            return Err(RegionError::PastLastBlock {
                memory,
                number: (*past).into(),
                block_bytes,
                limit,
            });
        }
        let too_large = RegionError::TooLarge {
            memory,
            count: numbers.len(),
        };
        let payload = block_bytes.checked_mul(numbers.len() as u64);
        Ok(Region {
            buffer: buffer.clone(),
            offset: 0,
            shape: Shape::contiguous(payload.ok_or(too_large)?),
            scattered: Some(Arc::new(Scattered::blocks(block_bytes, numbers))),
        })
    }

    /// Returns spans of the buffer's bytes in the order of a list, end to end: what [`Region::blocks`] is for pieces of
    /// unequal size, and all that is said there holds. Spans of a source may overlap.
    ///
    /// ```
    /// # #[cfg(feature = "std")] {
    /// # use transload::{Region, TransferManager};
    /// # let manager = TransferManager::builder().host().build()?;
    /// let bytes = manager.adopt((0..100).collect::<Vec<u8>>())?;
    /// let picked = manager.read_to_vec(Region::spans(&bytes, &[90..93, 0..2, 91..92])?)?;
    /// assert_eq!(picked, [90, 91, 92, 0, 1, 91]);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When a span ends before it begins, or past the buffer's end, or together they have more than 2^64 bytes.
    pub fn spans(buffer: &Buffer, spans: &[Range<u64>]) -> Result<Region, RegionError> {
        let memory = buffer.memory();
        let mut payload = 0u64;
        for span in spans {
            let Range { start, end } = *span;
            let Some(len) = end.checked_sub(start) else {
                return Err(RegionError::Reversed { memory, start, end });
            };
            if end > buffer.len() {
                return Err(RegionError::OutOfBounds {
                    memory,
                    offset: start,
                    len,
                    limit: buffer.len(),
                });
            }
            let count = spans.len();
            let too_large = RegionError::TooLarge { memory, count };
            payload = payload.checked_add(len).ok_or(too_large)?;
        }
        let pieces = spans.iter().filter(|span| !span.is_empty());
        let pieces = pieces.map(|span| Span::new(span.start, span.end - span.start));
        Ok(Region {
            buffer: buffer.clone(),
            offset: 0,
            shape: Shape::contiguous(payload),
            scattered: Some(Arc::new(Scattered::pieces(pieces))),
        })
    }

    /// Returns the buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Returns where the shape's first byte lies, in bytes from the buffer's start; of [elements](Region::strided) the lowest one.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the shape; of [blocks](Region::blocks), [spans](Region::spans) and [elements](Region::strided) that of their bytes end
    /// to end.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn operand(&self) -> Operand {
        Operand {
            buffer: self.buffer.raw.clone(),
            offset: self.offset,
            shape: self.shape,
            scattered: self.scattered.clone(),
        }
    }
}

/// One end of [`TransferManager::copy_host`](crate::TransferManager::copy_host): host memory that belongs to neither the manager nor
/// Rust, such as an array of another language, or a region.
#[derive(Clone, Debug)]
pub struct HostEnd(pub(crate) End);

#[derive(Clone, Debug)]
pub(crate) enum End {
    Memory(HostSpan, Option<Strided>),
    Region(Region),
}

impl HostEnd {
    /// Makes the one of an array's elements in memory, as [`Region::strided`] does in a buffer. `first` is where the element with all
    /// indices 0 lies.
    pub fn strided(first: NonNull<u8>, array: &Strided) -> HostEnd {
        let lowest = first.as_ptr().wrapping_sub(array.first() as usize);
        let lowest = NonNull::new(lowest).unwrap_or(first);
        let span = HostSpan::new(lowest, array.extent_bytes() as usize);
        HostEnd(End::Memory(span, Some(*array)))
    }
}

impl From<HostSpan> for HostEnd {
    fn from(span: HostSpan) -> HostEnd {
        HostEnd(End::Memory(span, None))
    }
}

impl From<Region> for HostEnd {
    fn from(region: Region) -> HostEnd {
        HostEnd(End::Region(region))
    }
}

impl From<&Buffer> for Region {
    fn from(buffer: &Buffer) -> Region {
        Region {
            buffer: buffer.clone(),
            offset: 0,
            shape: Shape::contiguous(buffer.len()),
            scattered: None,
        }
    }
}

impl From<Buffer> for Region {
    fn from(buffer: Buffer) -> Region {
        Region::from(&buffer)
    }
}
