//! Attributes of addresses.

use super::words::words;

words! {
    /// The attributes of `cuPointerGetAttribute`.
    CUpointer_attribute: u32 {
        /// The context that allocated or registered it.
        CU_POINTER_ATTRIBUTE_CONTEXT = 1,
        /// A [`CUmemorytype`](super::CUmemorytype): host or device.
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
        /// The address for devices.
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
        /// The address for the host.
        CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
        /// Tokens for the kernel's peer interface.
        CU_POINTER_ATTRIBUTE_P2P_TOKENS = 5,
        /// Whether synchronous operations on it always wait for the end. The only one that can be set.
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
        /// A number that no other allocation of the process has had.
        CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
        /// Whether it is managed.
        CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
        /// The device that it was allocated or registered on.
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
        /// Whether `cuIpcGetMemHandle` takes it.
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
        /// Where its allocation starts.
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
        /// How long its allocation is, in bytes.
        CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
        /// Whether memory is mapped there.
        CU_POINTER_ATTRIBUTE_MAPPED = 13,
        /// Which handles its memory can be given out as.
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
        /// Whether GPUDirect RDMA reaches it.
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
        /// How the current context's device may use it.
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
        /// The pool that it came from.
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
        /// How long the mapping is, in bytes.
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
        /// Where the mapping starts.
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
        /// A number that tells physical memories apart.
        CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20,
    }
}

/// Tokens for the kernel's peer interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
#[allow(non_snake_case, reason = "fields have the names of the header")]
pub struct CUDA_POINTER_ATTRIBUTE_P2P_TOKENS {
    /// Of the memory.
    pub p2pToken: u64,
    /// Of the address space.
    pub vaSpaceToken: u32,
}
