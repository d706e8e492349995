//! Attributes of devices.

use super::words::words;

/// A device's UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct CUuuid {
    /// The bytes, in the order in which they are written.
    pub bytes: [u8; 16],
}

words! {
    /// The processes that may have a context on a device.
    CUcomputemode: u32 {
        /// Any process.
        CU_COMPUTEMODE_DEFAULT = 0,
        /// No process.
        CU_COMPUTEMODE_PROHIBITED = 2,
        /// One process at a time.
        CU_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
    }
}

words! {
    /// The attributes of `cuDeviceGetAttribute`. Only those on which moving bytes depends.
    CUdevice_attribute: u32 {
        /// The largest pitch of a copy, in bytes.
        CU_DEVICE_ATTRIBUTE_MAX_PITCH = 11,
        /// Where textures may start, in bytes; pitches that the driver chooses are multiples of it.
        CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT = 14,
        /// How many multiprocessors it has.
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
        /// Whether it shares the host's memory.
        CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
        /// Whether it reaches mapped host memory.
        CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19,
        /// A [`CUcomputemode`].
        CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
        /// The PCI bus.
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
        /// The PCI device, on its bus.
        CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
        /// Whether the Windows driver is the one without a display.
        CU_DEVICE_ATTRIBUTE_TCC_DRIVER = 35,
        /// How many copy engines it has that work beside kernels.
        CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
        /// Whether device and host share one address space.
        CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
        /// The PCI domain.
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
        /// Its generation: 9 of 9.0.
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
        /// 0 of 9.0.
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
        /// Whether streams have priorities.
        CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED = 78,
        /// Whether it has managed memory.
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
        /// Whether it reaches pageable memory that is not registered (HMM, ATS).
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
        /// Whether host and device may use managed memory at the same time.
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
        /// Whether registered host memory has the same address on the device.
        CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
        /// Whether host memory can be registered.
        CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
        /// Whether it walks the host's page tables for pageable memory.
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100,
        /// Whether the host reaches managed memory on the device in place.
        CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST = 101,
        /// Whether addresses and memory can be had apart (`cuMemCreate`, `cuMemMap`).
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
        /// Whether such memory can be given out as a file descriptor.
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
        /// Whether it can be given out as a Windows handle.
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED = 104,
        /// Whether `cuMemCreate` takes the flag for GPUDirect RDMA.
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
        /// Whether host memory can be registered for reading alone.
        CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113,
        /// Whether it takes timeline semaphores of other interfaces.
        CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED = 114,
        /// Whether memory can be allocated in stream order.
        CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
        /// Whether other PCI devices reach its memory.
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
        /// Which handles pools can be given out as; bits of `CUmemAllocationHandleType`.
        CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES = 119,
        /// Whether its memory can be given out as a dma-buf.
        CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
        /// Whether events can be shared between processes.
        CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125,
        /// Whether memory can be given out to other machines on an NVLink fabric.
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
        /// Whether the GPU's memory is a NUMA node.
        CU_DEVICE_ATTRIBUTE_NUMA_CONFIG = 130,
        /// The NUMA node of its memory.
        CU_DEVICE_ATTRIBUTE_NUMA_ID = 131,
        /// The NUMA node of the host that is nearest; -1 where there is none.
        CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,
    }
}

words! {
    /// The attributes of `cuDeviceGetP2PAttribute`.
    CUdevice_P2PAttribute: u32 {
        /// How fast, compared with other pairs.
        CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK = 1,
        /// Whether one reaches the other's memory.
        CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED = 2,
        /// Whether the link has all atomics.
        CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 3,
        /// Whether arrays can be reached.
        CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED = 4,
        /// Whether the link has some atomics and not all. Since CUDA 13.0.
        CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED = 5,
    }
}
