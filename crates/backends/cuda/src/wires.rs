//! The wiring of the devices: the NUMA node and the slot of each, and the connection between two of them.
//!
//! Most facts come from NVIDIA's management library (NVML), if the feature `nvml` is on and the machine has the
//! library. Others are read from the kernel's device tree, on Linux. Unknown facts are `None`. Moving bytes needs
//! none of them: the figures rank routes until a probe has measured them.

mod cost;
#[cfg(all(feature = "nvml", any(target_os = "linux", windows)))]
mod library;
mod nvml;
mod pcie;
mod sysfs;
#[cfg(test)]
mod tests;

use std::path::Path;

use transload_hal::{PciAddress, Uuid};

pub use cost::{host_cost, local_cost, peer_cost};
pub use pcie::PcieLink;

use nvml::Library;
use sysfs::Tree;

/// A device as the driver reports it, to look its wiring up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Its PCI address. Without an address nothing is known about the device.
    pub pci: Option<PciAddress>,
    /// Its UUID. Facts of NVML about the device at that address are used only if the UUIDs match: a stand-in for
    /// NVIDIA's driver may report the address of a card that it does not drive.
    pub uuid: Option<Uuid>,
}

/// The known wiring of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wire {
    /// The nearest NUMA node of the host.
    pub numa_node: Option<u32>,
    /// The link into its slot at its best rate: an idle device trains its link down.
    pub pcie: Option<PcieLink>,
    /// The narrowest link between it and the host, the one into its slot or one of a switch above.
    pub to_host: Option<PcieLink>,
    /// The total rate of reads and writes of its memory, in bytes per second.
    pub memory_bytes_per_second: Option<u64>,
}

/// The connection between two devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Between {
    /// The NVLinks that lead from one to the other, through switches too. A count of 0 says that there are none;
    /// `None` that the number is unknown.
    pub nvlinks: Option<NvLinks>,
    /// The place where their paths to the processors meet.
    pub ancestor: Option<Ancestor>,
    /// The narrowest PCIe link on the way between them.
    pub pcie: Option<PcieLink>,
}

/// A bundle of NVLinks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvLinks {
    /// The number of links.
    pub count: u32,
    /// The rate of each link in one direction, in bytes per second; 0 if unknown.
    pub bytes_per_second: u64,
}

/// The place where two devices' paths to the processors meet, the nearest first (NVML API Reference,
/// `nvmlGpuTopologyLevel_t`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Ancestor {
    /// On one board.
    Board,
    /// At one PCIe switch.
    Switch,
    /// At switches of switches, below the host bridge.
    Switches,
    /// At one host bridge.
    HostBridge,
    /// At host bridges of one NUMA node.
    Node,
    /// On the link between NUMA nodes.
    System,
}

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
