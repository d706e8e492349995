//! The facts that advice is derived from: what Linux tells below `/proc` and `/sys`, and which devices the library
//! found. Elsewhere the files are absent, and so are the facts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use transload::hal::DeviceInfo;
use transload::hal::cgroup;
use transload::{DeviceKind, PciAddress};

/// Facts about a machine and about what it lets this process do.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(super) devices: Vec<Device>,
    pub(super) unused: Vec<Unused>,
    /// The NUMA nodes, each with its processors.
    pub(super) nodes: BTreeMap<u32, Vec<u32>>,
    /// The processors on which the process may run.
    pub(super) processors: BTreeSet<u32>,
    /// The nodes of which the process may take memory.
    pub(super) memory_nodes: BTreeSet<u32>,
    /// How many processors' time the cgroup grants.
    pub(super) quota: Option<f64>,
    /// How many bytes of memory the cgroup grants.
    pub(super) memory_limit: Option<u64>,
    /// How many bytes of memory one copy takes at most.
    pub(super) wanted_bytes: u64,
}

/// Hardware that the library found on the PCI bus, under all of its names.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) ids: String,
    /// The links on the way up to the host, the card's own first.
    pub(super) slots: Vec<Slot>,
    pub(super) numa_node: Option<u32>,
}

/// A link between a card, or the upper end of a switch, and the bridge above.
#[derive(Debug)]
pub(super) struct Slot {
    /// The address of the lower end.
    pub(super) at: String,
    pub(super) path: PathBuf,
    /// The best at which the link was seen. A link without work saves power.
    pub(super) now: Option<PcieLink>,
    pub(super) card: PcieLink,
    pub(super) bridge: Option<PcieLink>,
}

/// The speed and the width of a link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct PcieLink {
    /// Gigatransfers per second of each lane.
    pub(super) gt_per_s: f64,
    pub(super) lanes: u32,
}

/// GPUs of one vendor, none of which the library found.
#[derive(Debug)]
pub(super) struct Unused {
    pub(super) vendor: Vendor,
    pub(super) slots: Vec<String>,
    pub(super) kernel_driver: Option<String>,
    /// Why the library has no device of that kind.
    pub(super) reason: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Vendor {
    Nvidia,
    Amd,
    Intel,
}

impl Facts {
    /// Reads the facts below `root`, which is `/`. `found` are the devices of the library, `lacks` its reasons for the
    /// absence of others.
    pub(crate) fn read(
        root: &Path,
        found: &[DeviceInfo],
        lacks: impl Fn(DeviceKind) -> Option<String>,
        wanted_bytes: u64,
    ) -> Facts {
        let real = |device: &&DeviceInfo| !device.simulated && !device.software;
        let mut devices: BTreeMap<PciAddress, Vec<&DeviceInfo>> = BTreeMap::new();
        for device in found.iter().filter(real) {
            if let Some(at) = device.pci {
                devices.entry(at).or_default().push(device);
            }
        }
        let unknown = found.iter().filter(real).any(|device| {
            let is_gpu = device.id.kind != DeviceKind::CPU;
            is_gpu && device.pci.is_none()
        });
        let status = text(&root.join("proc/self/status")).unwrap_or_default();
        let groups = cgroup::folders(root);
        Facts {
            // A device without an address may be any of the bus.
            unused: match unknown {
                true => Vec::new(),
                false => unused(root, &devices.keys().copied().collect(), lacks),
            },
            devices: devices
                .into_iter()
                .map(|(at, devices)| Device::read(root, at, &devices))
                .collect(),
            nodes: nodes(root),
            processors: allowed(&status, "Cpus_allowed_list:"),
            memory_nodes: allowed(&status, "Mems_allowed_list:"),
            quota: least(groups.iter().filter_map(|group| quota(group))),
            memory_limit: groups.iter().filter_map(|group| cgroup::limit(group)).min(),
            wanted_bytes,
        }
    }

    /// Looks at the links again, which are as fast as they get only while they carry bytes.
    pub(crate) fn look(&mut self) {
        let slots = self.devices.iter_mut().flat_map(|device| &mut device.slots);
        slots.for_each(Slot::look);
    }
}

impl Device {
    fn read(root: &Path, at: PciAddress, devices: &[&DeviceInfo]) -> Device {
        let ids: Vec<String> = devices.iter().map(|device| device.id.to_string()).collect();
        let folder = root.join(PCI).join(at.to_string());
        let told = devices.iter().find_map(|device| device.numa_node);
        Device {
            ids: ids.join(", "),
            // A node of -1 is none.
            numa_node: told.or_else(|| text(&folder.join("numa_node"))?.parse().ok()),
            slots: slots(&folder),
        }
    }
}

/// The links above a device. The folder of a device lies in that of the bridge above it, and both ends of a switch are
/// bridges with no link between them.
fn slots(folder: &Path) -> Vec<Slot> {
    let Ok(folder) = fs::canonicalize(folder) else {
        return Vec::new();
    };
    let ends: Vec<&Path> = folder
        .ancestors()
        .take_while(|path| address(path).is_some())
        .collect();
    let slot = |ends: &[&Path]| {
        let mut slot = Slot {
            at: address(ends[0])?.to_string(),
            path: ends[0].into(),
            now: None,
            card: PcieLink::read(ends[0], "max")?,
            bridge: ends.get(1).and_then(|bridge| PcieLink::read(bridge, "max")),
        };
        slot.look();
        Some(slot)
    };
    ends.chunks(2).filter_map(slot).collect()
}

impl Slot {
    fn look(&mut self) {
        let Some(now) = PcieLink::read(&self.path, "current") else {
            return;
        };
        let best = self.now.get_or_insert(now);
        best.gt_per_s = best.gt_per_s.max(now.gt_per_s);
        best.lanes = best.lanes.max(now.lanes);
    }
}

impl PcieLink {
    /// `which` is `max` or `current`.
    fn read(folder: &Path, which: &str) -> Option<PcieLink> {
        // `16.0 GT/s PCIe`, or `Unknown`.
        let speed = text(&folder.join(format!("{which}_link_speed")))?;
        let lanes = text(&folder.join(format!("{which}_link_width")))?;
        Some(PcieLink {
            gt_per_s: speed.split_once(" GT/s")?.0.parse().ok()?,
            // Ends without a link have 0 or 255.
            lanes: lanes
                .parse()
                .ok()
                .filter(|lanes| (1..=32).contains(lanes))?,
        })
    }
}

/// GPUs that are none of `known`, by vendor. Vendors with a known one are left out: the user has chosen among them.
fn unused(
    root: &Path,
    known: &BTreeSet<PciAddress>,
    lacks: impl Fn(DeviceKind) -> Option<String>,
) -> Vec<Unused> {
    let mut all: BTreeMap<Vendor, BTreeMap<PciAddress, PathBuf>> = BTreeMap::new();
    for entry in fs::read_dir(root.join(PCI)).into_iter().flatten().flatten() {
        let folder = entry.path();
        if let Some((at, vendor)) = address(&folder).zip(gpu_of(&folder)) {
            all.entry(vendor).or_default().insert(at, folder);
        }
    }
    all.retain(|_, slots| !slots.keys().any(|at| known.contains(at)));
    let kind = |vendor| match vendor {
        Vendor::Nvidia => DeviceKind::CUDA,
        Vendor::Amd | Vendor::Intel => DeviceKind::WGPU,
    };
    all.into_iter()
        .map(|(vendor, slots)| Unused {
            vendor,
            kernel_driver: slots.values().find_map(|folder| kernel_driver(folder)),
            slots: slots.keys().map(PciAddress::to_string).collect(),
            reason: lacks(kind(vendor)),
        })
        .collect()
}

/// The vendor of a device that is a GPU (PCI Code and ID Assignment Specification, class 03h) and not given to a virtual
/// machine.
fn gpu_of(folder: &Path) -> Option<Vendor> {
    let is_display = text(&folder.join("class"))?.starts_with("0x03");
    let is_lent = kernel_driver(folder).is_some_and(|driver| driver == "vfio-pci");
    match text(&folder.join("vendor"))?.as_str() {
        _ if !is_display || is_lent => None,
        "0x10de" => Some(Vendor::Nvidia),
        "0x1002" => Some(Vendor::Amd),
        "0x8086" => Some(Vendor::Intel),
        _ => None,
    }
}

fn kernel_driver(folder: &Path) -> Option<String> {
    let driver = fs::read_link(folder.join("driver")).ok()?;
    Some(driver.file_name()?.to_string_lossy().into_owned())
}

fn nodes(root: &Path) -> BTreeMap<u32, Vec<u32>> {
    let folders = fs::read_dir(root.join("sys/devices/system/node"));
    let node = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix("node")?.parse().ok()?;
        let processors = text(&entry.path().join("cpulist"))?;
        Some((number, numbers(&processors).collect()))
    };
    folders
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(node)
        .collect()
}

fn allowed(status: &str, field: &str) -> BTreeSet<u32> {
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix(field));
    numbers(list.unwrap_or_default()).collect()
}

/// The numbers of a list such as `0-3,8`.
fn numbers(list: &str) -> impl Iterator<Item = u32> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    });
    ranges.flatten()
}

/// `cpu.max` has the time in each period, or `max`, and the period. The older version has a file for each.
fn quota(group: &Path) -> Option<f64> {
    let old = || {
        let quota = text(&group.join("cpu.cfs_quota_us"))?;
        let period = text(&group.join("cpu.cfs_period_us"))?;
        Some(format!("{quota} {period}"))
    };
    let both = text(&group.join("cpu.max")).or_else(old)?;
    let (quota, period) = both.split_once(' ')?;
    // -1 is no quota.
    let [quota, period]: [u64; 2] = [quota.parse().ok()?, period.parse().ok()?];
    (period > 0).then(|| quota as f64 / period as f64)
}

fn least(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.min_by(f64::total_cmp)
}

fn address(path: &Path) -> Option<PciAddress> {
    path.file_name()?.to_str()?.parse().ok()
}

/// A file's text without the end of its last line.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().into())
}

const PCI: &str = "sys/bus/pci/devices";

impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GT/s x{}", self.gt_per_s, self.lanes)
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Vendor::Nvidia => "NVIDIA",
            Vendor::Amd => "AMD",
            Vendor::Intel => "Intel",
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
