//! The facts that the driver reports about a device before it is opened.

use std::ffi::c_char;

use transload_hal::{PciAddress, Uuid};

use crate::raw::{CUdevice, CUdevice_attribute, CUuuid, CallError, Driver};

/// The facts on which moving bytes depends.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) name: String,
    pub(crate) uuid: Option<Uuid>,
    pub(crate) pci: Option<PciAddress>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) memory_bytes: u64,
    /// Copies to and from the device have an engine each.
    pub(crate) is_duplex: bool,
    pub(crate) is_integrated: bool,
    pub(crate) has_managed: bool,
    /// Host and device may use managed memory at the same time.
    pub(crate) shares_managed: bool,
    /// It walks the host's page tables, so that its engines reach any memory of the process.
    pub(crate) reaches_pageable: bool,
    /// It has memory that is allocated in the order of a stream.
    pub(crate) has_pools: bool,
    /// Host memory can be registered for the device to read only. Memory that the process may only read requires
    /// that.
    pub(crate) registers_read_only: bool,
    /// Many copies can be ordered in one call that names both ends by address. Registered host memory can be named
    /// so only if devices know it by the host's address: if they do not, as in WSL, such a call ruins the context
    /// later (sgl-project/sglang issue 40232).
    pub(crate) has_batches: bool,
    /// The largest pitch of a copy, in bytes.
    pub(crate) max_pitch: u64,
}

impl Facts {
    /// Asks the driver about a device.
    ///
    /// # Errors
    /// If the driver does not know the device, its name or its size. Any other unknown attribute counts as absent.
    pub(crate) fn of(driver: &Driver, device: CUdevice) -> Result<Facts, CallError> {
        use CUdevice_attribute as Attribute;
        let ask = |attribute| {
            let mut value = 0;
            // SAFETY: the place is ours.
            let asked = unsafe { driver.cuDeviceGetAttribute(&raw mut value, attribute, device) };
            asked.ok().map(|()| value)
        };
        let number = |attribute| ask(attribute).and_then(|value| u32::try_from(value).ok());
        let has = |attribute| ask(attribute) == Some(1);
        let domain = number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
        let bus = number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
        let slot = number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
        let pci = domain.zip(bus).zip(slot).and_then(|((domain, bus), slot)| {
            Some(PciAddress {
                domain,
                bus: u8::try_from(bus).ok()?,
                device: u8::try_from(slot).ok()?,
                function: 0,
            })
        });
        Ok(Facts {
            name: name(driver, device)?,
            uuid: uuid(driver, device),
            pci,
            numa_node: number(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID),
            memory_bytes: memory_bytes(driver, device)?,
            is_duplex: ask(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT) > Some(1),
            is_integrated: has(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED),
            has_managed: has(Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY),
            shares_managed: has(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS),
            reaches_pageable: has(
                Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
            ),
            has_pools: has(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED),
            registers_read_only: has(
                Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
            ),
            has_batches: has_batches(driver)
                && has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
            max_pitch: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH).map_or(0, u64::from),
        })
    }
}

fn has_batches(driver: &Driver) -> bool {
    let table = driver.table();
    table.cuMemcpyBatchAsync_v2.is_some() || table.cuMemcpyBatchAsync.is_some()
}

fn name(driver: &Driver, device: CUdevice) -> Result<String, CallError> {
    let mut text = [0u8; 256];
    let start = text.as_mut_ptr().cast::<c_char>();
    // SAFETY: there is room for so many bytes.
    unsafe { driver.cuDeviceGetName(start, text.len() as i32, device) }?;
    let end = text.iter().position(|byte| *byte == 0);
    Ok(String::from_utf8_lossy(&text[..end.unwrap_or(text.len())]).into_owned())
}

fn uuid(driver: &Driver, device: CUdevice) -> Option<Uuid> {
    let mut uuid = CUuuid::default();
    // SAFETY: the place is ours.
    let asked = unsafe { driver.cuDeviceGetUuid_v2(&raw mut uuid, device) };
    asked.ok().map(|()| Uuid(uuid.bytes))
}

fn memory_bytes(driver: &Driver, device: CUdevice) -> Result<u64, CallError> {
    let mut bytes = 0usize;
    // SAFETY: the place is ours.
    unsafe { driver.cuDeviceTotalMem_v2(&raw mut bytes, device) }?;
    Ok(bytes as u64)
}
