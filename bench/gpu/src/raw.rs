//! Safe wrappers of the driver's calls: the only unsafe code of this program.
//!
//! - [`gpu`]: a device with its primary context current on this thread.
//! - [`memory`]: memory of every sort, which is freed when it is dropped.
//! - [`work`]: calls that move bytes. Each returns when no operation is in flight any more.
//! - [`facts`]: facts that the driver reports about itself and its devices.
//! - [`harness`]: the backend for the conformance suite.

#![allow(
    unsafe_code,
    reason = "baselines are the raw calls that a user would make instead"
)]

pub(crate) mod facts;
pub(crate) mod gpu;
pub(crate) mod harness;
pub(crate) mod memory;
pub(crate) mod work;
