//! Files mapped through their descriptors (Linux).

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use transload_hal::{Buffer, ExternalKind, Fault, ImportError, MemoryId, Span};

use crate::memory::SHARED;
use crate::memory::file::HostFile;
use crate::memory::mapping::{FileAccess, page_bytes};
use crate::memory::shared::{SharedMemory, is_sealed};
use crate::memory::storage::invalid;

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
            let reason = "a copy-on-write view needs a file sealed against writing and shrinking";
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
        fault: Fault::of_io("mapping a file", &error),
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
    Ok(shared.into_buffer(memory))
}
