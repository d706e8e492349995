//! The one memory of a device, and the links between it and a page's memory.

use transload_hal::{Access, DeviceId, HostReach, Lack, MemoryId, MemoryKind};

use super::gpu::Gpu;

/// The memories that users' buffers lie in.
pub(crate) fn own(_: &Gpu) -> &'static [MemoryKind] {
    &[MemoryKind::Device]
}

/// A mapping has no address here, so there are no slots for the engine.
pub(crate) const SLOTS: [MemoryKind; 0] = [];

/// The processors reach nothing of a device.
pub(crate) fn reached(_: &Gpu) -> [HostReach; 0] {
    []
}

/// The host memory of a page. The browser copies it to its own process and from there to the device; the
/// page sees neither copy.
const HOST_KINDS: [MemoryKind; 2] = [MemoryKind::Pageable, MemoryKind::Shared];

/// The source, the destination and the access of each link of a device to the host.
pub(crate) fn links(gpu: &Gpu) -> Vec<(MemoryId, MemoryId, Access)> {
    let device = gpu.id.memory(MemoryKind::Device);
    let hosts = HOST_KINDS.map(|kind| DeviceId::CPU0.memory(kind));
    let both = |host| {
        [
            (host, device, Access::Native),
            (device, host, Access::Native),
        ]
    };
    hosts.into_iter().flat_map(both).collect()
}

pub(crate) fn lacks(_: &Gpu) -> Vec<Lack> {
    Vec::new()
}

/// The cost of a submission until the machine is measured: a guess, ten times the 40 µs that lavapipe
/// takes without a browser's second process between.
pub(crate) const SUBMISSION_NS: u64 = 400_000;
