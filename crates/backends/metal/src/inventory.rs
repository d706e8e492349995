//! The memories of the devices, and the links between them and to the host's memories.

use transload_hal::defaults::{LINK_DEPTH, link_cost, memory_cost};
use transload_hal::{
    Access, Cost, Curve, DeviceId, DeviceInfo, EngineId, GUEST_KINDS, HOST_KINDS, HostReach,
    Inventory, Lack, Link, LinkClass, LinkId, MemoryId, MemoryInfo, MemoryKind, Passage,
    host_links, processors,
};

use crate::gpu::Gpu;
use crate::memory::ALIGNMENT;
use crate::queue::Way;
use crate::types::BACKEND;

/// Nanoseconds to hand commands over and to hear of their end, until the machine is measured: as after a small copy
/// over a bus ([`transload_hal::defaults`]).
const SUBMISSION_NS: u64 = 10_000;

/// Nanoseconds to wrap host memory and let go of it, until the machine is measured: what an import of host memory costs
/// on lavapipe, where it was measured.
const WRAPPING_NS: u64 = 20_000;

/// The rate of copies inside the memory that a device has for itself, until the machine is measured: half of the 80 GB/s
/// of a Radeon Pro 555's memory, because each byte is read and written.
const WITHIN: Cost = Cost::from_rate(SUBMISSION_NS, 40_000_000_000);

pub(crate) fn inventory(gpus: &[Gpu]) -> Inventory {
    let mut links: Vec<Link> = gpus.iter().flat_map(links).collect();
    links.extend(host_links(&mapped(gpus), &HOST_KINDS));
    Inventory {
        backend: BACKEND,
        devices: gpus.iter().map(device).collect(),
        memories: gpus.iter().flat_map(memories).collect(),
        links,
        lacks: gpus.iter().flat_map(|gpu| lacks(gpu, gpus)).collect(),
        transform: None,
    }
}

fn device(gpu: &Gpu) -> DeviceInfo {
    DeviceInfo {
        id: gpu.id,
        backend: BACKEND,
        name: gpu.facts.name.clone(),
        software: false,
        simulated: cfg!(transload_metal_double),
        memory_bytes: None,
        driver: None,
        // The registry id holds only until the machine restarts; a UUID must hold for good.
        uuid: None,
        pci: None,
        numa_node: None,
    }
}

/// The memories of a device, the default one first.
fn kinds(gpu: &Gpu) -> &'static [MemoryKind] {
    match (gpu.facts.is_unified, gpu.has_managed()) {
        (true, _) => &[MemoryKind::Mapped, MemoryKind::Device],
        (false, true) => &[MemoryKind::Device, MemoryKind::Mapped, MemoryKind::Managed],
        (false, false) => &[MemoryKind::Device, MemoryKind::Mapped],
    }
}

fn memories(gpu: &Gpu) -> Vec<MemoryInfo> {
    let info = |kind: &MemoryKind| MemoryInfo {
        id: gpu.id.memory(*kind),
        backend: BACKEND,
        total_bytes: None,
        max_alloc_bytes: gpu.facts.max_buffer_bytes,
        alignment: ALIGNMENT,
        // Of these only managed memory has guards: mapped memory can always be reached by both sides.
        host_addressable: *kind != MemoryKind::Device,
        staging: *kind == MemoryKind::Mapped,
        passage: Passage::default(),
    };
    kinds(gpu).iter().map(info).collect()
}

/// The memories that both sides reach at any time.
fn mapped(gpus: &[Gpu]) -> Vec<HostReach> {
    let memories = gpus.iter().map(|gpu| gpu.id.memory(MemoryKind::Mapped));
    let declared = memories.map(|memory| HostReach::both_ways(memory, Access::Native));
    declared.collect()
}

fn links(gpu: &Gpu) -> Vec<Link> {
    let id = |kind| gpu.id.memory(kind);
    let mut links = Vec::new();
    for src in kinds(gpu) {
        for dst in kinds(gpu) {
            links.push(own(gpu, (id(*src), id(*dst)), access_of([*src, *dst])));
        }
    }
    if gpu.has_managed() {
        let managed = HostReach {
            memory: id(MemoryKind::Managed),
            access: Access::Managed,
            is_read: true,
            // Metal must be told of each write, so this backend writes.
            is_written: false,
        };
        links.extend(host_links(&[managed], &HOST_KINDS));
    }
    for host in GUEST_KINDS.map(|kind| DeviceId::CPU0.memory(kind)) {
        // The host itself copies into memory that it reaches.
        links.push(import(gpu, (host, id(MemoryKind::Device))));
        links.push(import(gpu, (id(MemoryKind::Device), host)));
        if gpu.has_managed() {
            links.push(written(gpu, host));
        }
    }
    links
}

fn access_of(ends: [MemoryKind; 2]) -> Access {
    match ends.contains(&MemoryKind::Managed) {
        true => Access::Managed,
        false => Access::Native,
    }
}

/// This backend lists no links between devices: another framework provides them, or the bytes go over the host.
fn lacks(gpu: &Gpu, all: &[Gpu]) -> Vec<Lack> {
    let others = all.iter().filter(|other| other.id != gpu.id);
    let lack = |other: &Gpu| Lack {
        src: gpu.id.memory(MemoryKind::Device),
        dst: other.id.memory(MemoryKind::Device),
        access: Access::Peer,
        reason: "peer groups of Metal's devices are not used".into(),
    };
    others.map(lack).collect()
}

/// A link that a device's engines serve.
fn own(gpu: &Gpu, (src, dst): (MemoryId, MemoryId), access: Access) -> Link {
    let class = class_of(gpu, [src.kind, dst.kind]);
    let cost = match class {
        LinkClass::Local if !gpu.facts.is_unified => WITHIN,
        _ => Cost::new(SUBMISSION_NS, link_cost(class).fs_per_byte),
    };
    Link {
        id: LinkId {
            src,
            dst,
            engine: EngineId {
                device: gpu.id,
                index: Way::between(src.kind, dst.kind) as u16,
            },
            access,
        },
        backend: BACKEND,
        class,
        cost: Curve::from(cost),
        pitched: true,
        depth: LINK_DEPTH,
    }
}

/// A link over which a device reads or writes host memory in place. A row of a pitched region need not have a page of
/// its own, so those are staged.
fn import(gpu: &Gpu, ends: (MemoryId, MemoryId)) -> Link {
    let rate = link_cost(class_of(gpu, [ends.0.kind, ends.1.kind])).fs_per_byte;
    Link {
        pitched: false,
        cost: Curve::from(Cost::new(WRAPPING_NS + SUBMISSION_NS, rate)),
        ..own(gpu, ends, Access::Import)
    }
}

/// The link over which the host's copy of managed memory is written, by this backend, which tells Metal so.
fn written(gpu: &Gpu, host: MemoryId) -> Link {
    Link {
        class: LinkClass::Local,
        cost: memory_cost(processors()),
        depth: 1,
        ..own(
            gpu,
            (host, gpu.id.memory(MemoryKind::Managed)),
            Access::Managed,
        )
    }
}

/// What lies between two memories, as a device reaches them.
fn class_of(gpu: &Gpu, ends: [MemoryKind; 2]) -> LinkClass {
    let is_far = |kind: &MemoryKind| !matches!(kind, MemoryKind::Device | MemoryKind::Managed);
    match !gpu.facts.is_unified && ends.iter().any(is_far) {
        true => LinkClass::Pcie,
        false => LinkClass::Local,
    }
}
