//! The host memory backend of Transload: heap, huge pages, files, shared memory.

pub mod caches;
pub mod pool;
pub mod raw;
pub mod tuning;
