//! Where an operand's bytes are, and moving bytes between any two such places.

use std::cell::RefCell;
use std::io;
use std::ptr::NonNull;

use transload_hal::{Conversion, ErrorClass, Fault, Span};

use crate::memory::direct::Row;
use crate::memory::file::{HostFile, read_at, write_at};
use crate::memory::holes::{self, Holes};
use crate::raw::{self, Store};

/// The first byte of an operand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// At an address.
    Memory(*mut u8),
    /// At an offset of a file that the operand's buffer owns, and keeps where it is.
    File(NonNull<HostFile>, u64),
}

impl Place {
    /// The place `bytes` further on.
    pub(super) fn plus(self, bytes: u64) -> Self {
        match self {
            // Within an operand's range, which the address space holds.
            Self::Memory(start) => Self::Memory(start.wrapping_add(bytes as usize)),
            Self::File(file, offset) => Self::File(file, offset + bytes),
        }
    }

    pub(super) fn is_file(self) -> bool {
        matches!(self, Self::File(..))
    }

    /// Whether it is a file of which so many bytes are read past the cache. The file is alive.
    pub(super) fn is_direct(self, len_bytes: u64) -> bool {
        match self {
            Self::Memory(_) => false,
            // SAFETY: places are made of operands, whose buffers own the file.
            Self::File(file, _) => unsafe { file.as_ref() }.direct(len_bytes).is_some(),
        }
    }
}

/// Copies `len_bytes` bytes between two places that do not overlap.
///
/// # Errors
/// A fault of a file: it ends too early, or the system refuses.
///
/// # Safety
/// Both places hold that many bytes, addresses are valid and files alive, `dst` may be written, and
/// nothing else touches `dst` or writes `src` until the call returns.
pub(super) unsafe fn copy(
    src: Place,
    dst: Place,
    len_bytes: u64,
    store: Store,
) -> Result<(), Fault> {
    // Ranges of memory fit the address space; files are cut by the caller into pieces that do.
    let len = len_bytes as usize;
    match (src, dst) {
        (Place::Memory(src), Place::Memory(dst)) => {
            // SAFETY: the caller's contract.
            unsafe { raw::copy(dst, src, len, store) };
            Ok(())
        }
        (Place::File(file, offset), Place::Memory(dst)) => {
            // SAFETY: the caller keeps the file alive.
            let file = unsafe { file.as_ref() };
            let row = Row {
                offset,
                len_bytes,
                dst,
                conversion: None,
                store,
            };
            // SAFETY: the caller gives these bytes to this call alone.
            unsafe { read(file, row) }
        }
        (Place::Memory(src), Place::File(file, offset)) => {
            // SAFETY: the caller keeps the file alive.
            let file = unsafe { file.as_ref() };
            // SAFETY: the caller ensures that nothing writes these bytes meanwhile.
            let src = unsafe { std::slice::from_raw_parts(src, len) };
            write(file, offset, src)
        }
        (Place::File(from, from_offset), Place::File(to, to_offset)) => {
            // SAFETY: the caller keeps the file alive.
            let from = unsafe { from.as_ref() };
            // SAFETY: as above.
            let to = unsafe { to.as_ref() };
            copy_between_files((from, from_offset), (to, to_offset), len_bytes)
        }
    }
}

/// Copies `len_bytes` bytes between two places that show parts of one storage and may overlap, as if
/// through a temporary. `up` says that the destination lies behind the source.
///
/// Needed where addresses do not tell about overlap: files, and two mappings of one file.
///
/// # Errors
/// As [`copy`]; the destination range is unspecified then.
///
/// # Safety
/// As [`copy`], but for the overlap.
pub(super) unsafe fn copy_overlapping(
    src: Place,
    dst: Place,
    len_bytes: u64,
    up: bool,
) -> Result<(), Fault> {
    with_scratch(|scratch| {
        let chunk = scratch.len() as u64;
        let count = len_bytes.div_ceil(chunk);
        for i in 0..count {
            // In the order that overwrites no byte that is still to be read.
            let at = if up { count - 1 - i } else { i } * chunk;
            let part = chunk.min(len_bytes - at);
            let middle = Place::Memory(scratch.as_mut_ptr());
            // SAFETY: a part of the caller's range; the scratch is this call's own and long enough.
            unsafe { copy(src.plus(at), middle, part, Store::Plain) }?;
            // SAFETY: as above.
            unsafe { copy(middle, dst.plus(at), part, Store::Plain) }?;
        }
        Ok(())
    })
}

/// Whether it takes longer to ask the system for the bytes than to copy them once more.
pub(super) fn is_small_read(row: Span) -> bool {
    row.len <= SMALL_READ_BYTES
}

/// The bytes of a file from those of `window` to those of `row`, if one read of them all is quicker than two.
pub(super) fn joined(window: Span, row: Span) -> Option<Span> {
    let end = window.offset + window.len;
    let is_near = row.offset >= window.offset && row.offset <= end.saturating_add(GAP_BYTES);
    let len = end.max(row.offset.saturating_add(row.len)) - window.offset;
    let fits = is_small_read(row) && is_near && len <= SCRATCH_BYTES as u64;
    fits.then(|| Span::new(window.offset, len))
}

/// The bytes that are read at once for rows of a file, and for how many rows each time.
pub(crate) fn windows(
    mut rows: impl Iterator<Item = Span> + Clone,
) -> impl Iterator<Item = (Span, usize)> {
    std::iter::from_fn(move || {
        let (mut window, mut count) = (rows.next()?, 1);
        if is_small_read(window) {
            let mut next = rows.clone();
            while let Some(wider) = next.next().and_then(|row| joined(window, row)) {
                (window, count) = (wider, count + 1);
                rows = next.clone();
            }
        }
        Some((window, count))
    })
}

/// A call to the system takes 0.3 to 0.5 µs more than its copy, as long as a copy of some KiB (measured, EPYC).
const SMALL_READ_BYTES: u64 = 8 << 10;

/// The most bytes between two rows that are read with them: a second call to the system would take as long.
const GAP_BYTES: u64 = 4 << 10;

/// Reads rows of a file: small ones that lie near each other in its order by one read, and from there to their places.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`], for each row.
pub(super) unsafe fn gather(
    file: NonNull<HostFile>,
    mut rows: impl Iterator<Item = Row> + Clone,
) -> Result<(), Fault> {
    for (window, count) in windows(rows.clone().map(|row| row.span())) {
        let here = rows.clone().take(count);
        rows.nth(count - 1);
        // SAFETY: the caller keeps the file alive.
        let of = unsafe { file.as_ref() };
        let is_done = count > 1
            && with_scratch(|scratch| {
                let scratch = &mut scratch[..window.len as usize];
                // The system reads ahead of the next window.
                let is_read = read_cached(of, window.offset, scratch).is_ok();
                for row in here.clone().filter(|_| is_read) {
                    let bytes = &scratch[(row.offset - window.offset) as usize..];
                    let bytes = &bytes[..row.len_bytes as usize];
                    match row.conversion {
                        // SAFETY: the row's place has room for them, which is this call's; the scratch is the thread's own.
                        None => unsafe {
                            row.dst
                                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                        },
                        // SAFETY: as above.
                        Some(of) => unsafe { converted(bytes, row.dst, of, row.store) },
                    }
                }
                is_read
            });
        // A read that failed is done again in parts: the fault is that of the row which it hits.
        for row in here.take(if is_done { 0 } else { count }) {
            let (src, len) = (Place::File(file, row.offset), row.len_bytes);
            match row.conversion {
                // SAFETY: the caller's contract.
                None => unsafe { copy(src, Place::Memory(row.dst), len, row.store) }?,
                // SAFETY: as above.
                Some(conversion) => unsafe { convert(src, row.dst, len, conversion, row.store) }?,
            }
        }
    }
    Ok(())
}

/// Converts `len_bytes` bytes of numbers to memory.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`], where the destination has room for the numbers in their other form.
pub(super) unsafe fn convert(
    src: Place,
    dst: *mut u8,
    len_bytes: u64,
    conversion: Conversion,
    store: Store,
) -> Result<(), Fault> {
    let (file, offset) = match src {
        Place::Memory(src) => {
            let count = len_bytes / conversion.from().len_bytes();
            // SAFETY: the caller's contract.
            unsafe { raw::convert(dst, src, count as usize, conversion, store) };
            return Ok(());
        }
        // SAFETY: the caller keeps the file alive.
        Place::File(file, offset) => (unsafe { file.as_ref() }, offset),
    };
    let row = Row {
        offset,
        len_bytes,
        dst,
        conversion: Some(conversion),
        store,
    };
    // SAFETY: the caller's contract.
    if unsafe { read_past_cache(file, row) } {
        return Ok(());
    }
    with_scratch(|scratch| {
        let (mut at, mut dst) = (0, dst);
        while at < len_bytes {
            let part = &mut scratch[..(len_bytes - at).min(SCRATCH_BYTES as u64) as usize];
            read_cached(file, offset + at, part)?;
            // SAFETY: a part of the destination.
            unsafe { converted(part, dst, conversion, store) };
            let len = conversion.converted_bytes(part.len() as u64);
            // The scratch holds whole numbers.
            dst = dst.wrapping_add(len.unwrap_or(0) as usize);
            at += part.len() as u64;
        }
        Ok(())
    })
}

/// # Safety
/// `dst` has room for the numbers in their other form, and no other thread touches it.
unsafe fn converted(bytes: &[u8], dst: *mut u8, conversion: Conversion, store: Store) {
    let count = bytes.len() / conversion.from().len_bytes() as usize;
    // SAFETY: the caller's contract.
    unsafe { raw::convert(dst, bytes.as_ptr(), count, conversion, store) };
}

/// Reads past the system's cache, where the file is read so. Returns false where that was not done, or not for all bytes.
///
/// # Safety
/// As [`copy`], or as [`convert`].
unsafe fn read_past_cache(file: &HostFile, row: Row) -> bool {
    let size = row.conversion.map_or(1, |of| of.from().len_bytes());
    let direct = file
        .direct(row.len_bytes)
        .filter(|_| row.offset.is_multiple_of(size));
    // SAFETY: the caller's contract.
    direct.is_some_and(|direct| unsafe { direct.read(row) })
}

/// Reads bytes of a file as they are.
///
/// # Safety
/// As [`copy`].
unsafe fn read(file: &HostFile, row: Row) -> Result<(), Fault> {
    // SAFETY: the caller's contract.
    if unsafe { read_past_cache(file, row) } {
        return Ok(());
    }
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts_mut(row.dst, row.len_bytes as usize) };
    let is_long = row.len_bytes >= holes::LEAST_BYTES;
    match is_long.then(|| Holes::of(file)).flatten() {
        Some(holes) => read_content(file, &holes, row.offset, bytes),
        None => read_cached(file, row.offset, bytes),
    }
}

/// Fills `bytes` from a file: with zeros where it has holes, which take no page of the system's cache then.
fn read_content(
    file: &HostFile,
    holes: &Holes,
    offset: u64,
    mut bytes: &mut [u8],
) -> Result<(), Fault> {
    let end = offset + bytes.len() as u64;
    let mut at = offset;
    while at < end {
        let data = holes.data(at, end);
        let next = holes.next(data, end);
        // A file that changes meanwhile may tell two things of one byte.
        let next = if next == at { end } else { next };
        let (hole, rest) = bytes.split_at_mut((data - at) as usize);
        let (content, rest) = rest.split_at_mut((next - data) as usize);
        hole.fill(0);
        read_cached(file, data, content)?;
        (at, bytes) = (next, rest);
    }
    Ok(())
}

/// Fills `bytes` from a file through the system's cache.
fn read_cached(file: &HostFile, offset: u64, bytes: &mut [u8]) -> Result<(), Fault> {
    let mut done = 0;
    while done < bytes.len() {
        match read_at(file.raw(), &mut bytes[done..], offset + done as u64) {
            Ok(0) => {
                return Err(truncated(
                    file,
                    offset + done as u64,
                    offset,
                    bytes.len() as u64,
                ));
            }
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(refused(file, "reading", offset, bytes.len() as u64, &error)),
        }
    }
    Ok(())
}

/// Writes `bytes` to a file, but for zeros where the file has a hole.
fn write(file: &HostFile, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
    let mut holes = None;
    let is_long = bytes.len() as u64 >= holes::LEAST_BYTES;
    let (mut written, mut at) = (0, 0);
    while at < bytes.len() {
        // Blocks at multiples of their length in the file, where file systems have theirs.
        let begin = offset + at as u64;
        let len = holes::LEAST_BYTES - begin % holes::LEAST_BYTES;
        let block = &bytes[at..bytes.len().min(at + len as usize)];
        let end = begin + block.len() as u64;
        let is_left_out =
            is_long && holes::is_zero(block) && { holes.get_or_insert_with(|| Holes::of(file)) }
                .as_ref()
                .is_some_and(|holes| holes.data(begin, end) == end);
        let before = at;
        at += block.len();
        if is_left_out {
            write_all(file, offset + written as u64, &bytes[written..before])?;
            written = at;
        }
    }
    write_all(file, offset + written as u64, &bytes[written..])
}

/// Writes all of `bytes` to a file.
fn write_all(file: &HostFile, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
    let mut done = 0;
    while done < bytes.len() {
        match write_at(file.raw(), &bytes[done..], offset + done as u64) {
            Ok(0) => {
                let error = io::ErrorKind::WriteZero.into();
                return Err(refused(file, "writing", offset, bytes.len() as u64, &error));
            }
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(refused(file, "writing", offset, bytes.len() as u64, &error)),
        }
    }
    Ok(())
}

/// Copies between two files, or two separate ranges of one, but for what is a hole in both.
fn copy_between_files(
    from: (&HostFile, u64),
    to: (&HostFile, u64),
    len_bytes: u64,
) -> Result<(), Fault> {
    let part = |at, end| {
        let (from, to) = ((from.0, from.1 + at), (to.0, to.1 + at));
        copy_content(from, to, end - at)
    };
    let Some((read, written)) = Holes::of(from.0).zip(Holes::of(to.0)) else {
        return part(0, len_bytes);
    };
    let mut at = 0;
    while at < len_bytes {
        let hole = read.data(from.1 + at, from.1 + len_bytes) - from.1;
        // As far as the destination has a hole there, too.
        let both = written.data(to.1 + at, to.1 + hole) - to.1;
        // Where it has bytes, the source's zeros replace them.
        let end = match both < hole {
            true => written.next(to.1 + both, to.1 + hole) - to.1,
            false => read.next(from.1 + both, from.1 + len_bytes) - from.1,
        };
        if end == at {
            // The file changes meanwhile: the system told two things of one byte.
            return part(at, len_bytes);
        }
        part(both, end)?;
        at = end;
    }
    Ok(())
}

/// Copies between two files, or two separate ranges of one: inside the kernel if it can, so that some
/// file systems share blocks instead of copying them.
fn copy_content(from: (&HostFile, u64), to: (&HostFile, u64), len_bytes: u64) -> Result<(), Fault> {
    let done = copy_in_kernel(from, to, len_bytes);
    with_scratch(|scratch| {
        let chunk = scratch.len() as u64;
        let mut at = done;
        while at < len_bytes {
            let part = &mut scratch[..chunk.min(len_bytes - at) as usize];
            read_cached(from.0, from.1 + at, part)?;
            write(to.0, to.1 + at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    })
}

/// The number of leading bytes that the kernel copied; 0 if it cannot. The kernel's errors count as
/// "cannot": reading and writing the rest finds them again and reports them.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn copy_in_kernel(from: (&HostFile, u64), to: (&HostFile, u64), len_bytes: u64) -> u64 {
    /// The most bytes that one call of the kernel moves (MAX_RW_COUNT, `include/linux/fs.h`).
    const CALL: u64 = 0x7fff_f000;
    let mut done = 0;
    while done < len_bytes {
        let (mut src, mut dst) = (from.1 + done, to.1 + done);
        let len = (len_bytes - done).min(CALL) as usize;
        match rustix::fs::copy_file_range(
            from.0.raw(),
            Some(&mut src),
            to.0.raw(),
            Some(&mut dst),
            len,
        ) {
            Ok(0) | Err(_) => break,
            Ok(count) => done += count as u64,
        }
    }
    done
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn copy_in_kernel(_: (&HostFile, u64), _: (&HostFile, u64), _: u64) -> u64 {
    0
}

/// Stays in the second-level cache between the two halves of a hop.
const SCRATCH_BYTES: usize = 256 << 10;

/// Lends this thread's scratch memory, which is allocated at the thread's first use and kept.
fn with_scratch<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(SCRATCH_BYTES, 0);
        use_it(scratch)
    })
}

fn truncated(file: &HostFile, end: u64, offset: u64, len_bytes: u64) -> Fault {
    let last = offset + len_bytes;
    let path = file.path().display();
    // A piece that lies wholly past the new end cannot tell where that end is.
    let end = file.raw().metadata().map_or(end, |now| now.len().min(end));
    // The range lay within the file when it was opened.
    let expected = file.span().offset.saturating_add(file.span().len);
    // The file's owner caused this, and no link: other files can still be read.
    Fault::new(
        ErrorClass::Caller,
        format!(
            "{path} ends at byte {end} now and had {expected} bytes when it was opened; bytes \
             {offset}..{last} were being read"
        ),
    )
}

fn refused(file: &HostFile, what: &str, offset: u64, len_bytes: u64, error: &io::Error) -> Fault {
    let last = offset + len_bytes;
    Fault::of_io(
        &format!("{what} bytes {offset}..{last} of {}", file.path().display()),
        error,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(file_order: &[(u64, u64)]) -> Vec<Span> {
        let spans = file_order
            .iter()
            .map(|(offset, len)| Span::new(*offset, *len));
        spans.collect()
    }

    #[test]
    fn short_rows_that_are_near_in_the_order_of_the_file_are_one_read() {
        let seen = |of: &[(u64, u64)]| {
            let windows = windows(rows(of).into_iter());
            let seen: Vec<(u64, u64, usize)> = windows
                .map(|(window, count)| (window.offset, window.len, count))
                .collect();
            seen
        };
        let (gap, small) = (GAP_BYTES, SMALL_READ_BYTES);
        assert_eq!(seen(&[]), []);
        assert_eq!(
            seen(&[(5, 10), (15, 1), (12, 9), (17 + gap, 2)]),
            [(5, 14 + gap, 4)]
        );
        assert_eq!(
            seen(&[(5, 10), (16 + gap, 2)]),
            [(5, 10, 1), (16 + gap, 2, 1)]
        );
        // Back in the file, and a long one.
        assert_eq!(
            seen(&[(5, 10), (4, 1), (5, small + 1)]),
            [(5, 10, 1), (4, 1, 1), (5, small + 1, 1)]
        );
        let many: Vec<(u64, u64)> = (0..100).map(|at| (at * small, small)).collect();
        let seen = seen(&many);
        assert!(seen.len() == 4 && seen.iter().all(|of| of.1 <= SCRATCH_BYTES as u64));
    }

    /// Content at both ends and around the middle, holes between, and a hole at the end.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const SPARSE: [(u64, u64); 3] = [(0, 5000), (3 << 20, (1 << 20) + 7), (9 << 20, 100)];

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const SPARSE_BYTES: u64 = 12 << 20;

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn sparse() -> HostFile {
        let file = HostFile::temporary(SPARSE_BYTES).unwrap();
        for (at, len) in SPARSE {
            let content: Vec<u8> = (0..len).map(|byte| (byte % 251 + 1) as u8).collect();
            write_all(&file, at, &content).unwrap();
        }
        file
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn content(file: &HostFile) -> Vec<u8> {
        let mut bytes = vec![0; file.span().len as usize];
        read_cached(file, 0, &mut bytes).unwrap();
        bytes
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn blocks(file: &HostFile) -> u64 {
        std::os::unix::fs::MetadataExt::blocks(&file.raw().metadata().unwrap())
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn a_hole_stays_one_in_a_new_file_and_its_zeros_replace_what_was_there() {
        use std::io::{Seek, SeekFrom};
        let src = sparse();
        let wanted = content(&src);
        let full = vec![7; SPARSE_BYTES as usize];
        for (offset, len_bytes) in [
            (0, SPARSE_BYTES),
            (1 << 20, 9 << 20),
            (4999, 1),
            (6 << 20, 1 << 20),
        ] {
            let (new, used) = [(); 2]
                .map(|()| HostFile::temporary(SPARSE_BYTES).unwrap())
                .into();
            write_all(&used, 0, &full).unwrap();
            let mut own = src.raw();
            own.seek(SeekFrom::Start(17)).unwrap();
            for dst in [&new, &used] {
                copy_between_files((&src, offset), (dst, offset), len_bytes).unwrap();
            }
            // The position of the program's own opening is where it was.
            assert_eq!(own.stream_position().unwrap(), 17);
            let range = offset as usize..(offset + len_bytes) as usize;
            assert!(content(&new)[range.clone()] == wanted[range.clone()]);
            let mut replaced = full.clone();
            replaced[range.clone()].copy_from_slice(&wanted[range]);
            assert!(content(&used) == replaced);
            // Where the file system's word does not count, every byte is written.
            assert!(
                Holes::of(&src).is_none() || blocks(&new) <= blocks(&src),
                "{} {}",
                blocks(&new),
                blocks(&src)
            );
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn zeros_of_memory_leave_a_hole_and_replace_content() {
        let (src, new) = (sparse(), HostFile::temporary(SPARSE_BYTES).unwrap());
        let wanted = content(&src);
        let mut read_back = vec![9; wanted.len() - 5];
        let holes = Holes::of(&src);
        if let Some(holes) = &holes {
            read_content(&src, holes, 5, &mut read_back).unwrap();
            assert!(read_back == wanted[5..]);
        }
        // In pieces that begin anywhere.
        for at in (0..wanted.len()).step_by(1_000_003) {
            write(
                &new,
                at as u64,
                &wanted[at..wanted.len().min(at + 1_000_003)],
            )
            .unwrap();
        }
        assert!(content(&new) == wanted);
        let more = 2 * holes::LEAST_BYTES * (1 + SPARSE.len() as u64 + 12) / 512;
        assert!(
            holes.is_none() || blocks(&new) <= blocks(&src) + more,
            "{} {}",
            blocks(&new),
            blocks(&src)
        );
        write(&new, 0, &vec![0; SPARSE_BYTES as usize]).unwrap();
        assert!(content(&new).iter().all(|byte| *byte == 0));
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn a_file_that_lost_its_end_has_no_hole_there() {
        let (src, dst) = (sparse(), HostFile::temporary(SPARSE_BYTES).unwrap());
        src.raw().set_len(4000).unwrap();
        let fault = copy_between_files((&src, 0), (&dst, 0), SPARSE_BYTES).unwrap_err();
        assert!(
            fault.message.contains("ends at byte 4000 now"),
            "{}",
            fault.message
        );
    }

    #[test]
    fn a_file_that_ends_within_a_window_fails_by_the_row_that_it_lacks() {
        let file = HostFile::temporary(1000).unwrap();
        write(&file, 0, &(0..1000).map(|at| at as u8).collect::<Vec<u8>>()).unwrap();
        file.raw().set_len(700).unwrap();
        let mut bytes = [[0u8; 100]; 3];
        let spans = rows(&[(100, 100), (300, 100), (650, 100)]);
        let rows = spans.into_iter().zip(&mut bytes).map(|(span, dst)| Row {
            offset: span.offset,
            len_bytes: span.len,
            dst: dst.as_mut_ptr(),
            conversion: None,
            store: Store::Plain,
        });
        let rows: Vec<Row> = rows.collect();
        // SAFETY: the file is alive, and the places are these rows' own.
        let fault = unsafe { gather(NonNull::from(&file), rows.into_iter()) }.unwrap_err();
        assert!(
            fault.message.contains("bytes 650..750"),
            "{}",
            fault.message
        );
        assert_eq!((bytes[0][99], bytes[1][0]), (199, 44));
    }
}
