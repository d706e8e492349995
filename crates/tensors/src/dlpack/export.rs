//! Exports: a tensor as a structure that frees it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use transload::hal::{External, ExternalKind};
use transload::{DeviceKind, MemoryId, MemoryKind};

use super::abi::{DLDevice, DLTensor, Managed, READ_ONLY};
use super::{DLPackError, data_type};
use crate::{Tensor, TensorError};

/// A structure, which is at its address, and what lives as long as it does.
#[repr(C)]
struct Exported<M> {
    managed: M,
    /// The shape and then the strides, to which the structure points.
    _sizes: Vec<i64>,
    /// Keeps the bytes in place. `None` where there are none.
    _bytes: Option<External>,
}

pub(super) fn export<M: Managed>(
    tensor: &Tensor,
    in_lanes: bool,
) -> Result<NonNull<M>, DLPackError> {
    let mut dtype = data_type::of(tensor.dtype())?;
    let memory = tensor.buffer().memory();
    let (device, kind) = device_of(memory)?;
    let too_large = || DLPackError::TooLarge {
        shape: tensor.shape().to_vec(),
    };
    let shape = tensor.shape().iter().map(|size| i64::try_from(*size));
    let shape = shape.collect::<Result<Vec<i64>, _>>();
    let mut sizes = shape.map_err(|_| too_large())?;
    let ndim = i32::try_from(sizes.len()).map_err(|_| too_large())?;
    let mut strides = tensor.strides();
    let of_block = tensor.dtype().block().0;
    if in_lanes && of_block > 1 {
        dtype.lanes = of_block as u16;
        let (of_block, dtype) = (of_block as i64, tensor.dtype());
        let (last, outer) = sizes.split_last_mut().zip(strides.split_last_mut()).unzip();
        let last = last
            .map(|(last, _)| last)
            .filter(|last| **last % of_block == 0);
        *last.ok_or(TensorError::Blocks { dtype })? /= of_block;
        let outer = outer.into_iter().flat_map(|(_, outer)| outer);
        outer.for_each(|stride| *stride /= of_block);
    }
    sizes.extend(strides);
    let bytes = match tensor.buffer().is_empty() {
        true => None,
        false => Some(tensor.buffer().lend(kind)?),
    };
    let first = match &bytes {
        Some(External::Host { span, .. }) => span.as_ptr(),
        Some(External::Device { address, .. }) => {
            ptr::with_exposed_provenance_mut(*address as usize)
        }
        Some(_) => return Err(DLPackError::Memory { memory }),
        None => ptr::null_mut(),
    };
    let flags = match tensor.buffer().is_writable() {
        true => 0,
        false => READ_ONLY,
    };
    let strides = sizes.as_mut_ptr().wrapping_add(tensor.shape().len());
    let tensor = DLTensor {
        data: first.wrapping_add(tensor.offset_bytes() as usize).cast(),
        device,
        ndim,
        dtype,
        shape: sizes.as_mut_ptr(),
        strides,
        byte_offset: 0,
    };
    let exported = Box::new(Exported {
        managed: M::new(tensor, flags, delete::<M>),
        _sizes: sizes,
        _bytes: bytes,
    });
    Ok(NonNull::from(Box::leak(exported)).cast())
}

/// Frees what was exported.
///
/// # Safety
/// `managed` is the result of [`export`], and this is the only call with it.
unsafe extern "C" fn delete<M: Managed>(managed: *mut M) {
    // A panic would abort the process at the border to C.
    let freed = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the structure begins the box that `export` leaked, and the consumer gives it up, as the caller promises.
        drop(unsafe { Box::from_raw(managed.cast::<Exported<M>>()) });
    }));
    // What a panic carries may panic when it is dropped.
    std::mem::forget(freed);
}

/// Returns the device that consumers know a memory by, and what its memory is lent as.
fn device_of(memory: MemoryId) -> Result<(DLDevice, ExternalKind), DLPackError> {
    use MemoryKind::{Device, Managed, Pageable, Pinned, Shared};
    if !memory.device.node.is_here() {
        return Err(DLPackError::Memory { memory });
    }
    let (device_type, kind) = match (memory.device.kind, memory.kind) {
        // PyTorch 2.15 refuses `kDLCUDAHost`, and pinned memory is host memory, too.
        (DeviceKind::CPU, Pageable | Shared | Pinned) => (DLDevice::CPU, ExternalKind::Host),
        (DeviceKind::CUDA, Device) => (DLDevice::CUDA, ExternalKind::DevicePointer),
        (DeviceKind::CUDA, Managed) => (DLDevice::CUDA_MANAGED, ExternalKind::DevicePointer),
        _ => return Err(DLPackError::Memory { memory }),
    };
    let device_id = match device_type {
        DLDevice::CPU => 0,
        _ => memory.device.index as i32,
    };
    let device = DLDevice {
        device_type,
        device_id,
    };
    Ok((device, kind))
}
