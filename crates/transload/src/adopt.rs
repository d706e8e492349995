//! Memory that users already have, taken in without a copy.

mod owned_slice;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::NonNull;

use bytemuck::{AnyBitPattern, NoUninit};
use transload_hal::{HostSpan, Owner};

pub use owned_slice::OwnedSlice;

/// An object that owns host memory and can be handed to a manager. It comes back, the same object,
/// from [`Buffer::into_inner`](crate::Buffer::into_inner).
///
/// | object | elements | buffer |
/// |---|---|---|
/// | `Vec<T>`, `Box<[T]>` | [`NoUninit`] and [`AnyBitPattern`], which is what [`bytemuck::Pod`] is | writable |
/// | `Arc<[T]>`, `Arc<Vec<T>>`, `&'static [T]` | [`NoUninit`] | read-only |
/// | [`OwnedSlice`]: a slice that an object behind an `Arc` owns | [`NoUninit`] | read-only |
/// | `Bytes`, with the feature `bytes`; `Mmap`, with the feature `mmap` | | read-only |
/// | `MmapMut`, with the feature `mmap` | | writable |
///
/// A buffer is its bytes, whatever the elements are: its length is `len * size_of::<T>()`, and
/// `bytemuck::cast_slice` shows the bytes of a [guard](crate::ReadGuard) as elements again. A literal without a suffix
/// is an `i32` of four bytes: write `vec![0u8; len]` for bytes.
///
/// # Safety
/// From the call of `span` on, until the object is dropped or taken back: the span stays valid,
/// initialised and in place even when the object is moved, nothing but the holder of the object writes its bytes,
/// and if `WRITABLE` they may be overwritten with any bytes.
#[diagnostic::on_unimplemented(
    message = "a manager cannot adopt `{Self}`",
    label = "not an owner of bytes that can be adopted",
    note = "`Vec<T>`, `Box<[T]>`, `Arc<[T]>`, `Arc<Vec<T>>` and `&'static [T]` of plain data can be adopted, with \
            feature `bytes` `Bytes`, and with feature `mmap` `Mmap` and `MmapMut`",
    note = "`OwnedSlice` adopts a slice that another object owns",
    note = "borrowed bytes are copied by `copy_from_slice` and `copy_into_slice`"
)]
pub unsafe trait Adopt: Owner + Sized {
    /// Whether the bytes may be written.
    const WRITABLE: bool;

    /// Returns the bytes.
    fn span(&mut self) -> HostSpan;
}

// SAFETY: a vector's heap block stays where it is when the vector is moved, and the manager owns the
// vector, so nothing else touches it. `NoUninit` says that every byte is initialised, `AnyBitPattern` that
// every byte may take any value.
unsafe impl<T: NoUninit + AnyBitPattern> Adopt for Vec<T>
where
    Vec<T>: Owner,
{
    const WRITABLE: bool = true;

    fn span(&mut self) -> HostSpan {
        HostSpan::of_mut(bytemuck::cast_slice_mut(self))
    }
}

// SAFETY: as for a vector.
unsafe impl<T: NoUninit + AnyBitPattern> Adopt for Box<[T]>
where
    Box<[T]>: Owner,
{
    const WRITABLE: bool = true;

    fn span(&mut self) -> HostSpan {
        HostSpan::of_mut(bytemuck::cast_slice_mut(self))
    }
}

// SAFETY: the elements stay where they are while a handle lives. As long as the manager has one, safe code gets no
// mutable reference to them (`Arc::get_mut` wants the only handle), and `NoUninit` has no interior mutability.
unsafe impl<T: NoUninit> Adopt for Arc<[T]>
where
    Arc<[T]>: Owner,
{
    const WRITABLE: bool = false;

    fn span(&mut self) -> HostSpan {
        HostSpan::of(bytemuck::cast_slice(self))
    }
}

// SAFETY: as for a counted slice; a vector behind a shared reference keeps its heap block.
unsafe impl<T: NoUninit> Adopt for Arc<Vec<T>>
where
    Arc<Vec<T>>: Owner,
{
    const WRITABLE: bool = false;

    fn span(&mut self) -> HostSpan {
        HostSpan::of(bytemuck::cast_slice(self))
    }
}

// SAFETY: static elements are there for ever, nothing writes them, and `NoUninit` has no interior mutability.
unsafe impl<T: NoUninit> Adopt for &'static [T]
where
    &'static [T]: Owner,
{
    const WRITABLE: bool = false;

    fn span(&mut self) -> HostSpan {
        HostSpan::of(bytemuck::cast_slice(self))
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

/// An adopted object, in a type that only this crate can name: its bytes are the manager's now, and other code must not
/// reach them through the object.
pub(crate) struct Adopted<T>(pub(crate) T);

/// The owner of borrowed memory: the caller's frame, which waits until the engine is done.
pub(crate) struct Borrowed;

/// The address of a view that shows no bytes.
pub(crate) const NOWHERE: HostSpan = HostSpan::new(NonNull::dangling(), 0);
