//! Copies in two and three dimensions, and in batches.
#![allow(non_snake_case, reason = "fields have the names of the header")]

use core::ffi::c_void;
use core::ptr;

use super::words::words;
use super::{CUarray, CUcontext, CUdeviceptr, CUmemLocation};

words! {
    /// Which of its address fields an end of a copy uses.
    CUmemorytype: u32 {
        /// The host's.
        CU_MEMORYTYPE_HOST = 1,
        /// The device's.
        CU_MEMORYTYPE_DEVICE = 2,
        /// The array.
        CU_MEMORYTYPE_ARRAY = 3,
        /// The device's, whatever lies there.
        CU_MEMORYTYPE_UNIFIED = 4,
    }
}

macro_rules! copies {
    ($(
        $(#[$doc:meta])*
        $type:ident { $( $(#[$field_doc:meta])* $field:ident: $field_type:ty = $zero:expr, )* }
    )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $type { $( $(#[$field_doc])* pub $field: $field_type, )* }

        impl Default for $type {
            /// All zero: no end, nothing to copy.
            fn default() -> $type {
                $type { $( $field: $zero, )* }
            }
        }
    )* };
}

copies! {
    /// Rows. Lengths, positions and pitches are in bytes, heights in rows.
    CUDA_MEMCPY2D {
        /// Where a row of the source begins.
        srcXInBytes: usize = 0,
        /// The first row of the source.
        srcY: usize = 0,
        /// Which address the source has.
        srcMemoryType: CUmemorytype = CUmemorytype(0),
        /// The source on the host.
        srcHost: *const c_void = ptr::null(),
        /// The source on a device.
        srcDevice: CUdeviceptr = 0,
        /// The source as an array.
        srcArray: CUarray = CUarray::NULL,
        /// From row to row of the source.
        srcPitch: usize = 0,
        /// Where a row of the destination begins.
        dstXInBytes: usize = 0,
        /// The first row of the destination.
        dstY: usize = 0,
        /// Which address the destination has.
        dstMemoryType: CUmemorytype = CUmemorytype(0),
        /// The destination on the host.
        dstHost: *mut c_void = ptr::null_mut(),
        /// The destination on a device.
        dstDevice: CUdeviceptr = 0,
        /// The destination as an array.
        dstArray: CUarray = CUarray::NULL,
        /// From row to row of the destination.
        dstPitch: usize = 0,
        /// How long a row is.
        WidthInBytes: usize = 0,
        /// How many rows.
        Height: usize = 0,
    }

    /// Planes of rows between contexts. Units as in [`CUDA_MEMCPY2D`].
    CUDA_MEMCPY3D_PEER {
        /// Where a row of the source begins.
        srcXInBytes: usize = 0,
        /// The first row of the source.
        srcY: usize = 0,
        /// The first plane of the source.
        srcZ: usize = 0,
        /// The mipmap level of an array.
        srcLOD: usize = 0,
        /// Which address the source has.
        srcMemoryType: CUmemorytype = CUmemorytype(0),
        /// The source on the host.
        srcHost: *const c_void = ptr::null(),
        /// The source on a device.
        srcDevice: CUdeviceptr = 0,
        /// The source as an array.
        srcArray: CUarray = CUarray::NULL,
        /// The source's context; no meaning for the host's memory.
        srcContext: CUcontext = CUcontext::NULL,
        /// From row to row of the source.
        srcPitch: usize = 0,
        /// Rows from plane to plane of the source.
        srcHeight: usize = 0,
        /// Where a row of the destination begins.
        dstXInBytes: usize = 0,
        /// The first row of the destination.
        dstY: usize = 0,
        /// The first plane of the destination.
        dstZ: usize = 0,
        /// The mipmap level of an array.
        dstLOD: usize = 0,
        /// Which address the destination has.
        dstMemoryType: CUmemorytype = CUmemorytype(0),
        /// The destination on the host.
        dstHost: *mut c_void = ptr::null_mut(),
        /// The destination on a device.
        dstDevice: CUdeviceptr = 0,
        /// The destination as an array.
        dstArray: CUarray = CUarray::NULL,
        /// The destination's context; no meaning for the host's memory.
        dstContext: CUcontext = CUcontext::NULL,
        /// From row to row of the destination.
        dstPitch: usize = 0,
        /// Rows from plane to plane of the destination.
        dstHeight: usize = 0,
        /// How long a row is.
        WidthInBytes: usize = 0,
        /// How many rows.
        Height: usize = 0,
        /// How many planes.
        Depth: usize = 0,
    }
}

words! {
    /// When the source of a copy of a batch may be read.
    CUmemcpySrcAccessOrder: u32 {
        /// In stream order, as of any copy.
        CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
        /// Before the call returns, and not after: for what the caller is about to reuse.
        CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2,
        /// At any time, also before earlier work of the stream: for memory that nothing changes.
        CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3,
    }
}

words! {
    /// Hints for copies of a batch.
    CUmemcpyFlags: u32 {
        /// None.
        CU_MEMCPY_FLAG_DEFAULT = 0,
        /// Beside kernels, if that can be.
        CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1,
    }
}

/// The attributes that copies of a batch share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct CUmemcpyAttributes {
    /// When the source may be read.
    pub srcAccessOrder: CUmemcpySrcAccessOrder,
    /// Where the source is, if it is managed or pageable; a hint.
    pub srcLocHint: CUmemLocation,
    /// Where the destination is.
    pub dstLocHint: CUmemLocation,
    /// Bits of [`CUmemcpyFlags`].
    pub flags: u32,
}
