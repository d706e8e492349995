//! Names of things that the driver keeps.

use core::ffi::c_void;
use core::fmt;
use core::ptr;

use super::words::words;

words! {
    /// A device, by its ordinal.
    CUdevice: i32 {
        /// The host, where a location may be either.
        CU_DEVICE_CPU = -1,
        /// No device.
        CU_DEVICE_INVALID = -2,
    }
}

/// An address that devices use. Under unified addressing no two memories share one, the host's included.
pub type CUdeviceptr = u64;

/// A piece of physical memory of `cuMemCreate`.
pub type CUmemGenericAllocationHandle = u64;

macro_rules! handles {
    ($( $(#[$doc:meta])* $type:ident; )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $type(pub *mut c_void);

        impl $type {
            /// No handle; of a stream, the default one.
            pub const NULL: $type = $type(ptr::null_mut());

            /// Whether this is no handle.
            #[must_use]
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        impl Default for $type {
            fn default() -> $type {
                $type::NULL
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:p})", stringify!($type), self.0)
            }
        }

        // SAFETY: a handle is a name that is only ever given back to the driver, whose functions may be
        // called from any thread (CUDA C++ Programming Guide, Driver API, Context).
        unsafe impl Send for $type {}
        // SAFETY: as above.
        unsafe impl Sync for $type {}
    )* };
}

handles! {
    /// A process's state on a device: its memory, streams and errors.
    CUcontext;
    /// An ordered queue of work.
    CUstream;
    /// A point in a stream.
    CUevent;
    /// Work that was captured, to be launched again and again. Transload makes none.
    CUgraph;
    /// An opaque array for textures. Transload makes none.
    CUarray;
    /// A pool of memory that is allocated and freed in stream order.
    CUmemoryPool;
    /// Memory of another interface.
    CUexternalMemory;
    /// A semaphore of another interface.
    CUexternalSemaphore;
}

impl CUstream {
    /// The default stream that waits for all blocking streams of its context, and they for it.
    pub const LEGACY: CUstream = CUstream(ptr::without_provenance_mut(1));
    /// The default stream of the calling thread.
    pub const PER_THREAD: CUstream = CUstream(ptr::without_provenance_mut(2));
}
