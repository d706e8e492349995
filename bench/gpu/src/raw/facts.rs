//! Facts that the driver reports about itself and its devices.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};

use anyhow::Result;
use serde::Serialize;
use transload_cuda::raw::{
    CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUuuid, CallError, Driver, Table,
};

/// The driver.
#[derive(Serialize)]
pub(crate) struct DriverFacts {
    pub(crate) library: String,
    /// The newest CUDA version that it supports.
    pub(crate) version: String,
    /// The version of the kernel module, if there is one.
    kernel_module: Option<String>,
    /// Every function that Transload binds: `present`, or the CUDA version that introduced it.
    symbols: BTreeMap<&'static str, String>,
    missing: Vec<&'static str>,
}

/// A device.
#[derive(Serialize)]
pub(crate) struct DeviceFacts {
    pub(crate) ordinal: i32,
    pub(crate) name: String,
    uuid: String,
    pci: String,
    pub(crate) memory_bytes: u64,
    /// By NVIDIA's name, if Transload has it, else by number. Attributes unknown to the driver are left out.
    attributes: BTreeMap<String, i32>,
    /// The connection to each other device.
    peers: BTreeMap<i32, BTreeMap<String, i32>>,
}

/// More than the number of attributes so far (161 in CUDA 13.5), with room for newer drivers.
const ATTRIBUTES: u32 = 200;
/// The attributes of a pair, likewise (5 in CUDA 13.5).
const PEER_ATTRIBUTES: u32 = 12;

impl DriverFacts {
    pub(crate) fn of(driver: &Driver) -> DriverFacts {
        let present = Table::FUNCTIONS.iter().zip(driver.table().present());
        let told = present.map(|(function, present)| {
            let text = if present {
                "present".to_owned()
            } else {
                format!("missing; came with CUDA {}", function.since)
            };
            (function.name, text)
        });
        let module = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
        DriverFacts {
            library: driver.source().to_string(),
            version: driver.version().to_string(),
            kernel_module: module.and_then(|text| text.lines().next().map(str::to_owned)),
            symbols: told.collect(),
            missing: driver.missing().map(|function| function.name).collect(),
        }
    }
}

/// Initialises the driver.
pub(crate) fn initialise(driver: &Driver) -> Result<(), CallError> {
    // SAFETY: flags are zero, as the function demands.
    unsafe { driver.cuInit(0) }
}

/// All devices of an initialised driver.
pub(crate) fn devices(driver: &Driver) -> Result<Vec<DeviceFacts>> {
    let count = count(driver)?;
    (0..count).map(|of| device(driver, of, count)).collect()
}

/// The number of devices.
pub(crate) fn count(driver: &Driver) -> Result<i32> {
    let mut count = 0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuDeviceGetCount(&raw mut count) }?;
    Ok(count)
}

fn device(driver: &Driver, ordinal: i32, count: i32) -> Result<DeviceFacts> {
    let device = CUdevice(ordinal);
    let (mut uuid, mut bytes) = (CUuuid::default(), 0);
    // SAFETY: the out-pointers here and below are local variables.
    unsafe { driver.cuDeviceTotalMem_v2(&raw mut bytes, device) }?;
    // SAFETY: as above. A driver without this function reports no UUID.
    let has_uuid = unsafe { driver.cuDeviceGetUuid_v2(&raw mut uuid, device) }.is_ok();
    let peers = (0..count).filter(|other| *other != ordinal);
    Ok(DeviceFacts {
        ordinal,
        name: text(|place, len| {
            // SAFETY: the buffer has that length.
            unsafe { driver.cuDeviceGetName(place, len, device) }.is_ok()
        }),
        uuid: if has_uuid {
            hex(&uuid.bytes)
        } else {
            String::new()
        },
        pci: text(|place, len| {
            // SAFETY: as above.
            unsafe { driver.cuDeviceGetPCIBusId(place, len, device) }.is_ok()
        }),
        memory_bytes: bytes as u64,
        attributes: attributes(driver, device),
        peers: peers
            .map(|other| (other, peer(driver, device, CUdevice(other))))
            .collect(),
    })
}

fn attributes(driver: &Driver, device: CUdevice) -> BTreeMap<String, i32> {
    let asked = (1..ATTRIBUTES).map(CUdevice_attribute);
    let answered = asked.filter_map(|attribute| {
        let mut value = 0;
        // SAFETY: the out-pointer is a local variable.
        let answer = unsafe { driver.cuDeviceGetAttribute(&raw mut value, attribute, device) };
        let name = attribute
            .name()
            .map_or_else(|| attribute.0.to_string(), short);
        answer.is_ok().then_some((name, value))
    });
    answered.collect()
}

/// The name without the common prefix.
fn short(name: &str) -> String {
    name.trim_start_matches("CU_DEVICE_ATTRIBUTE_")
        .trim_start_matches("CU_DEVICE_P2P_ATTRIBUTE_")
        .to_owned()
}

fn peer(driver: &Driver, from: CUdevice, to: CUdevice) -> BTreeMap<String, i32> {
    let mut told = BTreeMap::new();
    let mut can = 0;
    // SAFETY: the out-pointer is a local variable.
    if unsafe { driver.cuDeviceCanAccessPeer(&raw mut can, from, to) }.is_ok() {
        told.insert("can_access".to_owned(), can);
    }
    for attribute in (1..PEER_ATTRIBUTES).map(CUdevice_P2PAttribute) {
        let mut value = 0;
        // SAFETY: as above.
        let answer = unsafe { driver.cuDeviceGetP2PAttribute(&raw mut value, attribute, from, to) };
        if answer.is_ok() {
            let name = attribute
                .name()
                .map_or_else(|| attribute.0.to_string(), short);
            told.insert(name, value);
        }
    }
    told
}

/// The text that a function writes; empty if the function fails.
fn text(write: impl FnOnce(*mut c_char, i32) -> bool) -> String {
    const ROOM: usize = 256;
    let mut bytes = [0u8; ROOM];
    if !write(bytes.as_mut_ptr().cast(), ROOM as i32) {
        return String::new();
    }
    CStr::from_bytes_until_nul(&bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
