//! Addresses and memory apart.
#![allow(non_snake_case, reason = "fields have the names of the header")]

use core::ffi::c_void;

use super::CUmemLocation;
use super::words::words;

words! {
    /// The kind of memory.
    CUmemAllocationType: u32 {
        /// None.
        CU_MEM_ALLOCATION_TYPE_INVALID = 0,
        /// It stays where it is.
        CU_MEM_ALLOCATION_TYPE_PINNED = 1,
        /// It goes where it is used.
        CU_MEM_ALLOCATION_TYPE_MANAGED = 2,
    }
}

words! {
    /// Which handles memory can be given out as; bits.
    CUmemAllocationHandleType: u32 {
        /// None.
        CU_MEM_HANDLE_TYPE_NONE = 0,
        /// A file descriptor, an `i32`.
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
        /// A handle of Windows.
        CU_MEM_HANDLE_TYPE_WIN32 = 2,
        /// A global handle of the Windows display driver.
        CU_MEM_HANDLE_TYPE_WIN32_KMT = 4,
        /// A handle for other machines on an NVLink fabric.
        CU_MEM_HANDLE_TYPE_FABRIC = 8,
    }
}

words! {
    /// A device's access to mapped memory.
    CUmemAccess_flags: u32 {
        /// Nothing.
        CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
        /// Read.
        CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
        /// Read and write.
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    }
}

words! {
    /// Which granularity is asked for.
    CUmemAllocationGranularity_flags: u32 {
        /// The least that works.
        CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
        /// The one that works best.
        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
    }
}

words! {
    /// The kinds of handles of a range of addresses.
    CUmemRangeHandleType: u32 {
        /// A dma-buf, an `i32`.
        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1,
    }
}

/// The properties of a piece of memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CUmemAllocationProp {
    /// Pinned.
    pub type_: CUmemAllocationType,
    /// Which handles it may be given out as.
    pub requestedHandleTypes: CUmemAllocationHandleType,
    /// Where.
    pub location: CUmemLocation,
    /// Attributes of a Windows handle; null elsewhere.
    pub win32HandleMetaData: *mut c_void,
    /// Further wishes.
    pub allocFlags: CUmemAllocationPropFlags,
}

/// Further wishes of a [`CUmemAllocationProp`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct CUmemAllocationPropFlags {
    /// 1 for memory that the device may compress.
    pub compressionType: u8,
    /// 1 for memory that other PCI devices reach.
    pub gpuDirectRDMACapable: u8,
    /// How it will be used.
    pub usage: u16,
    /// Zero.
    pub reserved: [u8; 4],
}

/// The access of one location to mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct CUmemAccessDesc {
    /// The location.
    pub location: CUmemLocation,
    /// Its access.
    pub flags: CUmemAccess_flags,
}
