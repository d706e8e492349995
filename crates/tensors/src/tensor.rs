//! Tensors in memory.

mod error;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use transload::{Axis, Buffer, Region, Strided};

use crate::load::Part;
use crate::{DType, TensorInfo};

pub use error::TensorError;

/// A tensor in any memory: a buffer, and the type, shape and strides of its elements. Clones show the same bytes.
///
/// ```
/// use transload_tensors::transload::TransferManager;
/// use transload_tensors::{DType, Tensor};
///
/// let manager = TransferManager::discover()?;
/// let bytes = manager.adopt(vec![0u8, 1, 2, 3, 4, 5])?;
/// let rows = Tensor::new(&bytes, DType::U8, &[2, 3])?;
/// assert_eq!(rows.strides(), [3, 1]);
/// // The same bytes, as the transposed matrix.
/// let columns = Tensor::strided(&bytes, 0, DType::U8, &[3, 2], &[1, 3])?;
/// assert_eq!(manager.read_to_vec(columns.region()?)?, [0, 3, 1, 4, 2, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tensor {
    /// From the first byte of an element to the last one, and no more.
    buffer: Buffer,
    /// Where the first element begins there.
    offset: u64,
    dtype: DType,
    shape: Sizes,
    /// `None`: dense.
    strides: Option<Vec<i64>>,
}

/// The sizes of dimensions.
#[derive(Clone)]
pub(crate) enum Sizes {
    Own(Vec<u64>),
    /// Those of a tensor of a model, by its number, or of a part of it: a load of many tensors allocates none.
    Model {
        infos: Arc<Vec<TensorInfo>>,
        number: usize,
        part: Option<Arc<Part>>,
    },
}

impl Deref for Sizes {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            Sizes::Own(sizes) => sizes,
            Sizes::Model {
                part: Some(part), ..
            } => &part.shape,
            Sizes::Model { infos, number, .. } => &infos[*number].shape,
        }
    }
}

impl fmt::Debug for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl Tensor {
    /// Makes a dense tensor of all bytes of a buffer: its elements lie next to each other, those of the last dimension first.
    /// `shape` has the sizes of its dimensions in elements, the outermost first; a tensor without dimensions has one element.
    ///
    /// # Errors
    /// When the buffer has not the length that type and shape say.
    pub fn new(buffer: &Buffer, dtype: DType, shape: &[u64]) -> Result<Tensor, TensorError> {
        match dtype.len_bytes(shape) {
            Some(needs) if needs == buffer.len() => Ok(Tensor::dense(
                buffer.clone(),
                dtype,
                Sizes::Own(shape.to_vec()),
            )),
            needs => Err(TensorError::Length {
                dtype,
                shape: shape.to_vec(),
                needs,
                found: buffer.len(),
            }),
        }
    }

    /// Makes a tensor whose first element begins at byte `offset` of a buffer. `strides` has, for each dimension, how many
    /// elements lie from one to the next; they may be negative, or zero for elements that repeat. [`Tensor::buffer`] is then
    /// the part of the buffer from the lowest byte of an element to the highest one.
    ///
    /// Elements that share bytes or a scale, as those of `F4` and `Q4_0`, stay in their blocks ([`DType::block`]): unless the
    /// tensor is dense, its last dimension has whole blocks that lie next to each other, and other strides are whole blocks.
    ///
    /// # Errors
    /// When there are not as many strides as dimensions, an element does not lie within the buffer, the elements take 2⁶⁴ bytes
    /// or more, or a block would be taken apart.
    pub fn strided(
        buffer: &Buffer,
        offset: u64,
        dtype: DType,
        shape: &[u64],
        strides: &[i64],
    ) -> Result<Tensor, TensorError> {
        let reach = Reach::new(dtype, shape, strides)?;
        let within = offset
            .checked_sub(reach.before)
            .zip(offset.checked_add(reach.after));
        let Some(Ok(part)) = within.map(|(lowest, end)| buffer.slice(lowest..end)) else {
            return Err(TensorError::OutOfBounds {
                shape: shape.to_vec(),
                strides: strides.to_vec(),
                offset,
                limit: buffer.len(),
            });
        };
        Ok(Tensor {
            offset: reach.before,
            strides: (!reach.is_dense).then(|| strides.to_vec()),
            ..Tensor::dense(part, dtype, Sizes::Own(shape.to_vec()))
        })
    }

    /// Makes a dense tensor of a buffer that has the length.
    pub(crate) fn dense(buffer: Buffer, dtype: DType, shape: Sizes) -> Tensor {
        Tensor {
            buffer,
            offset: 0,
            dtype,
            shape,
            strides: None,
        }
    }

    /// Returns the type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the sizes of its dimensions, and where they are.
    pub(crate) fn sizes(&self) -> &Sizes {
        &self.shape
    }

    /// Returns the sizes of its dimensions in elements, the outermost first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns for each dimension how many elements lie from one to the next.
    pub fn strides(&self) -> Vec<i64> {
        let strides = self.strides.clone();
        strides.unwrap_or_else(|| dense_strides(&self.shape))
    }

    /// Returns whether the elements lie next to each other, those of the last dimension first. The bytes of a dense tensor are
    /// those of its buffer.
    pub fn is_dense(&self) -> bool {
        self.strides.is_none()
    }

    /// Returns how many bytes the elements have, repeated ones each time.
    pub fn len_bytes(&self) -> u64 {
        match &self.strides {
            None => self.buffer.len(),
            Some(_) => self.dtype.len_bytes(&self.shape).unwrap_or(u64::MAX),
        }
    }

    /// Returns the memory from the lowest byte of an element to the highest one. Memory around it may hold other tensors, and
    /// stays allocated as long as one of them lives.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Returns where the first element begins, in bytes from the buffer's start. It is not 0 where a stride is negative.
    pub fn offset_bytes(&self) -> u64 {
        self.offset
    }

    /// Returns the region of its elements: the source or the destination of a [`Request`](transload::Request). Its bytes are
    /// those of the elements, those of the last dimension next to each other. A copy to elements that overlap is refused.
    ///
    /// # Errors
    /// When more than eight dimensions are left after those that adjoin were merged.
    pub fn region(&self) -> Result<Region, TensorError> {
        let Some(strides) = &self.strides else {
            return Ok(Region::from(&self.buffer));
        };
        let (_, width) = self.dtype.block();
        let blocks = in_blocks(self.dtype, &self.shape, strides)?;
        // Where there is more than one, within a buffer, whose length is less than 2⁶³.
        let pitch = |stride: i64| stride.saturating_mul(width as i64);
        let axes = blocks.map(|(size, stride)| Axis::new(size, pitch(stride)));
        let array = Strided::new(width, &axes.collect::<Vec<Axis>>());
        let array = array.map_err(TensorError::Dimensions)?;
        match Region::strided(&self.buffer, self.offset, &array) {
            Ok(region) => Ok(region),
            Err(_) => unreachable!("the buffer holds all elements"),
        }
    }
}

/// How far the elements lie from the first byte of the first one.
pub(crate) struct Reach {
    pub(crate) is_dense: bool,
    /// The bytes before it.
    pub(crate) before: u64,
    /// The bytes from it on.
    pub(crate) after: u64,
}

impl Reach {
    pub(crate) fn new(dtype: DType, shape: &[u64], strides: &[i64]) -> Result<Reach, TensorError> {
        if shape.len() != strides.len() {
            return Err(TensorError::Strides {
                shape: shape.to_vec(),
                strides: strides.to_vec(),
            });
        }
        let too_large = || TensorError::TooLarge {
            dtype,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
        };
        let (of_block, width) = dtype.block();
        let is_apart = shape.last().is_none_or(|last| last % of_block != 0);
        let len_bytes = dtype.len_bytes(shape).ok_or_else(|| match is_apart {
            true => TensorError::Blocks { dtype },
            false => too_large(),
        })?;
        let dense = dense_strides(shape);
        let mut dimensions = shape.iter().zip(strides).zip(&dense);
        let is_dense = len_bytes == 0
            || dimensions.all(|((size, stride), dense)| *size == 1 || stride == dense);
        let mut reach = Reach {
            is_dense,
            before: 0,
            after: len_bytes,
        };
        if is_dense {
            return Ok(reach);
        }
        reach.after = width;
        for (size, stride) in in_blocks(dtype, shape, strides)? {
            let bound = match stride < 0 {
                true => &mut reach.before,
                false => &mut reach.after,
            };
            let elements = (size - 1).checked_mul(stride.unsigned_abs());
            let bytes = elements.and_then(|elements| elements.checked_mul(width));
            let sum = bytes.and_then(|bytes| bound.checked_add(bytes));
            *bound = sum.ok_or_else(too_large)?;
        }
        Ok(reach)
    }
}

/// Returns the size and the stride of each dimension in blocks of the type, which are single elements of most types. Blocks lie
/// along the last dimension.
fn in_blocks<'a>(
    dtype: DType,
    shape: &'a [u64],
    strides: &'a [i64],
) -> Result<impl Iterator<Item = (u64, i64)> + 'a, TensorError> {
    let (of_block, _) = dtype.block();
    let last = shape.len().saturating_sub(1);
    let of = move |at: usize| match (shape[at], strides[at]) {
        // Where nothing follows, the stride says nothing.
        (1, _) if at < last => Some((1, 0)),
        (size, stride) if of_block == 1 => Some((size, stride)),
        (size, stride) if at < last => {
            (stride % of_block as i64 == 0).then_some((size, stride / of_block as i64))
        }
        (size, stride) => (stride == 1 && size % of_block == 0).then_some((size / of_block, 1)),
    };
    match (0..shape.len()).all(|at| of(at).is_some()) {
        true => Ok((0..shape.len()).filter_map(of)),
        false => Err(TensorError::Blocks { dtype }),
    }
}

/// Returns the strides of dense elements. Where there is none, dimensions may be too large for them: no stride matters then.
pub(crate) fn dense_strides(shape: &[u64]) -> Vec<i64> {
    let mut stride = 1i64;
    let mut strides: Vec<i64> = Vec::with_capacity(shape.len());
    for size in shape.iter().rev() {
        strides.push(stride);
        let size = i64::try_from(*size).unwrap_or(i64::MAX);
        stride = stride.saturating_mul(size.max(1));
    }
    strides.reverse();
    strides
}
