//! Small machines for tests.

use alloc::vec::Vec;

use crate::{
    Access, BackendId, Cost, Curve, DeviceId, DeviceKind, EngineId, Inventory, Link, LinkClass,
    LinkId, MemoryId, MemoryInfo, MemoryKind, Name, Passage, Topology,
};

pub(super) const BACKEND: BackendId = BackendId(Name::constant("sim"));
pub(super) const MIB: u64 = 1 << 20;

/// Returns the memory of device `n`.
pub(super) fn memory(n: u32) -> MemoryId {
    DeviceId::new(DeviceKind::SIM, n).memory(MemoryKind::Device)
}

pub(super) fn engine(index: u16) -> EngineId {
    EngineId {
        device: DeviceId::new(DeviceKind::SIM, 0),
        index,
    }
}

pub(super) fn link(src: u32, dst: u32, on: u16, cost: impl Into<Curve>) -> Link {
    Link {
        id: LinkId {
            src: memory(src),
            dst: memory(dst),
            engine: engine(on),
            access: Access::Native,
        },
        backend: BACKEND,
        class: LinkClass::Pcie,
        cost: cost.into(),
        pitched: true,
        depth: 2,
    }
}

/// Nothing barred.
pub(super) fn open(_: LinkId) -> Option<super::super::Barred> {
    None
}

/// A machine under construction.
pub(super) struct Machine(Inventory);

impl Machine {
    /// `count` memories that nothing is known of but that the host cannot address them. All but
    /// the first and the last may be staged in.
    pub(super) fn new(count: u32) -> Machine {
        let memories = (0..count).map(|n| MemoryInfo {
            id: memory(n),
            backend: BACKEND,
            total_bytes: None,
            max_alloc_bytes: 1 << 40,
            alignment: 64,
            host_addressable: false,
            staging: n != 0 && n + 1 != count,
            passage: Passage::default(),
        });
        Machine(Inventory {
            backend: BACKEND,
            devices: Vec::new(),
            memories: memories.collect(),
            links: Vec::new(),
            lacks: Vec::new(),
            transform: None,
        })
    }

    pub(super) fn link(mut self, link: Link) -> Machine {
        self.0.links.push(link);
        self
    }

    /// Returns a link of the default class that costs `fixed_ns` and moves one byte in `fs`.
    pub(super) fn wire(self, src: u32, dst: u32, on: u16, fixed_ns: u64, fs: u64) -> Machine {
        self.link(link(src, dst, on, Cost::new(fixed_ns, fs)))
    }

    pub(super) fn with(mut self, n: usize, change: impl FnOnce(&mut MemoryInfo)) -> Machine {
        change(&mut self.0.memories[n]);
        self
    }

    pub(super) fn host(self, n: usize) -> Machine {
        self.with(n, |memory| memory.host_addressable = true)
    }

    pub(super) fn transform(mut self, on: u16, cost: Cost) -> Machine {
        self.0.transform = Some((engine(on), cost.into()));
        self
    }

    pub(super) fn build(self) -> Topology {
        let mut topology = Topology::new();
        topology.add(self.0).unwrap();
        topology
    }
}
