//! Shared memory: a nameless file in memory (memfd, Linux) whose descriptor other processes can map.
//!
//! A process has few descriptors, usually 1,024. Therefore a small allocation lies in an arena (`memory/arena.rs`) and
//! gets a file of its own at its first export. One file for several allocations would not do, because its descriptor
//! shows all of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{fs, io};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use transload_hal::{
    AllocError, AllocSpec, Buffer, ErrorClass, Fault, HostSpan, MemoryId, Room, Span, StorageId,
    Taken,
};

use super::alias::{self, Alias};
use super::arena::{MOST_BYTES, Pages};
use super::hint;
use super::mapping::{FileAccess, Mapping};
use super::storage::{buffer_at, check_alignment, check_len, not_allocated};

/// The owner of a buffer in `cpu:0/shared`: pages, and the file behind them.
#[derive(Debug)]
pub struct SharedMemory {
    place: Place,
    /// Bytes of the pages before the buffer's first one: files are mapped by whole pages.
    lead: usize,
    span: Span,
    id: StorageId,
    writable: bool,
    taken: Taken,
}

#[derive(Debug)]
enum Place {
    /// A file, and where it is mapped.
    File(Mapping, Backing),
    /// Pages of an arena.
    Small {
        pages: Pages,
        /// Behind the pages since the first export.
        own: OnceLock<Backing>,
        /// Held while an export makes that file.
        exporting: Mutex<()>,
    },
}

/// The file behind the pages.
#[derive(Debug)]
struct Backing {
    file: fs::File,
    /// Set if the identity of the bytes is older than the file.
    _alias: Option<Arc<Alias>>,
}

impl SharedMemory {
    /// New, zeroed memory, mapped for reading and writing. Staging is touched at once. The system grants any length
    /// and kills the process that fills it, so lengths without room are refused here.
    ///
    /// Small memory has no descriptor until it is exported, except where `spec` says that it will be.
    pub(super) fn allocate(memory: MemoryId, spec: &AllocSpec) -> Result<Self, AllocError> {
        let len = check_len(memory, spec.len_bytes)?;
        let page = super::mapping::page_bytes() as u64;
        let align = check_alignment(memory, spec.alignment, page, super::heap::MAX_ALIGNMENT)?;
        let taken = Room::take(memory, spec.len_bytes)?;
        let is_small = len < MOST_BYTES && align <= MOST_BYTES && !spec.shareable;
        let make = || match is_small {
            true => Pages::allocate(len, align).map(|pages| Self::small(pages, spec.len_bytes)),
            false => Self::create(spec.len_bytes, align),
        };
        // A limit of the address space is not told of before.
        let made = make().or_else(|error| {
            if Room::give_back() {
                make()
            } else {
                Err(error)
            }
        });
        let mut shared = made.map_err(|error| not_allocated(memory, spec.len_bytes, &error))?;
        shared.taken = taken;
        if spec.staging {
            hint::populate(shared.host(), true);
        }
        Ok(shared)
    }

    /// The buffer of the whole memory.
    pub(super) fn into_buffer(self, memory: MemoryId) -> Buffer {
        let (identity, host, writable) = (self.identity(), self.host(), self.writable);
        // SAFETY: the mapping is valid for that span while it lives. A new memfd has no other writers; for an imported file,
        // the importer promises that nothing else writes it.
        unsafe { buffer_at(memory, identity, host, writable, Box::new(self)) }
    }

    fn small(pages: Pages, len_bytes: u64) -> Self {
        Self {
            place: Place::Small {
                pages,
                own: OnceLock::new(),
                exporting: Mutex::new(()),
            },
            lead: 0,
            span: Span::new(0, len_bytes),
            id: alias::fresh(),
            writable: true,
            taken: Taken::default(),
        }
    }

    fn create(len_bytes: u64, align: usize) -> io::Result<Self> {
        let file = new_file(len_bytes)?;
        Self::map(file, Span::new(0, len_bytes), align, FileAccess::Shared)
    }

    /// Maps the bytes `span` of a file, which must lie within it and stay there while the mapping lives.
    /// A [`FileAccess::Private`] mapping counts as this process's own memory, not as the file's.
    pub(super) fn map(
        file: OwnedFd,
        span: Span,
        align: usize,
        access: FileAccess,
    ) -> io::Result<Self> {
        let file = fs::File::from(file);
        let metadata = file.metadata()?;
        let alias = Alias::of(&metadata);
        let id = match (access, &alias) {
            (FileAccess::Private, _) => StorageId::Host,
            (_, Some(alias)) => alias.id(),
            (_, None) => file_identity(&metadata),
        };
        let lead = span.offset % super::mapping::page_bytes() as u64;
        let len = usize::try_from(span.len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mapped = len
            .checked_add(lead as usize)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // Kernels before 6.7 map sealed files only privately, which is equivalent because no process can write them.
        let sealed = access == FileAccess::ReadOnly && is_sealed(file.as_fd());
        let kind = if sealed { FileAccess::Sealed } else { access };
        let mapping = if len == 0 {
            Mapping::anonymous(1, align)?
        } else {
            Mapping::of_file(file.as_fd(), span.offset - lead, mapped, align, kind)?
        };
        let backing = Backing {
            file,
            _alias: alias,
        };
        Ok(Self {
            place: Place::File(mapping, backing),
            lead: lead as usize,
            span,
            id,
            writable: access != FileAccess::ReadOnly,
            taken: Taken::default(),
        })
    }

    /// Where the bytes are mapped.
    pub(super) fn host(&self) -> HostSpan {
        let first = match &self.place {
            Place::File(mapping, _) => mapping.start(),
            Place::Small { pages, .. } => pages.start(),
        };
        // The pages have at least `lead + span.len` bytes, so this is inside and not null.
        let start = first.as_ptr().wrapping_add(self.lead);
        let start = std::ptr::NonNull::new(start).unwrap_or(first);
        HostSpan::new(start, self.span.len as usize)
    }

    /// The identity of the bytes, and the position of the first one.
    pub(super) fn identity(&self) -> (StorageId, u64) {
        match self.id {
            StorageId::Host => (StorageId::Host, self.host().addr()),
            id => (id, self.span.offset),
        }
    }

    /// The descriptor that other processes can map. Duplicate it to pass it on. The first call for a small allocation makes a
    /// file, copies the bytes into it and maps it at the address where they are.
    ///
    /// # Errors
    /// When the system has no descriptor or no memory for that file. The allocation is as before then.
    ///
    /// # Safety
    /// Access through the descriptor is outside the order of transfers. The caller ensures that nothing is written through
    /// the descriptor while the library reads the bytes or lends them out, and that nothing is read while the library writes
    /// them. Until this returns, the caller keeps all writes away, those of transfers and guards too. If the caller
    /// registered the address with a driver, the caller must register it again.
    pub unsafe fn handle(&self) -> io::Result<BorrowedFd<'_>> {
        // SAFETY: the caller keeps writes away.
        unsafe { self.raw() }
    }

    /// # Safety
    /// Until this returns, no thread and no device writes the bytes.
    pub(super) unsafe fn raw(&self) -> io::Result<BorrowedFd<'_>> {
        let (pages, own, exporting) = match &self.place {
            Place::File(_, backing) => return Ok(backing.file.as_fd()),
            Place::Small {
                pages,
                own,
                exporting,
            } => (pages, own, exporting),
        };
        let _alone = exporting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backing) = own.get() {
            return Ok(backing.file.as_fd());
        }
        let file = fs::File::from(new_file(self.span.len)?);
        // SAFETY: the pages live as long as this value, and the caller keeps writes away.
        file.write_all_at(unsafe { self.host().as_slice() }, 0)?;
        let alias = Alias::new(&file.metadata()?, self.id);
        // SAFETY: the file has the bytes, and a seal keeps its length; the caller keeps writes away.
        unsafe { pages.show(file.as_fd()) }?;
        let backing = Backing {
            file,
            _alias: Some(alias),
        };
        Ok(own.get_or_init(|| backing).file.as_fd())
    }

    /// Whether this view may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the file behind it can no longer be written by any process.
    pub fn is_sealed(&self) -> bool {
        // The file of a small allocation is mapped for writing; a sealed file never is.
        matches!(&self.place, Place::File(_, backing) if is_sealed(backing.file.as_fd()))
    }

    /// Makes the file unwritable for good and keeps a read-only view. On failure the view is writable
    /// as before, or `None` when the system refuses to map it again.
    fn seal(mut self) -> Result<Self, Box<(Option<Self>, io::Error)>> {
        // SAFETY: this is the only view of the memory, and no operation on it is under way.
        let file = unsafe { self.raw() }.and_then(|file| file.try_clone_to_owned());
        let file = match file {
            Ok(file) => file,
            Err(error) => return Err(Box::new((Some(self), error))),
        };
        let (span, taken) = (self.span, core::mem::take(&mut self.taken));
        let align = super::mapping::page_bytes();
        let map = |file, access| {
            let again = Self::map(file, span, align, access)?;
            Ok(Self { taken, ..again })
        };
        // The kernel refuses the seal while a mapping exists that is, or could be made, writable.
        drop(self);
        match fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SEAL) {
            Ok(()) => map(file, FileAccess::ReadOnly).map_err(|error| Box::new((None, error))),
            Err(error) => Err(Box::new((map(file, FileAccess::Shared).ok(), error.into()))),
        }
    }
}

/// Whether the file can neither be written nor shortened any more.
pub(super) fn is_sealed(file: BorrowedFd<'_>) -> bool {
    let wanted = SealFlags::WRITE | SealFlags::SHRINK;
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(wanted))
}

/// A nameless file of `len_bytes` zeroes that no process can shorten or extend.
fn new_file(len_bytes: u64) -> io::Result<OwnedFd> {
    let file = memfd_create("transload", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len_bytes)?;
    // A mapping of a file that can no longer shrink never raises SIGBUS.
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

fn file_identity(metadata: &fs::Metadata) -> StorageId {
    use std::os::unix::fs::MetadataExt;
    StorageId::File {
        device: metadata.dev(),
        inode: metadata.ino(),
    }
}

/// Seals the shared memory behind `buffer` against writing, for good and for every process, and returns
/// the same bytes as a read-only buffer. Sealed memory can be shared where other memory is copied.
///
/// The address changes. Needs the only view of the memory, and that no other writable mapping of it
/// exists, here or elsewhere.
///
/// # Errors
/// [`SealError`] with the buffer, when other views exist, it is no shared memory, or the system
/// refuses.
pub fn seal(buffer: Buffer) -> Result<Buffer, SealError> {
    let refuse = |buffer, reason| SealError {
        buffer: Some(buffer),
        reason,
    };
    let (memory, span) = (buffer.memory(), buffer.span());
    let len_bytes = buffer.info().len_bytes;
    if span != Span::new(0, len_bytes) {
        return Err(refuse(buffer, SealReason::Part { span, len_bytes }));
    }
    let shared = buffer.native::<SharedMemory>();
    if shared.is_none_or(|shared| shared.id == StorageId::Host) {
        return Err(refuse(buffer, SealReason::NotShared { memory }));
    }
    let shared = buffer
        .into_owner::<SharedMemory>()
        .map_err(|buffer| refuse(buffer, SealReason::OtherViews))?;
    match shared.seal() {
        Ok(shared) => Ok(shared.into_buffer(memory)),
        Err(failed) => {
            let (shared, error) = *failed;
            Err(SealError {
                buffer: shared.map(|shared| shared.into_buffer(memory)),
                reason: SealReason::System {
                    fault: Fault::of_io("sealing shared memory", &error),
                },
            })
        }
    }
}

/// The memory that was not sealed, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot seal the memory: {reason}")]
#[non_exhaustive]
pub struct SealError {
    /// The memory, unsealed. `None` when the system refused to map it again.
    pub buffer: Option<Buffer>,
    /// The reason.
    pub reason: SealReason,
}

/// Why shared memory was not sealed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealReason {
    /// The buffer is a part of the memory.
    #[error("{span} of its {len_bytes} bytes are a part, and only the whole memory can be sealed")]
    Part {
        /// The part that the buffer is.
        span: Span,
        /// The length of the memory.
        len_bytes: u64,
    },
    /// The buffer is no memory that can be sealed.
    #[error("it is in {memory}, and only memory in cpu:0/shared can be sealed")]
    NotShared {
        /// The buffer's memory.
        memory: MemoryId,
    },
    /// Other views of the memory exist.
    #[error("other views of the shared memory exist")]
    OtherViews,
    /// The system refused.
    #[error("{fault}")]
    System {
        /// The system's error.
        fault: Fault,
    },
}

impl SealReason {
    /// The category of the error. Use it to decide whether to retry.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Part { .. } | Self::NotShared { .. } | Self::OtherViews => ErrorClass::Caller,
            Self::System { fault } => fault.class,
        }
    }
}
