//! Several reads in flight, by io_uring.

use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::{Broken, READ_BYTES, Read, Row, SLOTS};

/// Reads in flight. The disk goes on with these while the bytes of as many others are taken: it ends those in flight at about
/// one time, and would wait for the copies otherwise.
const DEPTH: usize = SLOTS / 2;

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
    /// As [`Row::in_turn`].
    pub(super) unsafe fn read(
        &mut self,
        row: Row,
        file: &File,
        pages: *mut u8,
    ) -> Result<bool, Broken> {
        let ring = &mut self.0;
        let fd = types::Fd(file.as_raw_fd());
        let mut reads = row.reads();
        let mut slots = [Read::default(); SLOTS];
        let mut free: Vec<usize> = (0..SLOTS).collect();
        let mut full: Vec<(usize, i32)> = Vec::with_capacity(SLOTS);
        let mut is_whole = true;
        let pages_of = |slot: usize| pages.wrapping_add(slot * READ_BYTES as usize);
        loop {
            let in_flight = |free: &[usize], full: &[_]| SLOTS - free.len() - full.len();
            while is_whole
                && in_flight(&free, &full) < DEPTH
                && let Some(slot) = free.last().copied()
            {
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
            if free.len() == SLOTS {
                return Ok(is_whole);
            }
            // The disk goes on while bytes that have come are taken. Interrupted or not: what is in flight writes memory, so it is
            // waited for in any case.
            let awaited = usize::from(full.is_empty());
            let is_broken = ring.submit_and_wait(awaited).is_err_and(|error| {
                let again = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
                !error
                    .raw_os_error()
                    .is_some_and(|code| again.contains(&code))
            });
            if let Some((slot, got)) = full.pop() {
                let got = u64::try_from(got);
                // SAFETY: they lie there.
                is_whole &=
                    got.is_ok_and(|got| unsafe { row.take(slots[slot], got, pages_of(slot)) });
                free.push(slot);
            }
            for done in ring.completion() {
                full.push((done.user_data() as usize, done.result()));
            }
            if is_broken {
                is_whole = false;
                // Those that the system has not taken are in the queue yet. The others end by themselves.
                if in_flight(&free, &full) == ring.submission().len() {
                    return Err(Broken);
                }
                std::thread::yield_now();
            }
        }
    }
}
