//! CUDA for Transload.
//!
//! What is here so far is [`raw`]: the driver's functions as a table that is filled at run time, from
//! the driver's library or from functions written in Rust. Nothing needs NVIDIA's toolkit to build, and
//! a machine without a driver has an empty table with a reason. The backend itself is not here yet.

