//! Why tensors were not saved.

use std::io;
use std::path::PathBuf;

use transload::{ErrorClass, TransferError};

use crate::DType;

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
    /// A buffer of another length than type and shape say.
    #[error("tensor {tensor:?} of {dtype} {shape:?} has {}, and its buffer {found}", Needs(*needs))]
    Length {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// Its shape.
        shape: Vec<u64>,
        /// The bytes of that shape; `None` where they are no whole number, or more than 2⁶⁴.
        needs: Option<u64>,
        /// The bytes of the buffer.
        found: u64,
    },
    /// A header that no reader would take.
    #[error("cannot write the header: {reason}")]
    Header {
        /// Why not.
        reason: String,
    },
    /// A file that was not created, written to the disk or put in its place.
    #[error("cannot write {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
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

struct Needs(Option<u64>);

impl std::fmt::Display for Needs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{bytes} bytes"),
            None => f.write_str("no whole number of bytes"),
        }
    }
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
            | SaveError::Length { .. }
            | SaveError::Header { .. } => ErrorClass::Caller,
            SaveError::File { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorClass::Exhausted,
                io::ErrorKind::NotFound
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::NotADirectory => ErrorClass::Caller,
                _ => ErrorClass::Failed,
            },
            SaveError::Library(error) => error.class(),
            SaveError::Transfer { source, .. } => source.class(),
        }
    }
}
