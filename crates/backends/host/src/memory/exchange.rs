//! Memory that comes from elsewhere, and memory given away: no byte is copied.

use std::any::Any;
use std::fs::File;

use transload_hal::{
    Buffer, External, ExternalKind, HostSpan, ImportError, MemoryId, Owner, StorageId, StorageInfo,
};

use super::file::HostFile;
use super::{FILE, PAGEABLE, file_buffer, file_fault};
use crate::device::BACKEND;

/// Makes a buffer of what was handed in:
///
/// - host memory into `cpu:0/pageable`;
/// - a file (a [`HostFile`], a [`File`], or its handle) into `cpu:0/file`, where it is read and written
///   by position;
/// - on Linux, a file's or memfd's handle, or a [`HostFile`], into `cpu:0/shared`: mapped, read-only or
///   shared, as it says; and a sealed memfd's handle into `cpu:0/pageable`: a copy-on-write view.
///
/// # Safety
/// As for `Backend::import`. A mapped file must besides not be shortened while the buffer lives, which
/// a seal guarantees and nothing else can: touching lost pages raises SIGBUS.
pub(crate) unsafe fn import(memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
    match (memory, external) {
        (PAGEABLE, External::Host { span, writable, owner }) => {
            // SAFETY: the caller vouches for the span and the owner.
            Ok(unsafe { host_buffer(span, writable, owner) })
        }
        (FILE, External::Object(object)) => file_of(object).map(file_buffer),
        #[cfg(unix)]
        (FILE, External::Handle { kind: ExternalKind::File, value, span, writable, .. }) => {
            let fd = handles::take(memory, value)?;
            let file = HostFile::from_file(File::from(fd), handles::name(value), writable);
            let whole = file.map_err(|error| invalid(memory, ExternalKind::File, error.to_string()))?;
            let part = whole.slice(span).map_err(|error| invalid(memory, ExternalKind::File, error.to_string()))?;
            Ok(file_buffer(part.of_memory()))
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        (super::SHARED | PAGEABLE, External::Handle { kind: ExternalKind::File, value, span, writable, .. }) => {
            mapped::of_handle(memory, handles::take(memory, value)?, span, writable)
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        (super::SHARED, External::Object(object)) => mapped::of_file(file_of(object)?),
        (PAGEABLE | super::SHARED | FILE, external) => Err(ImportError::Unsupported {
            memory,
            kind: external.kind(),
            reason: "pageable memory takes host memory and sealed files, shared memory and files take files".into(),
        }),
        (memory, _) => Err(ImportError::UnknownMemory { memory }),
    }
}

/// Gives out what others can import; the buffer's bytes stay where they are and alive.
pub(crate) fn export(buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
    let unsupported = |reason: &'static str| {
        Err(ImportError::Unsupported {
            memory: buffer.memory(),
            kind,
            reason: reason.into(),
        })
    };
    match kind {
        ExternalKind::Host => match buffer.host(0, buffer.len()) {
            Some(span) => Ok(External::Host {
                span,
                writable: buffer.is_writable(),
                owner: Box::new(buffer.clone()),
            }),
            None => unsupported("a file has no address"),
        },
        #[cfg(unix)]
        ExternalKind::File => handles::export(buffer),
        _ => unsupported("the host gives out addresses, and handles of shared memory and files"),
    }
}

/// # Safety
/// As `Buffer::new` for the span and the owner.
unsafe fn host_buffer(span: HostSpan, writable: bool, owner: Box<dyn Owner>) -> Buffer {
    // What another buffer keeps alive is that buffer's memory: a shared mapping stays known as such.
    let (id, base) = match (&*owner as &dyn Any).downcast_ref::<Buffer>() {
        Some(buffer) => (buffer.storage_id(), buffer.position()),
        None => (StorageId::Host, span.addr()),
    };
    let info = StorageInfo {
        id,
        base,
        len_bytes: span.len() as u64,
        memory: PAGEABLE,
        backend: BACKEND,
        writable,
        host: Some(span),
    };
    // SAFETY: the caller's promise.
    unsafe { Buffer::new(info, owner) }
}

fn file_of(object: Box<dyn Owner>) -> Result<HostFile, ImportError> {
    let object: Box<dyn Any> = object;
    let object = match object.downcast::<HostFile>() {
        Ok(file) => return Ok(*file),
        Err(object) => object,
    };
    match object.downcast::<File>() {
        Ok(file) => {
            let writable = is_open_for_writing(&file);
            HostFile::from_file(*file, "an adopted file", writable).map_err(|error| {
                ImportError::Failed {
                    memory: FILE,
                    kind: ExternalKind::Object,
                    fault: file_fault(&error),
                }
            })
        }
        Err(_) => Err(invalid(
            FILE,
            ExternalKind::Object,
            "neither a HostFile nor a std::fs::File".to_owned(),
        )),
    }
}

fn invalid(memory: MemoryId, kind: ExternalKind, reason: String) -> ImportError {
    ImportError::Invalid {
        memory,
        kind,
        reason: reason.into(),
    }
}

#[cfg(unix)]
fn is_open_for_writing(file: &File) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.intersects(rustix::fs::OFlags::RDWR))
}

/// Elsewhere a file does not tell; writing one that was opened for reading fails when it is tried.
#[cfg(not(unix))]
fn is_open_for_writing(_: &File) -> bool {
    true
}

#[cfg(unix)]
mod handles {
    use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};

    use transload_hal::Span;

    use super::*;

    /// Takes ownership of the descriptor that a handle's value stands for.
    pub(super) fn take(memory: MemoryId, value: u64) -> Result<OwnedFd, ImportError> {
        let number = i32::try_from(value).ok().filter(|number| *number >= 0);
        let Some(number) = number else {
            return Err(invalid(
                memory,
                ExternalKind::File,
                format!("{value} is no file descriptor"),
            ));
        };
        // SAFETY: whoever imports passes on the ownership of an open descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// What errors call a file that came as a handle.
    pub(super) fn name(value: u64) -> String {
        format!("file descriptor {value}")
    }

    pub(super) fn export(buffer: &Buffer) -> Result<External, ImportError> {
        let (memory, kind) = (buffer.memory(), ExternalKind::File);
        let Some(file) = handle(buffer) else {
            let reason = "only shared memory and files have a handle".into();
            return Err(ImportError::Unsupported {
                memory,
                kind,
                reason,
            });
        };
        let copy = file
            .try_clone_to_owned()
            .map_err(|error| ImportError::Failed {
                memory,
                kind,
                fault: super::super::io_fault("duplicating a handle", &error),
            })?;
        Ok(External::Handle {
            kind,
            value: copy.into_raw_fd() as u64,
            span: Span::new(buffer.position(), buffer.len()),
            writable: buffer.is_writable(),
            id: buffer.storage_id(),
        })
    }

    fn handle(buffer: &Buffer) -> Option<std::os::fd::BorrowedFd<'_>> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(shared) = buffer.native::<super::super::SharedMemory>() {
            // A copy-on-write view shows other bytes than its file.
            return (buffer.storage_id() != StorageId::Host).then(|| shared.fd());
        }
        buffer.native::<HostFile>().map(|file| file.raw().as_fd())
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod mapped {
    use std::os::fd::{AsFd, OwnedFd};

    use transload_hal::Span;

    use super::super::mapping::{FileAccess, page_bytes};
    use super::super::shared::{SharedMemory, is_sealed};
    use super::super::{SHARED, io_fault, shared_buffer};
    use super::*;

    pub(super) fn of_handle(
        memory: MemoryId,
        file: OwnedFd,
        span: Span,
        writable: bool,
    ) -> Result<Buffer, ImportError> {
        let access = match (memory, writable) {
            (_, false) => FileAccess::ReadOnly,
            (SHARED, true) => FileAccess::Shared,
            (_, true) if is_sealed(file.as_fd()) => FileAccess::Private,
            (_, true) => {
                // Others' writes would still show in the pages that were not written here.
                let reason =
                    "a copy-on-write view needs a file sealed against writing and shrinking";
                return Err(invalid(memory, ExternalKind::File, reason.to_owned()));
            }
        };
        map(memory, file, span, access)
    }

    pub(super) fn of_file(file: HostFile) -> Result<Buffer, ImportError> {
        let access = if file.is_writable() {
            FileAccess::Shared
        } else {
            FileAccess::ReadOnly
        };
        let span = file.span();
        match file.into_file() {
            Ok(file) => map(SHARED, file.into(), span, access),
            Err(_) => {
                let reason = "it is shared memory already, seen as a file";
                Err(invalid(SHARED, ExternalKind::Object, reason.to_owned()))
            }
        }
    }

    fn map(
        memory: MemoryId,
        file: OwnedFd,
        span: Span,
        access: FileAccess,
    ) -> Result<Buffer, ImportError> {
        let kind = ExternalKind::File;
        let failed = |error| ImportError::Failed {
            memory,
            kind,
            fault: io_fault("mapping a file", &error),
        };
        let file = File::from(file);
        let len = file.metadata().map_err(failed)?.len();
        if !span.fits(len) {
            return Err(invalid(
                memory,
                kind,
                format!("{span} are not all within its {len} bytes"),
            ));
        }
        let shared = SharedMemory::map(file.into(), span, page_bytes(), access).map_err(failed)?;
        Ok(shared_buffer(memory, shared))
    }
}
