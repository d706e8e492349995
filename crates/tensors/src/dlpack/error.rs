//! Why a tensor was not exchanged.

use transload::{ErrorClass, MemoryId};

use super::abi::{DLDataType, DLDevice, DLPackVersion};
use crate::{DType, TensorError};

/// Why a tensor was not exported or imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DLPackError {
    /// Memory that no consumer reaches.
    #[error("cannot export a tensor in {memory} by DLPack; copy it to cpu:0")]
    Memory {
        /// The memory.
        memory: MemoryId,
    },
    /// A type that DLPack does not have.
    #[error("DLPack has no type for elements of {dtype}; export their bytes as U8")]
    DType {
        /// The type.
        dtype: DType,
    },
    /// A read-only tensor for the structure without flags.
    #[error(
        "a consumer of the legacy structure may write a read-only tensor; export the versioned structure, or a copy"
    )]
    ReadOnly,
    /// Dimensions that DLPack has no numbers for.
    #[error("cannot export a tensor of shape {shape:?} by DLPack: its numbers have 63 bits")]
    TooLarge {
        /// The shape.
        shape: Vec<u64>,
    },
    /// A structure of another layout.
    #[error("cannot import a tensor of DLPack {}.{}: version 1 is known", .0.major, .0.minor)]
    Version(DLPackVersion),
    /// A device whose memory is not imported.
    #[error("cannot import a tensor of DLPack device type {} number {}; have its producer copy it to the CPU", .0.device_type, .0.device_id)]
    Device(DLDevice),
    /// Elements that this crate does not have.
    #[error("cannot import a tensor with elements of DLPack type code {}, {} bits and {} lanes", .0.code, .0.bits, .0.lanes)]
    DataType(DLDataType),
    /// Elements of fewer than 8 bits with a byte each.
    #[error("cannot import elements of {dtype} that have a byte each: have their producer pack them, {} in {} bytes", dtype.block().0, dtype.block().1)]
    Padded {
        /// The type.
        dtype: DType,
    },
    /// A structure that describes no tensor.
    #[error("cannot import a DLPack tensor: {0}")]
    Malformed(String),
    /// Elements that no buffer holds.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Memory that the library did not give out or take in.
    #[error(transparent)]
    Library(#[from] transload::Error),
}

impl DLPackError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            DLPackError::Malformed(_) => ErrorClass::Caller,
            DLPackError::Tensor(error) => error.class(),
            DLPackError::Library(error) => error.class(),
            _ => ErrorClass::Unsupported,
        }
    }
}
