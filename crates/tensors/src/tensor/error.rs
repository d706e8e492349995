//! Why a tensor was not made.

use std::fmt;

use transload::ErrorClass;
use transload::model::StridedError;

use crate::DType;

/// Why a tensor was not made of a buffer, or has no region.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// A buffer of another length than type and shape say.
    #[error("a tensor of {dtype} {shape:?} has {}, and its buffer {found}", Needs(*needs))]
    Length {
        /// The type.
        dtype: DType,
        /// The shape.
        shape: Vec<u64>,
        /// The bytes of that shape; `None` where they are no whole number, or more than 2⁶⁴.
        needs: Option<u64>,
        /// The bytes of the buffer.
        found: u64,
    },
    /// Not as many strides as dimensions.
    #[error(
        "{strides:?} are no strides of a tensor of shape {shape:?}: it takes one for each dimension"
    )]
    Strides {
        /// The shape.
        shape: Vec<u64>,
        /// The strides.
        strides: Vec<i64>,
    },
    /// An element that does not lie within the buffer.
    #[error(
        "a tensor of shape {shape:?} and strides {strides:?} whose first element begins at byte {offset} does not lie within the {limit} bytes of its buffer"
    )]
    OutOfBounds {
        /// The shape.
        shape: Vec<u64>,
        /// The strides.
        strides: Vec<i64>,
        /// Where the first element begins, in bytes.
        offset: u64,
        /// The bytes of the buffer.
        limit: u64,
    },
    /// Elements that take 2⁶⁴ bytes or more.
    #[error("a tensor of {dtype} {shape:?} and strides {strides:?} takes 2^64 bytes or more")]
    TooLarge {
        /// The type.
        dtype: DType,
        /// The shape.
        shape: Vec<u64>,
        /// The strides.
        strides: Vec<i64>,
    },
    /// A view that takes a block of elements apart, which share bytes or a scale.
    #[error(
        "elements of {dtype} lie in blocks of {}, and a view takes whole blocks of the last dimension, next to each other: choose other bounds, or copy the tensor to dense memory",
        dtype.block().0
    )]
    Blocks {
        /// The type.
        dtype: DType,
    },
    /// Too many dimensions for a region.
    #[error("{0}; copy parts of it")]
    Dimensions(StridedError),
}

struct Needs(Option<u64>);

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{bytes} bytes"),
            None => f.write_str("no whole number of bytes"),
        }
    }
}

impl TensorError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            TensorError::Dimensions(_) => ErrorClass::Unsupported,
            _ => ErrorClass::Caller,
        }
    }
}
