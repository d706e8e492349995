//! Raw host memory: an address, a length, and the operations of the library on it.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// `len` bytes of host memory at an address.
///
/// A span is a description, not a right: it does not say which other code reads or writes the bytes, and does not keep
/// them alive. Code that touches the bytes shows why that is sound. There is no safe way from a span to a slice, since
/// a device may write the bytes at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSpan {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the span is an address and a length; every method that touches memory is unsafe and leaves exclusion between
// threads to its caller.
unsafe impl Send for HostSpan {}
// SAFETY: as above.
unsafe impl Sync for HostSpan {}

impl HostSpan {
    /// Makes a span of `len` bytes from `start` on.
    pub const fn new(start: NonNull<u8>, len: usize) -> HostSpan {
        HostSpan { start, len }
    }

    /// Returns the span of a slice.
    pub const fn of(bytes: &[u8]) -> HostSpan {
        HostSpan {
            start: NonNull::from_ref(bytes).cast(),
            len: bytes.len(),
        }
    }

    /// Returns the span of a slice that may be written.
    pub const fn of_mut(bytes: &mut [u8]) -> HostSpan {
        let len = bytes.len();
        HostSpan {
            start: NonNull::from_mut(bytes).cast(),
            len,
        }
    }

    /// Returns the span of a slice that may be written, and need not be initialised. They may be read once they are
    /// written.
    pub const fn of_uninit(bytes: &mut [MaybeUninit<u8>]) -> HostSpan {
        let len = bytes.len();
        HostSpan {
            start: NonNull::from_mut(bytes).cast(),
            len,
        }
    }

    /// Returns a pointer to the first byte.
    pub const fn as_ptr(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the length in bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
    pub fn addr(self) -> u64 {
        self.start.addr().get() as u64
    }

    /// Returns `len` bytes from `offset` on; `None` where they do not all lie within the span.
    pub fn slice(self, offset: u64, len: u64) -> Option<HostSpan> {
        let offset = usize::try_from(offset).ok()?;
        let len = usize::try_from(len).ok()?;
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // Wrapping, so that only an address is formed; it lies within the span by the check above.
        let start = NonNull::new(self.start.as_ptr().wrapping_add(offset))?;
        Some(HostSpan { start, len })
    }

    /// Copies all bytes of `self` to `dst`, which may overlap it.
    ///
    /// # Safety
    /// Both spans are valid for as long as the call lasts, `dst` may be written, no other thread or device writes
    /// either span or reads `dst` meanwhile, and `dst` is no shorter than `self`.
    pub unsafe fn copy_to(self, dst: HostSpan) {
        debug_assert!(self.len <= dst.len);
        // SAFETY: validity, exclusion and length are the caller's.
        unsafe { core::ptr::copy(self.as_ptr(), dst.as_ptr(), self.len) }
    }

    /// Sets every byte to `value`.
    ///
    /// # Safety
    /// The span is valid and may be written, and no other thread or device touches it meanwhile.
    pub unsafe fn fill(self, value: u8) {
        // SAFETY: validity and exclusion are the caller's.
        unsafe { core::ptr::write_bytes(self.as_ptr(), value, self.len) }
    }

    /// Returns the bytes as a slice.
    ///
    /// # Safety
    /// The span is valid for `'a`, its bytes are initialised, and no thread or device writes it during `'a`.
    pub unsafe fn as_slice<'a>(self) -> &'a [u8] {
        // SAFETY: validity and exclusion are the caller's; bytes have no alignment.
        unsafe { core::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// Returns the bytes as a slice that may be written.
    ///
    /// # Safety
    /// The span is valid and may be written for `'a`, its bytes are initialised, and no other code touches it during
    /// `'a`: no thread, no device.
    pub unsafe fn as_mut_slice<'a>(self) -> &'a mut [u8] {
        // SAFETY: validity and exclusion are the caller's; bytes have no alignment.
        unsafe { core::slice::from_raw_parts_mut(self.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uninitialised_bytes_are_written_in_place() {
        let mut bytes = [MaybeUninit::uninit(); 8];
        let span = HostSpan::of_uninit(&mut bytes);
        assert_eq!(span.len(), 8);
        // SAFETY: the span is the array's, which this test alone touches.
        unsafe { span.fill(7) };
        // SAFETY: as above, and all of it was written.
        assert_eq!(unsafe { span.as_slice() }, [7; 8]);
    }

    #[test]
    fn slices_stay_within_the_span() {
        let bytes = [0u8; 8];
        let span = HostSpan::of(&bytes);
        assert_eq!(span.slice(8, 0).map(HostSpan::len), Some(0));
        assert_eq!(span.slice(2, 6).map(HostSpan::addr), Some(span.addr() + 2));
        assert_eq!(span.slice(2, 7), None);
        assert_eq!(span.slice(9, 0), None);
        assert_eq!(span.slice(u64::MAX, 2), None);
        assert_eq!(span.slice(1, u64::MAX), None);
    }
}
