//! Copies of elements at strides between any two places.

use std::cell::RefCell;
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use transload_hal::{Conversion, Fault, Portion, Shape, Span, Strided};

use super::place::{self, Place};
use super::task::STREAMED_RUN_BYTES;
use crate::memory::direct::Row;
use crate::raw::{self, Loop, Loops, Store};

/// Both ends of a copy, and what is copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    pub(super) src: End,
    pub(super) dst: End,
    /// The first payload byte of the destination.
    pub(super) first: u64,
    pub(super) conversion: Option<Conversion>,
    pub(super) store: Store,
}

/// One end: elements at strides, or their bytes end to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// The lowest byte of the array; without one, the first byte that is copied.
    pub(super) place: Place,
    /// Kept where it is until the fence settles, by the contract of `Backend::submit`.
    pub(super) array: Option<NonNull<Strided>>,
}

/// Bytes that are brought together at a time, where the ends have no dimensions in common or one of them is a file: they stay
/// in the second-level cache.
const WINDOW_BYTES: usize = 128 << 10;

/// Rows at both ends, short enough that finding the next one in a shape, which divides, would take a good part of its copy.
pub(super) struct ShortRows {
    arrays: [Strided; 2],
    strides: Strides,
}

/// Rows from here on are found one by one, and may be stored past the caches: finding one takes some 25 ns, which is 512 bytes at
/// 20 GB/s.
const SHORT_ROW_BYTES: u64 = STREAMED_RUN_BYTES - 1;

impl ShortRows {
    /// Copies the payload bytes `span`, as [`Strides::copy`] does.
    ///
    /// # Errors
    /// None: both ends are memory.
    ///
    /// # Safety
    /// As [`Strides::copy`].
    pub(super) unsafe fn copy(&self, span: Span) -> Result<(), Fault> {
        let [src, dst] = &self.arrays;
        let with = |end: End, array| End {
            array: Some(NonNull::from(array)),
            ..end
        };
        let strides = Strides {
            src: with(self.strides.src, src),
            dst: with(self.strides.dst, dst),
            ..self.strides
        };
        // SAFETY: the caller's contract; the arrays outlive the call.
        unsafe { strides.copy(span) }
    }
}

impl Strides {
    /// Returns the copy of the payload from `first` on, if both ends are short rows in memory.
    pub(super) fn of_rows(
        (src, src_shape): (Place, Shape),
        (dst, dst_shape): (Place, Shape),
        first: u64,
    ) -> Option<ShortRows> {
        let width = src_shape.width_bytes().min(dst_shape.width_bytes());
        if width > SHORT_ROW_BYTES || src.is_file() || dst.is_file() {
            return None;
        }
        let arrays = [
            Strided::of_shape(&src_shape)?,
            Strided::of_shape(&dst_shape)?,
        ];
        // The destination's rows and planes go upwards already: the order stays.
        let arrays = Strided::paired(arrays.each_ref(), [1; 2], 1)?;
        let end = |place| End { place, array: None };
        let strides = Strides {
            src: end(src),
            dst: end(dst),
            first,
            conversion: None,
            store: Store::Plain,
        };
        Some(ShortRows { arrays, strides })
    }

    /// The bytes of the source that become so many of the destination.
    fn source_bytes(&self, bytes: u64) -> u64 {
        self.conversion.map_or(bytes, |of| of.source_bytes(bytes))
    }

    /// Bytes of a number of each end; 1 where bytes are copied as they are.
    fn number_bytes(&self) -> [u64; 2] {
        let sizes = |of: Conversion| [of.from().len_bytes(), of.to().len_bytes()];
        self.conversion.map_or([1; 2], sizes)
    }

    /// An array that has the dimensions of both ends, if they have the same, and the bytes of its numbers.
    ///
    /// # Safety
    /// The fence of the operation has not settled.
    unsafe fn common<'a>(&self) -> Option<(&'a Strided, u64)> {
        let [from, to] = self.number_bytes();
        // SAFETY: the caller's contract.
        let src = unsafe { self.src.array() };
        // SAFETY: as above.
        let dst = unsafe { self.dst.array() };
        match (src, dst) {
            (Some(src), Some(dst)) => {
                let counts = |of: &'a Strided| of.axes().iter().map(|axis| axis.count);
                let elements = src.element_bytes() / from == dst.element_bytes() / to;
                (elements && counts(src).eq(counts(dst))).then_some((dst, to))
            }
            (Some(src), None) => Some((src, from)),
            (None, Some(dst)) => Some((dst, to)),
            (None, None) => None,
        }
    }

    /// How many payload bytes a thread copies at a time: at least `step`, and as many up to `most` as use the lines of the source's
    /// memory as a whole.
    ///
    /// # Safety
    /// The fence of the operation has not settled.
    pub(super) unsafe fn whole_lines(&self, step: u64, most: u64) -> u64 {
        /// As processors fetch memory, in pairs.
        const LINES_BYTES: u64 = 128;
        // SAFETY: the caller's contract.
        let src = unsafe { self.src.array() }.map_or(&[][..], Strided::axes);
        let closest = (0..src.len()).min_by_key(|at| src[*at].stride_bytes.unsigned_abs());
        // SAFETY: as above.
        let (Some(closest), Some((common, size))) = (closest, unsafe { self.common() }) else {
            return step;
        };
        let behind = common.axes()[closest + 1..].iter().map(|axis| axis.count);
        let numbers = behind.product::<u64>() * (common.element_bytes() / size);
        let each = numbers
            .saturating_mul(self.number_bytes()[1])
            .min(most)
            .max(1);
        let stride = src[closest].stride_bytes.unsigned_abs().max(1);
        let lines = each.saturating_mul(LINES_BYTES.div_ceil(stride)).min(most);
        step.max(lines).next_multiple_of(each)
    }

    /// Copies the payload bytes `span` of the destination, counted from the first one of the operation.
    ///
    /// # Errors
    /// A fault of a file.
    ///
    /// # Safety
    /// The contract of `Backend::submit` holds for the operation: its fence has not settled.
    pub(super) unsafe fn copy(&self, span: Span) -> Result<(), Fault> {
        // SAFETY: the caller's contract.
        let common = unsafe { self.common() };
        if let (Some(common), Place::Memory(src), Place::Memory(dst)) =
            (common, self.src.place, self.dst.place)
        {
            // SAFETY: as above.
            unsafe { self.copy_portions(common, src, dst, span) };
            return Ok(());
        }
        with_windows(|windows| {
            for at in (0..span.len).step_by(WINDOW_BYTES) {
                let len = (WINDOW_BYTES as u64).min(span.len - at);
                // SAFETY: as above; the windows are this thread's own.
                unsafe { self.copy_through(windows, Span::new(span.offset + at, len)) }?;
            }
            Ok(())
        })
    }

    /// # Safety
    /// As [`Strides::copy`], where `common` is what [`Strides::common`] returned.
    unsafe fn copy_portions(
        &self,
        (common, size): (&Strided, u64),
        src: *const u8,
        dst: *mut u8,
        span: Span,
    ) {
        let [from, to] = self.number_bytes();
        let first = self.first / to;
        let numbers = Span::new(first + span.offset / to, span.len / to);
        for portion in common.portions(size, numbers) {
            // SAFETY: the caller's contract.
            let (read, reads) = unsafe { self.src.strides(&portion, from, first) };
            // SAFETY: as above.
            let (written, writes) = unsafe { self.dst.strides(&portion, to, first) };
            let (src, dst) = (src.wrapping_add(read), dst.wrapping_add(written));
            let counts = portion.counts().iter();
            let loops = counts.zip(reads.into_iter().zip(writes));
            let mut loops: Loops = loops
                .map(|(count, (src, dst))| Loop {
                    count: *count as usize,
                    src,
                    dst,
                })
                .collect();
            match self.conversion {
                // SAFETY: the caller's contract: a portion lies within both ends, which do not overlap.
                Some(of) => unsafe { raw::convert_nest(dst, src, of, &loops, self.store) },
                None => {
                    // The innermost loop is that of bytes which lie side by side at both ends.
                    let element = loops.pop().map_or(1, |of| of.count);
                    // SAFETY: as above.
                    unsafe { raw::copy_nest(dst, src, element, &loops, self.store) };
                }
            }
        }
    }

    /// Brings the bytes together, converts them, and takes them to their places.
    ///
    /// # Safety
    /// As [`Strides::copy`].
    unsafe fn copy_through(&self, windows: &mut Windows, span: Span) -> Result<(), Fault> {
        let [gathered, converted] = windows
            .each_mut()
            .map(|window| window.as_mut_ptr().cast::<u8>());
        let len = self.source_bytes(span.len);
        let to_gathered = Self {
            dst: End::packed(gathered),
            first: self.source_bytes(self.first + span.offset),
            conversion: None,
            store: Store::Plain,
            ..*self
        };
        // SAFETY: the caller's contract; the window has room.
        let read = unsafe { to_gathered.gather(self.source_bytes(span.offset), len) }?;
        let bytes = match self.conversion {
            None => read,
            Some(of) => {
                let count = (len / of.from().len_bytes()) as usize;
                // SAFETY: as above.
                unsafe { raw::convert(converted, read, count, of, Store::Plain) };
                converted
            }
        };
        let from_converted = Self {
            src: End::packed(bytes.cast_mut()),
            first: self.first + span.offset,
            conversion: None,
            ..*self
        };
        // SAFETY: as above.
        unsafe { from_converted.scatter(span.offset, span.len) }
    }

    /// Returns the address of the `len` payload bytes that begin `at` bytes behind the first one of the operation, end to end: in
    /// the source, or in the window.
    ///
    /// # Safety
    /// As [`Strides::copy`].
    unsafe fn gather(&self, at: u64, len: u64) -> Result<*const u8, Fault> {
        let Place::Memory(window) = self.dst.place else {
            return Ok(std::ptr::null());
        };
        let span = Span::new(0, len);
        // SAFETY: the caller's contract, here and below.
        match (self.src.place, unsafe { self.src.array() }) {
            (Place::Memory(src), None) => return Ok(src.wrapping_add(at as usize)),
            (Place::Memory(src), Some(array)) => {
                // SAFETY: as above.
                unsafe { self.copy_portions((array, 1), src, window, span) };
            }
            (file, None) => {
                let (src, dst) = (file.plus(at), self.dst.place);
                // SAFETY: as above.
                unsafe { place::copy(src, dst, len, Store::Plain) }?;
            }
            (Place::File(file, offset), Some(array)) => {
                let rows =
                    runs(array, Span::new(self.first, len)).map(|(at, begin, len_bytes)| Row {
                        offset: offset + begin,
                        len_bytes,
                        dst: window.wrapping_add((at - self.first) as usize),
                        conversion: None,
                        store: Store::Plain,
                    });
                // SAFETY: as above.
                unsafe { place::gather(file, rows) }?;
            }
        }
        Ok(window)
    }

    /// Takes `len` payload bytes to their places, which begin `at` bytes behind the first one of the operation.
    ///
    /// # Safety
    /// As [`Strides::copy`].
    unsafe fn scatter(&self, at: u64, len: u64) -> Result<(), Fault> {
        let Place::Memory(bytes) = self.src.place else {
            return Ok(());
        };
        // SAFETY: the caller's contract, here and below.
        match (self.dst.place, unsafe { self.dst.array() }) {
            (Place::Memory(dst), Some(array)) => {
                // SAFETY: as above.
                unsafe { self.copy_portions((array, 1), bytes, dst, Span::new(0, len)) };
                Ok(())
            }
            // SAFETY: as above.
            (dst, None) => unsafe { place::copy(self.src.place, dst.plus(at), len, self.store) },
            (file, Some(array)) => {
                let mut runs = runs(array, Span::new(self.first, len));
                runs.try_for_each(|(at, begin, len)| {
                    let src = self.src.place.plus(at - self.first);
                    // SAFETY: as above.
                    unsafe { place::copy(src, file.plus(begin), len, Store::Plain) }
                })
            }
        }
    }
}

impl End {
    const fn packed(bytes: *mut u8) -> Self {
        Self {
            place: Place::Memory(bytes),
            array: None,
        }
    }

    /// # Safety
    /// The fence of the operation has not settled.
    unsafe fn array<'a>(&self) -> Option<&'a Strided> {
        // SAFETY: the caller's contract.
        self.array.map(|array| unsafe { array.as_ref() })
    }

    /// Where a portion begins behind the place, and its strides. `first` is the number of the payload at the place of bytes that
    /// lie end to end.
    ///
    /// # Safety
    /// The fence of the operation has not settled.
    unsafe fn strides(
        &self,
        portion: &Portion,
        size: u64,
        first: u64,
    ) -> (usize, ArrayVec<isize, { Strided::MOST_DIMENSIONS + 1 }>) {
        // Within an operand, which the address space holds.
        // SAFETY: the caller's contract.
        match unsafe { self.array() } {
            Some(array) => {
                let (begin, strides) = array.strides_of(portion, size);
                (
                    begin as usize,
                    strides.map(|stride| stride as isize).collect(),
                )
            }
            None => {
                let begin = (portion.position - first) * size;
                let strides = portion.packed(size);
                (
                    begin as usize,
                    strides.map(|stride| stride as isize).collect(),
                )
            }
        }
    }
}

/// The payload bytes `span` of an array as runs without a gap: the first payload byte, where it lies, and how many.
fn runs(array: &Strided, span: Span) -> impl Iterator<Item = (u64, u64, u64)> + Clone + '_ {
    let end = span.offset + span.len;
    let next = move |at: u64| {
        (at < end).then(|| {
            let (begin, left) = array.locate(at);
            (at, begin, left.min(end - at))
        })
    };
    std::iter::successors(next(span.offset), move |(at, _, len)| next(at + len))
}

/// Room for bytes that were gathered, and for the numbers that they become, of 8 bytes for each byte at most.
type Windows = [Vec<u64>; 2];

/// Lends this thread's windows, which are allocated at the thread's first use and kept.
fn with_windows<T>(use_them: impl FnOnce(&mut Windows) -> T) -> T {
    thread_local! {
        static WINDOWS: RefCell<Windows> = const { RefCell::new([Vec::new(), Vec::new()]) };
    }
    WINDOWS.with_borrow_mut(|windows| {
        // A number of the source has at most 8 times the bytes of one of the destination, which has at least 2.
        windows[0].resize(WINDOW_BYTES / 2, 0);
        windows[1].resize(WINDOW_BYTES / 8, 0);
        use_them(windows)
    })
}
