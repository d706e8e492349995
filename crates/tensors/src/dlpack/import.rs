//! Imports: a structure as a tensor that gives it back.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use transload::hal::{External, HostSpan};
use transload::{AllocSpec, DeviceId, DeviceKind, MemoryId, MemoryKind, TransferManager};

use super::abi::{DLDevice, DLPackVersion, DLTensor, IS_SUBBYTE_TYPE_PADDED, Managed, READ_ONLY};
use super::{DLPackError, data_type};
use crate::Tensor;
use crate::tensor::{Reach, dense_strides};

/// The owner of bytes that were imported.
struct Imported<M: Managed> {
    managed: NonNull<M>,
    /// Whether the structure is the library's to give back. Until the import has succeeded, it is the caller's.
    is_taken: Arc<AtomicBool>,
}

// SAFETY: the pointer is only used to call the deleter, which any thread may call, as the caller of `import` promises.
unsafe impl<M: Managed> Send for Imported<M> {}
// SAFETY: a shared reference gives nothing out.
unsafe impl<M: Managed> Sync for Imported<M> {}

impl<M: Managed> Drop for Imported<M> {
    fn drop(&mut self) {
        if !self.is_taken.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the structure was taken over, and is whole until its deleter was called.
        if let Some(deleter) = unsafe { M::deleter(self.managed) } {
            // SAFETY: as above; this is the only call, since the owner is dropped once.
            unsafe { deleter(self.managed.as_ptr()) };
        }
    }
}

/// # Safety
/// As [`Tensor::from_dlpack`].
pub(super) unsafe fn import<M: Managed>(
    manager: &TransferManager,
    managed: NonNull<M>,
) -> Result<Tensor, DLPackError> {
    // SAFETY: the caller's promise.
    let head = unsafe { M::head(managed) };
    // Of another major version nothing else may be read.
    if let Some((version, _)) = head
        && version.major != DLPackVersion::CURRENT.major
    {
        return Err(DLPackError::Version(version));
    }
    // SAFETY: as above, for a version that is known.
    let raw = unsafe { M::tensor(managed) };
    // What has no flags may be immutable, as JAX's arrays are. NumPy does the same.
    let flags = head.map_or(READ_ONLY, |(_, flags)| flags);
    let dtype = data_type::known(raw.dtype)?;
    if dtype.block().0 > 1 && flags & IS_SUBBYTE_TYPE_PADDED != 0 {
        return Err(DLPackError::Padded { dtype });
    }
    let memory = memory_of(raw.device)?;
    // SAFETY: as above.
    let (mut shape, mut strides) = unsafe { sizes(&raw) }?;
    if raw.dtype.lanes > 1 {
        spread(&mut shape, &mut strides, raw.dtype.lanes);
    }
    let reach = Reach::new(dtype, &shape, &strides)?;
    let is_taken = Arc::new(AtomicBool::new(false));
    let owner = Box::new(Imported {
        managed,
        is_taken: Arc::clone(&is_taken),
    });
    let buffer = match reach.after {
        0 => manager.allocate(memory.into(), AllocSpec::bytes(0))?,
        _ => {
            let (data, len_bytes) = span(&raw, &reach)?;
            let writable = flags & READ_ONLY == 0;
            let external = match memory.device {
                DeviceId::CPU0 => External::Host {
                    span: HostSpan::new(data.cast(), len_bytes),
                    writable,
                    owner,
                },
                _ => External::Device {
                    address: data.addr().get() as u64,
                    len_bytes: len_bytes as u64,
                    writable,
                    owner,
                },
            };
            // SAFETY: the caller promises that the bytes are there until the deleter is called, which the owner does.
            unsafe { manager.import(memory.into(), external) }?
        }
    };
    let tensor = Tensor::strided(&buffer, reach.before, dtype, &shape, &strides)?;
    is_taken.store(true, Ordering::Release);
    Ok(tensor)
}

/// Returns the shape and the strides, of as many dimensions as the structure says.
///
/// # Safety
/// Where they are not null, `shape` and `strides` are valid for reads of `ndim` numbers.
unsafe fn sizes(raw: &DLTensor) -> Result<(Vec<u64>, Vec<i64>), DLPackError> {
    let malformed = |reason| Err(DLPackError::Malformed(reason));
    let ndim = match usize::try_from(raw.ndim) {
        Ok(ndim) if ndim <= MOST_DIMENSIONS => ndim,
        _ => {
            return malformed(format!(
                "it has {} dimensions, and 0 to {MOST_DIMENSIONS} are taken",
                raw.ndim
            ));
        }
    };
    if raw.shape.is_null() && ndim > 0 {
        return malformed(format!("its shape of {ndim} dimensions is null"));
    }
    let numbers = |start: *mut i64| {
        // SAFETY: the caller's promise; that the numbers are aligned is not needed.
        (0..ndim).map(move |at| unsafe { start.wrapping_add(at).read_unaligned() })
    };
    let shape = numbers(raw.shape).map(u64::try_from);
    let Ok(shape) = shape.collect::<Result<Vec<u64>, _>>() else {
        return malformed("a size in its shape is negative".into());
    };
    let strides = match raw.strides.is_null() {
        true => dense_strides(&shape),
        false => numbers(raw.strides).collect(),
    };
    Ok((shape, strides))
}

/// Counts lanes as elements, along the last dimension. What is too large then, or lies apart, is refused with the tensor.
fn spread(shape: &mut Vec<u64>, strides: &mut Vec<i64>, lanes: u16) {
    if shape.is_empty() {
        shape.push(1);
        strides.push(1);
    }
    let last = shape.len() - 1;
    let is_next = shape[last] == 1 || strides[last] == 1;
    shape[last] = shape[last].saturating_mul(lanes.into());
    for stride in strides.iter_mut() {
        *stride = stride.saturating_mul(lanes.into());
    }
    if is_next {
        strides[last] = 1;
    }
}

/// Returns where the lowest byte of an element lies, and how many bytes there are up to the highest one.
fn span(raw: &DLTensor, reach: &Reach) -> Result<(NonNull<c_void>, usize), DLPackError> {
    let malformed = |reason: &str| DLPackError::Malformed(reason.into());
    let outside = || malformed("its bytes lie outside the address space");
    let data = NonNull::new(raw.data).ok_or_else(|| malformed("its data is null"))?;
    let first = (data.addr().get() as u64).checked_add(raw.byte_offset);
    let lowest = first.and_then(|first| first.checked_sub(reach.before));
    let len_bytes = reach.before.checked_add(reach.after);
    let (lowest, len_bytes) = lowest.zip(len_bytes).ok_or_else(outside)?;
    let is_within = lowest
        .checked_add(len_bytes)
        .is_some_and(|end| usize::try_from(end).is_ok())
        && len_bytes <= isize::MAX as u64;
    let lowest = usize::try_from(lowest).ok().filter(|_| is_within);
    let lowest = lowest.map(|lowest| raw.data.with_addr(lowest));
    let lowest = lowest.and_then(NonNull::new).ok_or_else(outside)?;
    Ok((lowest, len_bytes as usize))
}

/// Returns the memory of a device.
fn memory_of(device: DLDevice) -> Result<MemoryId, DLPackError> {
    let unknown = || DLPackError::Device(device);
    let cuda = || {
        let index = u32::try_from(device.device_id);
        index
            .map(|index| DeviceId::new(DeviceKind::CUDA, index))
            .map_err(|_| unknown())
    };
    Ok(match device.device_type {
        DLDevice::CPU | DLDevice::CUDA_HOST => DeviceId::CPU0.memory(MemoryKind::Pageable),
        DLDevice::CUDA => cuda()?.memory(MemoryKind::Device),
        DLDevice::CUDA_MANAGED => cuda()?.memory(MemoryKind::Managed),
        _ => return Err(unknown()),
    })
}

/// NumPy and PyTorch have at most so many.
const MOST_DIMENSIONS: usize = 64;
