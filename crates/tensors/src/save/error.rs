//! Why tensors were not saved.

use std::io;
use std::path::PathBuf;

use transload::hal::SystemError;
use transload::{ErrorClass, TransferError};

use crate::{DType, TensorError};

/// Why tensors were not saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// Two tensors of one name.
    #[error("two tensors have the name {tensor:?}")]
    Duplicate {
        /// The name.
        tensor: String,
    },
    /// A tensor with the name of the metadata.
    #[error("no tensor of safetensors has the name \"__metadata__\"")]
    Reserved,
    /// A type that only GGUF has.
    #[error("tensor {tensor:?} has elements of {dtype}, a type that safetensors does not have")]
    DType {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
    },
    /// A tensor that lies in too many rows.
    #[error("tensor {tensor:?}: {source}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// What is not right.
        source: TensorError,
    },
    /// A header that no reader would take.
    #[error("cannot write the header: {reason}")]
    Header {
        /// Why not.
        reason: String,
    },
    /// A file that was not created, written to the disk or put in its place.
    #[error("cannot write {path}: {}", SystemError(source), path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file beside a list of shards of its name, or shards beside a file of their name, which would be opened in their place.
    #[error("{older} is of an older model, which would be opened in place of this one; remove it and what belongs to it, or save elsewhere", older = older.display())]
    Hidden {
        /// The list of the older model, or its file.
        older: PathBuf,
    },
    /// The ending of another format.
    #[error("{path} has the ending of another format: safetensors are written, to a file that ends in .safetensors", path = path.display())]
    Ending {
        /// The file.
        path: PathBuf,
    },
    /// The library refused a file or a copy.
    #[error(transparent)]
    Library(#[from] transload::Error),
    /// Bytes that did not arrive.
    #[error("tensor {tensor:?} of {path}: {source}", path = path.display())]
    Transfer {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What failed.
        source: Box<TransferError>,
    },
}

/// Returns whether a copy of a batch may have ended because another one failed before.
pub(crate) fn is_consequence(error: &TransferError) -> bool {
    use TransferError::{BatchStopped, Cancelled};
    matches!(error, BatchStopped | Cancelled { .. })
}

impl SaveError {
    /// Returns whether the copy may have ended because another one failed before.
    pub(super) fn is_consequence(&self) -> bool {
        matches!(self, SaveError::Transfer { source, .. } if is_consequence(source))
    }

    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            SaveError::Duplicate { .. }
            | SaveError::Reserved
            | SaveError::DType { .. }
            | SaveError::Hidden { .. }
            | SaveError::Ending { .. }
            | SaveError::Header { .. } => ErrorClass::Caller,
            SaveError::Tensor { source, .. } => source.class(),
            SaveError::File { source, .. } => ErrorClass::of_io(source),
            SaveError::Library(error) => error.class(),
            SaveError::Transfer { source, .. } => source.class(),
        }
    }
}
