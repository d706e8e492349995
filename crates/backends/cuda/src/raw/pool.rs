//! Pools that are allocated from in stream order.
#![allow(non_snake_case, reason = "fields have the names of the header")]

use core::ffi::c_void;
use core::ptr;

use super::words::words;
use super::{CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation};

/// The properties of a pool.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemPoolProps {
    /// Pinned.
    pub allocType: CUmemAllocationType,
    /// Which handles it may be given out as.
    pub handleTypes: CUmemAllocationHandleType,
    /// Where its memory is.
    pub location: CUmemLocation,
    /// Security attributes of a Windows handle; null elsewhere.
    pub win32SecurityAttributes: *mut c_void,
    /// Its largest size in bytes, since CUDA 12.2; 0 for the driver's choice.
    pub maxSize: usize,
    /// How it will be used, since CUDA 12.6; 0 for nothing in particular. What follows it stays zero.
    pub usage: u16,
    /// Zero.
    pub reserved: [u8; 54],
}

impl Default for CUmemPoolProps {
    fn default() -> CUmemPoolProps {
        CUmemPoolProps {
            allocType: CUmemAllocationType::default(),
            handleTypes: CUmemAllocationHandleType::default(),
            location: CUmemLocation::default(),
            win32SecurityAttributes: ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

/// Names an allocation of a pool for a process that has the pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct CUmemPoolPtrExportData {
    /// The driver's own.
    pub reserved: [u8; 64],
}

impl Default for CUmemPoolPtrExportData {
    fn default() -> CUmemPoolPtrExportData {
        CUmemPoolPtrExportData { reserved: [0; 64] }
    }
}

words! {
    /// The attributes of a pool. Truth values are `i32`, amounts `u64` in bytes.
    CUmemPool_attribute: u32 {
        /// Whether memory freed in another stream is used again where an event orders the two.
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
        /// Whether it is used again when the free happens to be done.
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
        /// Whether an allocation may be made to wait for a free.
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
        /// How much is kept when nothing is in use.
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
        /// How much it holds.
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
        /// The most that it held since this was set to zero.
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
        /// How much is in use.
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
        /// The most that was in use since this was set to zero.
        CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
    }
}
