//! Converts reports of NVIDIA's management library into wiring.
//!
//! Sources: NVML API Reference, Device Queries, NvLink Methods and Field Value Queries.

use transload_hal::{PciAddress, Uuid};

use super::links::{Ancestor, DeviceQuery, NvLinks};
use super::pcie::PcieLink;
use super::sysfs::Tree;

/// The queries of the library that are used, in its own units. An answer that it refuses is `None`.
pub(super) trait Library {
    /// `nvmlSystemGetDriverVersion`.
    fn driver(&self) -> Option<String>;
    /// Whether there is a GPU at that address.
    fn has_gpu(&self, at: PciAddress) -> bool;
    /// Whether the GPU at that address has that UUID, or is divided into parts of which one has it.
    fn is(&self, at: PciAddress, uuid: Uuid) -> bool;
    /// `nvmlDeviceGetMemoryAffinity` within a node: the NUMA nodes that are near.
    fn nodes(&self, at: PciAddress) -> Option<Vec<u32>>;
    /// `nvmlDeviceGetMaxPcieLinkGeneration`: what card and system can do together.
    fn pcie_generation(&self, at: PciAddress) -> Option<u32>;
    /// `nvmlDeviceGetMaxPcieLinkWidth`.
    fn pcie_lanes(&self, at: PciAddress) -> Option<u32>;
    /// `nvmlDeviceGetMaxClockInfo` of the memory, in MHz.
    fn memory_megahertz(&self, at: PciAddress) -> Option<u32>;
    /// `nvmlDeviceGetMemoryBusWidth`, in bits.
    fn memory_bits(&self, at: PciAddress) -> Option<u32>;
    /// The NVLinks that are up.
    fn nvlinks(&self, at: PciAddress) -> Vec<NvLink>;
    /// `NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON`: megabytes per second of a link one way.
    fn nvlink_megabytes(&self, at: PciAddress) -> Option<u32>;
    /// `nvmlDeviceGetTopologyCommonAncestor`.
    fn ancestor(&self, a: PciAddress, b: PciAddress) -> Option<Ancestor>;
}

/// An NVLink that is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NvLink {
    /// The device at its other end (`nvmlDeviceGetNvLinkRemotePciInfo_v2`), if that is on this machine's bus.
    pub(super) remote: Option<PciAddress>,
    /// `nvmlDeviceGetNvLinkVersion`.
    pub(super) version: Option<u32>,
}

/// The library's reports.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) driver: Option<String>,
    /// In the order asked; `None` of what it does not know.
    pub(super) devices: Vec<Option<Device>>,
    ancestors: Vec<Vec<Option<Ancestor>>>,
}

/// The library's report on one device.
#[derive(Debug)]
pub(super) struct Device {
    at: PciAddress,
    pub(super) numa_node: Option<u32>,
    pub(super) pcie: Option<PcieLink>,
    pub(super) memory_bytes_per_second: Option<u64>,
    /// The other end of each NVLink.
    remotes: Vec<LinkEnd>,
    nvlink_bytes_per_second: u64,
}

/// The other end of an NVLink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LinkEnd {
    Gpu(PciAddress),
    /// A switch, which leads to every other GPU at switches.
    Switch,
}

/// Whether the device at that address is for the library the one of that UUID.
pub(super) fn matches(library: &dyn Library, at: PciAddress, uuid: Option<Uuid>) -> bool {
    match uuid {
        Some(uuid) => library.is(at, uuid),
        None => library.has_gpu(at),
    }
}

/// Asks for all of it, once.
pub(super) fn read(library: &dyn Library, tree: &Tree, queries: &[DeviceQuery]) -> Report {
    let device = |of: &DeviceQuery| {
        let at = of.pci.filter(|at| matches(library, *at, of.uuid))?;
        Some(device(library, tree, at))
    };
    let devices: Vec<Option<Device>> = queries.iter().map(device).collect();
    let place = |index: usize| devices[index].as_ref().map(|device: &Device| device.at);
    let ancestor = |a, b| library.ancestor(place(a)?, place(b)?);
    let ancestors = (0..queries.len()).map(|a| (0..a).map(|b| ancestor(a, b)).collect());
    let ancestors = ancestors.collect();
    Report {
        driver: library.driver(),
        devices,
        ancestors,
    }
}

fn device(library: &dyn Library, tree: &Tree, at: PciAddress) -> Device {
    let links = library.nvlinks(at);
    // A switch is told from a GPU by what the kernel says that it is, and where that says nothing, by the library,
    // which has GPUs alone. Some switches are on no bus of the host's at all.
    let is_switch = |remote: PciAddress| {
        let bridge = tree.is_bridge(remote);
        bridge.unwrap_or_else(|| !library.has_gpu(remote))
    };
    let end = |link: &NvLink| match link.remote {
        Some(remote) if !is_switch(remote) => LinkEnd::Gpu(remote),
        _ => LinkEnd::Switch,
    };
    let megabytes = library.nvlink_megabytes(at).filter(|rate| *rate > 0);
    let by_version = || links.iter().find_map(|link| megabytes_of(link.version?));
    let megabytes = megabytes.or_else(by_version).unwrap_or(0);
    let pcie = || PcieLink::of_generation(library.pcie_generation(at)?, library.pcie_lanes(at)?);
    // Several are as good as none.
    let nearest = || match library.nodes(at)?[..] {
        [node] => Some(node),
        _ => None,
    };
    let memory = || {
        let clock = u64::from(library.memory_megahertz(at)?) * 1_000_000;
        let bits = u64::from(library.memory_bits(at)?);
        // Two bits a clock and wire: 2619 MHz on 5120 wires are an H100's 3.35 TB/s.
        Some(clock * 2 * bits / 8).filter(|rate| *rate > 0)
    };
    Device {
        at,
        numa_node: nearest(),
        pcie: pcie(),
        memory_bytes_per_second: memory(),
        remotes: links.iter().map(end).collect(),
        nvlink_bytes_per_second: u64::from(megabytes) * 1_000_000,
    }
}

impl Report {
    /// The NVLinks between two devices that it knows both.
    pub(super) fn nvlinks(&self, a: usize, b: usize) -> Option<NvLinks> {
        let (a, b) = (self.devices[a].as_ref()?, self.devices[b].as_ref()?);
        let direct = a.count(|end| end == LinkEnd::Gpu(b.at));
        let switched = |of: &Device| of.count(|end| end == LinkEnd::Switch);
        Some(NvLinks {
            count: direct + switched(a).min(switched(b)),
            bytes_per_second: a.nvlink_bytes_per_second.min(b.nvlink_bytes_per_second),
        })
    }

    pub(super) fn ancestor(&self, a: usize, b: usize) -> Option<Ancestor> {
        *self.ancestors.get(a.max(b))?.get(a.min(b))?
    }
}

impl Device {
    fn count(&self, which: impl Fn(LinkEnd) -> bool) -> u32 {
        let count = self.remotes.iter().filter(|end| which(**end)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

/// The rate of a link of an `nvmlNvlinkVersion_t` in one direction, in megabytes per second, for drivers that do not
/// report the speed: the figures that `nvidia-smi nvlink --status` shows of a P100, V100, A100, H100 and B200.
fn megabytes_of(version: u32) -> Option<u32> {
    Some(match version {
        1 => 20_000,
        2 | 3 => 25_781,
        4 | 5 => 25_000,
        6 => 26_562,
        7 => 53_125,
        _ => return None,
    })
}
