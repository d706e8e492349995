//! Errors, one enum for each kind of operation, folded into [`Error`].

mod forked;

use alloc::boxed::Box;
use alloc::string::String;
#[cfg(feature = "std")]
use alloc::sync::Arc;
use core::fmt;

use transload_core::{
    BackendId, DeviceId, DeviceName, MemoryId, MemoryKind, ParseError, Place, ShapeError, Span,
    TopologyError,
};
use transload_hal::{AllocError, ConnectError, ErrorClass, Fault, ImportError};

use crate::{IntoInnerError, IntoInnerReason};
#[cfg(feature = "std")]
use crate::{OpenError, ProfileError};

pub(crate) use forked::{FORKED, Forked};

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
impl From<transload_host::FileError> for Error {
    fn from(error: transload_host::FileError) -> Error {
        OpenError::from(error).into()
    }
}

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
    /// As [`TransferError::Forked`], which this converts into.
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
    /// As [`TransferError::Forked`].
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

/// A part of a buffer that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The region ends past the buffer's end.
    #[error("{len} bytes from offset {offset} on end past the buffer's {limit} bytes in {memory}")]
    OutOfBounds {
        /// The memory.
        memory: MemoryId,
        /// Where the region starts.
        offset: u64,
        /// The length from its first byte to the end of its last one.
        len: u64,
        /// The length of the buffer.
        limit: u64,
    },
    /// A [rectangle](crate::Rect) that ends past the end of the image's rows.
    #[error(
        "{width} elements of {element_bytes} bytes from column {x} on end past rows of {row_pitch_bytes} bytes in \
         {memory}"
    )]
    PastRow {
        /// The memory.
        memory: MemoryId,
        /// The first column.
        x: u64,
        /// Elements of each row.
        width: u64,
        /// Bytes of an element.
        element_bytes: u64,
        /// Bytes from one row to the next.
        row_pitch_bytes: u64,
    },
    /// A [rectangle](crate::Rect) whose last row ends past the buffer's end.
    #[error(
        "{height} rows from row {y} on, {row_pitch_bytes} bytes apart, end past the buffer's {limit} bytes in {memory}"
    )]
    PastLastRow {
        /// The memory.
        memory: MemoryId,
        /// The first row.
        y: u64,
        /// How many rows.
        height: u64,
        /// Bytes from one row to the next.
        row_pitch_bytes: u64,
        /// The length of the buffer.
        limit: u64,
    },
    /// A range that ends before it starts.
    #[error("a range in {memory} starts at byte {start} and ends before it, at byte {end}")]
    Reversed {
        /// The memory.
        memory: MemoryId,
        /// Where it starts.
        start: u64,
        /// Where it ends.
        end: u64,
    },
}

/// The first request of a batch that cannot be accepted. The other requests had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {index} of the batch: {source}")]
pub struct BatchError {
    /// Its index in the batch.
    pub index: usize,
    /// What is wrong with it.
    pub r#source: TransferError,
}

/// Why a transfer was refused, or did not move all bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// A region that is not there.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The two regions have different payloads.
    #[error("the source has {src_bytes} bytes and the destination {dst_bytes}")]
    LengthMismatch {
        /// The payload of the source.
        src_bytes: u64,
        /// The payload of the destination.
        dst_bytes: u64,
    },
    /// The destination may not be written.
    #[error("the destination in {memory} is read-only{}", Writable(*memory))]
    ReadOnly {
        /// Its memory.
        memory: MemoryId,
    },
    /// Source and destination overlap, and one of them is pitched.
    #[error("pitched source and destination overlap in {memory}")]
    Overlap {
        /// Their memory.
        memory: MemoryId,
    },
    /// Verification of a copy whose source and destination overlap: the copy changes the source.
    #[error(
        "source and destination overlap in {memory}, so that they cannot be compared afterwards"
    )]
    VerifyOverlap {
        /// Their memory.
        memory: MemoryId,
    },
    /// A buffer that another manager made.
    #[error(
        "a buffer in {memory} belongs to another manager: make both ends of a transfer with the manager that copies them"
    )]
    ForeignBuffer {
        /// Its memory.
        memory: MemoryId,
    },
    /// An event that another manager made.
    #[error(
        "an event of the request belongs to another manager: make it with the manager that copies the bytes"
    )]
    ForeignEvent,
    /// This process is a child of `fork`, and its parent made the manager. The call had no effect. Make a manager in
    /// this process.
    #[error("{FORKED}")]
    Forked,
    /// The result was taken before, by an `await` or a wait.
    #[error("the result of this transfer was taken already")]
    ResultTaken,
    /// The call would wait for a guard that the calling thread holds: the transfer, or one that goes before it, touches
    /// bytes of that guard. A submitted transfer goes on when the guard is dropped; a transfer of borrowed bytes was
    /// not begun.
    #[error(
        "cannot wait here: the transfer waits for a guard on bytes in {memory} that this thread holds; drop the guard \
         first"
    )]
    GuardHeld {
        /// The memory of the guard that is held.
        memory: MemoryId,
    },
    /// The call would block where it must not: in the browser, which goes on only when the page's own code has returned
    /// to it, or in a callback of a backend such as `Cuda::when_done`, which may run on the thread that ends the
    /// transfer. A submitted transfer goes on; a transfer of borrowed bytes was not begun.
    #[error(
        "nothing can wait here, in the browser or in a callback of a backend: submit the transfer and await it, or wait \
         for it on another thread"
    )]
    WouldBlock,
    /// No engine reaches both ends, and no two engines with a memory between them do.
    #[error("no route from {src} to {dst}: {reasons}")]
    NoRoute {
        /// The source.
        src: MemoryId,
        /// The destination.
        dst: MemoryId,
        /// Why each candidate was rejected.
        reasons: String,
    },
    /// Every route failed. The destination range is unspecified; outside it nothing changed.
    #[error(transparent)]
    Failed(Box<TransferFailure>),
    /// The checksums of source and destination differ, over every route.
    #[error(
        "source and destination differ after {route}: xxh3-64 {src_checksum:016x} and {dst_checksum:016x}"
    )]
    Differs {
        /// The last route.
        route: String,
        /// The checksum of the source.
        src_checksum: u64,
        /// The checksum of the destination.
        dst_checksum: u64,
    },
    /// The transfer was cancelled.
    #[error("cancelled after {leading_bytes} leading bytes")]
    Cancelled {
        /// Leading bytes of the destination that equal the source.
        leading_bytes: u64,
    },
    /// The deadline of the transfer passed.
    #[error("the deadline passed after {leading_bytes} leading bytes")]
    Deadline {
        /// Leading bytes of the destination that equal the source.
        leading_bytes: u64,
    },
    /// A predecessor in its batch failed, and the batch stops at the first failure.
    #[error("not started: an earlier transfer of the batch failed")]
    BatchStopped,
    /// Borrowed memory could not be wrapped.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// No backend has this sort of memory.
    #[error(transparent)]
    Place(PlaceError),
}

/// Displays how to get a buffer that may be written, where that is a question of the function called.
struct Writable(MemoryId);

impl fmt::Display for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind {
            MemoryKind::File => f.write_str(
                ": `open_file` opens a file for reading; to write one that exists, open it with \
                 `HostFile::open_writable`, and take it in with `adopt_file`",
            ),
            _ => Ok(()),
        }
    }
}

impl TransferError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            TransferError::Region(_)
            | TransferError::LengthMismatch { .. }
            | TransferError::ReadOnly { .. }
            | TransferError::Overlap { .. }
            | TransferError::VerifyOverlap { .. }
            | TransferError::ForeignEvent
            | TransferError::Forked
            | TransferError::ResultTaken
            | TransferError::GuardHeld { .. }
            | TransferError::ForeignBuffer { .. } => ErrorClass::Caller,
            TransferError::NoRoute { .. } => ErrorClass::Unsupported,
            TransferError::Place(error) => error.class(),
            TransferError::WouldBlock => ErrorClass::Unsupported,
            TransferError::Failed(failure) => failure.fault.class,
            TransferError::Import(error) => error.class(),
            TransferError::Differs { .. }
            | TransferError::Cancelled { .. }
            | TransferError::Deadline { .. }
            | TransferError::BatchStopped => ErrorClass::Failed,
        }
    }
}

/// The last failure of a transfer that has no route left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferFailure {
    /// The backend that executed the step.
    pub backend: BackendId,
    /// The device whose engine executed the step; `None` when its staging slots could not be had, or the link was found
    /// unfit before.
    pub device: Option<DeviceId>,
    /// The route that failed last.
    pub route: String,
    /// The step of the route, from 0; `None` when its staging slots could not be had.
    pub step: Option<u8>,
    /// The payload bytes of the operation.
    pub span: Span,
    /// The fault.
    pub fault: Fault,
    /// How many routes were tried.
    pub routes_tried: u32,
}

impl fmt::Display for TransferFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed at {}", self.route, self.backend)?;
        if let Some(device) = self.device {
            write!(f, ", device {device}")?;
        }
        match self.step {
            Some(step) => write!(f, ", step {step}, {}", self.span)?,
            None => f.write_str(", before its first step")?,
        }
        write!(f, ": {}", self.fault)?;
        if self.routes_tried > 1 {
            write!(f, " ({} routes were tried)", self.routes_tried)?;
        }
        Ok(())
    }
}

impl core::error::Error for TransferFailure {}

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
    /// The device of the memory was asked to make the bytes visible, and failed.
    #[error("cannot make {memory} visible to the host: {fault}")]
    NotVisible {
        /// The memory.
        memory: MemoryId,
        /// Why not.
        fault: Fault,
    },
    /// As [`TransferError::Forked`].
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
