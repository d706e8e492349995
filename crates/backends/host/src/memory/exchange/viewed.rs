//! Sections, and files through sections of theirs (Windows).

use std::os::windows::io::OwnedHandle;

use transload_hal::{Buffer, ExternalKind, Fault, ImportError, MemoryId, Span};

use crate::memory::SHARED;
use crate::memory::file::HostFile;
use crate::memory::section::{Section, SharedMemory};
use crate::memory::storage::invalid;

/// Maps bytes of the section behind a handle.
pub(super) fn of_handle(
    memory: MemoryId,
    handle: OwnedHandle,
    span: Span,
    writable: bool,
) -> Result<Buffer, ImportError> {
    let kind = ExternalKind::Win32;
    let section = Section::of_handle(handle);
    if let Some(len) = section.len_bytes().filter(|len| !span.fits(*len)) {
        let reason = format!("{span} are not all within its {len} bytes");
        return Err(invalid(memory, kind, reason));
    }
    let shared = SharedMemory::map(section, span, writable).map_err(failed(memory, kind))?;
    Ok(shared.into_buffer(memory))
}

/// Maps a file's range through a new section, which keeps the file open.
pub(super) fn of_file(file: HostFile) -> Result<Buffer, ImportError> {
    let (kind, span, writable) = (ExternalKind::Object, file.span(), file.is_writable());
    let Some(len) = span.end().filter(|len| *len > 0) else {
        let reason = "a file without bytes cannot be mapped on Windows";
        return Err(invalid(SHARED, kind, reason.to_owned()));
    };
    let Some(opened) = file.file() else {
        let reason = "it is shared memory already, seen as a file";
        return Err(invalid(SHARED, kind, reason.to_owned()));
    };
    // A section that is longer than its file would make the file longer.
    let now = opened.metadata().map_err(failed(SHARED, kind))?.len();
    if len > now {
        let reason = format!("{span} are not all within its {now} bytes");
        return Err(invalid(SHARED, kind, reason));
    }
    let section = Section::new(Some((opened, file.storage_id())), len, writable);
    let shared = section.and_then(|section| SharedMemory::map(section, span, writable));
    shared
        .map(|shared| shared.into_buffer(SHARED))
        .map_err(failed(SHARED, kind))
}

fn failed(memory: MemoryId, kind: ExternalKind) -> impl Fn(std::io::Error) -> ImportError {
    move |error| ImportError::Failed {
        memory,
        kind,
        fault: Fault::of_io("mapping shared memory", &error),
    }
}
