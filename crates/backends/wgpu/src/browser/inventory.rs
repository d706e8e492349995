//! The memories of the devices, one each, and the links to and from the host's.

use std::rc::Rc;

use transload_hal::core::defaults::{LINK_DEPTH, link_cost};
use transload_hal::{
    Access, Cost, Curve, DeviceId, DeviceInfo, EngineId, Inventory, Link, LinkClass, LinkId,
    MemoryId, MemoryInfo, MemoryKind,
};

use super::gpu::Gpu;
use crate::device::BACKEND;
use crate::storage::WORD;

pub(super) fn inventory(gpus: &[Rc<Gpu>]) -> Inventory {
    Inventory {
        backend: BACKEND,
        devices: gpus.iter().map(|gpu| device(gpu)).collect(),
        memories: gpus.iter().map(|gpu| memory(gpu)).collect(),
        links: gpus.iter().flat_map(|gpu| links(gpu)).collect(),
        lacks: Vec::new(),
        transform: None,
    }
}

fn device(gpu: &Gpu) -> DeviceInfo {
    let info = gpu.device.adapter_info();
    // Browsers report little, so that pages cannot identify machines.
    let name = match info.name.trim() {
        "" => "WebGPU adapter".to_owned(),
        name => name.to_owned(),
    };
    DeviceInfo {
        id: gpu.id,
        backend: BACKEND,
        name,
        software: info.device_type == wgpu::DeviceType::Cpu,
        simulated: false,
        memory_bytes: None,
        driver: None,
        uuid: None,
        pci: None,
        numa_node: None,
    }
}

fn memory(gpu: &Gpu) -> MemoryInfo {
    MemoryInfo {
        id: own(gpu),
        backend: BACKEND,
        total_bytes: None,
        max_alloc_bytes: gpu.device.limits().max_buffer_size,
        alignment: WORD,
        host_addressable: false,
        staging: false,
    }
}

fn own(gpu: &Gpu) -> MemoryId {
    gpu.id.memory(MemoryKind::Device)
}

/// The host memory of a page. The browser copies it to its own process and from there to the device; the
/// page sees neither copy.
const HOST_KINDS: [MemoryKind; 2] = [MemoryKind::Pageable, MemoryKind::Shared];

fn links(gpu: &Gpu) -> Vec<Link> {
    let device = own(gpu);
    let mut links = vec![link(gpu, device, device)];
    for kind in HOST_KINDS {
        let host = DeviceId::CPU0.memory(kind);
        links.push(link(gpu, host, device));
        links.push(link(gpu, device, host));
    }
    links
}

fn link(gpu: &Gpu, src: MemoryId, dst: MemoryId) -> Link {
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
            access: Access::Native,
        },
        backend: BACKEND,
        class,
        cost: Curve::from(Cost::new(SUBMISSION_NS, link_cost(class).fs_per_byte)),
        pitched: true,
        depth: LINK_DEPTH,
    }
}

/// The cost of a submission until the machine is measured: a guess, ten times the 40 µs that lavapipe
/// takes without a browser's second process between.
const SUBMISSION_NS: u64 = 400_000;
