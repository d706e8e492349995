//! Errors of places, backends, guards and views.

use alloc::string::String;
use core::fmt;

use transload_core::{BackendId, DeviceName, MemoryId, Place, TopologyError};
use transload_hal::{ErrorClass, Fault};

use super::forked::{FORKED, Forked};

/// A place that is not on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// No backend has such a device.
    #[error(
        "there is no device {device} here; there are: {known}{}",
        After(reason)
    )]
    UnknownDevice {
        /// The requested device.
        device: DeviceName,
        /// The devices of this machine.
        known: String,
        /// Why there is none of its kind, or why some are not used: `TransferManager::lacks`.
        reason: Option<String>,
    },
    /// The device has no memory of that kind.
    #[error("there is no memory {place} here; {} has: {known}{}", place.device, After(reason))]
    UnknownMemory {
        /// The requested place.
        place: Place,
        /// The memories that the device has.
        known: String,
        /// What would bring the memory, and why that is not here.
        reason: Option<String>,
    },
    /// As [`TransferError::Forked`](crate::TransferError::Forked), which this converts into.
    #[error("{FORKED}")]
    Forked,
}

/// Displays a further clause, where there is one.
struct After<'a>(&'a Option<String>);

impl fmt::Display for After<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|clause| write!(f, "; {clause}"))
    }
}

impl PlaceError {
    /// Returns the category of the error. Use it to decide what to do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            PlaceError::UnknownDevice { .. } | PlaceError::UnknownMemory { .. } => {
                ErrorClass::Unsupported
            }
            PlaceError::Forked => ErrorClass::Caller,
        }
    }
}

/// Why a backend was not registered. The manager is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// A backend of that name is registered already.
    #[error("a backend named {backend} is registered already")]
    Duplicate {
        /// The name.
        backend: BackendId,
    },
    /// A device, memory or link of the backend does not fit the registered ones.
    #[error("backend {backend} does not fit: {error}")]
    Topology {
        /// The name.
        backend: BackendId,
        /// Why not.
        error: TopologyError,
    },
    /// The backend takes part in another manager.
    #[error(
        "backend {backend} takes part in another manager already: make another one for this manager"
    )]
    Taken {
        /// The name.
        backend: BackendId,
    },
    /// The backend panicked.
    #[error("backend panicked while it was registered: {message}")]
    Panicked {
        /// The text of the panic.
        message: String,
    },
    /// As [`TransferError::Forked`](crate::TransferError::Forked).
    #[error("{FORKED}")]
    Forked,
}

impl RegisterError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            RegisterError::Panicked { .. } => ErrorClass::Failed,
            _ => ErrorClass::Caller,
        }
    }
}

/// Why a guard was not given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The host cannot access this memory through a pointer.
    #[error("the host cannot reach {memory} through a pointer")]
    NotHostAddressable {
        /// The memory.
        memory: MemoryId,
    },
    /// The buffer may not be written.
    #[error("a buffer in {memory} is read-only")]
    ReadOnly {
        /// The memory.
        memory: MemoryId,
    },
    /// A device may change the bytes or take them from the host while a guard shows them.
    #[error(
        "cannot show {memory}: a device may write it, or take it from the host, at any time; copy it to host memory instead"
    )]
    NotExclusive {
        /// The memory.
        memory: MemoryId,
    },
    /// The calling thread would wait for a guard that it holds itself, on some of the same bytes, or on bytes of a
    /// transfer that goes before.
    #[error(
        "cannot wait here: the guard waits for a guard on bytes in {memory} that this thread holds; drop that one first"
    )]
    GuardHeld {
        /// The memory of the guard that is held.
        memory: MemoryId,
    },
    /// The guard has to wait for transfers or guards of the same bytes, and the call must not block: it is
    /// [`Buffer::try_read`](crate::Buffer::try_read) or [`Buffer::try_write`](crate::Buffer::try_write), or was made in
    /// a callback of a backend, or in the browser, which ends transfers only when the page's own code has returned to
    /// it.
    #[error(
        "a guard on {memory} has to wait for transfers or other guards of the same bytes, and this call may not: await \
         the guard, or try again later"
    )]
    WouldBlock {
        /// The memory.
        memory: MemoryId,
    },
    /// The device of the memory was asked to make the bytes visible, and failed; or the bytes are another machine's, and other
    /// programs may use them, too.
    #[error("cannot make {memory} visible to the host: {fault}")]
    NotVisible {
        /// The memory.
        memory: MemoryId,
        /// Why not.
        fault: Fault,
    },
    /// As [`TransferError::Forked`](crate::TransferError::Forked).
    #[error("{FORKED}")]
    Forked,
}

impl GuardError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            GuardError::NotHostAddressable { .. } | GuardError::NotExclusive { .. } => {
                ErrorClass::Unsupported
            }
            GuardError::ReadOnly { .. } | GuardError::GuardHeld { .. } | GuardError::Forked => {
                ErrorClass::Caller
            }
            GuardError::WouldBlock { .. } => ErrorClass::Exhausted,
            GuardError::NotVisible { fault, .. } => fault.class,
        }
    }
}

/// Why a view was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// This machine has no such place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A buffer that another manager made.
    #[error("a buffer in {memory} belongs to another manager: ask the manager that made it")]
    ForeignBuffer {
        /// The memory.
        memory: MemoryId,
    },
    /// The two memory systems have no kind of memory that both can hold.
    #[error("{src} cannot be shared with {dst}: {reason}")]
    Unsupported {
        /// The memory of the buffer.
        src: MemoryId,
        /// The memory of the view.
        dst: MemoryId,
        /// Why each way of sharing failed.
        reason: String,
    },
}

impl ShareError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            ShareError::Place(error) => error.class(),
            ShareError::ForeignBuffer { .. } => ErrorClass::Caller,
            ShareError::Unsupported { .. } => ErrorClass::Unsupported,
        }
    }
}

impl From<Forked> for PlaceError {
    fn from(_: Forked) -> PlaceError {
        PlaceError::Forked
    }
}

impl From<Forked> for RegisterError {
    fn from(_: Forked) -> RegisterError {
        RegisterError::Forked
    }
}

impl From<Forked> for GuardError {
    fn from(_: Forked) -> GuardError {
        GuardError::Forked
    }
}

impl From<Forked> for ShareError {
    fn from(forked: Forked) -> ShareError {
        ShareError::Place(forked.into())
    }
}
