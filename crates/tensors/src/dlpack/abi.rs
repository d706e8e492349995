//! The C types of DLPack 1.3. Source: `include/dlpack/dlpack.h` of dmlc/dlpack, v1.3; names and fields are those of the header.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

/// `DLPackVersion`: the version of the header that a producer was built with. Versions of one major number have one layout.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DLPackVersion {
    /// The number of the layout.
    pub major: u32,
    /// The number of the devices and types that the header names.
    pub minor: u32,
}

impl DLPackVersion {
    /// The version that this module implements.
    pub const CURRENT: DLPackVersion = DLPackVersion { major: 1, minor: 3 };
}

/// `DLDevice`: where the bytes lie.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DLDevice {
    /// A number of `DLDeviceType`.
    pub device_type: u32,
    /// The position among the devices of that type. 0 for host memory.
    pub device_id: i32,
}

impl DLDevice {
    /// `kDLCPU`: host memory.
    pub const CPU: u32 = 1;
    /// `kDLCUDA`: memory of a CUDA device.
    pub const CUDA: u32 = 2;
    /// `kDLCUDAHost`: host memory that CUDA has pinned.
    pub const CUDA_HOST: u32 = 3;
    /// `kDLCUDAManaged`: managed memory of CUDA.
    pub const CUDA_MANAGED: u32 = 13;
}

/// `DLDataType`: the type of the elements.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DLDataType {
    /// A number of `DLDataTypeCode`.
    pub code: u8,
    /// The bits of an element.
    pub bits: u8,
    /// How many numbers an element has: 1, or as many as fill whole bytes, as 2 of 4 bits ([`Tensor::to_dlpack_lanes`](crate::Tensor::to_dlpack_lanes)).
    pub lanes: u16,
}

/// `DLTensor`: a tensor without an owner.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// The address of the bytes, on the device. Null for a tensor without elements.
    pub data: *mut c_void,
    /// Where the bytes lie.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The type of the elements.
    pub dtype: DLDataType,
    /// The sizes of the dimensions, `ndim` of them.
    pub shape: *mut i64,
    /// From one element to the next along each dimension, in elements. Null before version 1.2: the elements are dense.
    pub strides: *mut i64,
    /// Where the first element begins, in bytes from `data`.
    pub byte_offset: u64,
}

/// `DLManagedTensor`: a tensor with an owner, as it was before version 1.0. Some frameworks know this one alone.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// Gives the tensor back to the producer. Null: nothing to do.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// `DLManagedTensorVersioned`: a tensor with an owner. The first four fields are those of every version.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version of the producer.
    pub version: DLPackVersion,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// Gives the tensor back to the producer. Null: nothing to do.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// A sum of [`READ_ONLY`], [`IS_COPIED`] and [`IS_SUBBYTE_TYPE_PADDED`].
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// `DLPACK_FLAG_BITMASK_READ_ONLY`: the consumer must not write the bytes.
pub const READ_ONLY: u64 = 1;
/// `DLPACK_FLAG_BITMASK_IS_COPIED`: the bytes are a copy that the producer made for this export.
pub const IS_COPIED: u64 = 2;
/// `DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED`: each element of fewer than 8 bits has a byte of its own.
pub const IS_SUBBYTE_TYPE_PADDED: u64 = 4;

/// What both managed tensors have.
pub(super) trait Managed: Sized + 'static {
    fn new(tensor: DLTensor, flags: u64, deleter: Deleter<Self>) -> Self;

    /// Returns the version and the flags. A managed tensor of before 1.0 says nothing of these.
    ///
    /// # Safety
    /// `this` is valid for reads of the fields that all versions have.
    unsafe fn head(this: NonNull<Self>) -> Option<(DLPackVersion, u64)>;

    /// # Safety
    /// `this` is valid for reads.
    unsafe fn tensor(this: NonNull<Self>) -> DLTensor;

    /// # Safety
    /// As [`Managed::head`].
    unsafe fn deleter(this: NonNull<Self>) -> Option<Deleter<Self>>;
}

pub(super) type Deleter<M> = unsafe extern "C" fn(*mut M);

impl Managed for DLManagedTensor {
    fn new(dl_tensor: DLTensor, _flags: u64, deleter: Deleter<Self>) -> Self {
        DLManagedTensor {
            dl_tensor,
            manager_ctx: ptr::null_mut(),
            deleter: Some(deleter),
        }
    }

    unsafe fn head(_this: NonNull<Self>) -> Option<(DLPackVersion, u64)> {
        None
    }

    unsafe fn tensor(this: NonNull<Self>) -> DLTensor {
        // SAFETY: the caller's promise.
        unsafe { (*this.as_ptr()).dl_tensor }
    }

    unsafe fn deleter(this: NonNull<Self>) -> Option<Deleter<Self>> {
        // SAFETY: the caller's promise.
        unsafe { (*this.as_ptr()).deleter }
    }
}

impl Managed for DLManagedTensorVersioned {
    fn new(dl_tensor: DLTensor, flags: u64, deleter: Deleter<Self>) -> Self {
        DLManagedTensorVersioned {
            version: DLPackVersion::CURRENT,
            manager_ctx: ptr::null_mut(),
            deleter: Some(deleter),
            flags,
            dl_tensor,
        }
    }

    unsafe fn head(this: NonNull<Self>) -> Option<(DLPackVersion, u64)> {
        // SAFETY: the caller's promise.
        let version = unsafe { (*this.as_ptr()).version };
        // SAFETY: as above.
        Some((version, unsafe { (*this.as_ptr()).flags }))
    }

    unsafe fn tensor(this: NonNull<Self>) -> DLTensor {
        // SAFETY: the caller's promise.
        unsafe { (*this.as_ptr()).dl_tensor }
    }

    unsafe fn deleter(this: NonNull<Self>) -> Option<Deleter<Self>> {
        // SAFETY: the caller's promise.
        unsafe { (*this.as_ptr()).deleter }
    }
}
