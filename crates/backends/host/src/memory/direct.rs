//! Reads past the system's cache: of files whose bytes it does not have, at the rate of the disk and with little work for the
//! processor. Each call has a ring with a few reads in flight, of Linux's io_uring or of Windows' overlapped reads. Where the
//! system has none or refuses it, the call reads one piece after the other.

#[cfg_attr(windows, path = "direct/overlapped.rs")]
#[cfg_attr(
    not(any(
        windows,
        all(
            target_os = "linux",
            any(
                target_arch = "x86_64",
                target_arch = "aarch64",
                target_arch = "riscv64"
            )
        )
    )),
    path = "direct/no_ring.rs"
)]
mod ring;

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard};

use transload_hal::{AllocSpec, Conversion, Span};

use super::PAGEABLE;
use super::file::read_at;
use super::heap::HeapMemory;
use crate::raw::{self, Store};

use ring::Ring;

/// A descriptor of a file that is read past the cache.
#[derive(Debug)]
pub(crate) struct Direct(File);

/// What places in the file, lengths and addresses are multiples of. Disks ask for 512 or 4096 (`statx(2)`, `STATX_DIOALIGN`).
const ALIGN: u64 = 4096;

/// The bytes of a read. 1.5 GB in 300 tensors took 0.52 s so, with 1 MiB and twice the depth 0.54; to small pages 1.2; other
/// readers of the same run 0.60 to 0.84 (EPYC, virtio, 2 threads, medians of 6, alternating).
const READ_BYTES: u64 = 2 << 20;

/// The reads of a call whose bytes are on their way or wait to be taken.
const SLOTS: usize = 4;

/// The pages of a call.
const PAGES_BYTES: u64 = SLOTS as u64 * READ_BYTES;

impl Direct {
    /// Opens the file once more, past the cache.
    ///
    /// # Errors
    /// When the file system has no such reads, which some tell at the first one.
    pub(crate) fn open(file: &File) -> io::Result<Direct> {
        let direct = reopened(file)?;
        #[repr(align(4096))]
        struct Page([u8; ALIGN as usize]);
        read_at(&direct, &mut Page([0; ALIGN as usize]).0, 0)?;
        Ok(Direct(direct))
    }

    /// Reads. Returns false where some bytes were not read, for whatever reason; those at the destination are unspecified then.
    ///
    /// # Safety
    /// The destination is valid for writes of the bytes, converted or not, and nothing else touches them until the call
    /// returns.
    pub(crate) unsafe fn read(&self, row: Row) -> bool {
        let Ok(mut reader) = Reader::lend() else {
            return false;
        };
        let pages = reader.pages();
        let is_read = match &mut reader.ring {
            // SAFETY: the caller's contract; the pages are this call's.
            Some(ring) => match unsafe { ring.read(row, &self.0, pages) } {
                Ok(is_read) => is_read,
                Err(Broken) => {
                    // Its descriptor may be another file's by now, so it is not closed.
                    let _ = ManuallyDrop::new(reader.ring.take());
                    false
                }
            },
            // The standard library ends the process where two threads read through one such handle.
            None if cfg!(windows) => false,
            // SAFETY: as above.
            None => unsafe { row.in_turn(&self.0, pages) },
        };
        reader.give_back();
        is_read
    }
}

/// Linux takes reads of whole blocks alone from such a descriptor.
#[cfg(target_os = "linux")]
fn reopened(file: &File) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Apple's systems have one such flag for all descriptors that share a position, so short reads pass the cache too.
#[cfg(target_vendor = "apple")]
fn reopened(file: &File) -> io::Result<File> {
    rustix::fs::fcntl_nocache(file, true)?;
    file.try_clone()
}

/// Windows takes reads of whole sectors alone from such a handle.
#[cfg(windows)]
fn reopened(file: &File) -> io::Result<File> {
    use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
    use windows_sys::Win32::Foundation::{GENERIC_READ, INVALID_HANDLE_VALUE};
    use windows_sys::Win32::Storage::FileSystem::{
        FILE_FLAG_NO_BUFFERING, FILE_FLAG_OVERLAPPED, FILE_SHARE_DELETE, FILE_SHARE_READ,
        FILE_SHARE_WRITE, ReOpenFile,
    };
    let shared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    let flags = FILE_FLAG_NO_BUFFERING | FILE_FLAG_OVERLAPPED;
    // SAFETY: the handle is open; a new one comes back.
    let handle = unsafe { ReOpenFile(file.as_raw_handle(), GENERIC_READ, shared, flags) };
    if handle == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is new, and nothing else closes it.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) }.into())
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple", windows)))]
fn reopened(_: &File) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Said of a ring that the system serves no more: descriptors that the program closed, a filter of calls that came later.
struct Broken;

/// What a call reads with. A few are kept for the next calls.
struct Reader {
    ring: Option<Ring>,
    /// Where bytes go first: huge pages if the system has them. Of small ones, as the places of most bytes are, a disk takes
    /// 1 MiB at a time (`max_segments`): to read to these and copy takes half as long as to read there.
    pages: HeapMemory,
    /// The process that made it. A child of `fork` has the parent's rings, and would take the parent's bytes.
    process: u32,
}

/// As many as threads read a file.
const MOST_IDLE: usize = 4;

static IDLE: Mutex<Vec<Reader>> = Mutex::new(Vec::new());

impl Reader {
    fn lend() -> io::Result<Reader> {
        while let Some(reader) = Reader::idle().and_then(|mut idle| idle.pop()) {
            if reader.process == std::process::id() {
                return Ok(reader);
            }
            std::mem::forget(reader);
        }
        Reader::new()
    }

    fn give_back(self) {
        if let Some(mut idle) = Reader::idle()
            && idle.len() < MOST_IDLE
        {
            idle.push(self);
        }
    }

    /// The lock is held for a moment. A child of `fork` may find it held by a thread that it does not have.
    fn idle() -> Option<MutexGuard<'static, Vec<Reader>>> {
        (0..1000).find_map(|_| {
            std::hint::spin_loop();
            IDLE.try_lock().ok()
        })
    }

    fn new() -> io::Result<Reader> {
        let spec = AllocSpec::bytes(PAGES_BYTES).with_huge_pages();
        let pages = HeapMemory::allocate(PAGEABLE, &spec.aligned(ALIGN));
        Ok(Reader {
            ring: Ring::new(),
            pages: pages.map_err(|_| io::ErrorKind::OutOfMemory)?,
            process: std::process::id(),
        })
    }

    fn pages(&self) -> *mut u8 {
        self.pages.span(PAGES_BYTES as usize).as_ptr()
    }
}

/// Bytes of a file, from `offset` on, that are read into memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
    pub(crate) dst: *mut u8,
    /// From numbers whose places in the file are multiples of their size, where they are read past the cache.
    pub(crate) conversion: Option<Conversion>,
    /// How they are stored, where the system does not do it.
    pub(crate) store: Store,
}

/// A read, of multiples of [`ALIGN`].
#[derive(Clone, Copy, Default)]
struct Read {
    offset: u64,
    len_bytes: u64,
}

impl Row {
    pub(crate) fn span(&self) -> Span {
        Span::new(self.offset, self.len_bytes)
    }

    /// The reads that together hold the bytes.
    fn reads(self) -> impl Iterator<Item = Read> {
        let end = self.offset + self.len_bytes;
        let first = self.offset / ALIGN * ALIGN;
        let past = end.next_multiple_of(ALIGN);
        // All about as long: a short one at the end would wait behind the long ones of others.
        let count = (past - first).div_ceil(READ_BYTES).max(1);
        let step = (past - first)
            .div_ceil(count)
            .next_multiple_of(ALIGN)
            .max(ALIGN);
        let begins = (first..past).step_by(step as usize);
        begins.map(move |offset| Read {
            offset,
            len_bytes: step.min(past - offset),
        })
    }

    /// The place of what the file's byte `offset`, which is wanted, becomes.
    fn place(self, offset: u64) -> *mut u8 {
        let before = offset - self.offset;
        let before = self
            .conversion
            .map_or(Some(before), |of| of.converted_bytes(before));
        // Reads begin between two numbers.
        self.dst.wrapping_add(before.unwrap_or(0) as usize)
    }

    /// Takes in a read of which `got` bytes came. Returns whether none is missing.
    ///
    /// # Safety
    /// The bytes lie at `pages`.
    unsafe fn take(self, read: Read, got: u64, pages: *const u8) -> bool {
        let from = read.offset.max(self.offset);
        let to = (read.offset + read.len_bytes).min(self.offset + self.len_bytes);
        if read.offset + got < to {
            return false;
        }
        let (src, dst) = (
            pages.wrapping_add((from - read.offset) as usize),
            self.place(from),
        );
        let len = (to - from) as usize;
        match self.conversion {
            // SAFETY: the caller's contract; the place is within the destination.
            None => unsafe { raw::copy(dst, src, len, self.store) },
            Some(of) => {
                let count = len / of.from().len_bytes() as usize;
                // SAFETY: as above.
                unsafe { raw::convert(dst, src, count, of, self.store) };
            }
        }
        true
    }

    /// # Safety
    /// As [`Direct::read`]; `pages` are the thread's, with room for its reads.
    unsafe fn in_turn(self, file: &File, pages: *mut u8) -> bool {
        self.reads().all(|read| {
            // SAFETY: the pages have room for the read, and nothing else touches them.
            let bytes = unsafe { std::slice::from_raw_parts_mut(pages, read.len_bytes as usize) };
            let got = read_at(file, bytes, read.offset);
            // SAFETY: they lie there.
            got.is_ok_and(|got| unsafe { self.take(read, got as u64, pages) })
        })
    }
}

/// The part of a file's bytes that the cache has, by reads that do not wait. `mincore` and `cachestat` mislead a reader who
/// does not own the file. A descriptor of its own, because the advice holds for all reads through it: without it, a read of a
/// page that is missing has the system read ahead.
#[cfg(target_os = "linux")]
pub(crate) fn cached_share(file: &File, span: Span) -> Option<f64> {
    use std::hash::{BuildHasher, RandomState};
    use std::os::fd::AsRawFd;
    const LOOKS: u64 = 64;
    /// One of each four comes first. Where these agree, the others are left out: a look at the disk's part takes 10 µs.
    const FIRST: u64 = 4;
    let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).ok()?;
    let pages = span.len.div_ceil(ALIGN);
    let looks = pages.min(LOOKS);
    // Elsewhere each time: what was looked at is in the cache.
    let random = RandomState::new();
    let (mut found, mut seen) = (0, 0);
    // At another place of each four: files repeat themselves, and so does what was read of them.
    let is_first = |look: &u64| (look + look / FIRST).is_multiple_of(FIRST);
    let first = (0..looks).filter(is_first);
    let (few, others) = (
        first.clone().count(),
        (0..looks).filter(|look| !is_first(look)),
    );
    for look in first.chain(others) {
        if seen == few && (found == 0 || found == seen) {
            break;
        }
        seen += 1;
        // One of each of so many equal parts.
        let part =
            |number: u64| (u128::from(pages) * u128::from(number) / u128::from(looks)) as u64;
        let (first, past) = (part(look), part(look + 1));
        let page = first + random.hash_one(look) % (past - first).max(1);
        let offset = span.offset + page * ALIGN;
        let mut byte = [0];
        let into = &mut [io::IoSliceMut::new(&mut byte)];
        match rustix::io::preadv2(&file, into, offset, rustix::io::ReadWriteFlags::NOWAIT) {
            Ok(_) => found += 1,
            Err(rustix::io::Errno::AGAIN) => {}
            Err(_) => return None,
        }
    }
    Some(found as f64 / seen.max(1) as f64)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn cached_share(_: &File, _: Span) -> Option<f64> {
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use transload_hal::Element;

    use super::*;

    #[test]
    fn any_bytes_are_read_whole_or_not_at_all() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..(9u32 << 20) + 777)
            .map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8)
            .collect();
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
        let Ok(direct) = Direct::open(&file) else {
            eprintln!("skipped: no reads past the cache in the folder for temporary files");
            return;
        };
        let mut dst = vec![0u8; content.len() + 8192];
        let base = dst.as_ptr().align_offset(4096);
        for turn in 0..120u64 {
            let (skew, offset) = (
                turn as usize * 511 % 4096,
                turn * 4096 * 7 % (8 << 20) + turn % 3,
            );
            // To the end of the file, one byte beyond it, or a part.
            let left = content.len() as u64 - offset;
            let len_bytes = [left, left + 1, 1 + turn * 70_001 % left][turn as usize % 3];
            dst.fill(0xee);
            let to = base + skew * (turn as usize % 2);
            let row = Row {
                offset,
                len_bytes,
                dst: dst[to..].as_mut_ptr(),
                conversion: None,
                store: Store::Streaming,
            };
            // SAFETY: the destination has room, and is this thread's.
            let by_ring = unsafe { direct.read(row) };
            assert_eq!(by_ring, len_bytes <= left, "{turn}");
            let (from, len) = (offset as usize, len_bytes.min(left) as usize);
            if by_ring {
                assert!(dst[to..to + len] == content[from..from + len], "{turn}");
                assert!(dst[to + len] == 0xee && (to == 0 || dst[to - 1] == 0xee));
            }
            dst.fill(0xee);
            let reader = Reader::lend().unwrap();
            // SAFETY: as above; the pages are the reader's.
            let in_turn = unsafe { row.in_turn(&direct.0, reader.pages()) };
            reader.give_back();
            assert_eq!(in_turn, by_ring);
            assert!(
                !by_ring || dst[to..to + len] == content[from..from + len],
                "{turn}"
            );
        }
        // Numbers that do not begin with a page.
        let conversion = Conversion::new(Element::BF16, Element::F32).unwrap();
        dst.resize(13 << 20, 0);
        let row = Row {
            offset: 4098,
            len_bytes: 6 << 20,
            dst: dst[1..].as_mut_ptr(),
            conversion: Some(conversion),
            store: Store::Plain,
        };
        // SAFETY: the destination has room for twice the bytes.
        assert!(unsafe { direct.read(row) });
        let numbers = content[4098..][..6 << 20].chunks(2);
        let found = dst[1..][..12 << 20].chunks(4);
        assert!(numbers.zip(found).all(|(number, found)| {
            let is_nan = f32::from_le_bytes([0, 0, number[0], number[1]]).is_nan();
            is_nan || found == [0, 0, number[0], number[1]]
        }));
    }

    #[test]
    fn what_another_process_made_is_not_used() {
        let mut reader = Reader::new().unwrap();
        reader.process = std::process::id() + 1;
        reader.give_back();
        for _ in 0..=MOST_IDLE {
            let reader = Reader::lend().unwrap();
            assert_eq!(reader.process, std::process::id());
            std::mem::forget(reader);
        }
    }

    #[test]
    fn a_file_that_was_just_written_is_cached() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 1 << 20]).unwrap();
        let share = cached_share(&file, Span::new(0, 1 << 20));
        assert!(share.is_none_or(|share| share == 1.0), "{share:?}");
        let nothing = cached_share(&file, Span::new(0, 0));
        assert!(nothing.is_none_or(|share| share == 0.0), "{nothing:?}");
    }
}
