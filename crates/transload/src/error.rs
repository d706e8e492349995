//! Errors, one enum for each kind of operation, folded into [`Error`].

mod forked;
mod memory;
mod transfer;

#[cfg(feature = "std")]
use alloc::boxed::Box;
#[cfg(feature = "std")]
use alloc::string::{String, ToString};
#[cfg(feature = "std")]
use alloc::sync::Arc;

use transload_core::{MemoryId, ParseError, ShapeError};
use transload_hal::{AllocError, ConnectError, ErrorClass, Fault, ImportError};
#[cfg(feature = "std")]
use transload_host::FileError;

use crate::buffer::{IntoInnerError, IntoInnerReason};
#[cfg(feature = "std")]
use crate::std::profile::ProfileError;
#[cfg(feature = "std")]
pub(crate) use forked::FORKED;
pub(crate) use forked::Forked;
pub use memory::{GuardError, PlaceError, RegisterError, ShareError};
pub use transfer::{BatchError, FailedTask, RegionError, TransferError, TransferFailure};

/// Any error of the library: `?` converts each of its other errors into this one.
///
/// The text of an error is complete: it holds the texts of the errors that caused it. So that no text shows twice where a
/// program prints an error with its [`source`](core::error::Error::source), the errors of this library have none. The
/// error below is a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Text that could not be read.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A place that is not on this machine.
    #[error(transparent)]
    Place(PlaceError),
    /// A backend that was not registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Memory that was not allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// Memory that was not imported or exported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// Memories that were not connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A shape that is not possible.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A region that is not possible.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A transfer that was refused or failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// A batch that was refused.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A guard that was not given.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// A view that could not be made.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// A file that did not become a buffer.
    #[cfg(feature = "std")]
    #[error(transparent)]
    Open(Arc<OpenError>),
    /// A profile that is not of this machine, or was not read or written.
    #[cfg(feature = "std")]
    #[error(transparent)]
    Profile(Arc<ProfileError>),
    /// Another machine that cannot be used.
    #[cfg(remote)]
    #[error(transparent)]
    Node(Arc<transload_remote::NodeError>),
    /// A buffer that did not give its owner back. The conversion drops the buffer, which [`IntoInnerError`] holds.
    #[error("the buffer in {memory} {reason}")]
    IntoInner {
        /// The memory of the buffer.
        memory: MemoryId,
        /// Why not.
        reason: IntoInnerReason,
    },
    /// A hint that was not taken.
    #[error("cannot pass on the hint for {memory}: {fault}")]
    Hint {
        /// The memory.
        memory: MemoryId,
        /// Why not.
        fault: Fault,
    },
}

impl Error {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::Parse(_) | Error::Shape(_) | Error::Region(_) => ErrorClass::Caller,
            Error::Place(error) => error.class(),
            Error::Register(error) => error.class(),
            Error::Alloc(error) => error.class(),
            Error::Import(error) => error.class(),
            Error::Connect(error) => error.class(),
            Error::Transfer(error) => error.class(),
            Error::Batch(error) => error.source.class(),
            #[cfg(feature = "std")]
            Error::Open(error) => error.class(),
            #[cfg(feature = "std")]
            Error::Profile(error) => error.class(),
            #[cfg(remote)]
            Error::Node(error) => error.class(),
            Error::IntoInner { .. } => ErrorClass::Caller,
            Error::Guard(error) => error.class(),
            Error::Share(error) => error.class(),
            Error::Hint { fault, .. } => fault.class,
        }
    }
}

impl From<IntoInnerError> for Error {
    fn from(error: IntoInnerError) -> Error {
        Error::IntoInner {
            memory: error.buffer.memory(),
            reason: error.reason,
        }
    }
}

#[cfg(remote)]
impl From<transload_remote::NodeError> for Error {
    fn from(error: transload_remote::NodeError) -> Error {
        Error::Node(Arc::new(error))
    }
}

#[cfg(feature = "std")]
impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        Error::Open(Arc::new(error))
    }
}

#[cfg(feature = "std")]
impl From<ProfileError> for Error {
    fn from(error: ProfileError) -> Error {
        Error::Profile(Arc::new(error))
    }
}

#[cfg(feature = "std")]
impl From<FileError> for Error {
    fn from(error: FileError) -> Error {
        OpenError::from(error).into()
    }
}

impl From<Forked> for Error {
    fn from(forked: Forked) -> Error {
        Error::Transfer(forked.into())
    }
}

impl From<PlaceError> for Error {
    fn from(error: PlaceError) -> Error {
        match error {
            PlaceError::Forked => TransferError::Forked.into(),
            error => Error::Place(error),
        }
    }
}

/// Why a file did not become a buffer.
#[cfg(feature = "std")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system did not open or create the file, it has no positions or no length, or it cannot have the requested
    /// length. The error names the path.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file was to be created anew, and a buffer of the same manager maps the one that exists. It is unchanged.
    #[error(
        "cannot create {path} anew: a buffer of this manager maps the file, and would lose its bytes; drop that buffer first, \
         or create the file under another name and rename it"
    )]
    Mapped {
        /// The path of the file.
        path: String,
    },
    /// The file was to be mapped while another call of the same manager creates it anew, which takes its bytes away.
    #[error(
        "cannot map {path}: a call of this manager is creating the file anew; map it when that call has returned"
    )]
    Created {
        /// The path of the file.
        path: String,
    },
    /// The manager did not take it in.
    #[error("{path}: {source}")]
    Manager {
        /// The path of the file.
        path: String,
        /// Why not.
        r#source: Box<Error>,
    },
}

/// Two errors are equal when their texts are: the system's errors cannot be compared.
#[cfg(feature = "std")]
impl PartialEq for OpenError {
    fn eq(&self, other: &OpenError) -> bool {
        self.class() == other.class() && self.to_string() == other.to_string()
    }
}

#[cfg(feature = "std")]
impl Eq for OpenError {}

#[cfg(feature = "std")]
impl OpenError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            OpenError::File(error) => error.class(),
            OpenError::Mapped { .. } | OpenError::Created { .. } => ErrorClass::Caller,
            OpenError::Manager { source, .. } => source.class(),
        }
    }
}
