//! What lies between a device and the host where there is a driver.

use transload_hal::{Access, DeviceId, GUEST_KINDS, HostReach, Lack, MemoryId, MemoryKind};

use crate::gpu::Gpu;

/// The memories that users' buffers lie in.
pub(crate) fn own(gpu: &Gpu) -> &'static [MemoryKind] {
    match gpu.mapper {
        Some(_) => &[MemoryKind::Mapped, MemoryKind::Device],
        None => &[MemoryKind::Device],
    }
}

/// The memories of staging slots. The host reaches mapped memory too, but the user's own commands may change it at any
/// time, so no access in place is given.
pub(crate) const SLOTS: [MemoryKind; 2] = [MemoryKind::Upload, MemoryKind::Readback];

/// The memories that the processors reach: the slots, and mapped memory. A slot can be read back by no other way, so a link
/// to one is not proven.
pub(crate) fn reached(gpu: &Gpu) -> impl Iterator<Item = HostReach> + use<> {
    let id = gpu.id;
    let slot = move |kind| HostReach {
        memory: id.memory(kind),
        access: Access::Native,
        is_read: kind == MemoryKind::Readback,
        is_written: kind == MemoryKind::Upload,
    };
    let mapped = HostReach::both_ways(id.memory(MemoryKind::Mapped), Access::Import);
    let mapped = gpu.mapper.is_some().then_some(mapped);
    SLOTS.map(slot).into_iter().chain(mapped)
}

/// The source, the destination and the access of each link to the device's slots, and to host memory that it reaches in
/// place.
pub(crate) fn links(gpu: &Gpu) -> Vec<(MemoryId, MemoryId, Access)> {
    let memory = |kind| gpu.id.memory(kind);
    let mut links = Vec::new();
    for own in own(gpu).iter().map(|kind| memory(*kind)) {
        links.push((memory(MemoryKind::Upload), own, Access::Native));
        links.push((own, memory(MemoryKind::Readback), Access::Native));
    }
    if gpu.importer.is_ok() {
        links.extend(imports(gpu).map(|(src, dst)| (src, dst, Access::Import)));
    }
    links
}

/// Why the adapter does not reach host memory in place, each way.
pub(crate) fn lacks(gpu: &Gpu) -> Vec<Lack> {
    let Err(reason) = &gpu.importer else {
        return Vec::new();
    };
    let lack = |(src, dst)| Lack {
        src,
        dst,
        access: Access::Import,
        reason: format!("{}: {reason}", gpu.id).into(),
    };
    imports(gpu).map(lack).collect()
}

/// The ends of the ways between the adapter and host memory that it may reach in place.
fn imports(gpu: &Gpu) -> impl Iterator<Item = (MemoryId, MemoryId)> + use<> {
    let device = gpu.id.memory(MemoryKind::Device);
    let hosts = GUEST_KINDS.map(|kind| DeviceId::CPU0.memory(kind));
    hosts
        .into_iter()
        .flat_map(move |host| [(host, device), (device, host)])
}

/// The cost of submitting commands and of learning of their end, until the machine is measured. It decides the size of
/// chunks: 35 to 85 µs on lavapipe, depending on whether its thread is awake.
pub(crate) const SUBMISSION_NS: u64 = 40_000;
