//! Builds machines for tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use transload_hal::{PciAddress, Uuid};

use crate::interconnect::nvml::{Library, NvLink};
use crate::interconnect::{Ancestor, DeviceQuery, Interconnect, PcieLink};

/// A device tree in a folder of its own.
pub(super) struct Sysfs(PathBuf);

impl Sysfs {
    pub(super) fn new(name: &str) -> Sysfs {
        let folder = format!("transload-interconnect-{name}-{}", std::process::id());
        let root = std::env::temp_dir().join(folder);
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        Sysfs(root)
    }

    pub(super) fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// A function at the end of that path below `devices`, with these files.
    pub(super) fn device(&self, path: &str, files: &[(&str, &str)]) {
        for (name, text) in files {
            self.file(&format!("devices/{path}/{name}"), text);
        }
        let address = path.rsplit('/').next().unwrap();
        let place = self.0.join("bus/pci/devices").join(address);
        #[cfg(unix)]
        std::os::unix::fs::symlink(self.0.join("devices").join(path), place).unwrap();
        #[cfg(not(unix))]
        let _ = place;
    }

    /// A bridge of a PCIe generation.
    pub(super) fn bridge(&self, path: &str, speed: &str, width: &str) {
        self.device(
            path,
            &[
                ("vendor", "0x1000"),
                ("class", "0x060400"),
                ("max_link_speed", speed),
                ("max_link_width", width),
            ],
        );
    }

    /// A GPU whose link is trained down, as an idle one's is.
    pub(super) fn gpu(&self, path: &str, speed: &str, width: &str, node: &str) {
        self.device(
            path,
            &[
                ("vendor", "0x10de"),
                ("class", "0x030200"),
                ("max_link_speed", speed),
                ("max_link_width", width),
                ("current_link_speed", "2.5 GT/s PCIe"),
                ("current_link_width", width),
                ("numa_node", node),
            ],
        );
    }

    pub(super) fn interconnect(&self, queries: &[&str]) -> Interconnect {
        let queries: Vec<_> = queries.iter().map(|at| ask(at)).collect();
        Interconnect::of_tree(&queries, &self.0)
    }

    pub(super) fn read_with(&self, library: &dyn Library, queries: &[DeviceQuery]) -> Interconnect {
        Interconnect::read(queries, &self.0, Some(library))
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

pub(super) fn ask(text: &str) -> DeviceQuery {
    DeviceQuery {
        pci: Some(at(text)),
        uuid: None,
    }
}

pub(super) fn pcie(generation: u32, lanes: u32) -> Option<PcieLink> {
    let link = PcieLink::of_generation(generation, lanes);
    assert!(link.is_some());
    link
}

/// A stand-in for NVML that answers as the test defined.
#[derive(Default)]
pub(super) struct StandIn {
    pub(super) driver: Option<String>,
    pub(super) gpus: BTreeMap<PciAddress, StandInGpu>,
    pub(super) ancestors: Vec<(PciAddress, PciAddress, Ancestor)>,
}

#[derive(Default)]
pub(super) struct StandInGpu {
    pub(super) uuids: Vec<Uuid>,
    pub(super) nodes: Option<Vec<u32>>,
    pub(super) pcie: Option<(u32, u32)>,
    pub(super) memory: Option<(u32, u32)>,
    pub(super) nvlinks: Vec<NvLink>,
    pub(super) megabytes: Option<u32>,
}

impl Library for StandIn {
    fn driver(&self) -> Option<String> {
        self.driver.clone()
    }

    fn has_gpu(&self, at: PciAddress) -> bool {
        self.gpus.contains_key(&at)
    }

    fn is(&self, at: PciAddress, uuid: Uuid) -> bool {
        self.gpus
            .get(&at)
            .is_some_and(|gpu| gpu.uuids.contains(&uuid))
    }

    fn nodes(&self, at: PciAddress) -> Option<Vec<u32>> {
        self.gpus.get(&at)?.nodes.clone()
    }

    fn pcie_generation(&self, at: PciAddress) -> Option<u32> {
        Some(self.gpus.get(&at)?.pcie?.0)
    }

    fn pcie_lanes(&self, at: PciAddress) -> Option<u32> {
        Some(self.gpus.get(&at)?.pcie?.1)
    }

    fn memory_megahertz(&self, at: PciAddress) -> Option<u32> {
        Some(self.gpus.get(&at)?.memory?.0)
    }

    fn memory_bits(&self, at: PciAddress) -> Option<u32> {
        Some(self.gpus.get(&at)?.memory?.1)
    }

    fn nvlinks(&self, at: PciAddress) -> Vec<NvLink> {
        self.gpus
            .get(&at)
            .map(|gpu| gpu.nvlinks.clone())
            .unwrap_or_default()
    }

    fn nvlink_megabytes(&self, at: PciAddress) -> Option<u32> {
        self.gpus.get(&at)?.megabytes
    }

    fn ancestor(&self, a: PciAddress, b: PciAddress) -> Option<Ancestor> {
        let mut found = self.ancestors.iter();
        let found = found.find(|(x, y, _)| [(a, b), (b, a)].contains(&(*x, *y)));
        found.map(|(.., ancestor)| *ancestor)
    }
}
