//! The memories of the devices, and the links between them and to the host's memories.

use transload_hal::core::defaults::{LINK_DEPTH, link_cost};
use transload_hal::{
    Access, BackendId, Cost, Curve, DeviceId, DeviceInfo, EngineId, Inventory, Lack, Link,
    LinkClass, LinkId, MemoryId, MemoryInfo, MemoryKind, Name,
};

use crate::device::{BACKEND, Gpu};
use crate::queue::Queue;
use crate::raw;
use crate::storage::WORD;

/// The processors' own backend, which fills and drains the slots.
const HOST: BackendId = BackendId(Name::constant("host"));

pub(crate) fn inventory(queues: &[Queue]) -> Inventory {
    let gpus: Vec<&Gpu> = queues.iter().map(Queue::gpu).collect();
    Inventory {
        backend: BACKEND,
        devices: gpus.iter().map(|gpu| device(gpu)).collect(),
        memories: gpus.iter().flat_map(|gpu| memories(gpu)).collect(),
        links: gpus.iter().flat_map(|gpu| links(gpu, &gpus)).collect(),
        lacks: gpus.iter().flat_map(|gpu| lacks(gpu)).collect(),
        transform: None,
    }
}

fn device(gpu: &Gpu) -> DeviceInfo {
    let info = gpu.device.adapter_info();
    DeviceInfo {
        id: gpu.id,
        backend: BACKEND,
        name: info.name.clone(),
        software: info.device_type == wgpu::DeviceType::Cpu,
        simulated: info.backend == wgpu::Backend::Noop,
        memory_bytes: None,
        driver: driver(&info),
        uuid: raw::uuid(&gpu.device),
        pci: info.device_pci_bus_id.parse().ok(),
        numa_node: None,
    }
}

/// The memory in which buffers are allocated comes first.
fn memories(gpu: &Gpu) -> Vec<MemoryInfo> {
    let slots = [MemoryKind::Upload, MemoryKind::Readback];
    let info = |kind| MemoryInfo {
        id: gpu.id.memory(kind),
        backend: BACKEND,
        total_bytes: None,
        max_alloc_bytes: gpu.device.limits().max_buffer_size,
        alignment: WORD,
        // The host reaches mapped memory too, but the user's own commands may change it at any time, so no
        // access in place is given.
        host_addressable: slots.contains(&kind),
        staging: slots.contains(&kind),
    };
    own(gpu)
        .iter()
        .chain(&slots)
        .map(|kind| info(*kind))
        .collect()
}

/// The memories that its users' buffers lie in.
fn own(gpu: &Gpu) -> &'static [MemoryKind] {
    match gpu.mapper {
        Some(_) => &[MemoryKind::Mapped, MemoryKind::Device],
        None => &[MemoryKind::Device],
    }
}

fn links(gpu: &Gpu, all: &[&Gpu]) -> Vec<Link> {
    let engine = EngineId {
        device: gpu.id,
        index: 0,
    };
    let memory = |kind| gpu.id.memory(kind);
    let mut links = Vec::new();
    let mut within =
        |src, dst| links.push(submitted(gpu, link(src, dst, engine, BACKEND, wire(gpu))));
    for own in own_of(gpu) {
        within(memory(MemoryKind::Upload), own);
        within(own, memory(MemoryKind::Readback));
        for other in own_of(gpu) {
            within(own, other);
        }
    }
    let mut by_host = |src: MemoryId, dst: MemoryId, class| {
        let native = link(src, dst, CPU_ENGINE, HOST, class);
        // A slot can be read back by no other way, so a link to one is not proven.
        let ends = [src.kind, dst.kind];
        let is_slot = |kind| matches!(kind, MemoryKind::Upload | MemoryKind::Readback);
        let proven = ends.contains(&MemoryKind::Mapped) && !ends.into_iter().any(is_slot);
        links.push(if proven { in_place(native) } else { native });
    };
    for kind in HOST_KINDS {
        let host = DeviceId::CPU0.memory(kind);
        for inlet in inlets(gpu) {
            by_host(host, inlet, host_class(kind));
        }
        for outlet in outlets(gpu) {
            by_host(outlet, host, host_class(kind));
        }
    }
    for other in all.iter().filter(|other| other.id != gpu.id) {
        for outlet in outlets(gpu) {
            for inlet in inlets(other) {
                by_host(outlet, inlet, LinkClass::Local);
            }
        }
    }
    if gpu.importer.is_ok() {
        for host in GUEST_KINDS.map(|kind| DeviceId::CPU0.memory(kind)) {
            links.push(import(gpu, host, memory(MemoryKind::Device), engine));
            links.push(import(gpu, memory(MemoryKind::Device), host, engine));
        }
    }
    links
}

fn own_of(gpu: &Gpu) -> impl Iterator<Item = MemoryId> + use<> {
    let id = gpu.id;
    own(gpu).iter().map(move |kind| id.memory(*kind))
}

/// The memories into which the host's threads put bytes for the adapter.
fn inlets(gpu: &Gpu) -> impl Iterator<Item = MemoryId> + use<> {
    beside_mapped(gpu, MemoryKind::Upload)
}

/// The memories from which the host's threads take bytes of the adapter.
fn outlets(gpu: &Gpu) -> impl Iterator<Item = MemoryId> + use<> {
    beside_mapped(gpu, MemoryKind::Readback)
}

fn beside_mapped(gpu: &Gpu, slot: MemoryKind) -> impl Iterator<Item = MemoryId> + use<> {
    let mapped = gpu.mapper.is_some().then_some(MemoryKind::Mapped);
    let id = gpu.id;
    let kinds = [slot].into_iter().chain(mapped);
    kinds.map(move |kind| id.memory(kind))
}

/// Why the adapter does not reach host memory in place, each way.
fn lacks(gpu: &Gpu) -> Vec<Lack> {
    let Err(reason) = &gpu.importer else {
        return Vec::new();
    };
    let device = gpu.id.memory(MemoryKind::Device);
    let lack = |src, dst| Lack {
        src,
        dst,
        access: Access::Import,
        reason: format!("{}: {reason}", gpu.id).into(),
    };
    let hosts = GUEST_KINDS.map(|kind| DeviceId::CPU0.memory(kind));
    let ways = hosts
        .into_iter()
        .flat_map(|host| [lack(host, device), lack(device, host)]);
    ways.collect()
}

/// The driver's name and version; `None` if the driver gives none.
fn driver(info: &wgpu::AdapterInfo) -> Option<String> {
    let told = [info.driver.trim(), info.driver_info.trim()];
    let told: Vec<&str> = told.into_iter().filter(|part| !part.is_empty()).collect();
    (!told.is_empty()).then(|| told.join(" "))
}

/// The memories that the processors reach by themselves.
const HOST_KINDS: [MemoryKind; 4] = [
    MemoryKind::Pageable,
    MemoryKind::Pinned,
    MemoryKind::Shared,
    MemoryKind::File,
];

/// Host memory that may be imported.
pub(crate) const GUEST_KINDS: [MemoryKind; 3] =
    [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Shared];

/// The host backend's engine: slots are filled and drained by the threads that also copy.
const CPU_ENGINE: EngineId = EngineId {
    device: DeviceId::CPU0,
    index: 0,
};

fn host_class(kind: MemoryKind) -> LinkClass {
    match kind {
        MemoryKind::File => LinkClass::Storage,
        _ => LinkClass::Local,
    }
}

/// A link over which the adapter reads or writes host memory in place. Pitched regions are staged, because
/// one of their rows may contain no whole page.
fn import(gpu: &Gpu, src: MemoryId, dst: MemoryId, engine: EngineId) -> Link {
    Link {
        pitched: false,
        depth: LINK_DEPTH,
        ..in_place(submitted(gpu, link(src, dst, engine, BACKEND, wire(gpu))))
    }
}

/// The class of the connection between the adapter's memory and the host's.
fn wire(gpu: &Gpu) -> LinkClass {
    match gpu.device.adapter_info().device_type {
        wgpu::DeviceType::Cpu | wgpu::DeviceType::IntegratedGpu => LinkClass::Local,
        _ => LinkClass::Pcie,
    }
}

/// The same link with the cost of submitting commands and of learning of their end. That cost decides the
/// size of chunks until the machine is measured: 35 to 85 µs on lavapipe, depending on whether its thread
/// is awake.
fn submitted(gpu: &Gpu, native: Link) -> Link {
    let rate = link_cost(wire(gpu)).fs_per_byte;
    Link {
        cost: Curve::from(Cost::new(SUBMISSION_NS, rate)),
        ..native
    }
}

const SUBMISSION_NS: u64 = 40_000;

/// The same link if one memory belongs to the other side. One operation takes all threads.
fn in_place(native: Link) -> Link {
    Link {
        id: LinkId {
            access: Access::Import,
            ..native.id
        },
        depth: 1,
        ..native
    }
}

fn link(
    src: MemoryId,
    dst: MemoryId,
    engine: EngineId,
    backend: BackendId,
    class: LinkClass,
) -> Link {
    Link {
        id: LinkId {
            src,
            dst,
            engine,
            access: Access::Native,
        },
        backend,
        class,
        cost: Curve::from(link_cost(class)),
        pitched: true,
        depth: LINK_DEPTH,
    }
}
