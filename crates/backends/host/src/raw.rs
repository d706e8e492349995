//! Copies over raw pointers: the only code of this backend that touches payload bytes.
//!
//! Everything here takes addresses and lengths, never slices: the memory may be written by a device,
//! another process or another thread outside Rust's rules, so no reference to it is ever formed. The
//! callers (this crate's queue) own the argument that both ranges are in bounds, alive and free of other
//! accesses until the call returns.

mod background;
mod convert;
mod nest;
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use background::stay_in_the_background;
pub use convert::convert;
pub use nest::{Loop, Loops, convert_nest, copy_nest};
pub use plain::{copy_overlapping, overlaps};

/// How a copy writes its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Store {
    /// Ordinary stores through the caches.
    Plain,
    /// The string-move instruction (`rep movsb`), which newer x86-64 cores run as a microcoded copy of
    /// whole lines that need not be read before they are written. Only between addresses where it is
    /// fast; elsewhere, and on other processors, the same as [`Store::Plain`].
    ///
    /// On an AMD EPYC (family 25, model 17, 2 cores) it was level with plain stores while both buffers
    /// stayed in the caches, and 10 % to 60 % faster from 1 MiB to 8 MiB where they did not:
    /// `examples/kernels.rs` prints the table.
    Rep,
    /// Non-temporal stores, which bypass the caches: they save the read-for-ownership of every
    /// destination line, and leave the destination out of the caches.
    ///
    /// On targets other than x86-64 this is the same as [`Store::Plain`]. AArch64 has only a hint
    /// (`STNP`) which its cores are free to ignore and whose effect was not measured for this crate, and
    /// the platform's `memcpy` there already avoids the read-for-ownership by write-streaming detection.
    Streaming,
}

impl Store {
    /// The store kinds that differ on this processor, for measurements.
    #[must_use]
    pub fn available() -> &'static [Self] {
        #[cfg(target_arch = "x86_64")]
        if x86_64::has_fast_rep() {
            return &[Self::Plain, Self::Rep, Self::Streaming];
        }
        if cfg!(target_arch = "x86_64") {
            &[Self::Plain, Self::Streaming]
        } else {
            &[Self::Plain]
        }
    }
}

/// Copies `len` bytes from `src` to `dst`, ranges that do not overlap.
///
/// Streaming stores are ordered before everything that this thread stores afterwards: the kernel ends
/// with a store fence, so publishing completion by a release store is enough for other threads to see
/// the bytes.
///
/// # Safety
/// `src` is valid for reads of `len` bytes, `dst` for writes of `len` bytes, the ranges do not overlap,
/// and nothing else writes either range (or reads `dst`) until the call returns.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, store: Store) {
    match store {
        #[cfg(target_arch = "x86_64")]
        Store::Streaming => {
            // SAFETY: the caller's contract is the callee's contract.
            unsafe { x86_64::copy_streaming(dst, src, len) }
        }
        #[cfg(target_arch = "x86_64")]
        Store::Rep => {
            // SAFETY: the caller's contract is the callee's contract.
            unsafe { x86_64::copy_rep(dst, src, len) }
        }
        #[cfg(target_arch = "x86_64")]
        Store::Plain => {
            // SAFETY: the caller's contract is the callee's contract.
            unsafe { x86_64::copy_cached(dst, src, len) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        _ => {
            // SAFETY: the caller's contract is the callee's contract.
            unsafe { plain::copy_plain(dst, src, len) }
        }
    }
}

#[cfg(test)]
mod tests;
