//! `planner/cluster`: the time of a plan for one pair of memories among 10,000 devices.

use anyhow::{Context, Result};
use transload::{DeviceId, DeviceKind, MemoryId, MemoryKind};
use transload_core::{
    Access, BackendId, DeviceInfo, EngineId, Inventory, Limits, Link, LinkClass, LinkId,
    MemoryInfo, Name, Passage, PlanKey, Topology, defaults, plan,
};

use super::cold;
use crate::case::{Effort, Outcome};

const LIMIT_S: f64 = 5e-3;
const NODES: u32 = 1250;
const GPUS: u32 = 8;
const BACKEND: BackendId = BackendId(Name::constant("sim"));

/// Makes plans inside a node and across two of them, from and to GPUs and hosts.
pub(super) fn run(effort: Effort) -> Result<Outcome> {
    let mut machine = Topology::new();
    machine.add(inventory())?;
    let ends = |node| {
        let gpus = [gpu(node, 0), gpu(node, GPUS - 1)];
        gpus.into_iter().chain([pinned(node), pageable(node)])
    };
    let pairs = ends(0).flat_map(|src| {
        let dsts = ends(0).chain(ends(NODES - 1));
        dsts.map(move |dst| (src, dst))
    });
    let keys: Vec<PlanKey> = pairs.map(|(src, dst)| PlanKey::copy(src, dst)).collect();
    for key in &keys {
        plan(&machine, key, &Limits::default(), &|_| None).context("the nodes are joined")?;
    }
    cold::slowest_of("planner/cluster", machine, &keys, LIMIT_S, effort)
}

fn gpu(node: u32, at: u32) -> MemoryId {
    DeviceId::new(DeviceKind::CUDA, node * GPUS + at).memory(MemoryKind::Device)
}

fn pinned(node: u32) -> MemoryId {
    DeviceId::new(DeviceKind::CPU, node).memory(MemoryKind::Pinned)
}

fn pageable(node: u32) -> MemoryId {
    DeviceId::new(DeviceKind::CPU, node).memory(MemoryKind::Pageable)
}

/// Nodes with a host and GPUs that reach each other; each host reaches every other one over the network.
fn inventory() -> Inventory {
    let mut of = Inventory {
        backend: BACKEND,
        devices: Vec::new(),
        memories: Vec::new(),
        links: Vec::new(),
        lacks: Vec::new(),
        transform: None,
    };
    for node in 0..NODES {
        let (heap, slots) = (pageable(node), pinned(node));
        of.devices.push(device(heap.device));
        of.memories.extend([memory(heap), memory(slots)]);
        for (src, dst) in [(heap, heap), (heap, slots), (slots, heap), (slots, slots)] {
            let on = (heap.device, 0);
            of.links.push(link(src, dst, on, LinkClass::Local));
        }
        let others = (0..NODES).filter(|other| *other != node);
        let network = (heap.device, 1);
        let across = others.map(|other| link(slots, pinned(other), network, LinkClass::Network));
        of.links.extend(across);
        for at in 0..GPUS {
            let own = gpu(node, at);
            of.devices.push(device(own.device));
            of.memories.push(memory(own));
            let engine = |index| (own.device, index);
            of.links.push(link(own, own, engine(0), LinkClass::Local));
            of.links.push(link(slots, own, engine(1), LinkClass::Pcie));
            of.links.push(link(own, slots, engine(2), LinkClass::Pcie));
            let peers = (0..GPUS).filter(|peer| *peer != at);
            let peers = peers.map(|peer| link(own, gpu(node, peer), engine(3), LinkClass::Fabric));
            of.links.extend(peers);
        }
    }
    of
}

fn device(id: DeviceId) -> DeviceInfo {
    DeviceInfo {
        id,
        backend: BACKEND,
        name: "generated".into(),
        software: false,
        simulated: true,
        memory_bytes: None,
        driver: None,
        uuid: None,
        pci: None,
        numa_node: None,
    }
}

fn memory(id: MemoryId) -> MemoryInfo {
    MemoryInfo {
        id,
        backend: BACKEND,
        total_bytes: None,
        max_alloc_bytes: 1 << 36,
        alignment: 256,
        host_addressable: id.device.is_host(),
        staging: id.kind == MemoryKind::Pinned,
        passage: Passage::default(),
    }
}

fn link(src: MemoryId, dst: MemoryId, (on, index): (DeviceId, u16), class: LinkClass) -> Link {
    let access = match class {
        LinkClass::Fabric => Access::Peer,
        _ => Access::Native,
    };
    Link {
        id: LinkId {
            src,
            dst,
            engine: EngineId { device: on, index },
            access,
        },
        backend: BACKEND,
        class,
        cost: defaults::link_cost(class).into(),
        pitched: true,
        depth: defaults::LINK_DEPTH,
    }
}
