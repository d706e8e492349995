//! The memories of the devices, and the links between them and to the host's memories.

#[cfg(native)]
mod native;

use transload_hal::defaults::{LINK_DEPTH, link_cost};
use transload_hal::{
    Access, Cost, Curve, DeviceInfo, EngineId, HOST_KINDS, HostReach, Inventory, Link, LinkClass,
    LinkId, MemoryId, MemoryInfo, MemoryKind, Passage, host_links,
};

#[cfg(browser)]
use crate::browser::inventory as native;
use crate::gpu::Gpu;
#[cfg(native)]
use crate::raw;
use crate::storage::{BACKEND, WORD};
use native::{SLOTS, SUBMISSION_NS, lacks, own, reached};

pub(crate) fn inventory(gpus: &[&Gpu]) -> Inventory {
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
    // Browsers report little, so that pages cannot identify machines.
    let name = match info.name.trim() {
        "" => "WebGPU adapter".to_owned(),
        _ => info.name.clone(),
    };
    DeviceInfo {
        id: gpu.id,
        backend: BACKEND,
        name,
        software: info.device_type == wgpu::DeviceType::Cpu,
        simulated: info.backend == wgpu::Backend::Noop,
        memory_bytes: None,
        driver: driver(&info),
        #[cfg(native)]
        uuid: raw::uuid(&gpu.device),
        #[cfg(browser)]
        uuid: None,
        pci: info.device_pci_bus_id.parse().ok(),
        numa_node: None,
    }
}

/// The memory in which buffers are allocated comes first.
fn memories(gpu: &Gpu) -> Vec<MemoryInfo> {
    let info = |kind: &MemoryKind| MemoryInfo {
        id: gpu.id.memory(*kind),
        backend: BACKEND,
        total_bytes: None,
        max_alloc_bytes: gpu.device.limits().max_buffer_size,
        alignment: WORD,
        host_addressable: SLOTS.contains(kind),
        staging: SLOTS.contains(kind),
        passage: Passage::default(),
    };
    own(gpu).iter().chain(&SLOTS).map(info).collect()
}

fn links(gpu: &Gpu) -> Vec<Link> {
    let own = || own(gpu).iter().map(|kind| gpu.id.memory(*kind));
    let pairs = own().flat_map(|src| own().map(move |dst| (src, dst)));
    let within = pairs.map(|(src, dst)| (src, dst, Access::Native));
    let all = within.chain(native::links(gpu));
    all.map(|(src, dst, access)| link(gpu, src, dst, access))
        .collect()
}

/// The driver's name and version; `None` if the driver gives none.
fn driver(info: &wgpu::AdapterInfo) -> Option<String> {
    let told = [info.driver.trim(), info.driver_info.trim()];
    let told: Vec<&str> = told.into_iter().filter(|part| !part.is_empty()).collect();
    (!told.is_empty()).then(|| told.join(" "))
}

/// A link that the adapter serves.
fn link(gpu: &Gpu, src: MemoryId, dst: MemoryId, access: Access) -> Link {
    // The connection between the adapter's memory and the host's.
    let class = match gpu.device.adapter_info().device_type {
        wgpu::DeviceType::Cpu | wgpu::DeviceType::IntegratedGpu => LinkClass::Local,
        _ => LinkClass::Pcie,
    };
    Link {
        id: LinkId {
            src,
            dst,
            engine: EngineId {
                device: gpu.id,
                index: 0,
            },
            access,
        },
        backend: BACKEND,
        class,
        cost: Curve::from(Cost::new(SUBMISSION_NS, link_cost(class).fs_per_byte)),
        // Pitched regions of host memory are staged, because one of their rows may contain no whole page.
        pitched: access == Access::Native,
        depth: LINK_DEPTH,
    }
}
