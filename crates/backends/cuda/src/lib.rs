//! CUDA for Transload.
//!
//! What is here so far is [`raw`]: the functions of NVIDIA's driver as a table that is filled at run time,
//! from the driver's library or from functions written in Rust. Nothing of NVIDIA's is needed to build, and
//! on a machine without a driver there is a reason instead of a table. The backend that stands on it is not
//! here yet.
#![cfg(not(target_family = "wasm"))]

pub mod raw;
#[cfg(feature = "backend")]
pub mod wires;
