//! Facts of machines that the tests write down, file by file.

use transload::hal::BackendId;

use super::super::advise;
use super::*;

/// The root of a machine, in a folder of its own.
struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Root {
        let folder = format!("transload-facts-{name}-{}", std::process::id());
        Root(std::env::temp_dir().join(folder))
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, path: &str, to: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        std::os::unix::fs::symlink(self.0.join(to), path).unwrap();
    }

    /// A device of the bus, below the bridges of its path, with the speed and width of its link now and at best.
    fn device(&self, path: &str, [now, best]: [(&str, &str); 2]) {
        let folder = format!("sys/devices/pci0000:00/{path}");
        for (which, (speed, width)) in [("current", now), ("max", best)] {
            self.file(&format!("{folder}/{which}_link_speed"), speed);
            self.file(&format!("{folder}/{which}_link_width"), width);
        }
        let address = path.rsplit('/').next().unwrap();
        self.link(&format!("{PCI}/{address}"), &folder);
    }

    fn gpu(&self, address: &str, [vendor, class]: [&str; 2], driver: &str) {
        let folder = format!("{PCI}/{address}");
        self.file(&format!("{folder}/vendor"), vendor);
        self.file(&format!("{folder}/class"), class);
        if !driver.is_empty() {
            self.link(
                &format!("{folder}/driver"),
                &format!("sys/bus/pci/drivers/{driver}"),
            );
        }
    }

    fn facts(&self, devices: &[DeviceInfo]) -> Facts {
        Facts::read(
            &self.0,
            devices,
            |kind| Some(format!("no {kind}")),
            192 << 20,
        )
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn found(id: &str, pci: Option<&str>) -> DeviceInfo {
    DeviceInfo {
        id: id.parse().unwrap(),
        backend: BackendId("test".parse().unwrap()),
        name: "card".into(),
        software: false,
        simulated: false,
        memory_bytes: None,
        driver: None,
        uuid: None,
        pci: pci.map(|pci| pci.parse().unwrap()),
        numa_node: None,
    }
}

const GPU: &str = "0000:03:00.0";

/// A card behind a switch behind a bridge, all at their best.
fn switched(root: &Root) {
    let best = [("16.0 GT/s PCIe", "16"); 2];
    root.device("0000:00:01.0", best);
    root.device("0000:00:01.0/0000:01:00.0", best);
    root.device("0000:00:01.0/0000:01:00.0/0000:02:00.0", best);
    let card = "0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0";
    root.device(card, best);
}

#[test]
fn links_are_read_up_to_the_host_and_at_their_best() {
    let root = Root::new("links");
    switched(&root);
    let both = [found("cuda:0", Some(GPU)), found("wgpu:0", Some(GPU))];
    let mut facts = root.facts(&both);
    assert_eq!(facts.devices.len(), 1);
    let at: Vec<&str> = facts.devices[0]
        .slots
        .iter()
        .map(|slot| &*slot.at)
        .collect();
    assert_eq!(at, [GPU, "0000:01:00.0"]);
    assert_eq!(advise(&facts), []);
    // The upper end of the switch is slow now, and was not before.
    let upper = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/current_link_speed";
    root.file(upper, "2.5 GT/s PCIe");
    facts.look();
    assert_eq!(advise(&facts), []);
    let mut facts = root.facts(&both);
    let advice = advise(&facts);
    assert_eq!(advice.len(), 1);
    assert_eq!(advice[0].about, "cuda:0, wgpu:0");
    assert!(
        advice[0].found.contains("0000:01:00.0 ran at 2.5 GT/s x16"),
        "{advice:?}"
    );
    // It wakes up under load.
    root.file(upper, "16.0 GT/s PCIe");
    facts.look();
    assert_eq!(advise(&facts), []);
}

#[test]
fn links_that_tell_nothing_and_devices_that_are_none_of_this_machine_are_left_out() {
    let root = Root::new("unknown-links");
    root.device(GPU, [("Unknown", "0"), ("Unknown", "255")]);
    let mut stand_in = found("cuda:1", Some("0000:04:00.0"));
    stand_in.simulated = true;
    root.device(
        "0000:04:00.0",
        [("2.5 GT/s PCIe", "1"), ("16.0 GT/s PCIe", "16")],
    );
    let facts = root.facts(&[found("cuda:0", Some(GPU)), stand_in]);
    assert_eq!(facts.devices.len(), 1);
    assert!(facts.devices[0].slots.is_empty());
    // A machine without any of the files.
    let facts = Root::new("nothing").facts(&[found("cuda:0", Some(GPU))]);
    assert_eq!(advise(&facts), []);
}

#[test]
fn nodes_and_what_the_process_may_use_of_them_are_read() {
    let root = Root::new("nodes");
    switched(&root);
    root.file(&format!("{PCI}/{GPU}/numa_node"), "1");
    root.file("sys/devices/system/node/node0/cpulist", "0-1,4");
    root.file("sys/devices/system/node/node1/cpulist", "2-3");
    root.file("sys/devices/system/node/online", "0-1");
    root.file(
        "proc/self/status",
        "Name:\tx\nCpus_allowed_list:\t0,4\nMems_allowed_list:\t0-1",
    );
    let facts = root.facts(&[found("cuda:0", Some(GPU))]);
    assert_eq!(facts.nodes, [(0, vec![0, 1, 4]), (1, vec![2, 3])].into());
    assert_eq!(facts.processors, [0, 4].into());
    assert_eq!(facts.memory_nodes, [0, 1].into());
    let advice = advise(&facts);
    assert!(
        advice.len() == 1 && advice[0].found.contains("NUMA node 1"),
        "{advice:?}"
    );
    root.file(&format!("{PCI}/{GPU}/numa_node"), "-1");
    assert_eq!(advise(&root.facts(&[found("cuda:0", Some(GPU))])), []);
}

#[test]
fn gpus_of_vendors_of_which_no_backend_has_one_are_found() {
    let root = Root::new("unused");
    root.gpu("0000:01:00.0", ["0x10de", "0x030200"], "nvidia");
    root.gpu("0000:02:00.0", ["0x10de", "0x030200"], "nvidia");
    root.gpu("0000:02:00.1", ["0x10de", "0x040300"], "snd_hda_intel"); // its sound
    root.gpu("0000:05:00.0", ["0x1002", "0x030000"], "vfio-pci"); // a virtual machine's
    root.gpu("0000:06:00.0", ["0x1a03", "0x030000"], "ast"); // no GPU that computes
    root.gpu("0000:00:02.0", ["0x8086", "0x030000"], "");
    let facts = root.facts(&[found("cpu:0", None)]);
    let told = advise(&facts);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[0].about, "GPU 0000:01:00.0, 0000:02:00.0");
    assert!(
        told[0].found.ends_with("(kernel driver nvidia): no cuda"),
        "{told:?}"
    );
    assert!(
        told[1]
            .found
            .ends_with("Intel hardware (no kernel driver): no wgpu"),
        "{told:?}"
    );
    // One of eight is what a container has often.
    let facts = root.facts(&[found("cuda:0", Some("0000:02:00.0"))]);
    assert_eq!(advise(&facts).len(), 1);
    // A device without an address may be any of them.
    assert_eq!(advise(&root.facts(&[found("wgpu:0", None)])), []);
}

#[test]
fn the_least_limit_of_the_cgroups_above_counts() {
    let root = Root::new("cgroups");
    root.file("proc/self/status", "Cpus_allowed_list:\t0-7");
    root.file("proc/self/cgroup", "0::/user.slice/app.scope");
    let files = |quotas: [&str; 2], limits: [&str; 2]| {
        for (at, group) in ["user.slice", "user.slice/app.scope"].iter().enumerate() {
            root.file(&format!("sys/fs/cgroup/{group}/cpu.max"), quotas[at]);
            root.file(&format!("sys/fs/cgroup/{group}/memory.max"), limits[at]);
        }
    };
    files(["max 100000"; 2], ["max"; 2]);
    let facts = root.facts(&[]);
    assert_eq!((facts.quota, facts.memory_limit), (None, None));
    files(["250000 100000", "max 100000"], ["134217728", "1073741824"]);
    let facts = root.facts(&[]);
    assert_eq!(
        (facts.quota, facts.memory_limit),
        (Some(2.5), Some(128 << 20))
    );
    assert_eq!(advise(&facts).len(), 2);
}

#[test]
fn the_older_cgroups_and_those_of_a_container_are_read() {
    let root = Root::new("old-cgroups");
    root.file(
        "proc/self/cgroup",
        "4:memory:/docker/1\n1:cpu,cpuacct:/docker/1\n0::/../x",
    );
    // In the container the mount begins at its own group.
    root.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "67108864");
    root.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000");
    root.file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
    let facts = root.facts(&[]);
    assert_eq!(
        (facts.quota, facts.memory_limit),
        (Some(1.5), Some(64 << 20))
    );
    root.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
    assert_eq!(root.facts(&[]).quota, None);
}
