//! Memory that users already have, taken in without a copy.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::NonNull;

use transload_hal::{HostSpan, Owner};

/// An object that owns host memory and can be handed to a manager. It comes back, the same object,
/// from [`Buffer::into_inner`](crate::Buffer::into_inner).
///
/// # Safety
/// From the call of `span` on, until the object is dropped or taken back: the span stays valid and
/// in place even when the object is moved, nothing but the holder of the object writes its bytes,
/// and if `WRITABLE` they may be written.
#[diagnostic::on_unimplemented(
    message = "a manager cannot adopt `{Self}`",
    label = "not an owner of bytes that can be adopted",
    note = "`Vec<u8>`, `Box<[u8]>` and `&'static [u8]` can be adopted, with feature `bytes` `Bytes`, and \
            with feature `mmap` `Mmap` and `MmapMut`",
    note = "borrowed bytes are copied by `copy_from_slice` and `copy_into_slice`"
)]
pub unsafe trait Adopt: Owner + Sized {
    /// Whether the bytes may be written.
    const WRITABLE: bool;

    /// The bytes.
    fn span(&mut self) -> HostSpan;
}

// SAFETY: a vector's heap block stays where it is when the vector is moved, and the manager owns the
// vector, so nobody else touches it.
unsafe impl Adopt for Vec<u8> {
    const WRITABLE: bool = true;

    fn span(&mut self) -> HostSpan {
        HostSpan::of_mut(self)
    }
}

// SAFETY: as for a vector.
unsafe impl Adopt for Box<[u8]> {
    const WRITABLE: bool = true;

    fn span(&mut self) -> HostSpan {
        HostSpan::of_mut(self)
    }
}

// SAFETY: static bytes are there for ever, and nobody writes them.
unsafe impl Adopt for &'static [u8] {
    const WRITABLE: bool = false;

    fn span(&mut self) -> HostSpan {
        HostSpan::of(self)
    }
}

// SAFETY: the bytes are counted and immutable; a handle keeps them in place.
#[cfg(feature = "bytes")]
unsafe impl Adopt for bytes::Bytes {
    const WRITABLE: bool = false;

    fn span(&mut self) -> HostSpan {
        HostSpan::of(self)
    }
}

// SAFETY: the mapping stays where it is until it is dropped. That nothing else changes the file is
// what its maker promised to `memmap2`.
#[cfg(feature = "mmap")]
unsafe impl Adopt for memmap2::Mmap {
    const WRITABLE: bool = false;

    fn span(&mut self) -> HostSpan {
        HostSpan::of(self)
    }
}

// SAFETY: as above, and the mapping may be written.
#[cfg(feature = "mmap")]
unsafe impl Adopt for memmap2::MmapMut {
    const WRITABLE: bool = true;

    fn span(&mut self) -> HostSpan {
        HostSpan::of_mut(self)
    }
}

/// An object that was adopted, under a name that nobody else has: its bytes are the manager's now,
/// and are not to be reached through it.
pub(crate) struct Adopted<T>(pub(crate) T);

/// What borrowed memory is owned by: the caller's frame, which waits until the engine is done.
pub(crate) struct Borrowed;

/// Where a view points that shows nothing.
pub(crate) const NOWHERE: HostSpan = HostSpan::new(NonNull::dangling(), 0);
