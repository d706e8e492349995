//! A stand-in for NVIDIA's CUDA driver library, over host memory, for tests. It is no driver: nothing
//! runs on a GPU, and every rate and latency is modelled.

pub mod engine;
pub mod machine;
