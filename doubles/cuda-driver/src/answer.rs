//! The answers of functions, and where they go.

use transload_cuda::raw::CUresult;

/// The answer of most functions.
pub(crate) type Answer = Result<(), CUresult>;

/// Writes an answer to the caller's place.
///
/// # Errors
/// `INVALID_VALUE` for a null pointer.
///
/// # Safety
/// The pointer is null, or a place for a `T`.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Answer {
    if place.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's promise. Clients may hand in places of any alignment.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Writes an answer if the caller wants it: a null pointer means that it does not.
///
/// # Safety
/// As [`put`].
pub(crate) unsafe fn put_if_wanted<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller keeps the same promise.
        unsafe { place.write_unaligned(value) };
    }
}
