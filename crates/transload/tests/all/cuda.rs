//! Whole transfers to, from and between CUDA devices, over the driver's double.
#![cfg(all(target_os = "linux", not(any(loom, transload_local))))]

mod adapters;
mod blocks;
mod callbacks;
mod every_way;
mod exchange;
mod machine;
mod managed;
mod page_tables;
// Starts the other process of a test, as the double's own tests do.
#[path = "../../../../doubles/cuda-driver/tests/all/common/process.rs"]
#[allow(dead_code, reason = "no test uses all of it")]
mod process;
mod registered;
mod slots;
mod trouble;
mod unheard;
mod verdicts;
mod ways;
