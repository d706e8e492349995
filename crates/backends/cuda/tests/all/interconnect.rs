//! The inventory contains the known facts about links: costs, classes, and the identities of devices.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{backend, driver, machine};
use transload_cuda::Cuda;
use transload_cuda::interconnect::{DeviceQuery, Interconnect};
use transload_hal::defaults::link_cost;
use transload_hal::{
    Access, Backend, Curve, DeviceId, DeviceKind, Inventory, Link, LinkClass, MemoryId, MemoryKind,
};

const PINNED: MemoryId = DeviceId::CPU0.memory(MemoryKind::Pinned);

fn device(index: u32) -> MemoryId {
    DeviceId::new(DeviceKind::CUDA, index).memory(MemoryKind::Device)
}

/// The class and the cost of the only link of this backend from one memory to the other.
fn link(inventory: &Inventory, src: MemoryId, dst: MemoryId) -> (LinkClass, Curve) {
    let own = |link: &&Link| link.backend == inventory.backend;
    let links = inventory.links.iter().filter(own);
    let mut found = links.filter(|link| (link.id.src, link.id.dst) == (src, dst));
    let link = found.next().unwrap();
    assert!(found.next().is_none());
    (link.class, link.cost.clone())
}

fn gigabytes(cost: &Curve) -> u64 {
    1_000_000 / cost.cost_at(1 << 30).fs_per_byte
}

/// A kernel's device tree in which each device has a slot of its own on a root port, on PCIe 5.0 x16; the second device
/// has half that width.
struct Tree(PathBuf);

impl Tree {
    fn new(asked: &[DeviceQuery]) -> Tree {
        let folder = format!("transload-cuda-interconnect-{}", std::process::id());
        let root = std::env::temp_dir().join(folder);
        let put = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        for (index, of) in asked.iter().enumerate() {
            let address = of.pci.unwrap().to_string();
            let port = root.join(format!("devices/pci0000:f0/0000:f0:{index:02x}.0"));
            let device = port.join(&address);
            for (end, vendor) in [(&port, "0x8086"), (&device, "0x10de")] {
                put(&end.join("vendor"), vendor);
                put(&end.join("max_link_speed"), "32.0 GT/s PCIe\n");
                put(&end.join("max_link_width"), ["16\n", "8\n"][index.min(1)]);
                put(&end.join("numa_node"), "1\n");
            }
            std::os::unix::fs::symlink(&device, root.join("bus/pci/devices").join(address))
                .unwrap();
        }
        put(&root.join("module/nvidia/version"), "580.65.06\n");
        Tree(root)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_stand_in_has_the_usual_costs_and_nothing_of_this_machine() {
    let cuda = backend(&[("DEVICES", "2")]);
    let inventory = cuda.inventory();
    let usual = (LinkClass::Pcie, Curve::from(link_cost(LinkClass::Pcie)));
    assert_eq!(link(&inventory, PINNED, device(0)), usual);
    assert_eq!(link(&inventory, device(1), PINNED), usual);
    let told = inventory.devices[0].driver.as_deref();
    assert_eq!(told, Some("CUDA 13.5"));
}

#[test]
fn links_cost_what_the_slots_carry_and_the_whole_drivers_version_is_told() {
    let mut tree = None;
    let cuda = Cuda::with_interconnect(driver(&[("TOPOLOGY", &machine("pcie-peer"))]), |asked| {
        let made = tree.insert(Tree::new(asked));
        Interconnect::of_tree(asked, &made.0)
    });
    let inventory = cuda.unwrap().inventory();
    let rate = |src, dst| {
        let (class, cost) = link(&inventory, src, dst);
        (class, gigabytes(&cost))
    };
    // 87 % of 63.0 and of 31.5 GB/s.
    for (src, dst) in [(PINNED, device(0)), (device(0), PINNED)] {
        assert_eq!(rate(src, dst), (LinkClass::Pcie, 54));
    }
    assert_eq!(rate(PINNED, device(1)), (LinkClass::Pcie, 27));
    assert_eq!(rate(device(0), device(1)), (LinkClass::Pcie, 27));
    assert_eq!(rate(device(1), device(0)), (LinkClass::Pcie, 27));
    assert_eq!(rate(device(0), device(0)).0, LinkClass::Local);
    assert!(rate(device(0), device(0)).1 > 100, "within a device");
    for device in &inventory.devices {
        assert_eq!(
            device.driver.as_deref(),
            Some("NVIDIA 580.65.06, CUDA 13.5")
        );
        // The driver's own answer takes precedence over the kernel's.
        assert_eq!(device.numa_node, Some(0));
        assert!(device.pci.is_some());
    }
}

#[test]
fn links_with_all_atomics_are_a_fabric() {
    let cuda = backend(&[("TOPOLOGY", &machine("nvlink-full"))]);
    let links = cuda.inventory().links;
    let peers = links.iter().filter(|link| link.id.access == Access::Peer);
    let fabric = Curve::from(link_cost(LinkClass::Fabric));
    let of_fabric = |link: &&Link| link.class == LinkClass::Fabric && link.cost == fabric;
    assert_eq!(peers.clone().count(), 8 * 7);
    assert_eq!(peers.filter(of_fabric).count(), 8 * 7);
}
