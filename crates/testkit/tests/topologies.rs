//! The machines under `topologies/`, and the errors for files that do not describe one.

use std::path::PathBuf;

use transload_core::schema::{MOST_LINKS, SchemaError};
use transload_hal::Topology;
use transload_hal::{Access, LinkClass, MemoryId};
use transload_testkit::sim::BACKEND;
use transload_testkit::topology::{TopologyError, from_file, from_str};

fn load(name: &str) -> Topology {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../topologies");
    let machine = from_file(path.join(name)).unwrap();
    machine.topology(BACKEND).unwrap()
}

fn memory(text: &str) -> MemoryId {
    text.parse().unwrap()
}

#[test]
fn a_workstation_has_two_gpus_that_cannot_reach_each_other() {
    let machine = load("workstation.toml");
    let (one, other) = (memory("sim:0/device"), memory("sim:1/device"));
    assert_eq!(machine.links_between(one, other).count(), 0);
    assert!(machine.links_between(one, memory("cpu:0/pinned")).count() > 0);
    assert!(machine.devices().iter().all(|device| device.simulated));
}

#[test]
fn a_laptop_lets_its_gpu_copy_host_memory_in_place() {
    let machine = load("laptop.toml");
    let link = machine
        .links_between(memory("cpu:0/pageable"), memory("sim:0/device"))
        .next()
        .unwrap();
    assert_eq!(link.id.access, Access::Import);
}

#[test]
fn eight_gpus_all_reach_each_other_and_hang_on_two_nodes() {
    let machine = load("eight-gpu.toml");
    for src in 0..8 {
        for dst in 0..8 {
            let ends = [src, dst].map(|gpu| memory(&format!("sim:{gpu}/device")));
            let links: Vec<_> = machine.links_between(ends[0], ends[1]).collect();
            assert_eq!(links.len(), 1, "{ends:?}");
            assert_eq!(links[0].class == LinkClass::Fabric, src != dst);
        }
    }
    let nodes: Vec<_> = machine.devices().iter().map(|d| d.numa_node).collect();
    assert_eq!(nodes.iter().filter(|node| **node == Some(1)).count(), 5);
}

#[test]
fn gpus_of_one_number_share_a_rail_between_machines_that_are_alike() {
    let machine = load("cluster.toml");
    assert_eq!(machine.devices().len(), 8 * 9);
    let gpu = |node: u32, index: u32| match node {
        0 => memory(&format!("sim:{index}/device")),
        node => memory(&format!("n{node}/sim:{index}/device")),
    };
    for (from, to) in (0..8).flat_map(|from| (0..8).map(move |to| (from, to))) {
        for (one, other) in [(0, 0), (3, 3), (3, 5)] {
            let links = machine.links_between(gpu(from, one), gpu(to, other));
            let found: Vec<LinkClass> = links.map(|link| link.class).collect();
            let expected = match (from == to, one == other) {
                (true, true) | (false, false) => vec![],
                (true, false) => vec![LinkClass::Fabric],
                (false, true) => vec![LinkClass::Network],
            };
            assert_eq!(found, expected, "{from}.{one} to {to}.{other}");
        }
    }
}

#[test]
fn every_link_and_device_of_the_machines_here_names_its_source() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../topologies");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let machine = from_file(&path).unwrap();
        let sources = machine.devices.iter().map(|entry| &entry.source);
        let sources = sources.chain(machine.links.iter().map(|entry| &entry.source));
        let sources = sources.chain(machine.meshes.iter().map(|entry| &entry.source));
        let sources = sources.chain(machine.transform.iter().map(|entry| &entry.source));
        for source in sources {
            assert!(source.is_some(), "{}", path.display());
        }
    }
}

const MACHINE: &str = r#"
schema = 1
name = "m"
[[device]]
id = "sim:0"
name = "d"
memory = [{ kind = "device", memory_bytes = 1000 }]
[[link]]
src = "sim:0/device"
dst = "sim:0/device"
engine = "sim:0#0"
class = "local"
latency_ns = 10
bytes_per_second = 1_000_000
"#;

/// The machine with one text replaced, and the error for it.
fn refused(from: &str, to: &str) -> (TopologyError, String) {
    assert!(MACHINE.contains(from), "{from}");
    let error = from_str(&MACHINE.replacen(from, to, 1)).unwrap_err();
    let text = error.to_string();
    (error, text)
}

#[test]
fn a_sound_machine_is_read() {
    assert_eq!(from_str(MACHINE).unwrap().name, "m");
}

#[test]
fn unknown_fields_are_refused_by_name() {
    for (from, to) in [
        ("name = \"m\"", "name = \"m\"\nowner = 1"),
        ("name = \"d\"", "name = \"d\"\ncolour = 1"),
        ("memory_bytes = 1000", "memory_bytes = 1000, colour = 1"),
        ("latency_ns = 10", "latency_ns = 10\nlatency_us = 1"),
    ] {
        let (error, text) = refused(from, to);
        assert!(matches!(error, TopologyError::Syntax { .. }), "{text}");
        assert!(text.contains("unknown field"), "{text}");
    }
}

#[test]
fn impossible_figures_are_refused_with_their_limits() {
    for (from, to, field) in [
        ("= 1_000_000", "= 0", "bytes_per_second = 0"),
        ("= 1_000_000", "= -5", "bytes_per_second = -5"),
        ("= 1_000_000", "= 9_000_000_000_000_000", "9000000000000000"),
        ("latency_ns = 10", "latency_ns = -1", "latency_ns = -1"),
        (
            "memory_bytes = 1000",
            "memory_bytes = 0",
            "memory_bytes = 0",
        ),
        (
            "memory_bytes = 1000",
            "memory_bytes = -1",
            "memory_bytes = -1",
        ),
    ] {
        let (error, text) = refused(from, to);
        let TopologyError::Schema { source, .. } = error else {
            panic!("{text}");
        };
        assert!(matches!(source, SchemaError::Figure { .. }), "{text}");
        assert!(text.contains(field) && text.contains("..="), "{text}");
    }
}

#[test]
fn what_a_machine_lacks_is_refused_by_name() {
    for (from, to, words) in [
        ("schema = 1", "schema = 2", "schema 2"),
        (
            "dst = \"sim:0/device\"",
            "dst = \"sim:7/device\"",
            "sim:7/device",
        ),
        ("engine = \"sim:0#0\"", "engine = \"sim:3#0\"", "sim:3#0"),
        ("engine = \"sim:0#0\"", "engine = \"sim:0\"", "device#index"),
        ("class = \"local\"", "class = \"magic\"", "magic"),
        ("kind = \"device\"", "kind = \"floppy\"", "floppy"),
        ("id = \"sim:0\"", "id = \"sim:x\"", "sim:x"),
        (
            "1000 }",
            "1000, alignment = 48 }",
            "48 is not a power of two",
        ),
        (
            "[{ kind = \"device\", memory_bytes = 1000 }]",
            "[]",
            "no memory",
        ),
    ] {
        let (error, text) = refused(from, to);
        assert!(matches!(error, TopologyError::Schema { .. }), "{text}");
        assert!(text.contains(words), "{text}");
    }
    let error = from_str("schema = 1\nname = \"empty\"").unwrap_err();
    assert!(error.to_string().contains("no devices"), "{error}");
}

/// A machine with one memory for each device, a mesh of them all, and links from the first ones to themselves.
fn switch(members: u64, to_themselves: u64) -> String {
    use std::fmt::Write;
    let (mut text, mut names) = (
        String::from("schema = 1\nname = \"switch\"\n"),
        String::new(),
    );
    for member in 0..members {
        let memory = "memory = [{ kind = \"device\", memory_bytes = 1000 }]";
        let device = format!("id = \"sim:{member}\"\nname = \"d\"\n{memory}");
        writeln!(text, "[[device]]\n{device}").unwrap();
        write!(names, "\"sim:{member}/device\",").unwrap();
    }
    for member in 0..to_themselves {
        let ends = format!("src = \"sim:{member}/device\"\ndst = \"sim:{member}/device\"");
        let link = format!("engine = \"sim:{member}#0\"\nclass = \"local\"\nboth = true");
        writeln!(text, "[[link]]\n{ends}\n{link}").unwrap();
    }
    let mesh = format!("members = [{names}]\nengine_index = 1\nclass = \"fabric\"");
    writeln!(text, "[[mesh]]\n{mesh}").unwrap();
    text
}

#[test]
fn a_machine_may_describe_so_many_links_and_no_more() {
    let mut machine = from_str(&switch(512, 512)).unwrap();
    let links = machine.inventory(BACKEND).unwrap().links.len() as u64;
    assert_eq!(links, MOST_LINKS);
    // The limit counts all entries, not only one mesh.
    machine.links.push(machine.links[0].clone());
    let error = machine.inventory(BACKEND).unwrap_err();
    let (links, limit) = (MOST_LINKS + 1, MOST_LINKS);
    assert_eq!(error, SchemaError::TooManyLinks { links, limit });
    // These would take gigabytes if the reader made the links before it counted them.
    for (members, to_themselves, expected) in [
        (513, 0, 513 * 512),
        (1000, 1, 1000 * 999 + 1),
        (10_000, 0, 10_000 * 9999),
    ] {
        let error = from_str(&switch(members, to_themselves)).unwrap_err();
        let told = error.to_string();
        let TopologyError::Schema { source, .. } = error else {
            panic!("{told}");
        };
        let too_many = SchemaError::TooManyLinks {
            links: expected,
            limit: MOST_LINKS,
        };
        assert_eq!(source, too_many);
        assert!(told.contains(&expected.to_string()), "{told}");
        assert!(told.contains("at most 262144"), "{told}");
    }
}

#[test]
fn twins_are_refused_by_name() {
    let device = "[[device]]\nid = \"sim:0\"\nname = \"e\"\nmemory = [{ kind = \"file\", memory_bytes = 1 }]\n";
    let link = "[[link]]\nsrc = \"sim:0/device\"\ndst = \"sim:0/device\"\nengine = \"sim:0#0\"\nclass = \"local\"\n";
    for (extra, words) in [(device, "device sim:0"), (link, "the link sim:0/device")] {
        let error = from_str(&format!("{MACHINE}\n{extra}")).unwrap_err();
        assert!(error.to_string().contains("described twice"), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let (_, text) = refused(
        "memory_bytes = 1000 }",
        "memory_bytes = 1000 }, { kind = \"device\", memory_bytes = 1 }",
    );
    assert!(
        text.contains("memory sim:0/device is described twice"),
        "{text}"
    );
}

#[test]
fn a_machine_of_as_many_links_as_a_file_holds_is_read_and_the_last_is_compared_with_all() {
    const DEVICES: usize = 300;
    let mut text = String::from("schema = 1\nname = \"large\"\n");
    let memories: Vec<String> = (0..DEVICES).map(|n| format!("sim:{n}/device")).collect();
    for number in 0..DEVICES {
        text += &format!(
            "[[device]]\nid = \"sim:{number}\"\nname = \"GPU\"\n\
             memory = [{{ kind = \"device\", memory_bytes = 1000 }}]\n"
        );
    }
    let mesh = format!("[[mesh]]\nmembers = {memories:?}\nengine_index = 0\nclass = \"fabric\"\n");
    text += &mesh;
    let topology = from_str(&text).unwrap().topology(BACKEND).unwrap();
    assert_eq!(topology.links().len(), DEVICES * (DEVICES - 1));
    text += &mesh;
    let error = from_str(&text).unwrap_err().to_string();
    assert!(error.contains("sim:0/device"), "{error}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = from_file("/nowhere/machine.toml").unwrap_err();
    assert!(matches!(error, TopologyError::Io { .. }));
    assert!(error.to_string().contains("/nowhere/machine.toml"));
}
