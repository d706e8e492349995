//! How the devices are wired: the NUMA node and the slot of each, and what lies between two of them.
//!
//! NVIDIA's management library (NVML) knows most, where the feature `nvml` is on and the machine has the library;
//! what it does not say is read from the kernel's device tree, on Linux. What neither knows is `None`. Nothing
//! here is needed to move bytes: the figures rank routes until a probe has measured them.

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

/// A device as the driver tells it, which the wires are looked up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Where it is plugged in. Of a device that does not say so nothing is known.
    pub pci: Option<PciAddress>,
    /// Its UUID: NVML is believed of the device at that address only if it is the same one. A driver that stands
    /// in for NVIDIA's may tell the address of a card that it does not drive.
    pub uuid: Option<Uuid>,
}

/// What is known of the wires of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wire {
    /// The NUMA node of the host that is nearest.
    pub numa_node: Option<u32>,
    /// The link into its slot as it is at its best: an idle device trains its link down.
    pub pcie: Option<PcieLink>,
    /// The narrowest link between it and the host, the one into its slot or one of a switch above.
    pub to_host: Option<PcieLink>,
    /// What its memory can be read and written at, together, in bytes per second.
    pub memory_bytes_per_second: Option<u64>,
}

/// What lies between two devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Between {
    /// The NVLinks that lead from one to the other, through switches too. A count of 0 says that there are none;
    /// `None` that the number is unknown.
    pub nvlinks: Option<NvLinks>,
    /// Where their ways to the processors meet.
    pub ancestor: Option<Ancestor>,
    /// The narrowest PCIe link on the way between them.
    pub pcie: Option<PcieLink>,
}

/// A bundle of NVLinks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvLinks {
    /// How many.
    pub count: u32,
    /// What each of them signals one way, in bytes per second; 0 where that is not known.
    pub bytes_per_second: u64,
}

/// Where two devices' ways to the processors meet, the nearest first (NVML API Reference, `nvmlGpuTopologyLevel_t`).
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

/// The wires of the devices that were asked for, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wires {
    driver: Option<String>,
    devices: Vec<Wire>,
    /// For each device, the ones after it.
    pairs: Vec<Vec<Between>>,
}

impl Wires {
    /// The wires of this machine's devices. Starts NVML, which may take some milliseconds, and ends it again.
    pub fn discover(asked: &[Asked]) -> Wires {
        #[cfg(all(feature = "nvml", any(target_os = "linux", windows)))]
        if let Some(library) = library::Nvml::start() {
            return Wires::read(asked, SYSFS.as_ref(), Some(&library));
        }
        Wires::read(asked, SYSFS.as_ref(), None)
    }

    /// What a kernel's device tree says that is mounted there, `/sys` elsewhere, and no NVML.
    pub fn of_tree(asked: &[Asked], sysfs: &Path) -> Wires {
        Wires::read(asked, sysfs, None)
    }

    /// As `discover`, of a device tree at that path and of that management library.
    fn read(asked: &[Asked], sysfs: &Path, library: Option<&dyn Library>) -> Wires {
        // Of a card that the library knows as another one the kernel tells nothing to the point either.
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
                // What is above the slot the library does not say.
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
        // A driver of the machine's says nothing of devices that it does not drive.
        let known = (0..asked.len()).any(|index| told(index).is_some() || tree.has(index));
        let driver = library.as_ref().and_then(|told| told.driver.clone());
        let driver = driver.or_else(|| tree.driver());
        Wires {
            driver: driver.filter(|_| known),
            devices,
            pairs,
        }
    }

    /// The whole version of the driver, `580.65.06`; `None` where none of the devices is the machine's own.
    pub fn driver(&self) -> Option<&str> {
        self.driver.as_deref()
    }

    /// What is known of the device at that place in what was asked; nothing of one that was not asked for.
    pub fn of(&self, index: usize) -> Wire {
        self.devices.get(index).copied().unwrap_or_default()
    }

    /// What lies between two of them; the same in both directions, and nothing known of a device and itself.
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
