//! Host memory with pages whose first touch blocks the thread that touches it, through Linux's `userfaultfd`.
#![allow(
    dead_code,
    reason = "each program that has this module uses its own part"
)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;

use libc::{c_int, c_ulong, c_void};
use transload::Adopt;
use transload::hal::HostSpan;

/// The length of a page on the machines that these tests run on.
pub(crate) const PAGE: usize = 4096;

/// Pages that block. Dropping it resolves them, so that a test that fails leaves no thread behind.
pub(crate) struct StuckPages {
    events: File,
    at: Vec<usize>,
    wanted: Vec<u8>,
    start: usize,
}

/// The memory, for a manager to adopt.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl StuckPages {
    /// Maps memory that holds `wanted`. The pages at these byte offsets block until [`StuckPages::resolve`].
    ///
    /// # Errors
    /// When the system refuses `userfaultfd`, as containers and kernels without it do.
    pub(crate) fn new(wanted: Vec<u8>, at: &[usize]) -> io::Result<(StuckPages, Mapping)> {
        StuckPages::with(open(USER_MODE_ONLY)?, wanted, at)
    }

    /// Does the same, and the pages block system calls too: a `read` into such a page does not return.
    ///
    /// # Errors
    /// As [`StuckPages::new`]. Linux refuses it to a process without privileges.
    pub(crate) fn for_system_calls(
        wanted: Vec<u8>,
        at: &[usize],
    ) -> io::Result<(StuckPages, Mapping)> {
        StuckPages::with(open(0)?, wanted, at)
    }

    fn with(events: File, wanted: Vec<u8>, at: &[usize]) -> io::Result<(StuckPages, Mapping)> {
        let mapping = Mapping::new(wanted.len())?;
        let start = mapping.start.addr().get();
        for (number, page) in wanted.chunks(PAGE).enumerate() {
            if !at.contains(&(number * PAGE)) {
                // SAFETY: the mapping is as long as `wanted`, and no other thread knows it yet.
                let to = unsafe { mapping.start.add(number * PAGE) };
                // SAFETY: as above; the two do not overlap.
                unsafe { to.copy_from_nonoverlapping(NonNull::from_ref(page).cast(), page.len()) };
            }
        }
        for offset in at {
            let mut register = Register {
                start: (start + offset) as u64,
                len: PAGE as u64,
                mode: MISSING,
                ioctls: 0,
            };
            control(&events, REGISTER, &mut register)?;
        }
        let stuck = StuckPages {
            events,
            at: at.to_vec(),
            wanted,
            start,
        };
        Ok((stuck, mapping))
    }

    /// Blocks until a thread has touched one of the pages and is stuck there. Returns the offset of the page.
    pub(crate) fn await_touch(&self) -> usize {
        let mut message = [0_u8; MESSAGE_BYTES];
        (&self.events).read_exact(&mut message).unwrap();
        assert_eq!(message[0], PAGEFAULT);
        let address = u64::from_ne_bytes(message[16..24].try_into().unwrap());
        address as usize - self.start
    }

    /// Fills the pages, which resumes the threads that are stuck there.
    pub(crate) fn resolve(&self) {
        for offset in &self.at {
            let mut copy = Copy {
                dst: (self.start + offset) as u64,
                src: self.wanted[*offset..].as_ptr().addr() as u64,
                len: PAGE as u64,
                mode: 0,
                copied: 0,
            };
            // The call fails for a page that was resolved before, which is fine.
            let _ = control(&self.events, COPY, &mut copy);
        }
    }
}

impl Drop for StuckPages {
    fn drop(&mut self) {
        self.resolve();
    }
}

impl Mapping {
    fn new(len: usize) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the system's choice touches no other memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping {
            start: NonNull::new(start.cast()).unwrap(),
            len,
        };
        // SAFETY: the range is the mapping's. A huge page would fill the pages that must be missing.
        let advised = unsafe { libc::madvise(start, len, libc::MADV_NOHUGEPAGE) };
        // A kernel without huge pages refuses the advice, and needs none.
        let _ = advised;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's, and the manager that adopted it has let go of it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the mapping is this object's alone and stays in place.
unsafe impl Send for Mapping {}
// SAFETY: as above; there are no methods that touch the bytes.
unsafe impl Sync for Mapping {}

// SAFETY: the mapping stays in place until the object is dropped. The kernel fills missing pages, once, before a
// thread sees any byte of them.
unsafe impl Adopt for Mapping {
    const WRITABLE: bool = true;

    fn span(&mut self) -> HostSpan {
        HostSpan::new(self.start, self.len)
    }
}

fn open(modes: c_int) -> io::Result<File> {
    let flags = libc::O_CLOEXEC | modes;
    // SAFETY: the system call takes flags and touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    let events = unsafe { File::from_raw_fd(fd as c_int) };
    let mut api = Api {
        api: 0xAA,
        features: 0,
        ioctls: 0,
    };
    control(&events, API, &mut api)?;
    Ok(events)
}

fn control<T>(events: &File, request: c_ulong, argument: &mut T) -> io::Result<()> {
    let argument: *mut T = argument;
    // SAFETY: each caller passes the structure that the kernel reads and writes for that request.
    let answer =
        unsafe { libc::ioctl(events.as_raw_fd(), request as _, argument.cast::<c_void>()) };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

// The following definitions are from Linux's `include/uapi/linux/userfaultfd.h`.

/// Only user code gets stuck; unprivileged processes may ask for this mode alone.
const USER_MODE_ONLY: c_int = 1;
const MISSING: u64 = 1;
const PAGEFAULT: u8 = 0x12;
const MESSAGE_BYTES: usize = 32;
const API: c_ulong = 0xC018_AA3F;
const REGISTER: c_ulong = 0xC020_AA00;
const COPY: c_ulong = 0xC028_AA03;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}
