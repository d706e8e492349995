//! The only unsafe code of the benchmarks: calls that baselines need and safe Rust does not allow.
//!
//! - [`stream`]: copies past the caches, half of the ceiling that copies are held against. Written
//!   apart from the library's own kernels, so that a mistake in those cannot lower the ceiling too.
//! - `adopt`: a manager imports a wgpu buffer; only its owner can promise not to touch it meanwhile.
//! - `driver`: the calls of CUDA's that a user would make by hand, over the driver's double.
//! - [`counting`]: the allocator that counts, for the promise that nothing is allocated.

#![allow(
    unsafe_code,
    reason = "baselines are the raw calls that a user would make instead"
)]

#[cfg(not(any(target_family = "wasm", transload_local)))]
pub(crate) mod adopt;
pub(crate) mod counting;
// Only Linux has the double.
#[cfg(all(target_os = "linux", not(transload_local)))]
pub(crate) mod driver;
pub(crate) mod stream;
