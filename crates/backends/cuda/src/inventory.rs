//! What the devices bring to the machine: memories, and the links between them and to the host's.

use transload_hal::core::defaults::{LINK_DEPTH, link_cost};
use transload_hal::{
    Access, BackendId, Curve, DeviceId, DeviceInfo, EngineId, Inventory, Lack, Link, LinkClass,
    LinkId, MemoryId, MemoryInfo, MemoryKind, Name,
};

use crate::device::BACKEND;
use crate::gpu::Gpu;
use crate::memory::{self, PINNED};
use crate::queue::Way;
use crate::raw::{CUdevice, Driver};

/// The processors' own backend, which fills and drains pinned memory.
const HOST: BackendId = BackendId(Name::constant("host"));

/// What the processors reach by themselves.
const HOST_KINDS: [MemoryKind; 3] = [MemoryKind::Pageable, MemoryKind::Shared, MemoryKind::File];

/// Host memory that a device reaches which walks the host's page tables.
const WALKED_KINDS: [MemoryKind; 2] = [MemoryKind::Pageable, MemoryKind::Shared];

/// The host backend's engine.
const CPU_ENGINE: EngineId = EngineId {
    device: DeviceId::CPU0,
    index: 0,
};

pub(crate) fn inventory(driver: &Driver, gpus: &[Gpu]) -> Inventory {
    let mut links = host_links(PINNED, Access::Native);
    links.push(by_host(PINNED, PINNED, Access::Native));
    links.extend(gpus.iter().flat_map(links_of));
    let (mut memories, mut lacks) = (Vec::new(), Vec::new());
    for gpu in gpus {
        memories.extend(memories_of(gpu));
        lacks.extend(lacks_of(gpu));
        for other in gpus.iter().filter(|other| other.number != gpu.number) {
            match peer(driver, gpu, other) {
                Ok(link) => links.push(link),
                Err(lack) => lacks.push(lack),
            }
        }
    }
    memories.push(MemoryInfo {
        id: PINNED,
        backend: BACKEND,
        total_bytes: None,
        max_alloc_bytes: memory::largest_pinned(),
        alignment: memory::PAGE,
        host_addressable: true,
        staging: true,
    });
    Inventory {
        backend: BACKEND,
        devices: gpus.iter().map(|gpu| device(driver, gpu)).collect(),
        memories,
        links,
        lacks,
        transform: None,
    }
}

fn device(driver: &Driver, gpu: &Gpu) -> DeviceInfo {
    DeviceInfo {
        id: gpu.id,
        backend: BACKEND,
        name: gpu.facts.name.clone(),
        software: false,
        simulated: driver.is_stand_in(),
        memory_bytes: Some(gpu.facts.memory_bytes),
        driver: Some(format!("CUDA {}", driver.version())),
        uuid: gpu.facts.uuid,
        pci: gpu.facts.pci,
        numa_node: gpu.facts.numa_node,
    }
}

/// The one that buffers are allocated in comes first.
fn memories_of(gpu: &Gpu) -> Vec<MemoryInfo> {
    let own = MemoryInfo {
        id: gpu.id.memory(MemoryKind::Device),
        backend: BACKEND,
        total_bytes: Some(gpu.facts.memory_bytes),
        max_alloc_bytes: gpu.facts.memory_bytes,
        alignment: memory::ALIGNMENT,
        host_addressable: false,
        staging: false,
    };
    let managed = gpu.facts.has_managed.then(|| MemoryInfo {
        id: gpu.id.memory(MemoryKind::Managed),
        total_bytes: None,
        max_alloc_bytes: memory::LARGEST_MANAGED,
        // The host may touch it, but never while the device does, and then nobody else may look in place.
        host_addressable: gpu.facts.shares_managed,
        ..own.clone()
    });
    [Some(own), managed].into_iter().flatten().collect()
}

/// The links of a device to itself and to the host.
fn links_of(gpu: &Gpu) -> Vec<Link> {
    let mut links = Vec::new();
    let own = gpu.id.memory(MemoryKind::Device);
    let managed = gpu.id.memory(MemoryKind::Managed);
    let walked = WALKED_KINDS.map(|kind| DeviceId::CPU0.memory(kind));
    let walked = walked.into_iter().filter(|_| gpu.facts.reaches_pageable);
    let hosts: Vec<MemoryId> = [PINNED].into_iter().chain(walked).collect();
    let wire = wire(gpu);
    for host in &hosts {
        links.push(link(gpu, (*host, own), Way::In, Access::Import, wire));
        links.push(link(gpu, (own, *host), Way::Out, Access::Import, wire));
    }
    links.push(link(
        gpu,
        (own, own),
        Way::Within,
        Access::Native,
        LinkClass::Local,
    ));
    if !gpu.facts.has_managed {
        return links;
    }
    let mut add = |ends, way, class| links.push(link(gpu, ends, way, Access::Managed, class));
    for ends in [(own, managed), (managed, own), (managed, managed)] {
        add(ends, Way::Within, LinkClass::Local);
    }
    for host in hosts {
        add((host, managed), Way::In, wire);
        add((managed, host), Way::Out, wire);
    }
    if gpu.facts.shares_managed {
        links.extend(host_links(managed, Access::Managed));
    }
    links
}

/// Why a device lacks what others have.
fn lacks_of(gpu: &Gpu) -> Vec<Lack> {
    if gpu.facts.reaches_pageable {
        return Vec::new();
    }
    let own = gpu.id.memory(MemoryKind::Device);
    let lack = |src, dst| Lack {
        src,
        dst,
        access: Access::Import,
        reason: format!("{} does not use the host's page tables", gpu.id).into(),
    };
    let walked = WALKED_KINDS.map(|kind| DeviceId::CPU0.memory(kind));
    let both = |host| [lack(host, own), lack(own, host)];
    walked.into_iter().flat_map(both).collect()
}

/// The link from a device to another one's memory, or why there is none.
fn peer(driver: &Driver, gpu: &Gpu, other: &Gpu) -> Result<Link, Lack> {
    let [src, dst] = [gpu, other].map(|gpu| gpu.id.memory(MemoryKind::Device));
    match can_reach(driver, gpu.device, other.device) {
        Ok(true) => {
            let ends = (src, dst);
            Ok(link(gpu, ends, Way::Across, Access::Peer, LinkClass::Pcie))
        }
        answer => Err(Lack {
            src,
            dst,
            access: Access::Peer,
            reason: match answer {
                Err(error) => error.to_string().into(),
                Ok(_) => format!("{} does not reach the memory of {}", gpu.id, other.id).into(),
            },
        }),
    }
}

fn can_reach(driver: &Driver, from: CUdevice, to: CUdevice) -> Result<bool, crate::raw::CallError> {
    let mut can = 0;
    // SAFETY: the place is ours.
    unsafe { driver.cuDeviceCanAccessPeer(&raw mut can, from, to) }?;
    Ok(can == 1)
}

/// What lies between the device's memory and the host's.
fn wire(gpu: &Gpu) -> LinkClass {
    match gpu.facts.is_integrated {
        true => LinkClass::Local,
        false => LinkClass::Pcie,
    }
}

/// The links over which the host's threads reach a memory, there and back.
fn host_links(memory: MemoryId, access: Access) -> Vec<Link> {
    let hosts = HOST_KINDS.map(|kind| DeviceId::CPU0.memory(kind));
    let both = |host| [by_host(host, memory, access), by_host(memory, host, access)];
    hosts.into_iter().flat_map(both).collect()
}

fn by_host(src: MemoryId, dst: MemoryId, access: Access) -> Link {
    let class = match [src.kind, dst.kind].contains(&MemoryKind::File) {
        true => LinkClass::Storage,
        false => LinkClass::Local,
    };
    Link {
        id: LinkId {
            src,
            dst,
            engine: CPU_ENGINE,
            access,
        },
        backend: HOST,
        class,
        cost: Curve::from(link_cost(class)),
        pitched: true,
        // One operation takes all the threads that there are.
        depth: 1,
    }
}

fn link(
    gpu: &Gpu,
    (src, dst): (MemoryId, MemoryId),
    way: Way,
    access: Access,
    class: LinkClass,
) -> Link {
    // A device with one copy engine does one direction after the other.
    let way = match way {
        Way::Out if !gpu.facts.is_duplex => Way::In,
        way => way,
    };
    Link {
        id: LinkId {
            src,
            dst,
            engine: EngineId {
                device: gpu.id,
                index: way as u16,
            },
            access,
        },
        backend: BACKEND,
        class,
        cost: Curve::from(link_cost(class)),
        pitched: true,
        depth: LINK_DEPTH,
    }
}
