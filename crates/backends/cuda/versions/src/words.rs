//! Every number with a name is the one that cudarc gives that name.

use std::collections::BTreeSet;

use cudarc::driver::sys;
use transload_cuda::raw;

use crate::{Absent, none};

#[test]
fn every_name_has_the_number_that_cudarc_gives_it() {
    let mut complaints = Vec::new();
    for word in kinds()
        .into_iter()
        .flat_map(|kind| kind.words)
        .chain(plain())
    {
        if word.theirs.is_some_and(|theirs| theirs != word.ours) {
            complaints.push(format!(
                "{} is {}, in cudarc {:?}",
                word.name, word.ours, word.theirs
            ));
        }
    }
    none(&complaints);
}

/// Earlier versions lack some, and that is no fault.
#[cfg(feature = "from-13040")]
#[test]
fn the_newest_version_has_every_name() {
    let words = kinds()
        .into_iter()
        .flat_map(|kind| kind.words)
        .chain(plain());
    let lacking = words.filter(|word| word.theirs.is_none());
    let names: Vec<String> = lacking.map(|word| word.name.to_owned()).collect();
    none(&names);
}

#[test]
fn no_name_of_the_binding_is_left_out() {
    let mut complaints = Vec::new();
    for kind in kinds() {
        let compared: BTreeSet<&str> = kind.words.iter().map(|word| word.name).collect();
        let named = (0..4096).filter_map(kind.name_of);
        let left_out = named.filter(|name| !compared.contains(name));
        complaints.extend(left_out.map(|name| format!("{name} of {}", kind.name)));
    }
    none(&complaints);
}

/// The names of the types that are compared here.
pub(crate) fn names() -> BTreeSet<&'static str> {
    kinds().into_iter().map(|kind| kind.name).collect()
}

/// A type of numbers with names.
struct Kind {
    name: &'static str,
    words: Vec<Word>,
    /// The binding's name of a number.
    name_of: fn(u32) -> Option<&'static str>,
}

/// One name, with its number here and, where cudarc has the name in this version, there.
struct Word {
    name: &'static str,
    ours: u64,
    theirs: Option<u64>,
}

/// A value of cudarc's, or what stands in for one.
trait Number {
    fn number(self) -> Option<u64>;
}

impl Number for Absent {
    fn number(self) -> Option<u64> {
        None
    }
}

impl Number for u32 {
    fn number(self) -> Option<u64> {
        Some(self.into())
    }
}

macro_rules! kinds {
    ($( $(#[$cfg:meta])* $ours:ident: $theirs:ident { $($name:ident)* } )*) => {
        $(
            $(#[$cfg])*
            impl Number for sys::$theirs {
                fn number(self) -> Option<u64> {
                    Some(self as u64)
                }
            }
        )*

        fn kinds() -> Vec<Kind> {
            let mut kinds = vec![handle_types()];
            $(
                $(#[$cfg])*
                {
                    mod absent {
                        $(
                            #[allow(dead_code, reason = "this version has a word of its own of that name")]
                            pub(super) const $name: crate::Absent = crate::Absent;
                        )*
                    }
                    #[allow(unused_imports, reason = "the newest version lacks nothing")]
                    use absent::*;
                    let words = {
                        // In this scope cudarc's names go before those of the stand-ins.
                        use sys::$theirs::*;
                        vec![$( Word {
                            name: stringify!($name),
                            ours: raw::$ours::$name.0.into(),
                            theirs: $name.number().or_else(|| second_name(stringify!($name))),
                        } ),*]
                    };
                    kinds.push(Kind {
                        name: stringify!($ours),
                        words,
                        name_of: |number| raw::$ours(number.into()).name(),
                    });
                }
            )*
            kinds
        }
    };
}

/// Second names of a number, which are no variants in cudarc.
fn second_name(name: &str) -> Option<u64> {
    macro_rules! number {
        ($($kind:ident::$name:ident)*) => {
            match name {
                $( stringify!($name) => Some(sys::$kind::$name as u64), )*
                _ => None,
            }
        };
    }
    number!(
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED
    )
}

/// The one type whose names are no variants in cudarc.
fn handle_types() -> Kind {
    use raw::CUmemAllocationHandleType as Ours;
    use sys::CUmemAllocationHandleType as Theirs;
    let word = |name, ours: Ours, theirs: Option<Theirs>| Word {
        name,
        ours: ours.0.into(),
        theirs: theirs.map(|theirs| theirs.0.into()),
    };
    macro_rules! word {
        ($name:ident) => {
            word(stringify!($name), Ours::$name, Some(Theirs::$name))
        };
    }
    Kind {
        name: "CUmemAllocationHandleType",
        words: vec![
            word!(CU_MEM_HANDLE_TYPE_NONE),
            word!(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            word!(CU_MEM_HANDLE_TYPE_WIN32),
            word!(CU_MEM_HANDLE_TYPE_WIN32_KMT),
            #[cfg(feature = "from-12030")]
            word!(CU_MEM_HANDLE_TYPE_FABRIC),
            #[cfg(not(feature = "from-12030"))]
            word(
                "CU_MEM_HANDLE_TYPE_FABRIC",
                Ours::CU_MEM_HANDLE_TYPE_FABRIC,
                None,
            ),
        ],
        name_of: |number| Ours(number).name(),
    }
}

/// Numbers that are of no type.
fn plain() -> Vec<Word> {
    let word = |name, ours: u32, theirs: u32| Word {
        name,
        ours: ours.into(),
        theirs: Some(theirs.into()),
    };
    macro_rules! word {
        ($theirs:ident, $ours:expr) => {
            word(stringify!($theirs), $ours, sys::$theirs)
        };
    }
    vec![
        word!(CU_MEMHOSTALLOC_PORTABLE, raw::CU_MEMHOSTALLOC::PORTABLE),
        word!(CU_MEMHOSTALLOC_DEVICEMAP, raw::CU_MEMHOSTALLOC::DEVICEMAP),
        word!(
            CU_MEMHOSTALLOC_WRITECOMBINED,
            raw::CU_MEMHOSTALLOC::WRITECOMBINED
        ),
        word!(
            CU_MEMHOSTREGISTER_PORTABLE,
            raw::CU_MEMHOSTREGISTER::PORTABLE
        ),
        word!(
            CU_MEMHOSTREGISTER_DEVICEMAP,
            raw::CU_MEMHOSTREGISTER::DEVICEMAP
        ),
        word!(
            CU_MEMHOSTREGISTER_IOMEMORY,
            raw::CU_MEMHOSTREGISTER::IOMEMORY
        ),
        word!(
            CU_MEMHOSTREGISTER_READ_ONLY,
            raw::CU_MEMHOSTREGISTER::READ_ONLY
        ),
        word!(
            CUDA_EXTERNAL_MEMORY_DEDICATED,
            raw::CUDA_EXTERNAL_MEMORY_DEDICATED
        ),
        word(
            "CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS",
            raw::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
            sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32,
        ),
    ]
}

kinds! {
    CUresult: cudaError_enum {
        CUDA_SUCCESS CUDA_ERROR_INVALID_VALUE CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_NOT_INITIALIZED
        CUDA_ERROR_DEINITIALIZED CUDA_ERROR_PROFILER_DISABLED CUDA_ERROR_PROFILER_NOT_INITIALIZED
        CUDA_ERROR_PROFILER_ALREADY_STARTED CUDA_ERROR_PROFILER_ALREADY_STOPPED CUDA_ERROR_STUB_LIBRARY
        CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER CUDA_ERROR_DEVICE_UNAVAILABLE
        CUDA_ERROR_MULTICAST_RESOURCE_FULL CUDA_ERROR_NO_DEVICE CUDA_ERROR_INVALID_DEVICE
        CUDA_ERROR_DEVICE_NOT_LICENSED CUDA_ERROR_INVALID_IMAGE CUDA_ERROR_INVALID_CONTEXT
        CUDA_ERROR_CONTEXT_ALREADY_CURRENT CUDA_ERROR_MAP_FAILED CUDA_ERROR_UNMAP_FAILED
        CUDA_ERROR_ARRAY_IS_MAPPED CUDA_ERROR_ALREADY_MAPPED CUDA_ERROR_NO_BINARY_FOR_GPU
        CUDA_ERROR_ALREADY_ACQUIRED CUDA_ERROR_NOT_MAPPED CUDA_ERROR_NOT_MAPPED_AS_ARRAY
        CUDA_ERROR_NOT_MAPPED_AS_POINTER CUDA_ERROR_ECC_UNCORRECTABLE CUDA_ERROR_UNSUPPORTED_LIMIT
        CUDA_ERROR_CONTEXT_ALREADY_IN_USE CUDA_ERROR_PEER_ACCESS_UNSUPPORTED CUDA_ERROR_INVALID_PTX
        CUDA_ERROR_INVALID_GRAPHICS_CONTEXT CUDA_ERROR_NVLINK_UNCORRECTABLE
        CUDA_ERROR_JIT_COMPILER_NOT_FOUND CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        CUDA_ERROR_JIT_COMPILATION_DISABLED CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
        CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC CUDA_ERROR_CONTAINED CUDA_ERROR_INSUFFICIENT_LOADER_VERSION
        CUDA_ERROR_INVALID_SOURCE CUDA_ERROR_FILE_NOT_FOUND CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND
        CUDA_ERROR_SHARED_OBJECT_INIT_FAILED CUDA_ERROR_OPERATING_SYSTEM CUDA_ERROR_INVALID_HANDLE
        CUDA_ERROR_ILLEGAL_STATE CUDA_ERROR_LOSSY_QUERY CUDA_ERROR_NOT_FOUND CUDA_ERROR_NOT_READY
        CUDA_ERROR_ILLEGAL_ADDRESS CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES CUDA_ERROR_LAUNCH_TIMEOUT
        CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
        CUDA_ERROR_PEER_ACCESS_NOT_ENABLED CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE CUDA_ERROR_CONTEXT_IS_DESTROYED
        CUDA_ERROR_ASSERT CUDA_ERROR_TOO_MANY_PEERS CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED CUDA_ERROR_HARDWARE_STACK_ERROR CUDA_ERROR_ILLEGAL_INSTRUCTION
        CUDA_ERROR_MISALIGNED_ADDRESS CUDA_ERROR_INVALID_ADDRESS_SPACE CUDA_ERROR_INVALID_PC
        CUDA_ERROR_LAUNCH_FAILED CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE CUDA_ERROR_TENSOR_MEMORY_LEAK
        CUDA_ERROR_NOT_PERMITTED CUDA_ERROR_NOT_SUPPORTED CUDA_ERROR_SYSTEM_NOT_READY
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
        CUDA_ERROR_MPS_CONNECTION_FAILED CUDA_ERROR_MPS_RPC_FAILURE CUDA_ERROR_MPS_SERVER_NOT_READY
        CUDA_ERROR_MPS_MAX_CLIENTS_REACHED CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED
        CUDA_ERROR_MPS_CLIENT_TERMINATED CUDA_ERROR_CDP_NOT_SUPPORTED CUDA_ERROR_CDP_VERSION_MISMATCH
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        CUDA_ERROR_STREAM_CAPTURE_MERGE CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT CUDA_ERROR_CAPTURED_EVENT CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        CUDA_ERROR_TIMEOUT CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE CUDA_ERROR_EXTERNAL_DEVICE
        CUDA_ERROR_INVALID_CLUSTER_SIZE CUDA_ERROR_FUNCTION_NOT_LOADED CUDA_ERROR_INVALID_RESOURCE_TYPE
        CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION CUDA_ERROR_KEY_ROTATION CUDA_ERROR_STREAM_DETACHED
        CUDA_ERROR_GRAPH_RECAPTURE_FAILURE CUDA_ERROR_FABRIC_NOT_READY CUDA_ERROR_UNKNOWN
    }
    CUcomputemode: CUcomputemode {
        CU_COMPUTEMODE_DEFAULT CU_COMPUTEMODE_PROHIBITED CU_COMPUTEMODE_EXCLUSIVE_PROCESS
    }
    CUdevice_attribute: CUdevice_attribute {
        CU_DEVICE_ATTRIBUTE_MAX_PITCH CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT CU_DEVICE_ATTRIBUTE_INTEGRATED
        CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID CU_DEVICE_ATTRIBUTE_TCC_DRIVER
        CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
        CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
        CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES
        CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED CU_DEVICE_ATTRIBUTE_NUMA_CONFIG
        CU_DEVICE_ATTRIBUTE_NUMA_ID CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
    }
    CUdevice_P2PAttribute: CUdevice_P2PAttribute {
        CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
        CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED
        CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED
    }
    CUmemorytype: CUmemorytype {
        CU_MEMORYTYPE_HOST CU_MEMORYTYPE_DEVICE CU_MEMORYTYPE_ARRAY CU_MEMORYTYPE_UNIFIED
    }
    #[cfg(feature = "from-12080")]
    CUmemcpySrcAccessOrder: CUmemcpySrcAccessOrder {
        CU_MEMCPY_SRC_ACCESS_ORDER_STREAM CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL
        CU_MEMCPY_SRC_ACCESS_ORDER_ANY
    }
    #[cfg(feature = "from-12080")]
    CUmemcpyFlags: CUmemcpyFlags {
        CU_MEMCPY_FLAG_DEFAULT CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE
    }
    CUexternalMemoryHandleType: CUexternalMemoryHandleType {
        CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32
        CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32_KMT CU_EXTERNAL_MEMORY_HANDLE_TYPE_D3D12_HEAP
        CU_EXTERNAL_MEMORY_HANDLE_TYPE_D3D12_RESOURCE CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD
    }
    CUexternalSemaphoreHandleType: CUexternalSemaphoreHandleType {
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_D3D12_FENCE
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD
        CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_WIN32
    }
    CUmemLocationType: CUmemLocationType {
        CU_MEM_LOCATION_TYPE_INVALID CU_MEM_LOCATION_TYPE_DEVICE CU_MEM_LOCATION_TYPE_HOST
        CU_MEM_LOCATION_TYPE_HOST_NUMA CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
    }
    CUmemAttach_flags: CUmemAttach_flags {
        CU_MEM_ATTACH_GLOBAL CU_MEM_ATTACH_HOST CU_MEM_ATTACH_SINGLE
    }
    CUmem_advise: CUmem_advise {
        CU_MEM_ADVISE_SET_READ_MOSTLY CU_MEM_ADVISE_UNSET_READ_MOSTLY CU_MEM_ADVISE_SET_PREFERRED_LOCATION
        CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION CU_MEM_ADVISE_SET_ACCESSED_BY CU_MEM_ADVISE_UNSET_ACCESSED_BY
    }
    CUmem_range_attribute: CUmem_range_attribute {
        CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION
        CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
    }
    CUpointer_attribute: CUpointer_attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT CU_POINTER_ATTRIBUTE_MEMORY_TYPE CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        CU_POINTER_ATTRIBUTE_HOST_POINTER CU_POINTER_ATTRIBUTE_P2P_TOKENS CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        CU_POINTER_ATTRIBUTE_BUFFER_ID CU_POINTER_ATTRIBUTE_IS_MANAGED CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        CU_POINTER_ATTRIBUTE_RANGE_SIZE CU_POINTER_ATTRIBUTE_MAPPED
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
        CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID
    }
    CUmemPool_attribute: CUmemPool_attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT CU_MEMPOOL_ATTR_USED_MEM_HIGH
    }
    CUstream_flags: CUstream_flags {
        CU_STREAM_DEFAULT CU_STREAM_NON_BLOCKING
    }
    CUevent_flags: CUevent_flags {
        CU_EVENT_DEFAULT CU_EVENT_BLOCKING_SYNC CU_EVENT_DISABLE_TIMING CU_EVENT_INTERPROCESS
    }
    CUctx_flags: CUctx_flags {
        CU_CTX_SCHED_AUTO CU_CTX_SCHED_SPIN CU_CTX_SCHED_YIELD CU_CTX_SCHED_BLOCKING_SYNC
        CU_CTX_SYNC_MEMOPS
    }
    CUstreamCaptureStatus: CUstreamCaptureStatus {
        CU_STREAM_CAPTURE_STATUS_NONE CU_STREAM_CAPTURE_STATUS_ACTIVE CU_STREAM_CAPTURE_STATUS_INVALIDATED
    }
    CUstreamCaptureMode: CUstreamCaptureMode {
        CU_STREAM_CAPTURE_MODE_GLOBAL CU_STREAM_CAPTURE_MODE_THREAD_LOCAL CU_STREAM_CAPTURE_MODE_RELAXED
    }
    CUdriverProcAddress_flags: CUdriverProcAddress_flags {
        CU_GET_PROC_ADDRESS_DEFAULT CU_GET_PROC_ADDRESS_LEGACY_STREAM
        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
    }
    #[cfg(feature = "from-12000")]
    CUdriverProcAddressQueryResult: CUdriverProcAddressQueryResult {
        CU_GET_PROC_ADDRESS_SUCCESS CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
        CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
    }
    CUmemAllocationType: CUmemAllocationType {
        CU_MEM_ALLOCATION_TYPE_INVALID CU_MEM_ALLOCATION_TYPE_PINNED CU_MEM_ALLOCATION_TYPE_MANAGED
    }
    CUmemAccess_flags: CUmemAccess_flags {
        CU_MEM_ACCESS_FLAGS_PROT_NONE CU_MEM_ACCESS_FLAGS_PROT_READ CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    }
    CUmemAllocationGranularity_flags: CUmemAllocationGranularity_flags {
        CU_MEM_ALLOC_GRANULARITY_MINIMUM CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    }
    #[cfg(feature = "from-11070")]
    CUmemRangeHandleType: CUmemRangeHandleType {
        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
    }
}
