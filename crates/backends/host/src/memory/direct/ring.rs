//! Several reads in flight, by io_uring.

use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::{Broken, DEPTH, READ_BYTES, Read, Wanted};

pub(super) struct Ring(IoUring);

impl Ring {
    /// `None` where the system refuses one: a container's seccomp, `io_uring_disabled`, a limit.
    pub(super) fn new() -> Option<Ring> {
        Some(Ring(IoUring::new(DEPTH as u32).ok()?))
    }

    /// Returns whether no byte is missing.
    ///
    /// # Errors
    /// When the system serves the ring no more. Nothing is in flight then.
    ///
    /// # Safety
    /// As [`Wanted::in_turn`].
    pub(super) unsafe fn read(
        &mut self,
        wanted: Wanted,
        file: &File,
        pages: *mut u8,
    ) -> Result<bool, Broken> {
        let ring = &mut self.0;
        let fd = types::Fd(file.as_raw_fd());
        let mut reads = wanted.reads();
        let mut slots = [Read::default(); DEPTH];
        let mut free: Vec<usize> = (0..DEPTH).collect();
        let mut is_whole = true;
        let pages_of = |slot: usize| pages.wrapping_add(slot * READ_BYTES as usize);
        loop {
            while is_whole && let Some(slot) = free.last().copied() {
                let Some(read) = reads.next() else { break };
                let entry = opcode::Read::new(fd, pages_of(slot), read.len_bytes as u32)
                    .offset(read.offset)
                    .build()
                    .user_data(slot as u64);
                // SAFETY: the bytes and the file outlive the read: this call does not return before it is over.
                is_whole = unsafe { ring.submission().push(&entry) }.is_ok();
                if is_whole {
                    slots[slot] = read;
                    free.pop();
                }
            }
            if free.len() == DEPTH {
                return Ok(is_whole);
            }
            // Interrupted or not: what is in flight writes memory, so it is waited for in any case.
            let is_broken = ring.submit_and_wait(1).is_err_and(|error| {
                let again = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
                !error
                    .raw_os_error()
                    .is_some_and(|code| again.contains(&code))
            });
            for done in ring.completion() {
                let slot = done.user_data() as usize;
                free.push(slot);
                let got = u64::try_from(done.result());
                // SAFETY: they lie there.
                is_whole &=
                    got.is_ok_and(|got| unsafe { wanted.take(slots[slot], got, pages_of(slot)) });
            }
            if is_broken {
                is_whole = false;
                // Those that the system has not taken are in the queue yet. The others end by themselves.
                if DEPTH - free.len() == ring.submission().len() {
                    return Err(Broken);
                }
                std::thread::yield_now();
            }
        }
    }
}
