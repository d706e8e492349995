//! The only unsafe code of the benchmarks: calls that baselines need and safe Rust does not allow.
//!
//! - [`stream`]: copies past the caches, one of the ways behind the ceiling. Separate from the library's own kernels,
//!   so that a mistake in those cannot lower the ceiling too.
//! - `adopt`: a manager imports a wgpu buffer; only its owner can promise not to touch it meanwhile.
//! - `driver`: the calls of CUDA that a user would make by hand, over the driver's double.
//! - `map`: files in memory, which only their owner can promise to leave alone.
//! - [`counting`]: the counting allocator, for the promise that transfers allocate nothing.

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
#[cfg(not(any(target_family = "wasm", transload_local)))]
pub(crate) mod map;
pub(crate) mod stream;
