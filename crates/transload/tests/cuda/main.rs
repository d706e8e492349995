//! Whole transfers to, from and between CUDA devices, over the driver's double.
#![cfg(all(target_os = "linux", not(any(loom, transload_local))))]

#[path = "../adapter/mod.rs"]
mod adapter;
mod adapters;
mod machine;
mod managed;
mod page_tables;
mod registered;
mod trouble;
mod verdicts;
mod ways;
