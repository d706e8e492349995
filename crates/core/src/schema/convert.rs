//! From what was written down to an inventory.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::figures::Checked;
use super::{
    DeviceEntry, LinkEntry, MOST_LINKS, Machine, MemoryEntry, MeshEntry, SCHEMA, SchemaError,
};
use crate::defaults::LINK_DEPTH;
use crate::{
    Access, BackendId, Cost, Curve, DeviceId, DeviceInfo, EngineId, Inventory, Link, LinkId,
    MemoryId, MemoryInfo, MemoryKind, ParseError, Passage, Piece, Topology,
};

impl Machine {
    /// Returns the machine as the inventory of one backend, all devices marked as simulated.
    ///
    /// # Errors
    /// The first error in the order of the file; [`SchemaError::TooManyLinks`] comes before all of them.
    pub fn inventory(&self, backend: BackendId) -> Result<Inventory, SchemaError> {
        inventory(self, backend)
    }

    /// Returns the machine as a topology.
    ///
    /// # Errors
    /// As [`Machine::inventory`].
    pub fn topology(&self, backend: BackendId) -> Result<Topology, SchemaError> {
        let mut topology = Topology::new();
        topology.add(self.inventory(backend)?)?;
        Ok(topology)
    }
}

/// A cache line, the least that allocators of large blocks give.
const DEFAULT_ALIGNMENT: i64 = 64;

/// What was read so far, and the names in it.
struct Draft {
    inventory: Inventory,
    devices: BTreeSet<DeviceId>,
    memories: BTreeSet<MemoryId>,
    links: BTreeSet<LinkId>,
}

fn inventory(machine: &Machine, backend: BackendId) -> Result<Inventory, SchemaError> {
    if machine.schema != SCHEMA {
        return Err(SchemaError::Version {
            found: machine.schema,
        });
    }
    if machine.devices.is_empty() {
        return Err(SchemaError::NoDevices {
            name: machine.name.clone(),
        });
    }
    // Counted first: a mesh takes far more memory than its text.
    let links = link_count(machine);
    if links > MOST_LINKS {
        return Err(SchemaError::TooManyLinks {
            links,
            limit: MOST_LINKS,
        });
    }
    let mut all = Draft {
        inventory: Inventory {
            backend,
            devices: Vec::new(),
            memories: Vec::new(),
            links: Vec::new(),
            lacks: Vec::new(),
            transform: None,
        },
        devices: BTreeSet::new(),
        memories: BTreeSet::new(),
        links: BTreeSet::new(),
    };
    for entry in &machine.devices {
        add_device(&mut all, entry)?;
    }
    for node in &machine.nodes {
        add_node(&mut all, machine, node)?;
    }
    for entry in &machine.links {
        add_link(&mut all, entry)?;
    }
    for entry in &machine.meshes {
        add_mesh(&mut all, entry)?;
    }
    if let Some(entry) = &machine.transform {
        let thing = || String::from("transform");
        let checked = Checked { thing: &thing };
        let engine = engine(&all, &thing, &entry.engine)?;
        let cost = Cost::from_rate(
            checked.latency(entry.latency_ns)?,
            checked.rate(entry.bytes_per_second)?,
        );
        all.inventory.transform = Some((engine, cost.into()));
    }
    Ok(all.inventory)
}

/// Returns how many links the entries make, without making them.
fn link_count(machine: &Machine) -> u64 {
    let times = |is_own: bool| {
        if is_own {
            machine.nodes.len() as u64 + 1
        } else {
            1
        }
    };
    let links = machine.links.iter().map(|entry| {
        let one = match entry.both && entry.src != entry.dst {
            true => 2,
            false => 1,
        };
        times(is_own_link(entry)).saturating_mul(one)
    });
    let meshes = machine.meshes.iter().map(|entry| {
        let members = entry.members.len() as u64;
        let one = members.saturating_mul(members.saturating_sub(1));
        times(entry.members.iter().all(|member| is_own(member))).saturating_mul(one)
    });
    links.chain(meshes).fold(0, u64::saturating_add)
}

/// Returns whether a memory's text names no other machine.
fn is_own(memory: &str) -> bool {
    memory.matches('/').count() == 1
}

fn is_own_link(entry: &LinkEntry) -> bool {
    is_own(&entry.src) && is_own(&entry.dst)
}

/// Adds a machine that is like the described one.
fn add_node(all: &mut Draft, machine: &Machine, node: &str) -> Result<(), SchemaError> {
    let there = |text: &String| format!("{node}/{text}");
    for entry in machine
        .devices
        .iter()
        .filter(|entry| !entry.id.contains('/'))
    {
        let entry = DeviceEntry {
            id: there(&entry.id),
            ..entry.clone()
        };
        add_device(all, &entry)?;
    }
    for entry in machine.links.iter().filter(|entry| is_own_link(entry)) {
        let entry = LinkEntry {
            src: there(&entry.src),
            dst: there(&entry.dst),
            engine: there(&entry.engine),
            back_engine: entry.back_engine.as_ref().map(there),
            ..entry.clone()
        };
        add_link(all, &entry)?;
    }
    for entry in machine
        .meshes
        .iter()
        .filter(|entry| entry.members.iter().all(|member| is_own(member)))
    {
        let entry = MeshEntry {
            members: entry.members.iter().map(there).collect(),
            ..entry.clone()
        };
        add_mesh(all, &entry)?;
    }
    Ok(())
}

fn add_device(all: &mut Draft, entry: &DeviceEntry) -> Result<(), SchemaError> {
    let thing = || format!("device {:?}", entry.id);
    let id: DeviceId = text(&thing, &entry.id)?;
    if !all.devices.insert(id) {
        return Err(SchemaError::DuplicateDevice { device: id });
    }
    if entry.memories.is_empty() {
        return Err(SchemaError::NoMemory { device: id });
    }
    let uuid = match &entry.uuid {
        Some(uuid) => Some(text(&thing, uuid)?),
        None => None,
    };
    let first = all.inventory.memories.len();
    for memory in &entry.memories {
        add_memory(all, id, memory)?;
    }
    all.inventory.devices.push(DeviceInfo {
        id,
        backend: all.inventory.backend,
        name: format!("{} (simulated)", entry.name),
        software: entry.software,
        simulated: true,
        memory_bytes: all.inventory.memories[first].total_bytes,
        driver: entry.driver.clone(),
        uuid,
        pci: None,
        numa_node: entry.numa_node,
    });
    Ok(())
}

fn add_memory(all: &mut Draft, device: DeviceId, entry: &MemoryEntry) -> Result<(), SchemaError> {
    let thing = || format!("memory {device}/{}", entry.kind);
    let checked = Checked { thing: &thing };
    let kind: MemoryKind = text(&thing, &entry.kind)?;
    let id = device.memory(kind);
    if !all.memories.insert(id) {
        return Err(SchemaError::DuplicateMemory { memory: id });
    }
    let total = checked.bytes("memory_bytes", entry.memory_bytes)?;
    let max_alloc_bytes = match entry.max_alloc_bytes {
        Some(value) => checked.bytes("max_alloc_bytes", value)?,
        None => total,
    };
    let written = entry.alignment.unwrap_or(DEFAULT_ALIGNMENT);
    let alignment = checked.alignment(written)?;
    if !alignment.is_power_of_two() {
        return Err(SchemaError::Alignment {
            memory: id,
            alignment: written,
        });
    }
    all.inventory.memories.push(MemoryInfo {
        id,
        backend: all.inventory.backend,
        total_bytes: Some(total),
        max_alloc_bytes,
        alignment,
        host_addressable: entry
            .host_addressable
            .unwrap_or(device.node.is_here() && !kind.is_file() && kind != MemoryKind::Device),
        staging: entry.staging.unwrap_or(kind == MemoryKind::Pinned),
        passage: Passage::default(),
    });
    Ok(())
}

fn add_link(all: &mut Draft, entry: &LinkEntry) -> Result<(), SchemaError> {
    let thing = || format!("link {} → {}", entry.src, entry.dst);
    let checked = Checked { thing: &thing };
    let src = known(all, &thing, &entry.src)?;
    let dst = known(all, &thing, &entry.dst)?;
    let forth = engine(all, &thing, &entry.engine)?;
    let back = match (&entry.back_engine, entry.both) {
        (Some(_), false) => {
            return Err(SchemaError::Conflict {
                thing: thing(),
                field: "back_engine",
                other: "both = false",
            });
        }
        (Some(back), true) => engine(all, &thing, back)?,
        (None, _) => forth,
    };
    let class = checked.class(&entry.class)?;
    let cost = curve(&checked, entry, class)?;
    let link = Link {
        id: LinkId {
            src,
            dst,
            engine: forth,
            access: checked.access(entry.access.as_deref(), Access::Native)?,
        },
        backend: all.inventory.backend,
        class,
        cost,
        pitched: entry.pitched,
        depth: LINK_DEPTH,
    };
    if entry.both && src != dst {
        let mut reverse = link.clone();
        reverse.id = LinkId {
            src: dst,
            dst: src,
            engine: back,
            access: link.id.access,
        };
        push(all, link)?;
        push(all, reverse)
    } else {
        push(all, link)
    }
}

fn add_mesh(all: &mut Draft, entry: &MeshEntry) -> Result<(), SchemaError> {
    if entry.members.len() < 2 {
        return Err(SchemaError::SmallMesh {
            members: entry.members.len(),
        });
    }
    let thing = || format!("mesh of {}", entry.members.join(", "));
    let checked = Checked { thing: &thing };
    let class = checked.class(&entry.class)?;
    let access = checked.access(entry.access.as_deref(), Access::Peer)?;
    let cost = checked.cost(class, entry.latency_ns, entry.bytes_per_second)?;
    let mut members = Vec::new();
    for member in &entry.members {
        members.push(known(all, &thing, member)?);
    }
    for (i, &src) in members.iter().enumerate() {
        for (j, &dst) in members.iter().enumerate() {
            if i == j {
                continue;
            }
            let engine = EngineId {
                device: src.device,
                index: entry.engine_index,
            };
            push(
                all,
                Link {
                    id: LinkId {
                        src,
                        dst,
                        engine,
                        access,
                    },
                    backend: all.inventory.backend,
                    class,
                    cost: cost.into(),
                    pitched: entry.pitched,
                    depth: LINK_DEPTH,
                },
            )?;
        }
    }
    Ok(())
}

fn curve(
    checked: &Checked<'_>,
    entry: &LinkEntry,
    class: crate::LinkClass,
) -> Result<Curve, SchemaError> {
    let Some(pieces) = &entry.curve else {
        return Ok(checked
            .cost(class, entry.latency_ns, entry.bytes_per_second)?
            .into());
    };
    let beside = match (entry.latency_ns, entry.bytes_per_second) {
        (Some(_), _) => Some("latency_ns"),
        (None, Some(_)) => Some("bytes_per_second"),
        (None, None) => None,
    };
    if let Some(other) = beside {
        return Err(SchemaError::Conflict {
            thing: (checked.thing)(),
            field: "curve",
            other,
        });
    }
    let mut all = Vec::new();
    for piece in pieces {
        all.push(Piece {
            from_bytes: checked.piece_start(piece.from_bytes)?,
            cost: Cost::from_rate(
                checked.latency(piece.latency_ns)?,
                checked.rate(piece.bytes_per_second)?,
            ),
        });
    }
    Curve::new(all).map_err(|source| SchemaError::Curve {
        thing: (checked.thing)(),
        source,
    })
}

fn push(all: &mut Draft, link: Link) -> Result<(), SchemaError> {
    if !all.links.insert(link.id) {
        return Err(SchemaError::DuplicateLink {
            link: Box::new(link.id),
        });
    }
    all.inventory.links.push(link);
    Ok(())
}

fn known(all: &Draft, thing: &dyn Fn() -> String, written: &str) -> Result<MemoryId, SchemaError> {
    let memory: MemoryId = text(thing, written)?;
    if all.memories.contains(&memory) {
        Ok(memory)
    } else {
        Err(SchemaError::UnknownMemory {
            thing: thing(),
            memory,
        })
    }
}

fn engine(all: &Draft, thing: &dyn Fn() -> String, written: &str) -> Result<EngineId, SchemaError> {
    let error = || SchemaError::Engine {
        thing: thing(),
        text: written.to_string(),
    };
    let engine: EngineId = written.parse().map_err(|_| error())?;
    if all.devices.contains(&engine.device) {
        Ok(engine)
    } else {
        Err(SchemaError::UnknownEngine {
            thing: thing(),
            engine,
        })
    }
}

fn text<T: core::str::FromStr<Err = ParseError>>(
    thing: &dyn Fn() -> String,
    written: &str,
) -> Result<T, SchemaError> {
    written.parse().map_err(|source| SchemaError::Text {
        thing: thing(),
        source,
    })
}
