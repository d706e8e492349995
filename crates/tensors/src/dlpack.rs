//! Tensors to and from other libraries of the process without a copy: NumPy, PyTorch, JAX, CuPy and others take and give them
//! as [DLPack 1.3](https://dmlc.github.io/dlpack/latest/c_api.html).
//!
//! A producer passes a pointer to a [`DLManagedTensorVersioned`], or to a [`DLManagedTensor`] for consumers that know no version,
//! such as JAX. The consumer calls the structure's `deleter` once, when the last view of the bytes is gone.
//!
//! | memory | exported as | imported from |
//! |---|---|---|
//! | `cpu:0/pageable`, `shared`, `pinned` | `kDLCPU` | `kDLCPU`, `kDLCUDAHost`, as `pageable` |
//! | `cuda:N/device` | `kDLCUDA` | `kDLCUDA` |
//! | `cuda:N/managed` | `kDLCUDAManaged` | `kDLCUDAManaged` |
//! | others | not: copy the tensor to `cpu:0` | not |
//!
//! ```
//! use transload_tensors::transload::{AllocSpec, DeviceId, TransferManager};
//! use transload_tensors::{DType, Tensor};
//!
//! let manager = TransferManager::discover()?;
//! let buffer = manager.allocate(DeviceId::CPU0.into(), AllocSpec::bytes(24))?;
//! let tensor = Tensor::new(&buffer, DType::F32, &[2, 3])?;
//! // For a capsule "dltensor_versioned", whose destructor calls the deleter unless a consumer has renamed the capsule.
//! let managed = tensor.to_dlpack()?;
//! // SAFETY: the structure is the one that was exported, and no other code has it.
//! let again = unsafe { Tensor::from_dlpack(&manager, managed) }?;
//! assert_eq!(again.shape(), [2, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod abi;
mod data_type;
mod error;
mod export;
mod import;

use std::ptr::NonNull;

use transload::TransferManager;

use crate::Tensor;

pub use abi::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor,
    IS_COPIED, IS_SUBBYTE_TYPE_PADDED, READ_ONLY,
};
pub use error::DLPackError;

/// Exchange with other libraries of the process, with the feature `dlpack`.
impl Tensor {
    /// Exports the tensor. The caller, or the consumer that it passes the pointer to, calls the deleter once, from any thread; the
    /// structure is invalid then. The bytes stay alive and in place until then, also after the manager was dropped, and a
    /// [`Loader`](crate::Loader) does not use their memory again.
    ///
    /// Blocks until transfers that write the tensor and were submitted before have ended ([`Buffer::lend`]). Later transfers do
    /// not wait for the consumer, which sees what they write: the program lets neither write bytes that the other uses. Work on
    /// a CUDA device is over when this returns, so that the consumer's streams need not wait for it.
    ///
    /// `data` points to the first element, and `byte_offset` is 0. Strides are given. The tensor is marked as read-only if its
    /// buffer is.
    ///
    /// [`Buffer::lend`]: transload::Buffer::lend
    ///
    /// # Errors
    /// When DLPack does not have the type of the elements, or consumers do not reach the memory: files, and the memory of
    /// adapters and of Metal. When the call would wait for a guard of its own thread.
    pub fn to_dlpack(&self) -> Result<NonNull<DLManagedTensorVersioned>, DLPackError> {
        export::export(self, false)
    }

    /// Exports the tensor with elements that share bytes as the lanes of one that fills whole bytes, so that the last dimension
    /// has fewer: `F4` as PyTorch knows it, `float4_e2m1fn_x2`, with 2 lanes. Other types are exported as by [`Tensor::to_dlpack`].
    ///
    /// # Errors
    /// As [`Tensor::to_dlpack`], and when the last dimension has no whole number of such elements.
    pub fn to_dlpack_lanes(&self) -> Result<NonNull<DLManagedTensorVersioned>, DLPackError> {
        export::export(self, true)
    }

    /// Exports the tensor for consumers that do not know [`DLManagedTensorVersioned`]. As [`Tensor::to_dlpack`].
    ///
    /// # Errors
    /// As [`Tensor::to_dlpack`], and when the buffer is read-only: this structure cannot say so.
    pub fn to_dlpack_legacy(&self) -> Result<NonNull<DLManagedTensor>, DLPackError> {
        match self.buffer().is_writable() {
            true => export::export(self, false),
            false => Err(DLPackError::ReadOnly),
        }
    }

    /// Takes a tensor of another library in. Lanes of elements that share bytes are elements here, along the last dimension: a
    /// tensor of PyTorch's `float4_e2m1fn_x2` is one of `F4` that is twice as long. The library calls the deleter once, when the last view of the bytes is dropped, on
    /// the thread that drops it; of a tensor without elements before this returns. The buffer is read-only if the tensor is
    /// marked so. Elements may lie at any address. Null strides stand for dense elements.
    ///
    /// On error the structure stays the caller's: its deleter was not called.
    ///
    /// # Errors
    /// When the structure describes no tensor, its version, device or type is not known, it has more than 64 dimensions, the
    /// manager has no such device, or another manager has its bytes.
    ///
    /// # Safety
    /// - `managed` was made by a DLPack producer, nothing else calls its deleter, and the deleter may be called from any thread.
    /// - Until the deleter is called, the fields do not change, the elements are valid for reads, and for writes unless the tensor
    ///   is marked as read-only.
    /// - The producer's work on the bytes is over. As long as views of them live, no code outside the manager writes the bytes, or
    ///   reads them while a transfer or guard writes them.
    pub unsafe fn from_dlpack(
        manager: &TransferManager,
        managed: NonNull<DLManagedTensorVersioned>,
    ) -> Result<Tensor, DLPackError> {
        // SAFETY: the caller's promise.
        unsafe { import::import(manager, managed) }
    }

    /// Takes a tensor in from a producer that does not know [`DLManagedTensorVersioned`]. As [`Tensor::from_dlpack`], and the buffer
    /// is read-only: the structure does not say whether the bytes may be written, and those of JAX may not.
    ///
    /// # Errors
    /// As [`Tensor::from_dlpack`].
    ///
    /// # Safety
    /// As [`Tensor::from_dlpack`].
    pub unsafe fn from_dlpack_legacy(
        manager: &TransferManager,
        managed: NonNull<DLManagedTensor>,
    ) -> Result<Tensor, DLPackError> {
        // SAFETY: the caller's promise.
        unsafe { import::import(manager, managed) }
    }
}
