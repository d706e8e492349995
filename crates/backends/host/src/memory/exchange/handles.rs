//! Handles of the operating system, taken in and given out: file descriptors, on Windows NT handles.

use std::io;
#[cfg(unix)]
use std::os::fd::{
    AsFd as _, BorrowedFd as Borrowed, FromRawFd as _, IntoRawFd as _, OwnedFd as Owned,
};
#[cfg(windows)]
use std::os::windows::io::{
    AsHandle as _, BorrowedHandle as Borrowed, FromRawHandle as _, IntoRawHandle as _,
    OwnedHandle as Owned,
};

use transload_hal::{Buffer, External, ExternalKind, ImportError, MemoryId, Span};

use super::super::io_fault;
use super::{HostFile, invalid};

/// What sort of handles these are.
pub(super) const KIND: ExternalKind = if cfg!(windows) {
    ExternalKind::Win32
} else {
    ExternalKind::File
};

/// Takes ownership of the handle that has this value.
pub(super) fn take(memory: MemoryId, value: u64) -> Result<Owned, ImportError> {
    owned(value).ok_or_else(|| invalid(memory, KIND, format!("{value} is no {}", sort())))
}

/// What errors call a file that came as a handle.
pub(super) fn name(value: u64) -> String {
    format!("{} {value}", sort())
}

/// Gives out a handle of its own of what is behind `buffer`.
pub(super) fn export(buffer: &Buffer) -> Result<External, ImportError> {
    let memory = buffer.memory();
    let failed = |doing: &'static str| {
        move |error: io::Error| ImportError::Failed {
            memory,
            kind: KIND,
            fault: io_fault(doing, &error),
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
        value: value(copy),
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

#[cfg(unix)]
fn owned(value: u64) -> Option<Owned> {
    let number = i32::try_from(value).ok().filter(|number| *number >= 0)?;
    // SAFETY: whoever imports passes on the ownership of an open descriptor.
    Some(unsafe { Owned::from_raw_fd(number) })
}

#[cfg(windows)]
fn owned(value: u64) -> Option<Owned> {
    // INVALID_HANDLE_VALUE, which means this process itself to some functions, is all ones.
    let number = isize::try_from(value).ok().filter(|number| *number > 0)?;
    let handle = std::ptr::without_provenance_mut(number as usize);
    // SAFETY: whoever imports passes on the ownership of an open handle.
    Some(unsafe { Owned::from_raw_handle(handle) })
}

#[cfg(unix)]
fn value(handle: Owned) -> u64 {
    // An open descriptor is no negative number.
    handle.into_raw_fd() as u64
}

#[cfg(windows)]
fn value(handle: Owned) -> u64 {
    handle.into_raw_handle().addr() as u64
}

fn sort() -> &'static str {
    if cfg!(windows) {
        "handle"
    } else {
        "file descriptor"
    }
}
