//! Errors of transfers: requests that are refused, and transfers that fail.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use transload_core::{BackendId, DeviceId, MemoryId, NoPlan, PlanKey, Span};
use transload_hal::{ErrorClass, Fault, ImportError};

use super::forked::{FORKED, Forked};
use super::memory::PlaceError;

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
    /// [Elements](crate::Region::strided) that lie before the buffer's first byte or past its end.
    #[error(
        "an array whose first element is at byte {offset} begins {before} bytes before it and spans {len} bytes: it leaves the \
         buffer's {limit} bytes in {memory}"
    )]
    ElementsOutOfBounds {
        /// The memory.
        memory: MemoryId,
        /// Where the first element lies.
        offset: u64,
        /// How far before it the lowest byte lies.
        before: u64,
        /// The bytes from the lowest to the highest one.
        len: u64,
        /// The length of the buffer.
        limit: u64,
    },
    /// [Blocks](crate::Region::blocks) of no bytes.
    #[error("blocks of 0 bytes in {memory}")]
    EmptyBlocks {
        /// The memory.
        memory: MemoryId,
    },
    /// A [block](crate::Region::blocks) that ends past the buffer's end.
    #[error(
        "there is no block {number}: a buffer in {memory} has {limit} blocks of {block_bytes} bytes, from block 0 on"
    )]
    PastLastBlock {
        /// The memory.
        memory: MemoryId,
        /// The block's number.
        number: u64,
        /// The size of a block.
        block_bytes: u64,
        /// How many blocks fit.
        limit: u64,
    },
    /// More bytes in a list of [blocks](crate::Region::blocks) or [spans](crate::Region::spans) than a number of bytes can
    /// tell.
    #[error("{count} pieces of a buffer in {memory} have more than 2^64 bytes together")]
    TooLarge {
        /// The memory.
        memory: MemoryId,
        /// How many are listed.
        count: usize,
    },
    /// Bytes that the list of a destination names more than once, or that elements of it share.
    #[error("the destination has {len} bytes from byte {offset} on of a buffer in {memory} twice")]
    Repeated {
        /// The memory.
        memory: MemoryId,
        /// Where the bytes begin.
        offset: u64,
        /// How many there are.
        len: u64,
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
    /// A region of numbers to be [converted](crate::Request::convert) that are not all whole, or become more than 2^64 bytes.
    #[error(
        "{found_bytes} bytes in {memory} are not to be converted: each piece has to be whole numbers of {element_bytes} \
         bytes, and all of them become at most 2^64 bytes"
    )]
    Elements {
        /// The memory.
        memory: MemoryId,
        /// How many bytes there are.
        found_bytes: u64,
        /// The bytes of a number.
        element_bytes: u64,
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
#[non_exhaustive]
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
    /// Source and destination overlap, and one of them is rows, blocks, or elements at strides.
    #[error(
        "source and destination overlap in {memory}, and one of them is rows, blocks, or elements at strides"
    )]
    Overlap {
        /// Their memory.
        memory: MemoryId,
    },
    /// Copies to several destinations at once, of which one has another source than the first.
    #[error("the copy to {memory} has another source than the first copy of the broadcast")]
    OtherSource {
        /// The memory of its destination.
        memory: MemoryId,
    },
    /// Copies to several destinations at once, of which two share bytes, or one shares bytes with the source.
    #[error(
        "the destination in {memory} shares bytes with the source, or with another destination of the broadcast"
    )]
    SharedDestination {
        /// Its memory.
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
    /// Verification of a copy that [converts](crate::Request::convert): the ends differ.
    #[error("a copy that converts numbers cannot be verified; compare with a second one")]
    VerifyConversion,
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
    /// A way that another manager listed ([`Request::by`](crate::Request::by)).
    #[error(
        "the way of the request belongs to another manager: ask the manager that copies the bytes for its candidates"
    )]
    ForeignWay,
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
            kind if kind.is_file() => f.write_str(
                ": `open_file` opens a file for reading; to write one that exists, open it with \
                 `HostFile::open_writable`, and take it in with `adopt_file`",
            ),
            _ => Ok(()),
        }
    }
}

impl TransferError {
    pub(crate) fn no_route(key: &PlanKey, error: &NoPlan) -> TransferError {
        TransferError::NoRoute {
            src: key.src,
            dst: key.dst,
            reasons: error.reasons(),
        }
    }

    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            TransferError::Region(_)
            | TransferError::LengthMismatch { .. }
            | TransferError::ReadOnly { .. }
            | TransferError::Overlap { .. }
            | TransferError::OtherSource { .. }
            | TransferError::SharedDestination { .. }
            | TransferError::VerifyOverlap { .. }
            | TransferError::VerifyConversion
            | TransferError::ForeignEvent
            | TransferError::ForeignWay
            | TransferError::Forked
            | TransferError::ResultTaken
            | TransferError::GuardHeld { .. }
            | TransferError::ForeignBuffer { .. } => ErrorClass::Caller,
            TransferError::NoRoute { .. } => ErrorClass::Unsupported,
            TransferError::Place(error) => error.class(),
            TransferError::WouldBlock => ErrorClass::Unsupported,
            // A device that is lost stays lost, and may have failed otherwise before.
            TransferError::Failed(failure) if failure.met(ErrorClass::Lost) => ErrorClass::Lost,
            TransferError::Failed(failure) => failure.fault.class,
            TransferError::Import(error) => error.class(),
            TransferError::Differs { .. }
            | TransferError::Cancelled { .. }
            | TransferError::Deadline { .. }
            | TransferError::BatchStopped => ErrorClass::Failed,
        }
    }
}

/// Why a transfer has no route left. The route that failed first leads, since the later ones fail by what the first one met: a
/// device that is gone, a session that has ended. Where a later route failed for a reason of its own while the first one did
/// not take these bytes at all ([`ErrorClass::Unsupported`]), the later one leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferFailure {
    /// What the route was to do.
    pub task: FailedTask,
    /// The backend that executed the step.
    pub backend: BackendId,
    /// The device whose engine executed the step; `None` when its staging slots could not be had, or the link was found
    /// unfit before.
    pub device: Option<DeviceId>,
    /// The route.
    pub route: String,
    /// The step of the route, from 0; `None` when its staging slots could not be had.
    pub step: Option<u8>,
    /// The payload bytes of the operation.
    pub span: Span,
    /// The fault.
    pub fault: Fault,
    /// The payload bytes of the transfer.
    pub len_bytes: u64,
    /// How many leading ones had arrived when the route failed. Whole operations are counted.
    pub leading_bytes: u64,
    /// The other routes that were tried, in their order, and why each failed.
    pub others: Vec<(String, Fault)>,
    /// How many routes were tried.
    pub routes_tried: u32,
}

/// What a route of a transfer was to do when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FailedTask {
    /// To copy.
    Copy,
    /// To have copied what the source has: both ends were read, and differ.
    Compare,
    /// To read the source for [`verify`](crate::Request::verify). The copy is done.
    ReadSource,
    /// To read the destination for [`verify`](crate::Request::verify). The copy is done.
    ReadDestination,
}

impl FailedTask {
    /// Returns whether it is about the copy, and not about reading what was copied.
    pub(crate) fn moves(self) -> bool {
        matches!(self, FailedTask::Copy | FailedTask::Compare)
    }
}

impl TransferFailure {
    /// Whether any of its routes failed so.
    fn met(&self, class: ErrorClass) -> bool {
        let faults = self.others.iter().map(|(_, fault)| fault);
        faults
            .chain([&self.fault])
            .any(|fault| fault.class == class)
    }
}

impl fmt::Display for TransferFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checked = match self.task {
            FailedTask::Copy | FailedTask::Compare => None,
            FailedTask::ReadSource => Some("source"),
            FailedTask::ReadDestination => Some("destination"),
        };
        if let Some(end) = checked {
            write!(
                f,
                "all {} bytes were copied, and could not be verified: reading the {end} again by ",
                self.len_bytes
            )?;
        }
        write!(f, "{} failed at {}", self.route, self.backend)?;
        if let Some(device) = self.device {
            write!(f, ", device {device}")?;
        }
        match (self.task, self.step) {
            (FailedTask::Compare, _) => {}
            (_, Some(step)) => write!(f, ", step {step}, {}", self.span)?,
            (_, None) => f.write_str(", before its first step")?,
        }
        write!(f, ": {}", self.fault)?;
        if self.task == FailedTask::Copy && self.leading_bytes > 0 {
            let (arrived, of) = (self.leading_bytes, self.len_bytes);
            write!(f, "; {arrived} of {of} bytes had arrived")?;
        }
        // Routes that failed alike are told together. Those over a lost device say no more than the first one.
        let is_lost = self.fault.class == ErrorClass::Lost;
        let others = self.others.iter();
        let others: Vec<_> = others
            .filter(|(_, fault)| !is_lost || fault.class != ErrorClass::Lost)
            .collect();
        let alike = others.chunk_by(|one, two| one.1 == two.1);
        for (at, alike) in alike.enumerate() {
            f.write_str(if at == 0 { "; also tried: " } else { "; " })?;
            for (at, (route, _)) in alike.iter().enumerate() {
                write!(f, "{}{route}", if at == 0 { "" } else { ", " })?;
            }
            // The first fault may say more of the same.
            let fault = alike[0].1.to_string();
            match self.fault.to_string().starts_with(&fault) {
                true => f.write_str(": the same")?,
                false => write!(f, ": {fault}")?,
            }
        }
        Ok(())
    }
}

impl core::error::Error for TransferFailure {}

impl From<Forked> for TransferError {
    fn from(_: Forked) -> TransferError {
        TransferError::Forked
    }
}

impl From<PlaceError> for TransferError {
    fn from(error: PlaceError) -> TransferError {
        match error {
            PlaceError::Forked => TransferError::Forked,
            error => TransferError::Place(error),
        }
    }
}
