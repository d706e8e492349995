//! Whole transfers over every adapter of this machine, and from one driver to another.
#![cfg(not(any(loom, transload_local)))]

mod exhausted;
mod flying;
#[cfg(target_os = "linux")]
mod leaks;
mod loss;
pub(crate) mod machine;
mod model;
mod pairs;
