//! A stand-in for NVIDIA's CUDA driver library, over host memory, for tests. It is no driver: no work runs on a GPU,
//! and every rate and latency is modelled.
//!
//! As a library for C it exports the driver's functions under their names. As a library for Rust it provides the same
//! functions as a [`table`], for programs that a sanitizer checks as a whole. Its README lists the modelled parts, with
//! their sources in NVIDIA's documentation, and the limits of the double.
#![allow(unreachable_pub, reason = "what is exported to C is reached by name")]

mod access;
mod answer;
mod batch;
mod bytes;
mod call;
mod capture;
mod config;
mod context;
mod control;
mod copy;
mod device;
mod downgrade;
mod engine;
mod event;
mod external;
mod faults;
mod functions;
mod host;
mod ipc;
mod log;
mod machine;
mod managed;
mod maps;
mod memory;
mod memset;
mod names;
mod numbers;
mod peer;
mod physical;
mod pitched;
mod pointer;
mod pool;
mod registry;
mod semaphore;
mod shared;
mod space;
mod start;
mod state;
mod stream;
mod transfer;
mod vmm;
mod work;

pub use control::{control, transload_double_control};
pub use downgrade::downgrade;
pub use functions::table;

/// The driver's functions, from wherever they are.
pub mod driver {
    pub use crate::batch::*;
    pub use crate::capture::*;
    pub use crate::context::*;
    pub use crate::copy::*;
    pub use crate::device::*;
    pub use crate::event::*;
    pub use crate::external::*;
    pub use crate::functions::*;
    pub use crate::host::*;
    pub use crate::ipc::*;
    pub use crate::managed::*;
    pub use crate::memory::*;
    pub use crate::memset::*;
    pub use crate::peer::*;
    pub use crate::pitched::*;
    pub use crate::pointer::*;
    pub use crate::pool::*;
    pub use crate::semaphore::*;
    pub use crate::start::*;
    pub use crate::stream::*;
    pub use crate::vmm::*;
}
