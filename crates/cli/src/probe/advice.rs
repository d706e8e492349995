//! Advice: what of the machine holds copies up, each with a remedy.
//!
//! The limit on locked memory (RLIMIT_MEMLOCK) is no fact here, because nothing that Transload calls is known to obey
//! it: the host backend locks no memory, and NVIDIA's kernel modules (595.45.04, `os-mlock.c`) pin pages without looking at the limit.

mod facts;

use std::collections::BTreeSet;

use transload::ByteSize;

use crate::json::Advice;
pub(super) use facts::Facts;
use facts::{Device, PcieLink, Unused, Vendor};

/// Derives advice from facts alone.
pub(super) fn advise(facts: &Facts) -> Vec<Advice> {
    let slots = facts.devices.iter().flat_map(slots);
    let nodes = facts.devices.iter().flat_map(|device| node(device, facts));
    let unused = facts.unused.iter().map(unused);
    let group = processors(facts).into_iter().chain(memory(facts));
    slots.chain(nodes).chain(unused).chain(group).collect()
}

/// Links on the way to a device that carry less than their lower end can.
fn slots(device: &Device) -> impl Iterator<Item = Advice> + '_ {
    device.slots.iter().filter_map(|slot| {
        let (now, card) = (slot.now?, slot.card);
        // A bridge that could not carry what the link carries is invented by a virtual machine.
        let bridge = slot.bridge.filter(|bridge| bridge.carries(now));
        let both = bridge.map_or(card, |bridge| bridge.of_both(card));
        let remedy = match (now.carries(both), both.carries(card)) {
            (true, true) => return None,
            (false, _) => format!(
                "reseat the card, check the riser, and set the slot to {both} in the firmware"
            ),
            (true, false) => "use a slot with more lanes or speed, if the board has one".into(),
        };
        Some(Advice {
            about: device.ids.clone(),
            found: format!(
                "the PCIe link at {} ran at {now} at best; the device there is made for {card}",
                slot.at
            ),
            remedy,
        })
    })
}

/// A device on a node whose processors or memory are not open to the process.
fn node(device: &Device, facts: &Facts) -> Option<Advice> {
    let node = device.numa_node?;
    let processors = facts.nodes.get(&node).filter(|all| !all.is_empty())?;
    let runs = processors.iter().any(|cpu| facts.processors.contains(cpu));
    if facts.processors.is_empty() || runs && facts.memory_nodes.contains(&node) {
        return None;
    }
    let open = match runs {
        true => format!("take memory of node {}", listed(&facts.memory_nodes)),
        false => {
            let is_open = |all: &&Vec<u32>| all.iter().any(|cpu| facts.processors.contains(cpu));
            let open = facts.nodes.iter().filter(|(_, all)| is_open(all));
            let open: BTreeSet<u32> = open.map(|(node, _)| *node).collect();
            format!("run on processors of node {}", listed(&open))
        }
    };
    Some(Advice {
        about: device.ids.clone(),
        found: format!("the device is at NUMA node {node}, and the process may only {open}"),
        remedy: format!(
            "start the program with `numactl --cpunodebind={node} --preferred={node}`, or add node {node} to its cpuset"
        ),
    })
}

/// GPUs on the bus that no backend drives.
fn unused(unused: &Unused) -> Advice {
    let vendor = unused.vendor;
    let driver = match &unused.kernel_driver {
        Some(driver) => format!("kernel driver {driver}"),
        None => "no kernel driver".into(),
    };
    let reason = unused.reason.as_ref();
    let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
    Advice {
        about: format!("GPU {}", unused.slots.join(", ")),
        found: format!("no backend drives this {vendor} hardware ({driver}){reason}"),
        remedy: match vendor {
            Vendor::Nvidia => {
                "install NVIDIA's driver; start a container with `docker run --gpus all`"
            }
            Vendor::Amd | Vendor::Intel => {
                "install a Vulkan driver (mesa-vulkan-drivers) and add the user to the group render; start a container \
                 with `docker run --device /dev/dri`"
            }
        }
        .into(),
    }
}

/// A quota of less time than the processors have.
fn processors(facts: &Facts) -> Option<Advice> {
    let (quota, all) = (facts.quota?, facts.processors.len());
    (quota < all as f64).then(|| Advice {
        about: "cpu:0".into(),
        found: format!(
            "the cgroup grants the time of {} of {all} processors, and copies of the host use no more threads than that",
            (quota * 100.0).round() / 100.0
        ),
        remedy: "raise cpu.max, or cpu.cfs_quota_us of cgroup v1 (`docker run --cpus`, limits.cpu of Kubernetes, CPUQuota= of systemd)".into(),
    })
}

/// A limit of memory below what one copy takes.
fn memory(facts: &Facts) -> Option<Advice> {
    let (limit, wanted) = (facts.memory_limit?, facts.wanted_bytes);
    (limit < wanted).then(|| Advice {
        about: "cpu:0".into(),
        found: format!(
            "the cgroup grants {} of memory, and the largest copy of a probe takes up to {} with its staging",
            ByteSize(limit),
            ByteSize(wanted)
        ),
        remedy: "raise memory.max (`docker run --memory`, limits.memory of Kubernetes, MemoryMax= of systemd), or set \
                 a smaller budget with `Builder::staging`"
            .into(),
    })
}

fn listed(numbers: &BTreeSet<u32>) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    numbers.join(", ")
}

impl PcieLink {
    /// Whether this link is as fast and as wide as the other.
    fn carries(self, other: PcieLink) -> bool {
        self.of_both(other) == other
    }

    /// What a link can carry between these two ends.
    fn of_both(self, other: PcieLink) -> PcieLink {
        PcieLink {
            gt_per_s: self.gt_per_s.min(other.gt_per_s),
            lanes: self.lanes.min(other.lanes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::facts::Slot;
    use super::*;

    const fn link(gt_per_s: f64, lanes: u32) -> PcieLink {
        PcieLink { gt_per_s, lanes }
    }

    /// A device in a slot, on a machine of two nodes that are all open to the process.
    fn machine(now: PcieLink, bridge: Option<PcieLink>) -> Facts {
        let slot = Slot {
            at: "0000:c1:00.0".into(),
            path: "".into(),
            now: Some(now),
            card: link(16.0, 16),
            bridge,
        };
        Facts {
            devices: vec![Device {
                ids: "cuda:0, wgpu:0".into(),
                slots: vec![slot],
                numa_node: Some(1),
            }],
            nodes: [(0, vec![0, 1]), (1, vec![2, 3])].into(),
            processors: (0..4).collect(),
            memory_nodes: [0, 1].into(),
            quota: Some(4.0),
            memory_limit: Some(192 << 20),
            wanted_bytes: 192 << 20,
            ..Facts::default()
        }
    }

    /// A machine without fault.
    fn sound() -> Facts {
        machine(link(16.0, 16), Some(link(16.0, 16)))
    }

    /// The one advice that there is.
    fn only(facts: &Facts) -> Advice {
        let mut all = advise(facts);
        assert_eq!(all.len(), 1, "{all:?}");
        let advice = all.remove(0);
        assert!(!advice.remedy.is_empty());
        advice
    }

    #[test]
    fn a_machine_without_fault_gets_no_advice() {
        assert_eq!(advise(&sound()), []);
        assert_eq!(advise(&Facts::default()), []);
    }

    #[test]
    fn a_link_below_both_of_its_ends_is_to_be_reseated() {
        let told = only(&machine(link(8.0, 16), Some(link(16.0, 16))));
        assert_eq!(told.about, "cuda:0, wgpu:0");
        assert_eq!(
            told.found,
            "the PCIe link at 0000:c1:00.0 ran at 8 GT/s x16 at best; the device there is made for 16 GT/s x16"
        );
        assert!(
            told.remedy.contains("reseat") && told.remedy.contains("16 GT/s x16"),
            "{told:?}"
        );
        let narrow = only(&machine(link(16.0, 4), None));
        assert!(narrow.found.contains("16 GT/s x4") && narrow.remedy.contains("reseat"));
    }

    #[test]
    fn a_slot_that_is_less_than_the_card_is_to_be_changed() {
        let told = only(&machine(link(16.0, 8), Some(link(16.0, 8))));
        assert!(
            told.remedy.contains("use a slot with more lanes"),
            "{told:?}"
        );
        // A bridge that cannot carry what the link carries exists only in a virtual machine.
        assert_eq!(advise(&machine(link(16.0, 16), Some(link(2.5, 1)))), []);
    }

    #[test]
    fn a_device_of_a_node_that_is_closed_to_the_process_is_told() {
        let mut facts = sound();
        facts.processors = [0, 1].into();
        facts.quota = None;
        let told = only(&facts);
        assert_eq!(
            told.found,
            "the device is at NUMA node 1, and the process may only run on processors of node 0"
        );
        assert!(told.remedy.contains("--cpunodebind=1"), "{told:?}");

        let mut facts = sound();
        facts.memory_nodes = [0].into();
        let told = only(&facts);
        assert!(
            told.found.ends_with("only take memory of node 0"),
            "{told:?}"
        );
    }

    #[test]
    fn a_gpu_that_no_backend_drives_is_told_with_its_driver_and_the_reason() {
        let mut facts = Facts {
            unused: vec![Unused {
                vendor: Vendor::Nvidia,
                slots: vec!["0000:01:00.0".into(), "0000:02:00.0".into()],
                kernel_driver: Some("nouveau".into()),
                reason: Some("no CUDA driver: libcuda.so.1 is not there".into()),
            }],
            ..Facts::default()
        };
        let told = only(&facts);
        assert_eq!(told.about, "GPU 0000:01:00.0, 0000:02:00.0");
        assert_eq!(
            told.found,
            "no backend drives this NVIDIA hardware (kernel driver nouveau): no CUDA driver: libcuda.so.1 is not there"
        );
        assert!(told.remedy.contains("--gpus all"), "{told:?}");
        facts.unused[0].vendor = Vendor::Amd;
        facts.unused[0].kernel_driver = None;
        let told = only(&facts);
        assert!(told.found.contains("no kernel driver"), "{told:?}");
        assert!(told.remedy.contains("/dev/dri"), "{told:?}");
    }

    #[test]
    fn a_quota_below_the_processors_is_told() {
        let mut facts = sound();
        facts.quota = Some(2.5);
        let told = only(&facts);
        assert!(told.found.contains("2.5 of 4 processors"), "{told:?}");
        assert!(told.remedy.contains("cpu.max"), "{told:?}");
    }

    #[test]
    fn a_limit_below_the_memory_of_one_copy_is_told() {
        let mut facts = sound();
        facts.memory_limit = Some(128 << 20);
        let told = only(&facts);
        assert!(
            told.found.contains("128 MiB") && told.found.contains("192 MiB"),
            "{told:?}"
        );
        assert!(told.remedy.contains("memory.max"), "{told:?}");
    }
}
