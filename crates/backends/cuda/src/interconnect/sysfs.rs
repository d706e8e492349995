//! Reads Linux's description of the slots (Linux, Documentation/ABI/testing/sysfs-bus-pci).

use std::fs;
use std::path::{Path, PathBuf};

use transload_hal::PciAddress;

use super::links::{Ancestor, DeviceLinks};
use super::pcie::PcieLink;

/// The kernel's device tree, as far as it concerns some devices.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    devices: Vec<Option<Plugged>>,
}

/// A device of NVIDIA's and what is above it.
#[derive(Debug)]
struct Plugged {
    numa_node: Option<u32>,
    /// The link into its slot.
    slot: Option<PcieLink>,
    /// The bridges on the way up, the nearest first.
    bridges: Vec<PathBuf>,
    /// The host bridge, `pci0000:80`.
    host: PathBuf,
}

impl Tree {
    /// Looks the devices up below `root`, which is `/sys`. An address that is not an NVIDIA card there gives an
    /// unknown device: the address then comes from another machine. `None` is not looked up.
    pub(super) fn read(root: &Path, devices: impl Iterator<Item = Option<PciAddress>>) -> Tree {
        let devices = devices.map(|at| Plugged::read(root, at?)).collect();
        let root = root.into();
        Tree { root, devices }
    }

    pub(super) fn has(&self, index: usize) -> bool {
        self.devices[index].is_some()
    }

    pub(super) fn links(&self, index: usize) -> DeviceLinks {
        let Some(device) = &self.devices[index] else {
            return DeviceLinks::default();
        };
        let links = device.slot.into_iter().chain(self.above(index));
        DeviceLinks {
            numa_node: device.numa_node,
            pcie: device.slot,
            to_host: PcieLink::narrowest(links),
            memory_bytes_per_second: None,
        }
    }

    /// The links on the way up to the host, without the one into the slot.
    pub(super) fn above(&self, index: usize) -> impl Iterator<Item = PcieLink> + use<> {
        let bridges = self.devices[index]
            .as_ref()
            .map(|device| &device.bridges[..]);
        links_above(bridges.unwrap_or_default()).into_iter()
    }

    /// The links of both devices below the bridge where they meet, without the ones into the slots.
    pub(super) fn above_until_they_meet(
        &self,
        a: usize,
        b: usize,
    ) -> impl Iterator<Item = PcieLink> + use<> {
        let mut links = Vec::new();
        if let (Some(a), Some(b)) = (&self.devices[a], &self.devices[b]) {
            let shared = shared_bridges(a, b);
            for of in [a, b] {
                links.extend(links_above(&of.bridges[..of.bridges.len() - shared]));
            }
        }
        links.into_iter()
    }

    pub(super) fn ancestor(&self, a: usize, b: usize) -> Option<Ancestor> {
        let a = self.devices[a].as_ref()?;
        let b = self.devices[b].as_ref()?;
        if a.host != b.host {
            let same = a.numa_node? == b.numa_node?;
            return Some(if same {
                Ancestor::Node
            } else {
                Ancestor::System
            });
        }
        let shared = shared_bridges(a, b);
        Some(match shared {
            0 => Ancestor::HostBridge,
            // Of a switch that they share they have a port each.
            _ if [a, b].iter().all(|of| of.bridges.len() - shared <= 1) => Ancestor::Switch,
            _ => Ancestor::Switches,
        })
    }

    /// The version of the driver that the kernel has loaded.
    pub(super) fn driver(&self) -> Option<String> {
        text(&self.root.join("module/nvidia/version"))
    }

    /// Whether the device at that address is a bridge, as NVLink switches are, and no card; `None` where there is
    /// no such address (PCI Code and ID Assignment Specification, class 06h).
    pub(super) fn is_bridge(&self, at: PciAddress) -> Option<bool> {
        let class = text(&place(&self.root, at).join("class"))?;
        Some(class.starts_with("0x06"))
    }
}

impl Plugged {
    fn read(root: &Path, at: PciAddress) -> Option<Plugged> {
        // The links of the bus lead to the tree, in which a device lies below the bridges that it is behind.
        let device = fs::canonicalize(place(root, at)).ok()?;
        if text(&device.join("vendor"))? != NVIDIA {
            return None;
        }
        let mut above = device.ancestors().skip(1);
        let mut bridges = Vec::new();
        let host = loop {
            let next = above.next()?;
            if !is_address(next) {
                break next;
            }
            bridges.push(next.to_path_buf());
        };
        Some(Plugged {
            numa_node: numa_node(root, &device),
            slot: slot(&device, bridges.first()),
            host: host.into(),
            bridges,
        })
    }
}

/// Where the kernel lists the device of that address.
fn place(root: &Path, at: PciAddress) -> PathBuf {
    root.join("bus/pci/devices").join(at.to_string())
}

fn is_address(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.parse::<PciAddress>().is_ok())
}

/// How many of the bridges, counted from the host, are above both.
fn shared_bridges(a: &Plugged, b: &Plugged) -> usize {
    let both = a.bridges.iter().rev().zip(b.bridges.iter().rev());
    both.take_while(|(a, b)| a == b).count()
}

/// The links among bridges, from a slot's upwards. A switch is two bridges, and between them is no link: one lies
/// between the upper of them and the next bridge above, and so on.
fn links_above(bridges: &[PathBuf]) -> Vec<PcieLink> {
    let ends = bridges.get(1..).unwrap_or_default().chunks_exact(2);
    let links = ends.filter_map(|ends| Some(at_best(&ends[0])?.of_both(at_best(&ends[1])?)));
    links.collect()
}

/// The link between a device and the bridge above it, at the best that both are made for.
fn slot(device: &Path, bridge: Option<&PathBuf>) -> Option<PcieLink> {
    let own = at_best(device)?;
    let now = link(device, "current_link_speed", "current_link_width");
    let bridge = bridge.and_then(|bridge| at_best(bridge));
    // A bridge that could not carry what the link carries now is a virtual machine's invention, and the card was
    // trained in another one.
    let believed = bridge.filter(|bridge| now.is_none_or(|now| bridge.of_both(now) == now));
    Some(believed.map_or(own, |bridge| own.of_both(bridge)))
}

fn at_best(device: &Path) -> Option<PcieLink> {
    link(device, "max_link_speed", "max_link_width")
}

fn link(device: &Path, speed: &str, width: &str) -> Option<PcieLink> {
    let megatransfers = megatransfers(&text(&device.join(speed))?)?;
    PcieLink::new(megatransfers, text(&device.join(width))?.parse().ok()?)
}

/// Of `16.0 GT/s PCIe`, which older kernels write `16 GT/s`.
fn megatransfers(text: &str) -> Option<u32> {
    let (number, _) = text.split_once(" GT/s")?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let tenths: u32 = tenths.parse().ok().filter(|tenths| *tenths < 10)?;
    let whole: u32 = whole.parse().ok().filter(|whole| *whole < 1_000)?;
    Some(whole * 1_000 + tenths * 100)
}

/// The node that the firmware tells, -1 for none. On a machine of one node it is that one.
fn numa_node(root: &Path, device: &Path) -> Option<u32> {
    if let Ok(node) = text(&device.join("numa_node"))?.parse() {
        return Some(node);
    }
    // A list such as `0-1,4`; only a single node is a number.
    text(&root.join("devices/system/node/online"))?.parse().ok()
}

/// A file's text without the line's end; `None` where it is not to be read, or empty.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.into())
}

/// The vendor of PCI's that NVIDIA is.
const NVIDIA: &str = "0x10de";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_as_kernels_write_them() {
        assert_eq!(megatransfers("2.5 GT/s PCIe"), Some(2_500));
        assert_eq!(megatransfers("16.0 GT/s PCIe"), Some(16_000));
        assert_eq!(megatransfers("8 GT/s"), Some(8_000));
        assert_eq!(megatransfers("128.0 GT/s PCIe"), Some(128_000));
        for nonsense in [
            "Unknown",
            "Unknown speed",
            "",
            "GT/s",
            "133 MHz PCI",
            "-8 GT/s",
            "99999999 GT/s",
        ] {
            assert_eq!(megatransfers(nonsense), None, "{nonsense}");
        }
    }
}
