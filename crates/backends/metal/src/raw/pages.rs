//! The pages of host memory.

/// How many bytes a page has: 16 KiB on Apple's processors, 4 KiB on Intel's.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}
