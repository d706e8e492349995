//! Queries of the driver about an address.

use std::ffi::c_void;
use std::ops::Range;

use transload_hal::{DeviceId, DeviceKind, MemoryId, MemoryKind};

use crate::ids::PINNED;
use crate::raw::{
    CUcontext, CUdeviceptr, CUmemAccess_flags, CUmemorytype, CUpointer_attribute, CUresult,
    CallError, Driver, Version,
};

/// An address that the driver knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Known {
    pub(super) sort: Sort,
    /// The device that it was allocated on.
    pub(super) ordinal: i32,
    /// The context that it was allocated in; null if it belongs to none, as memory of pools does.
    pub(super) context: CUcontext,
    /// The whole range of the allocation, registration or reservation.
    pub(super) range: Range<CUdeviceptr>,
    /// The byte's address on devices and on the host; 0 where it has none.
    pub(super) device_address: CUdeviceptr,
    pub(super) host_address: u64,
    /// Whether a handle can share it with other processes.
    pub(super) has_handle: bool,
    /// The access of the current context's device; `None` if the driver is too old to report it.
    pub(super) access: Option<CUmemAccess_flags>,
}

/// The kind of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    /// The host's, pinned.
    Host,
    /// A device's.
    Device,
    /// Managed.
    Managed,
}

/// The first driver that is asked for the attributes that came after CUDA 11.0: `CU_POINTER_ATTRIBUTE_ACCESS_FLAGS`
/// is in the header of this one.
const TELLS_ACCESS: Version = Version::new(11, 4);

/// Asks the driver about an address. `None` if the driver does not know it: freed memory, or ordinary host memory. A
/// context must be current.
///
/// # Errors
/// The driver's errors; an unknown address is none of them (CUDA Driver API, Unified Addressing,
/// cuPointerGetAttributes).
pub(super) fn query(driver: &Driver, address: CUdeviceptr) -> Result<Option<Known>, CallError> {
    use CUpointer_attribute as Attribute;
    let (mut sort, mut is_managed, mut ordinal, mut has_handle, mut access) = (0, 0, 0, 0, 0);
    let mut context = CUcontext::NULL;
    let (mut device_address, mut host_address) = (0u64, 0u64);
    let (mut start, mut size) = (0u64, 0usize);
    let mut asked = vec![
        (
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            place(&mut sort),
        ),
        (
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            place(&mut is_managed),
        ),
        (
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            place(&mut ordinal),
        ),
        (Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, place(&mut context)),
        (
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
            place(&mut device_address),
        ),
        (
            Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER,
            place(&mut host_address),
        ),
        (
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            place(&mut start),
        ),
        (Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, place(&mut size)),
        (
            Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
            place(&mut has_handle),
        ),
    ];
    let tells_access = driver.version() >= TELLS_ACCESS;
    if tells_access {
        asked.push((
            Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
            place(&mut access),
        ));
    }
    let (mut attributes, mut places): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    let (count, attributes) = (attributes.len() as u32, attributes.as_mut_ptr());
    // SAFETY: there are as many attributes as places, each of which has room for its attribute's type.
    let answer =
        unsafe { driver.cuPointerGetAttributes(count, attributes, places.as_mut_ptr(), address) };
    match answer {
        // The result for memory that was never allocated under unified addressing.
        Err(error)
            if error.is(CUresult::CUDA_ERROR_INVALID_CONTEXT)
                || error.is(CUresult::CUDA_ERROR_INVALID_VALUE) =>
        {
            return Ok(None);
        }
        answer => answer?,
    }
    let sort = match (CUmemorytype(sort), is_managed) {
        (_, 1) => Sort::Managed,
        (CUmemorytype::CU_MEMORYTYPE_HOST, _) => Sort::Host,
        (CUmemorytype::CU_MEMORYTYPE_DEVICE, _) => Sort::Device,
        _ => return Ok(None),
    };
    Ok(start.checked_add(size as u64).map(|end| Known {
        sort,
        ordinal,
        context,
        range: start..end,
        device_address,
        host_address,
        has_handle: has_handle == 1,
        access: tells_access.then_some(CUmemAccess_flags(access)),
    }))
}

/// A pointer to the place of an answer.
fn place<T>(of: &mut T) -> *mut c_void {
    std::ptr::from_mut(of).cast()
}

/// Returns how many bytes from an address on are mapped, at most `len`: memory that was mapped in pieces may have
/// holes. A context must be current.
pub(super) fn mapped(driver: &Driver, address: CUdeviceptr, len: u64) -> u64 {
    let end = address.saturating_add(len);
    let mut at = address;
    while at < end {
        let (mut start, mut size) = (0, 0);
        // SAFETY: the places are ours.
        let asked = unsafe { driver.cuMemGetAddressRange_v2(&raw mut start, &raw mut size, at) };
        match start.checked_add(size as u64) {
            Some(after) if asked.is_ok() && after > at => at = after,
            _ => break,
        }
    }
    at.min(end) - address
}

impl Known {
    /// The memory that the address belongs to.
    pub(super) fn home(&self) -> MemoryId {
        let device = DeviceId::new(DeviceKind::CUDA, self.ordinal.unsigned_abs());
        match self.sort {
            Sort::Host => PINNED,
            Sort::Device => device.memory(MemoryKind::Device),
            Sort::Managed => device.memory(MemoryKind::Managed),
        }
    }

    /// How many bytes of the allocation there are from the address on that was looked up. The range is one of
    /// devices' addresses, which the host's own need not be (CUDA Driver API, Unified Addressing, Disjoint Addressing).
    pub(super) fn left(&self, address: CUdeviceptr) -> u64 {
        let at = [address, self.device_address];
        let at = at.into_iter().find(|at| self.range.contains(at));
        at.map_or(0, |at| self.range.end - at)
    }
}
