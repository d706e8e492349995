//! NVML itself, through `nvml-wrapper`, loaded at run time.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON;
use transload_hal::{PciAddress, Uuid};

use super::links::Ancestor;
use super::nvml::{Library, NvLink};

/// The library, from start to end.
pub(super) struct Nvml(nvml_wrapper::Nvml);

impl Nvml {
    /// Loads and starts it; `None` where it is not there, or has no driver to talk to.
    pub(super) fn start() -> Option<Nvml> {
        nvml_wrapper::Nvml::init().ok().map(Nvml)
    }

    fn device(&self, at: PciAddress) -> Option<Device<'_>> {
        self.0.device_by_pci_bus_id(at.to_string()).ok()
    }
}

impl Library for Nvml {
    fn driver(&self) -> Option<String> {
        self.0.sys_driver_version().ok()
    }

    fn has_gpu(&self, at: PciAddress) -> bool {
        self.device(at).is_some()
    }

    fn is(&self, at: PciAddress, uuid: Uuid) -> bool {
        let Some(device) = self.device(at) else {
            return false;
        };
        let whole = device.uuid().ok().and_then(|text| text.parse().ok());
        // The driver tells a part of a divided GPU by the part's UUID, which this library writes so.
        whole == Some(uuid) || self.0.device_by_uuid(format!("MIG-{uuid}")).is_ok()
    }

    #[cfg(target_os = "linux")]
    fn nodes(&self, at: PciAddress) -> Option<Vec<u32>> {
        use std::ffi::c_ulong;

        // 1024 nodes, as many as Linux can have (`NODES_SHIFT`).
        const WORDS: usize = 1024 / c_ulong::BITS as usize;
        const WITHIN_NODE: u32 = 0; // NVML_AFFINITY_SCOPE_NODE
        let words = self.device(at)?.memory_affinity(WORDS, WITHIN_NODE).ok()?;
        let bit = |node: &u32| {
            let word = words.get((node / c_ulong::BITS) as usize);
            word.is_some_and(|word| word >> (node % c_ulong::BITS) & 1 == 1)
        };
        Some((0..1024).filter(bit).collect())
    }

    #[cfg(not(target_os = "linux"))]
    fn nodes(&self, _at: PciAddress) -> Option<Vec<u32>> {
        None
    }

    fn pcie_generation(&self, at: PciAddress) -> Option<u32> {
        self.device(at)?.max_pcie_link_gen().ok()
    }

    fn pcie_lanes(&self, at: PciAddress) -> Option<u32> {
        self.device(at)?.max_pcie_link_width().ok()
    }

    fn memory_megahertz(&self, at: PciAddress) -> Option<u32> {
        self.device(at)?.max_clock_info(Clock::Memory).ok()
    }

    fn memory_bits(&self, at: PciAddress) -> Option<u32> {
        self.device(at)?.memory_bus_width().ok()
    }

    fn nvlinks(&self, at: PciAddress) -> Vec<NvLink> {
        let Some(device) = self.device(at) else {
            return Vec::new();
        };
        let link = |index| {
            let link = device.link_wrapper_for(index);
            let up = link.is_active().unwrap_or(false);
            // `remote_device_type` would tell switches from GPUs, but nvml-wrapper 0.13 drops the answer.
            let remote = || link.remote_pci_info().ok()?.bus_id.parse().ok();
            up.then(|| NvLink {
                remote: remote(),
                version: link.version().ok(),
            })
        };
        (0..MOST_NVLINKS).filter_map(link).collect()
    }

    fn nvlink_megabytes(&self, at: PciAddress) -> Option<u32> {
        let field = [FieldId(NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)];
        let samples = self.device(at)?.field_values_for(&field).ok()?;
        match samples.into_iter().next()?.ok()?.value.ok()? {
            SampleValue::U32(value) => Some(value),
            SampleValue::U64(value) => u32::try_from(value).ok(),
            SampleValue::I64(value) => u32::try_from(value).ok(),
            SampleValue::F64(_) => None,
        }
    }

    #[cfg(target_os = "linux")]
    fn ancestor(&self, a: PciAddress, b: PciAddress) -> Option<Ancestor> {
        use nvml_wrapper::enum_wrappers::device::TopologyLevel as Level;

        let (a, b) = (self.device(a)?, self.device(b)?);
        let level = self.0.topology_common_ancestor(&a, &b).ok()?;
        Some(match level {
            Level::Internal => Ancestor::Board,
            Level::Single => Ancestor::Switch,
            Level::Multiple => Ancestor::Switches,
            Level::HostBridge => Ancestor::HostBridge,
            Level::Node => Ancestor::Node,
            Level::System => Ancestor::System,
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn ancestor(&self, _a: PciAddress, _b: PciAddress) -> Option<Ancestor> {
        None
    }
}

/// More links than any GPU has: `NVML_NVLINK_MAX_LINKS` is 18. Of a link that is not there it answers an error.
const MOST_NVLINKS: u32 = 64;
