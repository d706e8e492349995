//! Imports and exports of handles of the operating system: file descriptors, on Windows NT handles.

use std::io;
#[cfg(unix)]
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd as Borrowed, OwnedFd as Owned};
#[cfg(windows)]
use std::os::windows::io::{
    AsHandle as _, AsRawHandle as _, BorrowedHandle as Borrowed, OwnedHandle as Owned,
};

use transload_hal::{Buffer, External, ExternalKind, Fault, ImportError, Span};

use crate::memory::file::HostFile;

/// The kind of these handles.
pub(super) const KIND: ExternalKind = if cfg!(windows) {
    ExternalKind::Win32
} else {
    ExternalKind::File
};

/// The name that errors use for a file that came as a handle.
pub(super) fn name(handle: &Owned) -> String {
    #[cfg(unix)]
    return format!("file descriptor {}", handle.as_raw_fd());
    #[cfg(windows)]
    return format!("handle {:?}", handle.as_raw_handle());
}

/// Exports a new handle of the memory or file behind `buffer`.
pub(super) fn export(buffer: &Buffer) -> Result<External, ImportError> {
    let memory = buffer.memory();
    let failed = |doing: &'static str| {
        move |error: io::Error| ImportError::Failed {
            memory,
            kind: KIND,
            fault: Fault::of_io(doing, &error),
        }
    };
    let handle = handle(buffer).map_err(failed("giving a buffer a descriptor of its own"))?;
    let Some(handle) = handle else {
        let reason = "only shared memory and files have a handle".into();
        return Err(ImportError::Unsupported {
            memory,
            kind: KIND,
            reason,
        });
    };
    let copy = handle
        .try_clone_to_owned()
        .map_err(failed("duplicating a handle"))?;
    Ok(External::Handle {
        kind: KIND,
        handle: copy.into(),
        span: Span::new(buffer.position(), buffer.len()),
        writable: buffer.is_writable(),
        id: buffer.storage_id(),
    })
}

/// The handle behind `buffer`, where there is one.
fn handle(buffer: &Buffer) -> io::Result<Option<Borrowed<'_>>> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Some(shared) = buffer.native::<super::super::SharedMemory>() {
        if buffer.storage_id() == transload_hal::StorageId::Host {
            // A copy-on-write view shows other bytes than its file.
            return Ok(None);
        }
        // SAFETY: a write that is under way now was submitted with the promise that nothing else touches the bytes
        // meanwhile; the manager keeps writes of its own away while it exports.
        return unsafe { shared.raw() }.map(Some);
    }
    #[cfg(windows)]
    if let Some(shared) = buffer.native::<super::super::SharedMemory>() {
        return Ok(Some(shared.raw()));
    }
    let Some(file) = buffer.native::<HostFile>() else {
        return Ok(None);
    };
    let file = file.raw();
    #[cfg(unix)]
    let handle = file.as_fd();
    #[cfg(windows)]
    let handle = file.as_handle();
    Ok(Some(handle))
}
