//! Shared memory: a nameless file in memory (memfd, Linux) whose handle others can map.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{fs, io};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use transload_hal::{
    AllocError, AllocSpec, Buffer, ErrorClass, Fault, HostSpan, MemoryId, Span, StorageId,
};

use super::mapping::{FileAccess, Mapping};

/// The owner of a buffer in `cpu:0/shared`: a mapping, and the file behind it.
#[derive(Debug)]
pub struct SharedMemory {
    mapping: Mapping,
    /// Bytes of the mapping before the buffer's first one: files are mapped by whole pages.
    lead: usize,
    span: Span,
    file: fs::File,
    id: StorageId,
    writable: bool,
}

impl SharedMemory {
    /// A new, zeroed memfd that nobody can shorten or extend, mapped for reading and writing. Staging is
    /// touched at once. The system gives out any length and kills whoever fills it, so lengths without
    /// room are refused here.
    pub(super) fn allocate(memory: MemoryId, spec: &AllocSpec) -> Result<Self, AllocError> {
        let len = super::check_len(memory, spec.len_bytes)?;
        let page = super::mapping::page_bytes() as u64;
        let align =
            super::check_alignment(memory, spec.alignment, page, super::heap::MAX_ALIGNMENT)?;
        super::room::check(memory, spec.len_bytes)?;
        let shared = Self::create(len, align).map_err(|error| AllocError::OutOfMemory {
            memory,
            len_bytes: spec.len_bytes,
            fault: super::io_fault("shared memory", &error),
        })?;
        if spec.staging {
            crate::queue::hint::populate(shared.host(), true);
        }
        Ok(shared)
    }

    fn create(len: usize, align: usize) -> io::Result<Self> {
        let file = memfd_create("transload", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        // A mapping of a file that can no longer shrink never raises SIGBUS.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        Self::map(file, Span::new(0, len as u64), align, FileAccess::Shared)
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
        let id = file_identity(&file)?;
        let lead = span.offset % super::mapping::page_bytes() as u64;
        let len = usize::try_from(span.len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mapped = len
            .checked_add(lead as usize)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // Kernels before 6.7 map sealed files only privately, which is the same where nobody can write.
        let sealed = access == FileAccess::ReadOnly && is_sealed(file.as_fd());
        let kind = if sealed { FileAccess::Sealed } else { access };
        let mapping = if len == 0 {
            Mapping::anonymous(1, align)?
        } else {
            Mapping::of_file(file.as_fd(), span.offset - lead, mapped, align, kind)?
        };
        let shared = Self {
            mapping,
            lead: lead as usize,
            span,
            file,
            id,
            writable: access != FileAccess::ReadOnly,
        };
        Ok(match access {
            FileAccess::Private => Self {
                id: StorageId::Host,
                ..shared
            },
            _ => shared,
        })
    }

    /// Where the bytes are mapped.
    pub(super) fn host(&self) -> HostSpan {
        // `map` made the mapping `lead + span.len` bytes long, so this is inside and not null.
        let start = self.mapping.start().as_ptr().wrapping_add(self.lead);
        let start = std::ptr::NonNull::new(start).unwrap_or(self.mapping.start());
        HostSpan::new(start, self.span.len as usize)
    }

    /// The identity of the bytes, and the position of the first one.
    pub(super) fn identity(&self) -> (StorageId, u64) {
        match self.id {
            StorageId::Host => (StorageId::Host, self.host().addr()),
            id => (id, self.span.offset),
        }
    }

    /// The handle that others can map. Duplicate it to pass it on.
    ///
    /// # Safety
    /// What is done through the handle takes no part in the order of transfers: nobody writes the bytes
    /// through it while the library reads them or lends them out, nor reads them while it writes.
    pub unsafe fn handle(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn raw(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether this view may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether nobody can write the file behind it any more, in any process.
    pub fn is_sealed(&self) -> bool {
        is_sealed(self.file.as_fd())
    }

    /// Makes the file unwritable for good and keeps a read-only view. On failure the view is writable
    /// as before, or `None` when the system refuses to map it again.
    fn seal(self) -> Result<Self, (Option<Self>, io::Error)> {
        let file: OwnedFd = match self.file.try_clone() {
            Ok(file) => file.into(),
            Err(error) => return Err((Some(self), error)),
        };
        let span = self.span;
        let align = super::mapping::page_bytes();
        // The kernel refuses the seal while a mapping exists that is, or could be made, writable.
        drop(self);
        match fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SEAL) {
            Ok(()) => {
                Self::map(file, span, align, FileAccess::ReadOnly).map_err(|error| (None, error))
            }
            Err(error) => Err((
                Self::map(file, span, align, FileAccess::Shared).ok(),
                error.into(),
            )),
        }
    }
}

/// Whether the file can neither be written nor shortened any more.
pub(super) fn is_sealed(file: BorrowedFd<'_>) -> bool {
    let wanted = SealFlags::WRITE | SealFlags::SHRINK;
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(wanted))
}

fn file_identity(file: &fs::File) -> io::Result<StorageId> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata()?;
    Ok(StorageId::File {
        device: metadata.dev(),
        inode: metadata.ino(),
    })
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
    let refuse = |buffer, message| SealError {
        buffer,
        fault: Fault::new(ErrorClass::Caller, message),
    };
    let (memory, span) = (buffer.memory(), buffer.span());
    if span != Span::new(0, buffer.info().len_bytes) {
        return Err(refuse(
            Some(buffer),
            "a part of a shared memory cannot be sealed, only the whole",
        ));
    }
    if buffer
        .native::<SharedMemory>()
        .is_none_or(|shared| shared.id == StorageId::Host)
    {
        return Err(refuse(
            Some(buffer),
            "only memory in cpu:0/shared can be sealed",
        ));
    }
    let shared = buffer
        .into_owner::<SharedMemory>()
        .map_err(|buffer| refuse(Some(buffer), "other views of the shared memory exist"))?;
    match shared.seal() {
        Ok(shared) => Ok(super::shared_buffer(memory, shared)),
        Err((shared, error)) => Err(SealError {
            buffer: shared.map(|shared| super::shared_buffer(memory, shared)),
            fault: super::io_fault("sealing shared memory", &error),
        }),
    }
}

/// Why shared memory was not sealed.
#[derive(Debug, thiserror::Error)]
#[error("not sealed: {fault}")]
pub struct SealError {
    /// The memory, unsealed. `None` when the system refused to map it again.
    pub buffer: Option<Buffer>,
    /// Why.
    pub fault: Fault,
}
