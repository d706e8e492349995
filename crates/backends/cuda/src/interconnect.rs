//! The wiring of the devices: the NUMA node and the slot of each, and the connection between two of them.
//!
//! Most facts come from NVIDIA's management library (NVML), if the feature `nvml` is on and the machine has the
//! library. Others are read from the kernel's device tree, on Linux. Unknown facts are `None`. Moving bytes needs
//! none of them: the figures rank routes until a probe has measured them.

mod cost;
#[cfg(all(feature = "nvml", any(target_os = "linux", windows)))]
mod library;
mod links;
mod nvml;
mod pcie;
mod sysfs;
#[cfg(test)]
mod tests;

use std::path::Path;

use transload_hal::PciAddress;

pub use cost::{host_cost, local_cost, peer_cost};
pub use links::{Ancestor, DeviceLinks, DeviceQuery, NvLinks, PairLinks};
pub use pcie::PcieLink;

use nvml::Library;
use sysfs::Tree;

/// The wiring of the devices that were asked for, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interconnect {
    driver: Option<String>,
    devices: Vec<DeviceLinks>,
    /// For each device, the ones after it.
    pairs: Vec<Vec<PairLinks>>,
}

impl Interconnect {
    /// Returns the wiring of this machine's devices. Starts NVML, which may take some milliseconds, and ends it
    /// again.
    pub fn discover(queries: &[DeviceQuery]) -> Interconnect {
        #[cfg(all(feature = "nvml", any(target_os = "linux", windows)))]
        if let Some(library) = library::Nvml::start() {
            return Interconnect::read(queries, SYSFS.as_ref(), Some(&library));
        }
        Interconnect::read(queries, SYSFS.as_ref(), None)
    }

    /// Returns the wiring in a kernel's device tree that is mounted at `sysfs` (usually `/sys`), without NVML.
    pub fn of_tree(queries: &[DeviceQuery], sysfs: &Path) -> Interconnect {
        Interconnect::read(queries, sysfs, None)
    }

    /// As `discover`, with a device tree at that path and that management library.
    fn read(queries: &[DeviceQuery], sysfs: &Path, library: Option<&dyn Library>) -> Interconnect {
        // If the library reports another UUID at an address, the kernel's facts about it do not apply either.
        let is_other = |at: PciAddress, of: &DeviceQuery| {
            let library = library.filter(|library| library.has_gpu(at));
            library.is_some_and(|library| !nvml::matches(library, at, of.uuid))
        };
        let looked_up = |of: &DeviceQuery| of.pci.filter(|at| !is_other(*at, of));
        let tree = Tree::read(sysfs, queries.iter().map(looked_up));
        let library = library.map(|library| nvml::read(library, &tree, queries));
        let report = |index: usize| {
            library
                .as_ref()
                .and_then(|report| report.devices[index].as_ref())
        };
        let devices = (0..queries.len()).map(|index| {
            let mut links = tree.links(index);
            if let Some(report) = report(index) {
                links.numa_node = report.numa_node.or(links.numa_node);
                // The library does not report the links above the slot.
                let above = tree.above(index);
                links.pcie = report.pcie.or(links.pcie);
                links.to_host = PcieLink::narrowest(links.pcie.into_iter().chain(above));
                links.memory_bytes_per_second = report.memory_bytes_per_second;
            }
            links
        });
        let devices: Vec<DeviceLinks> = devices.collect();
        let pair = |a: usize, b: usize| {
            let slots = devices[a].pcie.into_iter().chain(devices[b].pcie);
            let report = library.as_ref();
            PairLinks {
                nvlinks: report.and_then(|report| report.nvlinks(a, b)),
                ancestor: report
                    .and_then(|report| report.ancestor(a, b))
                    .or_else(|| tree.ancestor(a, b)),
                pcie: PcieLink::narrowest(slots.chain(tree.above_until_they_meet(a, b))),
            }
        };
        let pairs =
            (0..queries.len()).map(|a| (a + 1..queries.len()).map(|b| pair(a, b)).collect());
        let pairs = pairs.collect();
        // The machine's driver version does not apply to devices that it does not drive.
        let known = (0..queries.len()).any(|index| report(index).is_some() || tree.has(index));
        let driver = library.as_ref().and_then(|report| report.driver.clone());
        let driver = driver.or_else(|| tree.driver());
        Interconnect {
            driver: driver.filter(|_| known),
            devices,
            pairs,
        }
    }

    /// The full version of the driver, such as `580.65.06`; `None` if none of the devices belongs to this machine.
    pub fn driver(&self) -> Option<&str> {
        self.driver.as_deref()
    }

    /// The wiring of the device at that position of the request; all unknown for any other position.
    pub fn device(&self, index: usize) -> DeviceLinks {
        self.devices.get(index).copied().unwrap_or_default()
    }

    /// The connection between two devices, the same in both directions; all unknown between a device and itself.
    pub fn between(&self, a: usize, b: usize) -> PairLinks {
        let (low, high) = (a.min(b), a.max(b));
        let after = self.pairs.get(low).filter(|_| low != high);
        after
            .and_then(|pairs| pairs.get(high - low - 1))
            .copied()
            .unwrap_or_default()
    }
}

/// Where Linux mounts its device tree (sysfs(5)).
const SYSFS: &str = "/sys";
