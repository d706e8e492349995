//! Why tensors were not saved.

use std::fmt;
use std::io;
use std::path::PathBuf;

use transload::hal::SystemError;
use transload::host::partial::steps::StepError;
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
    /// A step that the system refused while the files went to the disk and to their places.
    #[error("cannot {step} {path}: {}; {left}", SystemError(source), path = path.display())]
    Step {
        /// What could not be done: `write`, `sync`, `rename a file to`, and so on.
        step: String,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
        /// What is there after it.
        left: Left,
    },
    /// A list of shards, or a file, that would be opened in place of this save and is not replaced by it: a file whose name
    /// does not end in `.safetensors`, the list of such a file, a list that names the file beside others, or the list of
    /// another model that names it.
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

/// What is there after a step of a save that failed. Each model that is there is whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Left {
    /// The older model, as before, and nothing of the new one.
    Older,
    /// The older model, and files of the new one, or what was put aside, that the system does not remove.
    OlderAndFiles,
    /// The new model: the system does not bring the older one back.
    New,
    /// Both: the one in a file, the other in a list of files.
    Both,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Left::Older => "nothing has changed there",
            Left::OlderAndFiles => {
                "the older model is there, beside files of the new one that could not be removed"
            }
            Left::New => "the new model is there: the steps before it could not be taken back",
            Left::Both => {
                "both models are there, the one in a file, the other in a list of files: the steps before it could not all be \
                 taken back"
            }
        })
    }
}

impl From<StepError> for SaveError {
    fn from(error: StepError) -> SaveError {
        SaveError::Step {
            step: error.step.to_string(),
            path: error.path,
            source: error.source,
            left: Left::Older,
        }
    }
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
            SaveError::File { source, .. } | SaveError::Step { source, .. } => {
                ErrorClass::of_io(source)
            }
            SaveError::Library(error) => error.class(),
            SaveError::Transfer { source, .. } => source.class(),
        }
    }
}
