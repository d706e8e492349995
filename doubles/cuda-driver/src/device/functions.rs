//! The driver's functions on devices.

use std::ffi::{c_char, c_int};

use transload_cuda::raw::{CUdevice, CUdevice_attribute, CUresult, CUuuid};

use super::Device;
use crate::answer::{Answer, put};
use crate::call::driver;
use crate::machine::DeviceDescription;
use crate::state::State;

impl State {
    /// The device of an ordinal.
    ///
    /// # Errors
    /// `INVALID_DEVICE` when there is none.
    pub(crate) fn device(&self, ordinal: CUdevice) -> Result<&Device, CUresult> {
        let index = usize::try_from(ordinal.0).ok();
        let device = index.and_then(|index| self.devices.get(index));
        device.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// The device of a UUID that another process sent.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` when this process has none of that UUID.
    pub(crate) fn device_of_uuid(&self, uuid: [u8; 16]) -> Result<CUdevice, CUresult> {
        let mut devices = self.devices.iter();
        let found = devices.position(|device| device.description.uuid.0 == uuid);
        let found = found.ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        Ok(CUdevice(found as i32))
    }

    /// As [`State::device`], to change it.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn device_mut(&mut self, ordinal: CUdevice) -> Result<&mut Device, CUresult> {
        let index = usize::try_from(ordinal.0).ok();
        let device = index.and_then(|index| self.devices.get_mut(index));
        device.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }
}

driver! {
    /// An ordinal is its own handle.
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int), call => {
        call.state().device(CUdevice(ordinal))?;
        // SAFETY: the caller passes a valid out-pointer for a device.
        unsafe { put(device, CUdevice(ordinal)) }
    }

    /// The number of devices of the machine.
    fn cuDeviceGetCount(count: *mut c_int), call => {
        let devices = call.state().devices.len();
        // SAFETY: the caller passes a valid out-pointer for a number.
        unsafe { put(count, devices as c_int) }
    }

    /// The name, cut to `len` bytes with the zero at its end.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice), call => {
        let text = call.state().device(dev)?.description.name.clone();
        // SAFETY: the caller passes a valid out-pointer for so many bytes.
        unsafe { put_text(name, len, &text) }
    }

    /// The UUID, the same in every process.
    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice), call => {
        let bytes = call.state().device(dev)?.description.uuid.0;
        // SAFETY: the caller passes a valid out-pointer for a UUID.
        unsafe { put(uuid, CUuuid { bytes }) }
    }

    /// All memory of the device, in use or not.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice), call => {
        let total = call.state().device(dev)?.description.memory_bytes;
        // SAFETY: the caller passes a valid out-pointer for a size.
        unsafe { put(bytes, total as usize) }
    }

    /// The modelled attributes; all others are invalid for this driver.
    fn cuDeviceGetAttribute(pi: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice), call => {
        let state = call.state();
        let value = attribute(&state.device(dev)?.description, attrib);
        let value = value.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: the caller passes a valid out-pointer for a number.
        unsafe { put(pi, value) }
    }

    /// As `0000:01:00.0`, cut to `len` bytes.
    fn cuDeviceGetPCIBusId(pci_bus_id: *mut c_char, len: c_int, dev: CUdevice), call => {
        let pci = call.state().device(dev)?.description.pci;
        let text = format!("{:04x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.device, pci.function);
        // SAFETY: the caller passes a valid out-pointer for so many bytes.
        unsafe { put_text(pci_bus_id, len, &text) }
    }
}

/// Writes a text with a zero at its end, cut to the room that there is.
///
/// # Safety
/// The place is null, or has room for `len` bytes.
unsafe fn put_text(place: *mut c_char, len: c_int, text: &str) -> Answer {
    let room = usize::try_from(len).unwrap_or(0);
    if place.is_null() || room == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let kept = text.len().min(room - 1);
    for (index, byte) in text.bytes().take(kept).chain([0]).enumerate() {
        // SAFETY: at most `room` bytes are written.
        let at = unsafe { place.add(index) };
        // SAFETY: as above.
        unsafe { at.write(byte as c_char) };
    }
    Ok(())
}

/// The answer of a device of compute capability 9.0 on Linux, for the attributes of the double.
fn attribute(device: &DeviceDescription, asked: CUdevice_attribute) -> Option<c_int> {
    use CUdevice_attribute as A;
    Some(match asked {
        A::CU_DEVICE_ATTRIBUTE_MAX_PITCH => i32::MAX,
        A::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT => 512,
        A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 1,
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE => 0,
        A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => i32::from(device.pci.bus),
        A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => i32::from(device.pci.device),
        A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => device.pci.domain as i32,
        // One in each direction, like the links.
        A::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 2,
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 0,
        A::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID => {
            device.numa_node.map_or(-1, |node| node as i32)
        }
        A::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS => c_int::from(device.shares_managed),
        A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
        | A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES => {
            c_int::from(device.walks_page_tables)
        }
        A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | A::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        // As bits of CUmemAllocationHandleType: a file descriptor.
        | A::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES
        | A::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED => 1,
        A::CU_DEVICE_ATTRIBUTE_INTEGRATED
        | A::CU_DEVICE_ATTRIBUTE_TCC_DRIVER
        | A::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST
        | A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_NUMA_CONFIG => 0,
        A::CU_DEVICE_ATTRIBUTE_NUMA_ID => -1,
        _ => return None,
    })
}
