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
pub use links::{Ancestor, Asked, Between, NvLinks, Wire};
pub use pcie::PcieLink;

use nvml::Library;
use sysfs::Tree;

/// The wiring of the devices that were asked for, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wires {
    driver: Option<String>,
    devices: Vec<Wire>,
    /// For each device, the ones after it.
    pairs: Vec<Vec<Between>>,
}

impl Wires {
    /// Returns the wiring of this machine's devices. Starts NVML, which may take some milliseconds, and ends it
    /// again.
    pub fn discover(asked: &[Asked]) -> Wires {
        #[cfg(all(feature = "nvml", any(target_os = "linux", windows)))]
        if let Some(library) = library::Nvml::start() {
            return Wires::read(asked, SYSFS.as_ref(), Some(&library));
        }
        Wires::read(asked, SYSFS.as_ref(), None)
    }

    /// Returns the wiring in a kernel's device tree that is mounted at `sysfs` (usually `/sys`), without NVML.
    pub fn of_tree(asked: &[Asked], sysfs: &Path) -> Wires {
        Wires::read(asked, sysfs, None)
    }

    /// As `discover`, with a device tree at that path and that management library.
    fn read(asked: &[Asked], sysfs: &Path, library: Option<&dyn Library>) -> Wires {
        // If the library reports another UUID at an address, the kernel's facts about it do not apply either.
        let is_other = |at: PciAddress, of: &Asked| {
            let library = library.filter(|library| library.has_gpu(at));
            library.is_some_and(|library| !nvml::knows(library, at, of.uuid))
        };
        let looked_up = |of: &Asked| of.pci.filter(|at| !is_other(*at, of));
        let tree = Tree::read(sysfs, asked.iter().map(looked_up));
        let library = library.map(|library| nvml::ask(library, &tree, asked));
        let told = |index: usize| {
            library
                .as_ref()
                .and_then(|told| told.devices[index].as_ref())
        };
        let devices = (0..asked.len()).map(|index| {
            let mut wire = tree.wire(index);
            if let Some(told) = told(index) {
                wire.numa_node = told.numa_node.or(wire.numa_node);
                // The library does not report the links above the slot.
                let above = tree.above(index);
                wire.pcie = told.pcie.or(wire.pcie);
                wire.to_host = PcieLink::narrowest(wire.pcie.into_iter().chain(above));
                wire.memory_bytes_per_second = told.memory_bytes_per_second;
            }
            wire
        });
        let devices: Vec<Wire> = devices.collect();
        let pair = |a: usize, b: usize| {
            let slots = devices[a].pcie.into_iter().chain(devices[b].pcie);
            let told = library.as_ref();
            Between {
                nvlinks: told.and_then(|told| told.nvlinks(a, b)),
                ancestor: told
                    .and_then(|told| told.ancestor(a, b))
                    .or_else(|| tree.ancestor(a, b)),
                pcie: PcieLink::narrowest(slots.chain(tree.above_until_they_meet(a, b))),
            }
        };
        let pairs = (0..asked.len()).map(|a| (a + 1..asked.len()).map(|b| pair(a, b)).collect());
        let pairs = pairs.collect();
        // The machine's driver version does not apply to devices that it does not drive.
        let known = (0..asked.len()).any(|index| told(index).is_some() || tree.has(index));
        let driver = library.as_ref().and_then(|told| told.driver.clone());
        let driver = driver.or_else(|| tree.driver());
        Wires {
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
    pub fn of(&self, index: usize) -> Wire {
        self.devices.get(index).copied().unwrap_or_default()
    }

    /// The connection between two devices, the same in both directions; all unknown between a device and itself.
    pub fn between(&self, a: usize, b: usize) -> Between {
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
