//! The CUDA backend of Transload.
//!
//! Each device has its own memory, `device`, and, if it supports that, `managed` memory that the driver moves
//! between device and host. All devices share `cpu:0/pinned`, host memory that is locked in place and mapped:
//! devices read and write it in place, and the host's threads fill and drain it like any memory.
//!
//! Programs use it through the crate `transload`, whose feature `cuda` brings it, or register it with a manager
//! themselves:
//!
//! ```no_run
//! # #[cfg(all(feature = "backend", not(transload_local)))] {
//! use transload_cuda::Cuda;
//!
//! match Cuda::discover() {
//!     Ok(cuda) => println!("{} devices, by the driver of CUDA {}", cuda.len(), cuda.driver().version()),
//!     Err(error) => println!("no CUDA devices: {error}"),
//! }
//! # }
//! ```
//!
//! The driver is loaded when the program runs. Building needs nothing of NVIDIA's. On a machine without a driver,
//! discovery returns an error with the reason. [`raw`] has the driver's functions as a table; without the feature
//! `backend` the crate has nothing else.
//!
//! A device is opened at its first use: the backend then retains its primary context, which it shares with the CUDA
//! runtime and other libraries of the process. The context is current on a thread only during a call of this
//! backend. Completion needs no tick: a thread per stream waits in the driver while operations are under way whose
//! end the engine expects to be told, and is parked otherwise.
#![cfg(not(target_family = "wasm"))]

#[cfg(all(
    feature = "cudarc",
    any(target_os = "linux", windows),
    not(transload_local)
))]
pub mod cudarc;
#[cfg(feature = "backend")]
pub mod interconnect;
pub mod raw;

#[cfg(all(feature = "backend", not(transload_local)))]
mod absent;
#[cfg(all(feature = "backend", not(transload_local)))]
mod capture;
#[cfg(all(feature = "backend", not(transload_local)))]
mod context;
#[cfg(all(feature = "backend", not(transload_local)))]
mod device;
#[cfg(all(feature = "backend", not(transload_local)))]
mod discover;
#[cfg(all(feature = "backend", not(transload_local)))]
mod facts;
#[cfg(all(feature = "backend", not(transload_local)))]
mod fault;
#[cfg(all(feature = "backend", not(transload_local)))]
mod gpu;
#[cfg(all(feature = "backend", not(transload_local)))]
mod ids;
#[cfg(all(feature = "backend", not(transload_local)))]
mod inventory;
#[cfg(all(feature = "backend", not(transload_local)))]
mod memory;
#[cfg(all(feature = "backend", not(transload_local)))]
mod pool;
#[cfg(all(feature = "backend", not(transload_local)))]
mod queue;
#[cfg(all(feature = "backend", not(transload_local)))]
mod reaper;
#[cfg(all(feature = "backend", not(transload_local)))]
mod submit;

#[cfg(all(feature = "backend", not(transload_local)))]
pub use absent::{Absent, AbsentReason};
#[cfg(all(feature = "backend", not(transload_local)))]
pub use device::Cuda;
#[cfg(all(feature = "backend", not(transload_local)))]
pub use discover::OpenError;
#[cfg(all(feature = "backend", not(transload_local)))]
pub use ids::BACKEND;
#[cfg(all(feature = "backend", not(transload_local)))]
pub use queue::StreamError;
