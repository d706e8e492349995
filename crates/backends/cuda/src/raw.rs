//! The CUDA driver API: types, constants, and functions found at run time.
//!
//! Names are NVIDIA's, so that the [CUDA Driver API
//! reference](https://docs.nvidia.com/cuda/cuda-driver-api/) is the documentation of everything here. The
//! comments here have only the facts that readers of this code need. Functions carry the name that the
//! library exports (`cuMemAlloc_v2`); if one function has two signatures, both are here
//! (`cuMemPrefetchAsync` and `cuMemPrefetchAsync_v2`).
//!
//! ```no_run
//! use transload_cuda::raw::{Driver, LoadError};
//!
//! let driver = Driver::load()?;
//! // SAFETY: flags are zero, as the function demands.
//! match unsafe { driver.cuInit(0) } {
//!     Ok(()) => println!("CUDA {}", driver.version()),
//!     Err(error) => println!("{error}"),
//! }
//! # Ok::<(), LoadError>(())
//! ```
//!
//! Enumerations are numbers with names, not Rust enums: a newer driver may return a number that is unknown
//! here, and in a Rust enum that would be undefined behaviour.

mod attribute;
mod copy;
mod driver;
mod external;
mod functions;
mod handle;
mod ipc;
mod library;
mod managed;
mod pointer;
mod pool;
mod result;
mod stream;
mod table;
mod version;
mod vmm;
mod words;

pub use attribute::{CUcomputemode, CUdevice_P2PAttribute, CUdevice_attribute, CUuuid};
pub use copy::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER, CUmemcpyAttributes, CUmemcpyFlags, CUmemcpySrcAccessOrder,
    CUmemorytype,
};
pub use driver::{CallError, Driver, Source};
pub use external::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_DEDICATED,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC,
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, ExternalHandle,
    FenceValue, KeyedMutexSignal, KeyedMutexWait, Win32Handle,
};
pub use external::{CUexternalMemoryHandleType, CUexternalSemaphoreHandleType};
pub use handle::{
    CUarray, CUcontext, CUdevice, CUdeviceptr, CUevent, CUexternalMemory, CUexternalSemaphore,
    CUgraph, CUmemGenericAllocationHandle, CUmemoryPool, CUstream,
};
pub use ipc::{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUipcEventHandle, CUipcMemHandle};
pub use library::{DRIVER_VARIABLE, LoadError};
pub use managed::{CUmem_advise, CUmem_range_attribute, CUmemAttach_flags, CUmemLocation};
pub use managed::{CUmemLocalized, CUmemLocationType};
pub use pointer::{CUDA_POINTER_ATTRIBUTE_P2P_TOKENS, CUpointer_attribute};
pub use pool::{CUmemPool_attribute, CUmemPoolProps, CUmemPoolPtrExportData};
pub use result::CUresult;
pub use stream::{
    CUctx_flags, CUdriverProcAddress_flags, CUdriverProcAddressQueryResult, CUevent_flags,
    CUhostFn, CUstream_flags, CUstreamCallback, CUstreamCaptureMode, CUstreamCaptureStatus,
};
pub use table::{Function, Table};
pub use version::Version;
pub use vmm::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationPropFlags, CUmemAllocationType,
    CUmemRangeHandleType,
};
pub use words::{CU_MEMHOSTALLOC, CU_MEMHOSTREGISTER};
