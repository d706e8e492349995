//! Copies by the platform's `memcpy` and `memmove`.

/// Copies `len` bytes between ranges that do not overlap, through the caches.
///
/// # Safety
/// As for [`super::copy`].
#[inline]
pub(super) unsafe fn copy_plain(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller guarantees validity of both ranges and that they are disjoint; u8 needs no
    // alignment.
    unsafe { core::ptr::copy_nonoverlapping(src, dst, len) }
}

/// Copies `len` bytes between ranges that may overlap, as if through a temporary (memmove).
///
/// One thread does it: pieces of an overlapping move depend on each other.
///
/// # Safety
/// `src` is valid for reads of `len` bytes, `dst` for writes of `len` bytes, and nothing else writes
/// either range (or reads `dst`) until the call returns.
#[inline]
pub unsafe fn copy_overlapping(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller guarantees validity of both ranges; `copy` allows them to overlap.
    unsafe { core::ptr::copy(src, dst, len) }
}

/// Whether `a..a + a_len` and `b..b + b_len` share a byte.
///
/// Addresses are compared as numbers; two mappings of one memory at different addresses are not seen.
#[must_use]
pub fn overlaps(a: *const u8, a_len: usize, b: *const u8, b_len: usize) -> bool {
    let (a, b) = (a as usize, b as usize);
    // `saturating_add`: a valid range never wraps; an invalid one must not hide an overlap.
    a_len > 0 && b_len > 0 && a < b.saturating_add(b_len) && b < a.saturating_add(a_len)
}
