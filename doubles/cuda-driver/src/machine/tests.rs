use super::read::TopologyError;
use std::path::{Path, PathBuf};

use transload_core::Cost;

use super::read::parse;
use super::*;
use crate::engine::{Action, Clock, Work};

const MIB: u64 = 1 << 20;

fn own(name: &str) -> Topology {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("topologies")
        .join(name);
    Topology::from_file(path).unwrap()
}

fn simulated(name: &str) -> Topology {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../topologies")
        .join(name);
    Topology::from_file(path).unwrap()
}

fn machine(topology: Topology) -> Machine {
    Machine::new(topology, &Engine::new(Clock::Virtual))
}

/// A row of the matrix for each device.
fn access(machine: &Machine) -> Vec<Vec<bool>> {
    let all = 0..machine.devices().len();
    all.clone()
        .map(|device| {
            all.clone()
                .map(|peer| machine.can_access(device, peer))
                .collect()
        })
        .collect()
}

const HEAD: &str = r#"
schema = 1
name = "text"
[[device]]
id = "cpu:0"
name = "host"
memory = [{ kind = "pinned", memory_bytes = 1_000 }]
[[device]]
id = "sim:0"
name = "simulated"
memory = [{ kind = "device", memory_bytes = 1_000 }]
"#;

fn host_link(device: &str, more: &str) -> String {
    format!(
        r#"
[[link]]
src = "cpu:0/pinned"
dst = "{device}/device"
engine = "{device}#0"
class = "pcie"
{more}
"#
    )
}

fn read(text: &str) -> Result<Topology, TopologyError> {
    parse(Path::new("here.toml"), text)
}

#[test]
fn the_machines_of_the_double_have_the_peers_that_they_are_called_after() {
    let (no, yes) = (false, true);
    assert_eq!(access(&machine(own("no-peer.toml"))), [[no, no], [no, no]]);
    assert_eq!(
        access(&machine(own("pcie-peer.toml"))),
        [[no, yes], [yes, no]]
    );
    assert_eq!(
        access(&machine(own("one-way-peer.toml"))),
        [[no, yes], [no, no]]
    );
    let full = access(&machine(own("nvlink-full.toml")));
    assert_eq!(full.len(), 8);
    for (device, row) in full.iter().enumerate() {
        let others: Vec<bool> = (0..8).map(|peer| peer != device).collect();
        assert_eq!(row, &others);
    }
}

#[test]
fn machines_of_the_simulated_backend_are_read_too() {
    for (name, devices) in [
        ("laptop.toml", 1),
        ("workstation.toml", 2),
        ("eight-gpu.toml", 8),
    ] {
        assert_eq!(simulated(name).devices().len(), devices, "{name}");
    }
}

#[test]
fn a_way_takes_its_latency_and_its_rate() {
    let machine = machine(own("no-peer.toml"));
    let device = Memory::Device(1);
    let ns = |src, dst, bytes| machine.way(src, dst).unwrap().duration_ns(bytes);
    assert_eq!(ns(Memory::Pinned, device, 0), 6_000);
    assert_eq!(ns(Memory::Pinned, device, 25_000), 7_000);
    assert_eq!(ns(Memory::Pageable, device, 8_000), 7_000);
    assert_eq!(ns(device, Memory::Pageable, 8_000), 7_000);
    assert_eq!(machine.way(device, device).unwrap().class, LinkClass::Local);
    assert!(machine.way(Memory::Pinned, Memory::Pageable).is_none());
}

#[test]
fn a_curve_is_kept_whole() {
    let text = HEAD.to_string()
        + &host_link(
            "sim:0",
            r#"both = true
curve = [
    { from_bytes = 0, latency_ns = 10, bytes_per_second = 1_000_000_000 },
    { from_bytes = 100, latency_ns = 500, bytes_per_second = 2_000_000_000 },
]"#,
        );
    let machine = machine(read(&text).unwrap());
    let way = machine.way(Memory::Pinned, Memory::Device(0)).unwrap();
    assert_eq!(
        [0, 99, 100].map(|bytes| way.duration_ns(bytes)),
        [10, 109, 550]
    );
}

#[test]
fn a_device_is_filled_from_the_socket_that_it_hangs_on() {
    let machine = machine(simulated("eight-gpu.toml"));
    for ordinal in [0, 7] {
        let way = machine.way(Memory::Pinned, Memory::Device(ordinal));
        // 55 GB/s is 18.182 ps a byte, rounded up; the other socket would take 28.572.
        assert_eq!(
            way.unwrap().duration_ns(1_000_000),
            6_000 + 18_182,
            "{ordinal}"
        );
    }
}

#[test]
fn ways_of_one_engine_share_a_channel_and_others_do_not() {
    let channels = |text: &str| {
        let machine = machine(read(text).unwrap());
        let device = Memory::Device(0);
        let up = machine.way(Memory::Pinned, device).unwrap().channel;
        let down = machine.way(device, Memory::Pinned).unwrap().channel;
        up == down
    };
    assert!(channels(
        &(HEAD.to_string() + &host_link("sim:0", "both = true"))
    ));
    assert!(!channels(
        &(HEAD.to_string() + &host_link("sim:0", "both = true\nback_engine = \"sim:0#1\""))
    ));
}

#[test]
fn a_peer_copy_over_the_bus_contends_with_emptying_its_source() {
    let engine = Engine::new(Clock::Virtual);
    let machine = Machine::new(own("pcie-peer.toml"), &engine);
    let submit = |src, dst| {
        let way = machine.way(src, dst).unwrap();
        engine.submit(Work {
            after: Vec::new(),
            channels: vec![way.channel],
            duration_ns: way.duration_ns(20_000_000),
            action: Action::Nothing,
        })
    };
    let (first, second) = (Memory::Device(0), Memory::Device(1));
    let emptied = submit(first, Memory::Pinned);
    let sent = submit(first, second);
    let back = submit(second, first);
    let filled = submit(Memory::Pinned, first);
    let tickets = [emptied, sent, back, filled];
    engine.wait_all(&tickets);
    let ends = tickets.map(|ticket| ticket.done_at_ns().unwrap());
    assert_eq!(ends, [806_000, 806_000 + 1_008_000, 1_008_000, 806_000]);
}

#[test]
fn machines_without_a_file_have_equal_devices_and_no_modelled_time() {
    let machine = machine(Topology::of(3).with_memory_bytes(5 * MIB));
    assert_eq!(machine.devices().len(), 3);
    assert_eq!(Topology::of(1).devices()[0].memory_bytes, 1 << 30);
    for device in machine.devices() {
        assert_eq!(device.name, "Double of a CUDA device");
        assert_eq!(device.memory_bytes, 5 * MIB);
    }
    assert_eq!(access(&machine), vec![vec![false; 3]; 3]);
    for (src, dst) in [
        (Memory::Pinned, Memory::Device(2)),
        (Memory::Device(2), Memory::Pageable),
        (Memory::Device(2), Memory::Device(2)),
    ] {
        assert_eq!(machine.way(src, dst).unwrap().duration_ns(1 << 40), 0);
    }
}

#[test]
fn rates_and_peers_are_put_together_in_code() {
    let gigabyte = Cost::from_rate(0, 1_000_000_000);
    let (first, second) = (Memory::Device(0), Memory::Device(1));
    let topology = Topology::of(2)
        .with_way(Memory::Pinned, first, LinkClass::Pcie, gigabyte)
        .with_way(second, first, LinkClass::Fabric, gigabyte);
    let machine = machine(topology);
    let up = machine.way(Memory::Pageable, first).unwrap();
    assert_eq!(up.duration_ns(16 * MIB), 16 * MIB);
    let other = machine.way(Memory::Pinned, second).unwrap();
    assert_eq!(other.duration_ns(16 * MIB), 0);
    assert!(machine.can_access(1, 0) && !machine.can_access(0, 1));
    let peer = machine.way(second, first).unwrap();
    assert_eq!(peer.class, LinkClass::Fabric);
    assert!(peer.channel != up.channel && peer.channel != other.channel);
}

#[test]
fn uuids_and_addresses_are_lasting_and_tell_devices_and_machines_apart() {
    let uuids = |topology: &Topology| -> Vec<_> {
        let devices = topology.devices().iter();
        devices.map(|device| device.uuid).collect()
    };
    let first = own("nvlink-full.toml");
    assert_eq!(first, own("nvlink-full.toml"));
    let mut all = uuids(&first);
    all.extend(uuids(&own("no-peer.toml")));
    all.extend(uuids(&Topology::of(2)));
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
    let many = Topology::of(300);
    let mut places: Vec<_> = many.devices().iter().map(|device| device.pci).collect();
    assert_eq!(places[0].to_string(), "0000:01:00.0");
    assert_eq!(places[255].to_string(), "0001:01:00.0");
    places.dedup();
    assert_eq!(places.len(), 300);
}

#[test]
fn a_uuid_that_is_given_is_kept() {
    let text = HEAD.replace(
        "name = \"simulated\"",
        "name = \"simulated\"\nuuid = \"01020304-0506-0708-090a-0b0c0d0e0f10\"",
    ) + &host_link("sim:0", "both = true");
    let topology = read(&text).unwrap();
    assert_eq!(topology.devices()[0].uuid.0[15], 0x10);
}

#[test]
fn devices_of_kind_cuda_leave_others_out_and_go_by_their_index() {
    let device = |index: u32| {
        format!(
            r#"
[[device]]
id = "cuda:{index}"
name = "card {index}"
memory = [{{ kind = "device", memory_bytes = 2_000 }}]
"#
        )
    };
    let text = HEAD.to_string()
        + &device(2)
        + &device(0)
        + &host_link("cuda:0", "both = true")
        + &host_link("cuda:2", "both = true");
    let topology = read(&text).unwrap();
    let names: Vec<&str> = topology
        .devices()
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    assert_eq!(names, ["card 0 (simulated)", "card 2 (simulated)"]);
}

#[test]
fn a_bad_file_is_refused_by_name_and_field() {
    let bad_rate = HEAD.to_string() + &host_link("sim:0", "bytes_per_second = 5");
    let one_way = HEAD.to_string() + &host_link("sim:0", "");
    let empty_cuda = HEAD
        .replace("sim:0", "cuda:0")
        .replace("kind = \"device\"", "kind = \"managed\"");
    let no_device = HEAD.replace("kind = \"device\"", "kind = \"managed\"");
    for (text, words) in [
        ("schema = 1\ncolour = 2", "colour"),
        ("schema = 2\nname = \"x\"", "schema 2"),
        (&bad_rate, "bytes_per_second = 5"),
        (&one_way, "from device sim:0"),
        (HEAD, "to device sim:0"),
        (&empty_cuda, "cuda:0"),
        (&no_device, "no device is of kind cuda"),
    ] {
        let message = read(text).unwrap_err().to_string();
        assert!(
            message.starts_with("here.toml: ") && message.contains(words),
            "{message}"
        );
    }
}

#[test]
fn a_file_that_is_not_there_is_refused_by_name() {
    let path = PathBuf::from("no/such/file.toml");
    let error = Topology::from_file(&path).unwrap_err();
    assert!(matches!(&error, TopologyError::Io { path: named, .. } if *named == path));
    assert!(error.to_string().starts_with("no/such/file.toml: "));
}

#[test]
#[should_panic(expected = "no device 2")]
fn a_way_to_no_device_is_refused() {
    let cost = Cost::ZERO;
    drop(Topology::of(2).with_way(Memory::Pinned, Memory::Device(2), LinkClass::Pcie, cost));
}
