//! The machine as the planner sees it: devices, their memories, and the engines that move bytes.

mod index;
mod memory;

use alloc::borrow::Cow;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::{
    Correction, Curve, DeviceId, DeviceKind, MemoryId, Name, ParseError, PciAddress, Uuid, defaults,
};
use index::Index;
pub use memory::{MemoryInfo, Passage};

/// Names a backend: the code that drives one memory system. At most one backend of a name takes
/// part in a topology.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId(pub Name);

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A copy engine: hardware that executes its operations one after the other. Written `cuda:0#1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId {
    /// The device that the engine belongs to.
    pub device: DeviceId,
    /// Its position among the engines of the device.
    pub index: u16,
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.device, self.index)
    }
}

impl fmt::Debug for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for EngineId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<EngineId, ParseError> {
        let error = || ParseError::Engine { text: text.into() };
        let (device, index) = text.split_once('#').ok_or_else(error)?;
        Ok(EngineId {
            device: device.parse().map_err(|_| error())?,
            index: index.parse().map_err(|_| error())?,
        })
    }
}

/// A device as its backend describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Its name on this machine.
    pub id: DeviceId,
    /// The backend that drives it.
    pub backend: BackendId,
    /// The vendor's name of the device.
    pub name: String,
    /// A software implementation of what is usually hardware.
    pub software: bool,
    /// A stand-in whose times are modelled. Users must not rely on it.
    pub simulated: bool,
    /// The bytes of its own memory, where known.
    pub memory_bytes: Option<u64>,
    /// The driver and its version, as the driver reports them, where known: measurements under another driver do not
    /// hold.
    pub driver: Option<String>,
    /// Its universally unique id, where it has one.
    pub uuid: Option<Uuid>,
    /// The slot that it is plugged into, where it has one that is known.
    pub pci: Option<PciAddress>,
    /// The NUMA node that it is attached to, where known.
    pub numa_node: Option<u32>,
}

/// The kind of connection of a link. Decides the default cost and chunk size where nothing was measured
/// ([`crate::defaults`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum LinkClass {
    /// Within one memory system: a processor's or a device's own copies.
    Local,
    /// A dedicated device-to-device fabric (NVLink, Infinity Fabric).
    Fabric,
    /// A peripheral bus.
    Pcie,
    /// A disk, or the page cache in front of it.
    Storage,
    /// A network between machines.
    Network,
}

impl LinkClass {
    /// Every class, in the order of declaration.
    pub const ALL: [LinkClass; 5] = [
        LinkClass::Local,
        LinkClass::Fabric,
        LinkClass::Pcie,
        LinkClass::Storage,
        LinkClass::Network,
    ];

    /// Returns the class in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            LinkClass::Local => "local",
            LinkClass::Fabric => "fabric",
            LinkClass::Pcie => "pcie",
            LinkClass::Storage => "storage",
            LinkClass::Network => "network",
        }
    }
}

/// How a link's engine reaches the two memories. Bytes between memories without a link are staged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Access {
    /// Both memories are native to the engine.
    Native,
    /// One of the memories belongs to the other side, and is imported, registered or mapped.
    Import,
    /// They belong to two devices that reach each other over a link.
    Peer,
    /// A managed allocation that the driver migrates.
    Managed,
}

impl Access {
    /// Every sort of access, in the order of declaration.
    pub const ALL: [Access; 4] = [
        Access::Native,
        Access::Import,
        Access::Peer,
        Access::Managed,
    ];

    /// Returns whether the path must be proven by copy-and-compare before it carries a user's bytes.
    pub const fn needs_proof(self) -> bool {
        matches!(self, Access::Import | Access::Peer)
    }

    /// Returns the access in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Access::Native => "native",
            Access::Import => "import",
            Access::Peer => "peer",
            Access::Managed => "managed",
        }
    }
}

/// Identifies a link across topologies: quarantine and profiles use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId {
    /// Where bytes come from.
    pub src: MemoryId,
    /// Where they go.
    pub dst: MemoryId,
    /// The engine that moves them.
    pub engine: EngineId,
    /// How the engine reaches them.
    pub access: Access,
}

/// A directed edge: an engine that can move bytes from one memory to another in one pass.
///
/// A link from a memory to itself serves copies between two buffers of that memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Its name.
    pub id: LinkId,
    /// The backend that executes it.
    pub backend: BackendId,
    /// The kind of connection.
    pub class: LinkClass,
    /// The cost of a pass, from submission to completion.
    pub cost: Curve,
    /// Whether pitched shapes move in one operation; otherwise the link takes contiguous ones only. Of a link between machines:
    /// at the end of the other machine.
    pub pitched: bool,
    /// How many operations of one transfer keep the link busy; at least 1.
    /// [`LINK_DEPTH`](crate::defaults::LINK_DEPTH) where an engine has a queue of its own, and 1 where
    /// one operation takes all that there is.
    pub depth: u16,
}

/// A way between two memories that other machines have, and why this machine lacks it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lack {
    /// Where bytes would come from.
    pub src: MemoryId,
    /// Where they would go.
    pub dst: MemoryId,
    /// How an engine would reach them.
    pub access: Access,
    /// Why no engine does: what the device, its driver, or the program that opened it left out.
    pub reason: Cow<'static, str>,
}

/// The devices, memories and links of one backend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inventory {
    /// The backend.
    pub backend: BackendId,
    /// Its devices.
    pub devices: Vec<DeviceInfo>,
    /// Its memories. The first of a device is the default one.
    pub memories: Vec<MemoryInfo>,
    /// The links that its engines serve. An end may be another backend's memory.
    pub links: Vec<Link>,
    /// Links that the backend would serve on a slightly different machine. For explanations.
    pub lacks: Vec<Lack>,
    /// The engine that runs [transforms](crate::StepKind::Transform) over host-addressable memory,
    /// with its cost per byte; `None` where the backend runs none.
    pub transform: Option<(EngineId, Curve)>,
}

/// Devices, memories and links of all backends together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Topology {
    devices: Vec<DeviceInfo>,
    memories: Vec<MemoryInfo>,
    links: Vec<Link>,
    lacks: Vec<Lack>,
    transforms: Vec<Transformer>,
    index: Index,
    /// The links whose costs were replaced by measured ones, and how uncertain these are, in parts of 1024.
    measured: BTreeMap<LinkId, u16>,
    /// By how much measured times of routes differ from the predicted ones.
    corrections: BTreeMap<Vec<LinkId>, Correction>,
}

/// An engine that transforms bytes in place instead of moving them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Transformer {
    /// The backend that executes it.
    pub backend: BackendId,
    /// The engine.
    pub engine: EngineId,
    /// The cost of a pass.
    pub cost: Curve,
}

/// Why an inventory does not fit the topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Two devices of one name.
    #[error("device {device} is there already, brought by backend {backend}")]
    DuplicateDevice {
        /// The name.
        device: DeviceId,
        /// The backend that has the device.
        backend: BackendId,
    },
    /// Two memories of one name.
    #[error("memory {memory} is there already")]
    DuplicateMemory {
        /// The name.
        memory: MemoryId,
    },
    /// Two links of one name.
    #[error("backend {backend} lists the link {src} → {dst} over {engine} twice", src = link.src, dst = link.dst, engine = link.engine)]
    DuplicateLink {
        /// The name.
        link: alloc::boxed::Box<LinkId>,
        /// The backend that lists it.
        backend: BackendId,
    },
    /// An alignment that is no power of two.
    #[error("memory {memory} has alignment {alignment}, not a power of two")]
    Alignment {
        /// The memory.
        memory: MemoryId,
        /// Its alignment.
        alignment: u64,
    },
}

impl Topology {
    /// Makes a topology without devices.
    pub fn new() -> Topology {
        Topology::default()
    }

    /// Adds what a backend brings, all or nothing.
    ///
    /// A link may name a memory that no backend has brought so far; it serves once one does.
    ///
    /// # Errors
    /// Names that are taken, and alignments that are no power of two.
    pub fn add(&mut self, inventory: Inventory) -> Result<(), TopologyError> {
        self.check(&inventory)?;
        let known = [self.devices.len(), self.memories.len(), self.links.len()];
        self.index.add(&inventory, known);
        self.devices.extend(inventory.devices);
        self.memories.extend(inventory.memories);
        self.links.extend(inventory.links);
        self.lacks.extend(inventory.lacks);
        if let Some((engine, cost)) = inventory.transform {
            self.transforms.push(Transformer {
                backend: inventory.backend,
                engine,
                cost,
            });
        }
        Ok(())
    }

    /// Returns every device, in the order of registration.
    pub fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    /// Returns every memory, in the order of registration.
    pub fn memories(&self) -> &[MemoryInfo] {
        &self.memories
    }

    /// Returns every link.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns the ways that this machine lacks, with their reasons.
    pub fn lacks(&self) -> &[Lack] {
        &self.lacks
    }

    /// Returns the engines that transform, in the order of registration.
    pub fn transforms(&self) -> &[Transformer] {
        &self.transforms
    }

    /// Returns the device of that name.
    pub fn device(&self, id: DeviceId) -> Option<&DeviceInfo> {
        self.index.device(id).map(|at| &self.devices[at])
    }

    /// Returns how much of the host's processors and memory bus an engine keeps busy while it works, in parts of 1024.
    pub fn host_load(&self, engine: EngineId) -> u16 {
        if !engine.device.node.is_here() {
            return 0;
        }
        let is_host = engine.device.is_host();
        // Processors encrypt and pass on what goes over a network.
        let is_software = || {
            engine.device.kind == DeviceKind::NETWORK
                || self.device(engine.device).is_some_and(|of| of.software)
        };
        defaults::host_load(is_host, !is_host && is_software())
    }

    /// Returns the device of that UUID: the first by name where several backends drive it, whichever was registered first.
    pub fn device_by_uuid(&self, uuid: Uuid) -> Option<&DeviceInfo> {
        let same = self.devices.iter().filter(|of| of.uuid == Some(uuid));
        same.min_by_key(|device| device.id)
    }

    /// Returns the memory of that name.
    pub fn memory(&self, id: MemoryId) -> Option<&MemoryInfo> {
        self.index.memory(id).map(|at| &self.memories[at])
    }

    /// Returns the place of a memory in the list of all.
    pub(crate) fn place_of(&self, id: MemoryId) -> Option<usize> {
        self.index.memory(id)
    }

    /// Returns the memory that a device allocates in unless told otherwise.
    pub fn default_memory(&self, device: DeviceId) -> Option<&MemoryInfo> {
        self.memories
            .iter()
            .find(|memory| memory.id.device == device)
    }

    /// Returns the links from `src` to `dst`.
    pub fn links_between(&self, src: MemoryId, dst: MemoryId) -> impl Iterator<Item = &Link> {
        let around = self
            .index
            .around(src, dst)
            .iter()
            .map(|at| &self.links[*at]);
        around.filter(move |link| link.id.src == src && link.id.dst == dst)
    }

    /// Returns the link of that name.
    pub fn link(&self, id: LinkId) -> Option<&Link> {
        self.links_between(id.src, id.dst)
            .find(|link| link.id == id)
    }

    /// Returns the places of the links that leave a memory, rising.
    pub(crate) fn leaving(&self, src: MemoryId) -> &[usize] {
        self.index.leaving(src)
    }

    /// Returns the places of the links that arrive at a memory, rising.
    pub(crate) fn arriving(&self, dst: MemoryId) -> &[usize] {
        self.index.arriving(dst)
    }

    /// Replaces the cost of a link, as a measurement of this machine does. False when there is no
    /// such link.
    pub fn set_cost(&mut self, id: LinkId, cost: Curve, doubt: u16) -> bool {
        let mut around = self.index.around(id.src, id.dst).iter().copied();
        match around.find(|at| self.links[*at].id == id) {
            Some(at) => {
                self.links[at].cost = cost;
                self.measured.insert(id, doubt);
                true
            }
            None => false,
        }
    }

    /// Sets by how much measured times of the route over these links differ from the predicted ones.
    pub fn set_correction(&mut self, route: Vec<LinkId>, correction: Correction) {
        // One that changes nothing says that the prediction is right.
        self.corrections.insert(route, correction);
    }

    /// Forgets all corrections.
    pub fn clear_corrections(&mut self) {
        self.corrections.clear();
    }

    /// Returns the correction of the route over these links, if it has one.
    ///
    /// Only the shortest routes are measured. One that goes round through another memory of an engine's is not faster than
    /// the one that does not, so it has that one's correction unless it was measured itself.
    pub fn correction(&self, route: &[LinkId]) -> Option<&Correction> {
        let known = match self.corrections.get(route) {
            Some(exact) => exact,
            None => self.corrections.get(&self.without_detour(route)?)?,
        };
        (!known.is_none()).then_some(known)
    }

    /// Returns the route without the first memory that the engine before and behind it could leave out, if it has one.
    fn without_detour(&self, route: &[LinkId]) -> Option<Vec<LinkId>> {
        route.windows(2).enumerate().find_map(|(at, pair)| {
            let [to, from] = pair else { return None };
            let mut links = self.links_between(to.src, from.dst);
            let short = links.find(|link| [to.engine, from.engine] == [link.id.engine; 2])?;
            Some([&route[..at], &[short.id], &route[at + 2..]].concat())
        })
    }

    pub(crate) fn has_corrections(&self) -> bool {
        self.corrections.values().any(|known| !known.is_none())
    }

    /// Returns whether the cost of the link was measured here; else it is its backend's default figure.
    pub fn is_measured(&self, id: LinkId) -> bool {
        self.measured.contains_key(&id)
    }

    /// Returns how uncertain the cost of a link is, in parts of 1024: 0 where it was not measured.
    pub(crate) fn doubt(&self, id: LinkId) -> u16 {
        self.measured.get(&id).copied().unwrap_or(0)
    }

    fn check(&self, inventory: &Inventory) -> Result<(), TopologyError> {
        let mut devices: BTreeMap<DeviceId, BackendId> = BTreeMap::new();
        for device in &inventory.devices {
            let known = self.device(device.id).map(|known| known.backend);
            if let Some(backend) = known.or(devices.insert(device.id, device.backend)) {
                return Err(TopologyError::DuplicateDevice {
                    device: device.id,
                    backend,
                });
            }
        }
        let mut memories: BTreeSet<MemoryId> = BTreeSet::new();
        for memory in &inventory.memories {
            if self.memory(memory.id).is_some() || !memories.insert(memory.id) {
                return Err(TopologyError::DuplicateMemory { memory: memory.id });
            }
            if !memory.alignment.is_power_of_two() {
                return Err(TopologyError::Alignment {
                    memory: memory.id,
                    alignment: memory.alignment,
                });
            }
        }
        let mut links: BTreeSet<LinkId> = BTreeSet::new();
        for link in &inventory.links {
            if self.link(link.id).is_some() || !links.insert(link.id) {
                return Err(TopologyError::DuplicateLink {
                    link: alloc::boxed::Box::new(link.id),
                    backend: inventory.backend,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cost, MemoryKind};

    #[test]
    fn links_are_found_by_name_and_each_name_is_taken_once() {
        let memory = |n| DeviceId::new(crate::DeviceKind::SIM, n).memory(MemoryKind::Device);
        let id = |src, dst| LinkId {
            src: memory(src),
            dst: memory(dst),
            engine: EngineId {
                device: memory(0).device,
                index: 0,
            },
            access: Access::Native,
        };
        let inventory = |links: &[LinkId]| Inventory {
            backend: BackendId(Name::constant("sim")),
            devices: Vec::new(),
            memories: Vec::new(),
            links: { links.iter() }
                .map(|id| Link {
                    id: *id,
                    backend: BackendId(Name::constant("sim")),
                    class: LinkClass::Local,
                    cost: defaults::link_cost(LinkClass::Local).into(),
                    pitched: true,
                    depth: 1,
                })
                .collect(),
            lacks: Vec::new(),
            transform: None,
        };
        let mut topology = Topology::new();
        topology.add(inventory(&[id(0, 1), id(0, 2)])).unwrap();
        topology.add(inventory(&[id(1, 2), id(2, 0)])).unwrap();
        for link in [id(0, 1), id(0, 2), id(1, 2), id(2, 0)] {
            assert_eq!(topology.link(link).map(|found| found.id), Some(link));
            let error = topology.add(inventory(&[link])).unwrap_err();
            assert!(matches!(error, TopologyError::DuplicateLink { link: of, .. } if *of == link));
        }
        assert_eq!(topology.link(id(1, 0)), None);
        let twice = topology.add(inventory(&[id(1, 0), id(1, 0)]));
        assert!(twice.is_err() && topology.links().len() == 4);
        assert!(topology.set_cost(id(2, 0), Curve::from(Cost::ZERO), 0));
        assert!(!topology.set_cost(id(1, 0), Curve::from(Cost::ZERO), 0));
    }

    #[test]
    fn engines_round_trip_and_what_is_none_is_refused_by_name() {
        let text = "cuda:3#1";
        let engine: EngineId = text.parse().unwrap();
        assert_eq!((engine.device.index, engine.index), (3, 1));
        assert_eq!(alloc::string::ToString::to_string(&engine), text);
        for text in ["", "cuda:3", "cuda:3#", "#1", "cuda:3#-1", "cuda:3#70000"] {
            let error = text.parse::<EngineId>().unwrap_err();
            assert_eq!(error, ParseError::Engine { text: text.into() });
        }
    }
}
