//! Imports and exports of memory, without copying.

#[cfg(any(unix, windows))]
mod handles;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod mapped;
#[cfg(windows)]
#[path = "exchange/viewed.rs"]
mod mapped;

use std::any::Any;
use std::fs::File;

use transload_hal::{Buffer, External, ExternalKind, HostSpan, ImportError, MemoryId, Owner};

use super::file::HostFile;
use super::storage::{buffer_at, invalid};
use super::{DISK, FILE, PAGEABLE, file_buffer};

/// The kind of handles that memory has on this system.
#[cfg(all(test, any(target_os = "linux", target_os = "android", windows)))]
pub(crate) const HANDLES: ExternalKind = handles::KIND;

/// Makes a buffer of an external, as [`Host`](crate::Host) documents at its `Backend::import`.
///
/// # Safety
/// As there.
pub(crate) unsafe fn import(memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
    match (memory, external) {
        (PAGEABLE, External::Host { span, writable, owner }) => {
            // SAFETY: the caller vouches for the span and the owner.
            Ok(unsafe { host_buffer(span, writable, owner) })
        }
        (FILE | DISK, External::Object(object)) => file_in(memory, file_of(object)?, ExternalKind::Object),
        #[cfg(any(unix, windows))]
        (FILE | DISK, External::Handle { kind: handles::KIND, handle, span, writable, .. }) => {
            let refused = |error: super::file::FileError| invalid(memory, handles::KIND, error.to_string());
            // SAFETY: the file is this backend's, which writes in the order of its callers.
            let handle = unsafe { handle.into_owned() };
            let name = handles::name(&handle);
            let whole = HostFile::from_file(File::from(handle), name, writable).map_err(refused)?;
            let part = whole.slice(span).map_err(refused)?;
            file_in(memory, part.of_memory(), handles::KIND)
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        (super::SHARED | PAGEABLE, External::Handle { kind: ExternalKind::File, handle, span, writable, .. }) => {
            // SAFETY: as above.
            let handle = unsafe { handle.into_owned() };
            mapped::of_handle(memory, handle, span, writable)
        }
        #[cfg(windows)]
        (super::SHARED, External::Handle { kind: handles::KIND, handle, span, writable, .. }) => {
            // SAFETY: as above.
            let handle = unsafe { handle.into_owned() };
            mapped::of_handle(memory, handle, span, writable)
        }
        #[cfg(any(target_os = "linux", target_os = "android", windows))]
        (super::SHARED, External::Object(object)) => mapped::of_file(file_of(object)?),
        (PAGEABLE | super::SHARED | FILE | DISK, external) => Err(ImportError::Unsupported {
            memory,
            kind: external.kind(),
            reason: "pageable memory takes host memory and sealed files; shared memory and file memory take files".into(),
        }),
        (memory, _) => Err(ImportError::UnknownMemory { memory }),
    }
}

/// Exports a buffer; its bytes stay alive and where they are.
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
            Some(span) => {
                #[cfg(any(target_os = "linux", target_os = "android"))]
                fix_pages(buffer, kind)?;
                super::lent::note(buffer);
                Ok(External::Host {
                    span,
                    writable: buffer.is_writable(),
                    owner: Box::new(buffer.clone()),
                })
            }
            None => unsupported("a file has no address"),
        },
        #[cfg(any(unix, windows))]
        handles::KIND => handles::export(buffer),
        _ => unsupported("the host gives out addresses, and handles of shared memory and files"),
    }
}

/// Gives shared memory the pages that it keeps: a driver that learns the address may pin the pages behind it, and a later
/// export of the handle must not replace them then.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn fix_pages(buffer: &Buffer, kind: ExternalKind) -> Result<(), ImportError> {
    let Some(shared) = buffer.native::<super::SharedMemory>() else {
        return Ok(());
    };
    // SAFETY: as for the handle (`handles::handle`).
    match unsafe { shared.raw() } {
        Ok(_) => Ok(()),
        Err(error) => Err(ImportError::Failed {
            memory: buffer.memory(),
            kind,
            fault: transload_hal::Fault::of_io("giving a buffer a descriptor of its own", &error),
        }),
    }
}

/// # Safety
/// As `Buffer::new` for the span and the owner.
unsafe fn host_buffer(span: HostSpan, writable: bool, owner: Box<dyn Owner>) -> Buffer {
    // If the owner is another buffer, the identity is that buffer's: a shared mapping stays known as such. So does one whose
    // address comes back by way of other code.
    let (id, base) = match (&*owner as &dyn Any).downcast_ref::<Buffer>() {
        Some(buffer) => (buffer.storage_id(), buffer.position()),
        None => super::lent::identity(span),
    };
    // SAFETY: the caller's promise.
    unsafe { buffer_at(PAGEABLE, (id, base), span, writable, owner) }
}

/// The buffer of a file in one of the memories of files.
fn file_in(memory: MemoryId, file: HostFile, kind: ExternalKind) -> Result<Buffer, ImportError> {
    file_buffer(memory, file).map_err(|reason| ImportError::Unsupported {
        memory,
        kind,
        reason: reason.into(),
    })
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
                    fault: error.to_fault(),
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

#[cfg(unix)]
fn is_open_for_writing(file: &File) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.intersects(rustix::fs::OFlags::RDWR))
}

/// Elsewhere a file does not tell; writing one that was opened for reading fails when it is tried.
#[cfg(not(unix))]
fn is_open_for_writing(_: &File) -> bool {
    true
}
