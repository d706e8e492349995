//! What is known of the links of devices, and the query for it.

use transload_hal::{PciAddress, Uuid};

use super::pcie::PcieLink;

/// A device as the driver reports it, to find its wiring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceQuery {
    /// Its PCI address. Without an address nothing is known about the device.
    pub pci: Option<PciAddress>,
    /// Its UUID. Facts of NVML about the device at that address are used only if the UUIDs match: a stand-in for
    /// NVIDIA's driver may report the address of a card that it does not drive.
    pub uuid: Option<Uuid>,
}

impl DeviceQuery {
    /// The query for a device with that address and that UUID.
    pub fn new(pci: Option<PciAddress>, uuid: Option<Uuid>) -> DeviceQuery {
        DeviceQuery { pci, uuid }
    }
}

/// The known wiring of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceLinks {
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
#[non_exhaustive]
pub struct PairLinks {
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
#[non_exhaustive]
pub struct NvLinks {
    /// The number of links.
    pub count: u32,
    /// The rate of each link in one direction, in bytes per second; 0 if unknown.
    pub bytes_per_second: u64,
}

impl NvLinks {
    /// That many links of that rate in one direction, in bytes per second; 0 if it is unknown.
    pub fn new(count: u32, bytes_per_second: u64) -> NvLinks {
        NvLinks {
            count,
            bytes_per_second,
        }
    }
}

/// The place where two devices' paths to the processors meet, the nearest first (NVML API Reference,
/// `nvmlGpuTopologyLevel_t`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
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
