//! Machines written down as a kernel's tree, and a stand-in for NVML beside it.

mod machine;

use transload_hal::Uuid;

use super::nvml::NvLink;
use super::{Ancestor, DeviceLinks, DeviceQuery, Interconnect, NvLinks, PairLinks};
use machine::{StandIn, StandInGpu, Sysfs, ask, at, pcie};

const UUID: Uuid = Uuid([7; 16]);
const OTHER: Uuid = Uuid([8; 16]);

#[test]
fn a_machine_without_a_tree_and_a_library_knows_nothing() {
    let nowhere = DeviceQuery {
        pci: None,
        uuid: Some(UUID),
    };
    let asked = [ask("01:00.0"), nowhere];
    let interconnect = Interconnect::read(&asked, "/nowhere".as_ref(), None);
    assert_eq!(interconnect.driver(), None);
    assert_eq!(interconnect.device(0), DeviceLinks::default());
    assert_eq!(interconnect.between(0, 1), PairLinks::default());
    assert_eq!(interconnect.device(2), DeviceLinks::default());
    assert_eq!(interconnect.between(0, 2), PairLinks::default());
    assert_eq!(interconnect.between(1, 1), PairLinks::default());
    assert_eq!(
        Interconnect::read(&[], "/nowhere".as_ref(), None),
        Interconnect::default()
    );
}

#[test]
fn discovery_ends_well_on_whatever_machine_this_is() {
    let interconnect = Interconnect::discover(&[ask("ffff:ff:1f.7")]);
    assert_eq!(interconnect.device(0), DeviceLinks::default());
    assert_eq!(interconnect.driver(), None);
}

#[cfg(unix)]
mod with_links {
    use super::*;

    /// Two sockets. On the first, a switch with two GPUs, its uplink a quarter as wide as their slots; and a slot of its
    /// own. On the second one slot.
    fn two_sockets() -> Sysfs {
        let tree = Sysfs::new("sockets");
        tree.bridge("pci0000:00/0000:00:01.0", "32.0 GT/s PCIe", "16");
        tree.bridge(
            "pci0000:00/0000:00:01.0/0000:01:00.0",
            "32.0 GT/s PCIe",
            "4",
        );
        let switch = "pci0000:00/0000:00:01.0/0000:01:00.0";
        for (port, bus) in [("0000:02:00.0", "03"), ("0000:02:01.0", "04")] {
            tree.bridge(&format!("{switch}/{port}"), "32.0 GT/s PCIe", "16");
            let gpu = format!("{switch}/{port}/0000:{bus}:00.0");
            tree.gpu(&gpu, "32.0 GT/s PCIe", "16", "0");
        }
        tree.bridge("pci0000:00/0000:00:02.0", "16.0 GT/s PCIe", "16");
        tree.gpu(
            "pci0000:00/0000:00:02.0/0000:05:00.0",
            "32.0 GT/s PCIe",
            "16",
            "0",
        );
        tree.bridge("pci0000:40/0000:40:01.0", "32.0 GT/s PCIe", "16");
        tree.gpu(
            "pci0000:40/0000:40:01.0/0000:41:00.0",
            "32.0 GT/s PCIe",
            "16",
            "0",
        );
        tree.bridge("pci0000:80/0000:80:01.0", "8.0 GT/s PCIe", "16");
        tree.gpu(
            "pci0000:80/0000:80:01.0/0000:81:00.0",
            "16.0 GT/s PCIe",
            "8",
            "1",
        );
        tree.file("devices/system/node/online", "0-1");
        tree.file("module/nvidia/version", "580.65.06");
        tree
    }

    const FIVE: [&str; 5] = ["03:00.0", "04:00.0", "05:00.0", "41:00.0", "81:00.0"];

    #[test]
    fn a_link_is_as_good_as_both_of_its_ends_however_idle_it_is() {
        let interconnect = two_sockets().interconnect(&FIVE);
        assert_eq!(interconnect.driver(), Some("580.65.06"));
        let links: Vec<_> = (0..5)
            .map(|index| interconnect.device(index).pcie)
            .collect();
        assert_eq!(
            links,
            [
                pcie(5, 16),
                pcie(5, 16),
                pcie(4, 16),
                pcie(5, 16),
                pcie(3, 8)
            ]
        );
        let nodes: Vec<_> = (0..5)
            .map(|index| interconnect.device(index).numa_node)
            .collect();
        assert_eq!(nodes, [Some(0), Some(0), Some(0), Some(0), Some(1)]);
    }

    #[test]
    fn the_way_to_the_host_is_as_wide_as_its_narrowest_link() {
        let interconnect = two_sockets().interconnect(&FIVE);
        let to_host: Vec<_> = (0..5)
            .map(|index| interconnect.device(index).to_host)
            .collect();
        assert_eq!(
            to_host,
            [pcie(5, 4), pcie(5, 4), pcie(4, 16), pcie(5, 16), pcie(3, 8)]
        );
    }

    #[test]
    fn two_devices_meet_where_their_ways_do() {
        let interconnect = two_sockets().interconnect(&FIVE);
        let meet = |a, b| {
            let between = interconnect.between(a, b);
            assert_eq!(between, interconnect.between(b, a));
            // The kernel knows nothing of NVLinks.
            assert_eq!(between.nvlinks, None);
            (between.ancestor.unwrap(), between.pcie)
        };
        // Below the switch its uplink does not matter.
        assert_eq!(meet(0, 1), (Ancestor::Switch, pcie(5, 16)));
        assert_eq!(meet(0, 2), (Ancestor::HostBridge, pcie(5, 4)));
        assert_eq!(meet(2, 3), (Ancestor::Node, pcie(4, 16)));
        assert_eq!(meet(3, 4), (Ancestor::System, pcie(3, 8)));
        assert_eq!(meet(1, 4), (Ancestor::System, pcie(3, 8)));
    }

    #[test]
    fn switches_of_switches_are_told_from_one() {
        let tree = Sysfs::new("switches");
        let top = "pci0000:00/0000:00:01.0/0000:01:00.0";
        tree.bridge("pci0000:00/0000:00:01.0", "16.0 GT/s PCIe", "16");
        tree.bridge(top, "16.0 GT/s PCIe", "16");
        for (port, up, down, gpu, width) in [
            (
                "0000:02:00.0",
                "0000:03:00.0",
                "0000:04:00.0",
                "0000:05:00.0",
                "16",
            ),
            (
                "0000:02:01.0",
                "0000:06:00.0",
                "0000:07:00.0",
                "0000:08:00.0",
                "4",
            ),
        ] {
            let mut path = format!("{top}/{port}");
            tree.bridge(&path, "16.0 GT/s PCIe", "16");
            for (bridge, width) in [(up, width), (down, "16")] {
                path = format!("{path}/{bridge}");
                tree.bridge(&path, "16.0 GT/s PCIe", width);
            }
            tree.gpu(&format!("{path}/{gpu}"), "16.0 GT/s PCIe", "16", "0");
        }
        let interconnect = tree.interconnect(&["05:00.0", "08:00.0"]);
        let between = interconnect.between(0, 1);
        assert_eq!(between.ancestor, Some(Ancestor::Switches));
        assert_eq!(between.pcie, pcie(4, 4));
        assert_eq!(interconnect.device(0).to_host, pcie(4, 16));
        assert_eq!(interconnect.device(1).to_host, pcie(4, 4));
    }

    #[test]
    fn a_port_that_could_not_carry_what_is_carried_is_not_believed() {
        let tree = Sysfs::new("virtual");
        let gpu = [
            ("vendor", "0x10de"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("max_link_width", "16"),
            ("current_link_speed", "2.5 GT/s PCIe"),
            ("current_link_width", "16"),
            ("numa_node", "-1"),
        ];
        // As an emulator has it.
        tree.bridge("pci0000:00/0000:00:01.0", "2.5 GT/s PCIe", "1");
        tree.device("pci0000:00/0000:00:01.0/0000:01:00.0", &gpu);
        // A card that is on the host's bus itself.
        tree.device("pci0000:00/0000:00:07.0", &gpu);
        tree.file("devices/system/node/online", "0");
        let interconnect = tree.interconnect(&["01:00.0", "00:07.0"]);
        for index in 0..2 {
            assert_eq!(interconnect.device(index).pcie, pcie(5, 16));
            assert_eq!(interconnect.device(index).to_host, pcie(5, 16));
            // There is one node, so it is that one.
            assert_eq!(interconnect.device(index).numa_node, Some(0));
        }
        assert_eq!(
            interconnect.between(0, 1).ancestor,
            Some(Ancestor::HostBridge)
        );
    }

    #[test]
    fn what_the_kernel_does_not_know_stays_unknown() {
        let tree = Sysfs::new("unknown");
        tree.gpu("pci0000:00/0000:01:00.0", "Unknown", "255", "-1");
        tree.gpu("pci0001:00/0001:01:00.0", "16.0 GT/s PCIe", "0", "-1");
        tree.file("devices/system/node/online", "0-1");
        let interconnect = tree.interconnect(&["01:00.0", "0001:01:00.0"]);
        assert_eq!(interconnect.device(0), DeviceLinks::default());
        assert_eq!(interconnect.device(1), DeviceLinks::default());
        // On different bridges, of unknown nodes.
        assert_eq!(interconnect.between(0, 1), PairLinks::default());
    }

    #[test]
    fn a_card_of_somebody_else_at_the_address_is_not_the_device() {
        let tree = Sysfs::new("vendor");
        tree.device(
            "pci0000:00/0000:01:00.0",
            &[
                ("vendor", "0x1002"),
                ("max_link_speed", "16.0 GT/s PCIe"),
                ("max_link_width", "16"),
                ("numa_node", "0"),
            ],
        );
        tree.file("module/nvidia/version", "580.65.06");
        let interconnect = tree.interconnect(&["01:00.0"]);
        assert_eq!(interconnect.device(0), DeviceLinks::default());
        // That address does not come from this machine's driver.
        assert_eq!(interconnect.driver(), None);
    }

    #[test]
    fn the_library_goes_before_the_kernel_and_the_kernel_fills_what_it_left_out() {
        let tree = two_sockets();
        let first = StandInGpu {
            uuids: vec![UUID],
            nodes: Some(vec![1]),
            pcie: Some((4, 16)),
            memory: Some((2619, 5120)),
            ..StandInGpu::default()
        };
        // It knows this one, and says nothing about it.
        let second = StandInGpu {
            nodes: Some(vec![0, 1]),
            ..StandInGpu::default()
        };
        let library = StandIn {
            driver: Some("575.57.08".into()),
            gpus: [(at("03:00.0"), first), (at("04:00.0"), second)].into(),
            ancestors: vec![(at("03:00.0"), at("04:00.0"), Ancestor::Board)],
        };
        let asked = [
            DeviceQuery {
                pci: Some(at("03:00.0")),
                uuid: Some(UUID),
            },
            ask("04:00.0"),
            ask("05:00.0"),
        ];
        let interconnect = tree.read_with(&library, &asked);
        assert_eq!(interconnect.driver(), Some("575.57.08"));
        assert_eq!(
            interconnect.device(0),
            DeviceLinks {
                numa_node: Some(1),
                pcie: pcie(4, 16),
                // The switch's uplink, of which the library says nothing.
                to_host: pcie(5, 4),
                memory_bytes_per_second: Some(3_352_320_000_000),
            }
        );
        let second = DeviceLinks {
            numa_node: Some(0),
            pcie: pcie(5, 16),
            to_host: pcie(5, 4),
            memory_bytes_per_second: None,
        };
        assert_eq!(interconnect.device(1), second);
        assert_eq!(interconnect.device(2).pcie, pcie(4, 16));
        assert_eq!(interconnect.between(0, 1).ancestor, Some(Ancestor::Board));
        assert_eq!(interconnect.between(0, 1).pcie, pcie(4, 16));
        assert_eq!(
            interconnect.between(1, 2).ancestor,
            Some(Ancestor::HostBridge)
        );
        let none = NvLinks {
            count: 0,
            bytes_per_second: 0,
        };
        assert_eq!(interconnect.between(0, 1).nvlinks, Some(none));
        // Of the third the library knows nothing.
        assert_eq!(interconnect.between(1, 2).nvlinks, None);
    }

    #[test]
    fn a_stand_in_that_tells_the_address_of_a_real_card_gets_none_of_its_wires() {
        let tree = two_sockets();
        let gpu = StandInGpu {
            uuids: vec![UUID],
            pcie: Some((5, 16)),
            ..StandInGpu::default()
        };
        let library = StandIn {
            driver: Some("580.65.06".into()),
            gpus: [(at("03:00.0"), gpu)].into(),
            ..StandIn::default()
        };
        let asked = DeviceQuery {
            pci: Some(at("03:00.0")),
            uuid: Some(OTHER),
        };
        let interconnect = tree.read_with(&library, &[asked]);
        assert_eq!(interconnect.device(0), DeviceLinks::default());
        assert_eq!(interconnect.driver(), None);
    }
}

fn link(remote: Option<&str>, version: u32) -> NvLink {
    NvLink {
        remote: remote.map(at),
        version: Some(version),
    }
}

fn nvlinks_of(gpus: [(&str, Vec<NvLink>, Option<u32>); 3], tree: &Sysfs) -> [Option<NvLinks>; 3] {
    let asked = gpus.each_ref().map(|(place, ..)| ask(place));
    let gpus = gpus.map(|(place, nvlinks, megabytes)| {
        let gpu = StandInGpu {
            nvlinks,
            megabytes,
            ..StandInGpu::default()
        };
        (at(place), gpu)
    });
    let library = StandIn {
        gpus: gpus.into(),
        ..StandIn::default()
    };
    let interconnect = tree.read_with(&library, &asked);
    [(0, 1), (1, 2), (0, 2)].map(|(a, b)| interconnect.between(a, b).nvlinks)
}

#[test]
fn nvlinks_between_two_cards_are_counted_for_each_pair() {
    let to = |place, times| vec![link(Some(place), 4); times];
    let tree = Sysfs::new("bridged");
    let found = nvlinks_of(
        [
            ("01:00.0", to("02:00.0", 4), None),
            (
                "02:00.0",
                [to("01:00.0", 4), to("03:00.0", 2)].concat(),
                None,
            ),
            ("03:00.0", to("02:00.0", 2), None),
        ],
        &tree,
    );
    // The third generation has 25 GB/s a link, where the driver does not tell.
    let links = |count| {
        Some(NvLinks {
            count,
            bytes_per_second: 25_000_000_000,
        })
    };
    assert_eq!(found, [links(4), links(2), links(0)]);
}

#[test]
fn nvlinks_to_switches_lead_to_every_card_at_switches() {
    let tree = Sysfs::new("switched");
    #[cfg(unix)]
    tree.device(
        "pci0000:00/0000:c1:00.0",
        &[("vendor", "0x10de"), ("class", "0x068000")],
    );
    let to_switch = |times| vec![link(Some("c1:00.0"), 6); times];
    // A switch that is on no bus of this machine.
    let away = |times| vec![link(None, 6); times];
    let found = nvlinks_of(
        [
            ("01:00.0", to_switch(18), Some(26_562)),
            ("02:00.0", away(12), Some(26_562)),
            ("03:00.0", Vec::new(), None),
        ],
        &tree,
    );
    let twelve = NvLinks {
        count: 12,
        bytes_per_second: 26_562_000_000,
    };
    assert_eq!(found[0], Some(twelve));
    assert_eq!(found[1].map(|links| links.count), Some(0));
    assert_eq!(found[2].map(|links| links.count), Some(0));
}

/// `CUDA_VISIBLE_DEVICES` hides cards from the driver, and not from the library or the kernel.
#[test]
fn an_nvlink_to_a_card_that_was_not_asked_for_is_no_link_to_a_switch() {
    let tree = Sysfs::new("hidden");
    let hidden = || vec![link(Some("09:00.0"), 6); 6];
    let gpu = |nvlinks| StandInGpu {
        nvlinks,
        ..StandInGpu::default()
    };
    let library = StandIn {
        gpus: [
            (at("01:00.0"), gpu(hidden())),
            (at("02:00.0"), gpu(hidden())),
            (at("09:00.0"), gpu(Vec::new())),
        ]
        .into(),
        ..StandIn::default()
    };
    let interconnect = tree.read_with(&library, &[ask("01:00.0"), ask("02:00.0")]);
    assert_eq!(
        interconnect.between(0, 1).nvlinks.map(|links| links.count),
        Some(0)
    );
}
