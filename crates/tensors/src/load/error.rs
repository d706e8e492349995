//! Why tensors were not loaded.

use std::fmt;
use std::path::PathBuf;

use transload::{DeviceKind, ErrorClass, MemoryId, MemoryKind, OpenError, TransferError};

use crate::DType;

/// Why tensors were not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No tensor was chosen, of a model that has some.
    #[error("no tensor was chosen, of the {of} of the model")]
    NoTensor {
        /// How many the model has.
        of: usize,
    },
    /// A pattern that the name of no tensor fits.
    #[error(
        "no tensor has a name that fits {pattern:?}; a pattern has to fit the whole name, with * for any characters"
    )]
    Pattern {
        /// The pattern.
        pattern: String,
    },
    /// A tensor of a type that is not known: what its bytes are is not known either.
    #[error(
        "tensor {tensor:?} is of the type {dtype}, which this version does not know{}; choose only the others",
        Others(*others)
    )]
    UnknownDType {
        /// The first of these tensors.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// How many other tensors that were chosen have types that are not known.
        others: usize,
    },
    /// No place was named.
    #[error("no place for the tensors was named")]
    NoPlace,
    /// A slice that the tensor does not have, or a tensor that cannot be split so.
    #[error("tensor {tensor:?} of shape {shape:?}: {reason}")]
    Slice {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
        /// What is not right.
        reason: String,
    },
    /// A type that a tensor's elements are not converted to.
    #[error(
        "tensor {tensor:?} is not converted from {from} to {to}: F64, F32, F16, BF16, F8_E4M3 and F8_E5M2 are converted, to the first four of these"
    )]
    Convert {
        /// The tensor.
        tensor: String,
        /// The type in the file.
        from: DType,
        /// The type that was asked for.
        to: DType,
    },
    /// A tensor that no allocation can hold.
    #[error(
        "tensor {tensor:?} takes {len_bytes} bytes, and one allocation in {memory} has at most {limit}; split it, or load it into another memory"
    )]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// The bytes that it takes there, of a part those of the part.
        len_bytes: u64,
        /// The memory.
        memory: MemoryId,
        /// The largest allocation.
        limit: u64,
    },
    /// Memory in which no tensor can lie.
    #[error("tensors cannot lie in {memory}: {}", Unfit(*memory))]
    Unfit {
        /// The memory.
        memory: MemoryId,
    },
    /// The memory has too little room.
    #[error(
        "the tensors take {needs} bytes, and {memory} has {has} left; choose fewer, or another memory"
    )]
    NoRoom {
        /// The memory.
        memory: MemoryId,
        /// The bytes of the tensors.
        needs: u64,
        /// The bytes that are free there; of a system that does not tell, all bytes of the memory.
        has: u64,
    },
    /// A file that was not taken in.
    #[error(transparent)]
    Open(OpenError),
    /// An object of a store, with a manager that cannot read it.
    #[error("{path} is in an object store, and the manager has no backend for stores: register a `Remote` with it", path = path.display())]
    NoBackend {
        /// The object.
        path: PathBuf,
    },
    /// An object of a store whose numbers were to be converted: the engine converts what the host's threads read first.
    #[error("numbers are not converted on the way from an object store: load the tensors of {path} as they are, and convert them with `Request::convert`", path = path.display())]
    NotConverted {
        /// The object.
        path: PathBuf,
    },
    /// A file that was cut short after the model was opened.
    #[error("{path} was cut short: its tensors end at byte {end}, and it has {len_bytes} now", path = path.display())]
    Cut {
        /// The file.
        path: PathBuf,
        /// Where the bytes to read end.
        end: u64,
        /// The length of the file now.
        len_bytes: u64,
    },
    /// A place that is not here, memory that was not allocated, or a load that the library refused.
    #[error(transparent)]
    Library(#[from] transload::Error),
    /// Bytes that are not those of the file.
    #[error(
        "{} of {path} arrived with other bytes than a second reading has: the file was changed meanwhile, or the way there is not to be trusted",
        tensors_of(tensors), path = path.display()
    )]
    Differs {
        /// The file.
        path: PathBuf,
        /// The tensors that were read together.
        tensors: Vec<String>,
    },
    /// Bytes that did not arrive.
    #[error("{} of {path}: {source}", tensors_of(tensors), path = path.display())]
    Transfer {
        /// The file.
        path: PathBuf,
        /// The tensors that were read together.
        tensors: Vec<String>,
        /// What failed.
        source: Box<TransferError>,
    },
}

struct Others(usize);

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(", and one more is of such a type"),
            others => write!(f, ", and {others} more are of such types"),
        }
    }
}

struct Unfit(MemoryId);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.0.device.kind, self.0.kind) {
            (DeviceKind::CPU, kind) if kind.is_file() => "save them to a file",
            (_, MemoryKind::File) => "its bytes are read and not written",
            _ => "it holds staging slots alone",
        })
    }
}

fn tensors_of(names: &[String]) -> String {
    match names {
        [only] => format!("tensor {only:?}"),
        [first, .., last] => format!("tensors {first:?} to {last:?}"),
        [] => "no tensor".into(),
    }
}

impl LoadError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            LoadError::NoPlace
            | LoadError::NoTensor { .. }
            | LoadError::Pattern { .. }
            | LoadError::Slice { .. }
            | LoadError::Convert { .. }
            | LoadError::TooLarge { .. }
            | LoadError::Unfit { .. }
            | LoadError::NoBackend { .. } => ErrorClass::Caller,
            LoadError::NotConverted { .. } | LoadError::UnknownDType { .. } => {
                ErrorClass::Unsupported
            }
            LoadError::NoRoom { .. } => ErrorClass::Exhausted,
            LoadError::Open(error) => error.class(),
            LoadError::Cut { .. } | LoadError::Differs { .. } => ErrorClass::Failed,
            LoadError::Library(error) => error.class(),
            // The load was accepted: what a file lost since is no mistake of the caller's.
            LoadError::Transfer { source, .. } => match source.class() {
                ErrorClass::Caller => ErrorClass::Failed,
                class => class,
            },
        }
    }
}
