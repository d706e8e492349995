//! The driver's calls, made safe: the only unsafe code of this program.
//!
//! - [`gpu`]: a device with its primary context current on this thread.
//! - [`memory`]: memory of every sort, which is given back when it is dropped.
//! - [`work`]: calls that move bytes. Each returns when nothing is under way any more.
//! - [`facts`]: what the driver says of itself and of its devices.
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
