//! Several reads in flight, by overlapped reads of Windows.

use std::fs::File;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::{null, null_mut};

use windows_sys::Win32::Foundation::{ERROR_IO_PENDING, GetLastError, STATUS_PENDING};
use windows_sys::Win32::Storage::FileSystem::ReadFile;
use windows_sys::Win32::System::IO::{GetOverlappedResult, OVERLAPPED, OVERLAPPED_0_0};
use windows_sys::Win32::System::Threading::CreateEventW;

use super::{Broken, READ_BYTES, Read, Row, SLOTS};

/// The events that tell the end of each read in flight.
pub(super) struct Ring([OwnedHandle; SLOTS]);

impl Ring {
    /// `None` where the system has no more handles.
    pub(super) fn new() -> Option<Ring> {
        let event = || {
            // SAFETY: a new event, without a name.
            let event = unsafe { CreateEventW(null(), 1, 0, null()) };
            // SAFETY: the handle is new, and nothing else closes it.
            (!event.is_null()).then(|| unsafe { OwnedHandle::from_raw_handle(event) })
        };
        let events = [event()?, event()?, event()?, event()?];
        Some(Ring(events))
    }

    /// Returns whether no byte is missing.
    ///
    /// # Errors
    /// None: a read that cannot be told from one in flight is waited for.
    ///
    /// # Safety
    /// As [`Row::in_turn`].
    pub(super) unsafe fn read(
        &mut self,
        row: Row,
        file: &File,
        pages: *mut u8,
    ) -> Result<bool, Broken> {
        let handle = file.as_raw_handle();
        // What the system writes to while reads are in flight, by slot. All of it is reached through one pointer.
        let mut states = [OVERLAPPED::default(); SLOTS];
        let states = states.as_mut_ptr();
        let mut slots = [Read::default(); SLOTS];
        let mut reads = row.reads();
        let mut is_whole = true;
        let pages_of = |slot: usize| pages.wrapping_add(slot * READ_BYTES as usize);
        // Slots are used in turn: those from `done` to `begun` are in flight.
        let (mut begun, mut done) = (0usize, 0usize);
        loop {
            while is_whole && begun - done < SLOTS {
                let Some(read) = reads.next() else { break };
                let slot = begun % SLOTS;
                slots[slot] = read;
                let mut state = OVERLAPPED {
                    hEvent: self.0[slot].as_raw_handle(),
                    ..OVERLAPPED::default()
                };
                state.Anonymous.Anonymous = OVERLAPPED_0_0 {
                    Offset: read.offset as u32,
                    OffsetHigh: (read.offset >> 32) as u32,
                };
                let place = states.wrapping_add(slot);
                // SAFETY: `slot` is below `SLOTS`, and no read of it is in flight.
                unsafe { place.write(state) };
                let (into, len) = (pages_of(slot), read.len_bytes as u32);
                // SAFETY: the pages, the state and the file outlive the read: this call does not return before it is over.
                let is_over = unsafe { ReadFile(handle, into, len, null_mut(), place) } != 0;
                // SAFETY: asks for this thread's error alone.
                is_whole = is_over || unsafe { GetLastError() } == ERROR_IO_PENDING;
                begun += usize::from(is_whole);
            }
            if begun == done {
                return Ok(is_whole);
            }
            let slot = done % SLOTS;
            // SAFETY: the read was begun with this state.
            let got = unsafe { end(handle, states.wrapping_add(slot)) };
            done += 1;
            // SAFETY: they lie there.
            is_whole &=
                got.is_some_and(|got| unsafe { row.take(slots[slot], got, pages_of(slot)) });
        }
    }
}

/// Waits for the end of a read. Returns how many bytes came.
///
/// # Safety
/// A read of the file was begun with the state.
unsafe fn end(handle: std::os::windows::io::RawHandle, state: *mut OVERLAPPED) -> Option<u64> {
    loop {
        let mut got = 0;
        // SAFETY: the caller's contract.
        if unsafe { GetOverlappedResult(handle, state, &mut got, 1) } != 0 {
            return Some(u64::from(got));
        }
        let status = state.cast::<usize>();
        // SAFETY: the first word, `Internal`, says whether the system still writes the others.
        let status = unsafe { status.read_volatile() };
        if status != STATUS_PENDING as usize {
            return None;
        }
        std::thread::yield_now();
    }
}
