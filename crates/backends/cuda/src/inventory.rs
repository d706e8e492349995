//! The memories of the devices, and the links between them and to the host's memories.

use transload_hal::defaults::LINK_DEPTH;
use transload_hal::{
    Access, Curve, DeviceId, DeviceInfo, EngineId, HostReach, Inventory, Lack, Link, LinkClass,
    LinkId, MemoryId, MemoryInfo, MemoryKind, Passage, host_links,
};

use crate::gpu::Gpu;
use crate::ids::{BACKEND, PINNED};
use crate::interconnect::{DeviceLinks, Interconnect, PairLinks, host_cost, local_cost, peer_cost};
use crate::memory;
use crate::queue::Way;
use crate::raw::{CUdevice, CUdevice_P2PAttribute, CallError, Driver};

/// The host memories that the host backend provides.
const HOST_KINDS: [MemoryKind; 4] = [
    MemoryKind::Pageable,
    MemoryKind::Shared,
    MemoryKind::File,
    MemoryKind::Disk,
];

/// Host memory that a device reaches if it walks the host's page tables.
const WALKED_KINDS: [MemoryKind; 2] = [MemoryKind::Pageable, MemoryKind::Shared];

/// Builds the inventory of the devices; `interconnect` has their wiring, in their order.
pub(crate) fn inventory(driver: &Driver, gpus: &[Gpu], interconnect: &Interconnect) -> Inventory {
    let pinned = HostReach::both_ways(PINNED, Access::Native);
    let mut links = host_links(&[pinned], &HOST_KINDS);
    let wiring = |gpu: &Gpu| interconnect.device(gpu.number);
    links.extend(gpus.iter().flat_map(|gpu| links_of(gpu, &wiring(gpu))));
    let (mut memories, mut lacks) = (Vec::new(), Vec::new());
    for gpu in gpus {
        memories.extend(memories_of(gpu));
        lacks.extend(lacks_of(gpu));
        for other in gpus.iter().filter(|other| other.number != gpu.number) {
            let between = interconnect.between(gpu.number, other.number);
            match peer(driver, gpu, other, &between) {
                Ok(link) => links.push(link),
                Err(lack) => lacks.push(lack),
            }
        }
    }
    let version = match interconnect.driver() {
        Some(whole) => format!("NVIDIA {whole}, CUDA {}", driver.version()),
        None => format!("CUDA {}", driver.version()),
    };
    let device = |gpu: &Gpu| DeviceInfo {
        id: gpu.id,
        backend: BACKEND,
        name: gpu.facts.name.clone(),
        // A stand-in copies with the processors.
        software: driver.is_stand_in(),
        simulated: driver.is_stand_in(),
        memory_bytes: Some(gpu.facts.memory_bytes),
        driver: Some(version.clone()),
        uuid: gpu.facts.uuid,
        pci: gpu.facts.pci,
        // The driver reports this itself since CUDA 12.2.
        numa_node: gpu.facts.numa_node.or(wiring(gpu).numa_node),
    };
    memories.push(MemoryInfo {
        id: PINNED,
        backend: BACKEND,
        total_bytes: None,
        max_alloc_bytes: memory::largest_pinned(),
        alignment: memory::page_bytes(),
        host_addressable: true,
        staging: true,
        passage: Passage::default(),
    });
    Inventory {
        backend: BACKEND,
        devices: gpus.iter().map(device).collect(),
        memories,
        links,
        lacks,
        transform: None,
    }
}

/// The memory in which buffers are allocated comes first.
fn memories_of(gpu: &Gpu) -> Vec<MemoryInfo> {
    let own = MemoryInfo {
        id: gpu.id.memory(MemoryKind::Device),
        backend: BACKEND,
        total_bytes: Some(gpu.facts.memory_bytes),
        max_alloc_bytes: gpu.facts.memory_bytes,
        alignment: memory::ALIGNMENT,
        host_addressable: false,
        staging: false,
        passage: Passage::default(),
    };
    let managed = gpu.facts.has_managed.then(|| MemoryInfo {
        id: gpu.id.memory(MemoryKind::Managed),
        total_bytes: None,
        max_alloc_bytes: memory::LARGEST_MANAGED,
        // Without concurrent access the host may access it, but never while the device does, so no other
        // backend may access it in place.
        host_addressable: gpu.facts.shares_managed,
        ..own.clone()
    });
    [Some(own), managed].into_iter().flatten().collect()
}

/// The links of a device to itself and to the host.
fn links_of(gpu: &Gpu, wiring: &DeviceLinks) -> Vec<Link> {
    let mut links = Vec::new();
    let own = gpu.id.memory(MemoryKind::Device);
    let managed = gpu.id.memory(MemoryKind::Managed);
    let walked = WALKED_KINDS.map(|kind| DeviceId::CPU0.memory(kind));
    let walked = walked.into_iter().filter(|_| gpu.facts.reaches_pageable);
    let hosts: Vec<MemoryId> = [PINNED].into_iter().chain(walked).collect();
    let to_host = to_host(gpu, wiring);
    let within = (LinkClass::Local, local_cost(wiring));
    for host in &hosts {
        links.push(link(gpu, (*host, own), Way::In, Access::Import, &to_host));
        links.push(link(gpu, (own, *host), Way::Out, Access::Import, &to_host));
    }
    links.push(link(gpu, (own, own), Way::Within, Access::Native, &within));
    if !gpu.facts.has_managed {
        return links;
    }
    let mut add =
        |endpoints, way, over| links.push(link(gpu, endpoints, way, Access::Managed, over));
    for endpoints in [(own, managed), (managed, own), (managed, managed)] {
        add(endpoints, Way::Within, &within);
    }
    for host in hosts {
        add((host, managed), Way::In, &to_host);
        add((managed, host), Way::Out, &to_host);
    }
    if gpu.facts.shares_managed {
        let managed = HostReach::both_ways(managed, Access::Managed);
        links.extend(host_links(&[managed], &HOST_KINDS));
    }
    links
}

/// The reasons why a device lacks links that others have.
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
fn peer(driver: &Driver, gpu: &Gpu, other: &Gpu, between: &PairLinks) -> Result<Link, Lack> {
    let [src, dst] = [gpu, other].map(|gpu| gpu.id.memory(MemoryKind::Device));
    match can_reach(driver, gpu.device, other.device) {
        Ok(true) => {
            let has_atomics = has_atomics(driver, gpu.device, other.device);
            let over = peer_cost(between, has_atomics);
            Ok(link(gpu, (src, dst), Way::Across, Access::Peer, &over))
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

fn can_reach(driver: &Driver, from: CUdevice, to: CUdevice) -> Result<bool, CallError> {
    let mut can = 0;
    // SAFETY: the place is ours.
    unsafe { driver.cuDeviceCanAccessPeer(&raw mut can, from, to) }?;
    Ok(can == 1)
}

/// Whether the link between two devices has all atomics; a driver that does not say so has none.
fn has_atomics(driver: &Driver, from: CUdevice, to: CUdevice) -> bool {
    let mut has = 0;
    let attribute = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    // SAFETY: the place is ours.
    let asked = unsafe { driver.cuDeviceGetP2PAttribute(&raw mut has, attribute, from, to) };
    asked.is_ok() && has == 1
}

/// The class of the connection between the device's memory and the host's, and the cost of a copy over
/// it.
fn to_host(gpu: &Gpu, links: &DeviceLinks) -> (LinkClass, Curve) {
    match gpu.facts.is_integrated {
        // Both are one memory.
        true => (LinkClass::Local, local_cost(links)),
        false => (LinkClass::Pcie, host_cost(links)),
    }
}

fn link(
    gpu: &Gpu,
    (src, dst): (MemoryId, MemoryId),
    way: Way,
    access: Access,
    (class, cost): &(LinkClass, Curve),
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
        class: *class,
        cost: cost.clone(),
        pitched: true,
        depth: LINK_DEPTH,
    }
}
