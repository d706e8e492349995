//! The memories of the devices, and the links between them and to the host's memories.

use transload_hal::core::defaults::{LINK_DEPTH, link_cost};
use transload_hal::{
    Access, Cost, Curve, DeviceId, DeviceInfo, EngineId, GUEST_KINDS, HOST_KINDS, HostReach,
    Inventory, Lack, Link, LinkClass, LinkId, MemoryId, MemoryInfo, MemoryKind, host_links,
};

use crate::device::{BACKEND, Gpu};
use crate::queue::Queue;
use crate::raw;
use crate::storage::WORD;

pub(crate) fn inventory(queues: &[Queue]) -> Inventory {
    let gpus: Vec<&Gpu> = queues.iter().map(Queue::gpu).collect();
    let mut links: Vec<Link> = gpus.iter().flat_map(|gpu| links(gpu)).collect();
    let reached: Vec<HostReach> = gpus.iter().flat_map(|gpu| reached(gpu)).collect();
    links.extend(host_links(&reached, &HOST_KINDS));
    Inventory {
        backend: BACKEND,
        devices: gpus.iter().map(|gpu| device(gpu)).collect(),
        memories: gpus.iter().flat_map(|gpu| memories(gpu)).collect(),
        links,
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

fn links(gpu: &Gpu) -> Vec<Link> {
    let memory = |kind| gpu.id.memory(kind);
    let mut links = Vec::new();
    for kind in own(gpu) {
        links.push(link(gpu, memory(MemoryKind::Upload), memory(*kind)));
        links.push(link(gpu, memory(*kind), memory(MemoryKind::Readback)));
        for other in own(gpu) {
            links.push(link(gpu, memory(*kind), memory(*other)));
        }
    }
    if gpu.importer.is_ok() {
        for host in GUEST_KINDS.map(|kind| DeviceId::CPU0.memory(kind)) {
            links.push(import(gpu, host, memory(MemoryKind::Device)));
            links.push(import(gpu, memory(MemoryKind::Device), host));
        }
    }
    links
}

/// The memories that the processors reach: the slots, and mapped memory. A slot can be read back by no other way, so a link
/// to one is not proven.
fn reached(gpu: &Gpu) -> impl Iterator<Item = HostReach> + use<> {
    let slot = |kind| HostReach {
        memory: gpu.id.memory(kind),
        access: Access::Native,
        is_read: kind == MemoryKind::Readback,
        is_written: kind == MemoryKind::Upload,
    };
    let mapped = gpu.id.memory(MemoryKind::Mapped);
    let mapped = HostReach::both_ways(mapped, Access::Import);
    let slots = [MemoryKind::Upload, MemoryKind::Readback].map(slot);
    slots
        .into_iter()
        .chain(gpu.mapper.is_some().then_some(mapped))
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

/// A link over which the adapter reads or writes host memory in place. Pitched regions are staged, because
/// one of their rows may contain no whole page.
fn import(gpu: &Gpu, src: MemoryId, dst: MemoryId) -> Link {
    let native = link(gpu, src, dst);
    Link {
        id: LinkId {
            access: Access::Import,
            ..native.id
        },
        pitched: false,
        ..native
    }
}

/// The class of the connection between the adapter's memory and the host's.
fn wire(gpu: &Gpu) -> LinkClass {
    match gpu.device.adapter_info().device_type {
        wgpu::DeviceType::Cpu | wgpu::DeviceType::IntegratedGpu => LinkClass::Local,
        _ => LinkClass::Pcie,
    }
}

/// A link that the adapter serves. Its cost has that of submitting commands and of learning of their end, which decides
/// the size of chunks until the machine is measured: 35 to 85 µs on lavapipe, depending on whether its thread is awake.
fn link(gpu: &Gpu, src: MemoryId, dst: MemoryId) -> Link {
    const SUBMISSION_NS: u64 = 40_000;
    let class = wire(gpu);
    Link {
        id: LinkId {
            src,
            dst,
            engine: EngineId {
                device: gpu.id,
                index: 0,
            },
            access: Access::Native,
        },
        backend: BACKEND,
        class,
        cost: Curve::from(Cost::new(SUBMISSION_NS, link_cost(class).fs_per_byte)),
        pitched: true,
        depth: LINK_DEPTH,
    }
}
