//! Memory and semaphores of other interfaces: Vulkan, Direct3D.
#![allow(non_snake_case, reason = "fields have the names of the header")]

use core::ffi::{c_int, c_void};
use core::fmt;

use super::words::words;

words! {
    /// The kinds of handles of memory.
    CUexternalMemoryHandleType: u32 {
        /// A file descriptor. CUDA owns it once it took it.
        CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1,
        /// A shared NT handle.
        CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32 = 2,
        /// A global handle of the display driver.
        CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32_KMT = 3,
        /// A heap of Direct3D 12.
        CU_EXTERNAL_MEMORY_HANDLE_TYPE_D3D12_HEAP = 4,
        /// A committed resource of Direct3D 12.
        CU_EXTERNAL_MEMORY_HANDLE_TYPE_D3D12_RESOURCE = 5,
        /// A dma-buf, since CUDA 13.
        CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD = 9,
    }
}

words! {
    /// The kinds of handles of semaphores.
    CUexternalSemaphoreHandleType: u32 {
        /// A file descriptor of a binary semaphore.
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD = 1,
        /// A shared NT handle of one.
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32 = 2,
        /// A fence of Direct3D 12.
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_D3D12_FENCE = 4,
        /// A file descriptor of a timeline semaphore.
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD = 9,
        /// A shared NT handle of one.
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_WIN32 = 10,
    }
}

/// The memory has one buffer or image, which it was allocated for.
pub const CUDA_EXTERNAL_MEMORY_DEDICATED: u32 = 1;

/// A handle of Windows, by itself or by name.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Win32Handle {
    /// The handle.
    pub handle: *mut c_void,
    /// The name, UTF-16 with a zero at its end.
    pub name: *const c_void,
}

/// The handle, by its type.
#[derive(Clone, Copy)]
#[repr(C)]
pub union ExternalHandle {
    /// A file descriptor.
    pub fd: c_int,
    /// A handle of Windows.
    pub win32: Win32Handle,
    /// An object of NvSci.
    pub nvSciObject: *const c_void,
}

impl fmt::Debug for ExternalHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExternalHandle")
    }
}

/// Memory to take in.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    /// The kind of the handle.
    pub type_: CUexternalMemoryHandleType,
    /// The handle.
    pub handle: ExternalHandle,
    /// The size of the allocation in bytes, not of a buffer in it.
    pub size: u64,
    /// 0, or [`CUDA_EXTERNAL_MEMORY_DEDICATED`].
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 16],
}

/// A range of such memory that is to have addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub size: u64,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 16],
}

/// A semaphore to take in.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
    /// The kind of the handle.
    pub type_: CUexternalSemaphoreHandleType,
    /// The handle.
    pub handle: ExternalHandle,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 16],
}

/// The value of a fence or of a timeline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct FenceValue {
    /// To set, or to wait for.
    pub value: u64,
}

/// How a keyed mutex is let go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct KeyedMutexSignal {
    /// The key that it is let go with.
    pub key: u64,
}

/// How a keyed mutex is taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct KeyedMutexWait {
    /// The key that it is taken with.
    pub key: u64,
    /// How long, in milliseconds.
    pub timeout_ms: u32,
}

/// How a semaphore is signalled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
    /// Of a fence or a timeline.
    pub fence: FenceValue,
    /// Of an object of NvSci; zero.
    pub nvSciSync: u64,
    /// Of a keyed mutex.
    pub keyedMutex: KeyedMutexSignal,
    /// Zero.
    pub reserved0: [u32; 12],
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 16],
}

/// How a semaphore is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
    /// Of a fence or a timeline.
    pub fence: FenceValue,
    /// Of an object of NvSci; zero.
    pub nvSciSync: u64,
    /// Of a keyed mutex.
    pub keyedMutex: KeyedMutexWait,
    /// Zero.
    pub reserved0: [u32; 10],
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 16],
}
