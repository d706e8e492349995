//! Shared memory of Windows: a nameless section of the paging file, whose handle others can map.

use std::fs::File;
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle, FromRawHandle, OwnedHandle};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use transload_hal::{AllocError, AllocSpec, Buffer, HOST, HostSpan, MemoryId, Span, StorageId};
use windows_sys::Win32::Foundation::{CompareObjectHandles, INVALID_HANDLE_VALUE};
use windows_sys::Win32::System::Memory::{
    CreateFileMappingW, FILE_MAP_READ, FILE_MAP_WRITE, MEMORY_MAPPED_VIEW_ADDRESS, MapViewOfFile,
    PAGE_READONLY, PAGE_READWRITE, UnmapViewOfFile,
};
use windows_sys::Win32::System::SystemInformation::{GetSystemInfo, SYSTEM_INFO};

use super::storage::{buffer_at, check_alignment, check_len, not_allocated};

/// The owner of a buffer in `cpu:0/shared`: a view of a section.
#[derive(Debug)]
pub struct SharedMemory {
    view: View,
    /// Bytes of the view before the buffer's first one: a view begins at a multiple of [`granularity`].
    lead: usize,
    span: Span,
    section: Arc<Section>,
    writable: bool,
}

impl SharedMemory {
    /// A new section of zeroes, mapped for reading and writing. The system reserves the bytes in its paging file at
    /// once, and refuses the allocation if it has no room.
    pub(super) fn allocate(memory: MemoryId, spec: &AllocSpec) -> Result<Self, AllocError> {
        let len = check_len(memory, spec.len_bytes)?;
        check_alignment(memory, spec.alignment, 1, granularity())?;
        let made = Section::new(None, len.max(1) as u64, true)
            .and_then(|section| Self::map(section, Span::new(0, spec.len_bytes), true));
        made.map_err(|error| not_allocated(memory, spec.len_bytes, &error))
    }

    /// Maps the bytes `span` of a section, which the system refuses where they are not all within it.
    pub(super) fn map(section: Arc<Section>, span: Span, writable: bool) -> io::Result<Self> {
        let lead = span.offset % granularity();
        let len = usize::try_from(span.len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // No view is empty; that of nothing is of the byte before or after.
        let mapped = len.max(1).checked_add(lead as usize);
        let mapped = mapped.ok_or(io::ErrorKind::OutOfMemory)?;
        let view = View::of(&section, span.offset - lead, mapped, writable)?;
        Ok(Self {
            view,
            lead: lead as usize,
            span,
            section,
            writable,
        })
    }

    /// The buffer of the whole memory.
    pub(super) fn into_buffer(self, memory: MemoryId) -> Buffer {
        let (identity, host, writable) = (self.identity(), self.host(), self.writable);
        // SAFETY: the mapping is valid for that span while it lives. A new section has no other writers; for an imported one,
        // the importer promises that nothing else writes it.
        unsafe { buffer_at(memory, identity, host, writable, Box::new(self)) }
    }

    /// Where the bytes are mapped.
    pub(super) fn host(&self) -> HostSpan {
        // `map` made the view `lead + span.len` bytes long, so this is inside and not null.
        let start = self.view.start.as_ptr().wrapping_add(self.lead);
        let start = NonNull::new(start).unwrap_or(self.view.start);
        HostSpan::new(start, self.span.len as usize)
    }

    /// The identity of the bytes, and the position of the first one.
    pub(super) fn identity(&self) -> (StorageId, u64) {
        (self.section.id, self.span.offset)
    }

    /// The handle that other processes can map. Duplicate it to pass it on. Each allocation has a handle of its own from
    /// the start: a process may have 2^24 of them ("Kernel Objects" of the Windows documentation).
    ///
    /// # Errors
    /// None on Windows; on Linux the system may refuse a descriptor.
    ///
    /// # Safety
    /// Access through the handle is outside the order of transfers. The caller ensures that nothing is written through
    /// the handle while the library reads the bytes or lends them out, and that nothing is read while the library writes
    /// them.
    pub unsafe fn handle(&self) -> io::Result<BorrowedHandle<'_>> {
        Ok(self.raw())
    }

    pub(super) fn raw(&self) -> BorrowedHandle<'_> {
        self.section.handle.as_handle()
    }

    /// Whether this view may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }
}

/// A handle of shared memory, and its identity among all sections that this process has open.
#[derive(Debug)]
pub(super) struct Section {
    handle: OwnedHandle,
    id: StorageId,
    /// The length, if the section was made here. The system counts whole pages, and lets others see the rest of the last
    /// one.
    len_bytes: Option<u64>,
}

impl Section {
    /// A section of the paging file, or of `file`, of `len` bytes, at least 1. The id is that of the file, because the
    /// file's bytes can also be reached without the section.
    pub(super) fn new(
        file: Option<(&File, StorageId)>,
        len: u64,
        writable: bool,
    ) -> io::Result<Arc<Self>> {
        let behind = file.map_or(INVALID_HANDLE_VALUE, |(file, _)| file.as_raw_handle());
        let protection = if writable {
            PAGE_READWRITE
        } else {
            PAGE_READONLY
        };
        let (high, low) = ((len >> 32) as u32, len as u32);
        // SAFETY: the handle is a file's that is open, or stands for the paging file; there is no name.
        let made =
            unsafe { CreateFileMappingW(behind, ptr::null(), protection, high, low, ptr::null()) };
        if made.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the handle is new, and no other code has it.
        let handle = unsafe { OwnedHandle::from_raw_handle(made) };
        Ok(Self::enter(handle, file.map(|(_, id)| id), Some(len)))
    }

    /// How long it is, where that is known.
    pub(super) fn len_bytes(&self) -> Option<u64> {
        self.len_bytes
    }

    /// The section behind a handle that another process passed on. A section that is already open here keeps its
    /// identity.
    pub(super) fn of_handle(handle: OwnedHandle) -> Arc<Self> {
        Self::enter(handle, None, None)
    }

    fn enter(handle: OwnedHandle, id: Option<StorageId>, len_bytes: Option<u64>) -> Arc<Self> {
        // Relaxed: only uniqueness counts.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|section| section.strong_count() > 0);
        let mut known = open.iter().filter_map(Weak::upgrade);
        let same = known.find(|section| is_same(section.handle.as_handle(), handle.as_handle()));
        // The known handle may have fewer rights than the new one, so both are kept.
        let (id, len_bytes) = match same {
            Some(section) => (Some(section.id), section.len_bytes),
            None => (id, len_bytes),
        };
        let id = id.unwrap_or_else(|| StorageId::Native {
            backend: HOST.0,
            handle: NEXT.fetch_add(1, Ordering::Relaxed),
        });
        let section = Arc::new(Self {
            handle,
            id,
            len_bytes,
        });
        open.push(Arc::downgrade(&section));
        section
    }
}

/// Every section of this process's buffers.
static OPEN: Mutex<Vec<Weak<Section>>> = Mutex::new(Vec::new());

/// Whether both handles stand for one object of the system's.
fn is_same(one: BorrowedHandle<'_>, other: BorrowedHandle<'_>) -> bool {
    // SAFETY: both handles are open while they are borrowed.
    unsafe { CompareObjectHandles(one.as_raw_handle(), other.as_raw_handle()) != 0 }
}

/// Bytes of a section in the address space; dropping it takes them out.
#[derive(Debug)]
struct View {
    start: NonNull<u8>,
}

// SAFETY: the view is an address range that this value alone unmaps; it hands out addresses, and the code that uses them
// ensures exclusion between threads.
unsafe impl Send for View {}
// SAFETY: as above; no method changes the view through a shared reference.
unsafe impl Sync for View {}

impl View {
    fn of(section: &Section, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let access = if writable {
            FILE_MAP_READ | FILE_MAP_WRITE
        } else {
            FILE_MAP_READ
        };
        let (high, low) = ((offset >> 32) as u32, offset as u32);
        let handle = section.handle.as_raw_handle();
        // SAFETY: the handle is open; a new view disturbs nothing that is mapped.
        let mapped = unsafe { MapViewOfFile(handle, access, high, low, len) };
        match NonNull::new(mapped.Value.cast()) {
            Some(start) => Ok(Self { start }),
            None => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let view = MEMORY_MAPPED_VIEW_ADDRESS {
            Value: self.start.as_ptr().cast(),
        };
        // SAFETY: the view is this value's own, whole. An error would leave it mapped, which wastes address space and
        // is otherwise harmless.
        let _ = unsafe { UnmapViewOfFile(view) };
    }
}

/// The granularity of a view's start, in memory and in the section: 64 KiB on every Windows so far.
pub(super) fn granularity() -> u64 {
    let mut info = SYSTEM_INFO::default();
    // SAFETY: the place is ours, and of the size that is asked for.
    unsafe { GetSystemInfo(&mut info) };
    info.dwAllocationGranularity.into()
}
