//! The print of a verdict: two devices, their drivers, and the engine that moves bytes between them.

use transload_core::{DeviceId, DeviceInfo, LinkId, MemoryId, PciAddress, Uuid};

/// A link, with the properties that identify it and that must not change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LinkPrint {
    /// The link by the names of the process that proved it. Numbers of devices depend on what a process may see.
    pub(super) id: LinkId,
    pub(super) src: EndPrint,
    pub(super) dst: EndPrint,
    /// The version of this library: another one may copy in another way.
    pub(super) library: String,
    /// Whether a device is a stand-in, which may bear the UUID of a real one.
    pub(super) simulated: bool,
}

/// The device at an end of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EndPrint {
    pub(super) uuid: Uuid,
    pub(super) driver: String,
    /// The slot. In another one, the same device is reached over other switches.
    pub(super) pci: Option<PciAddress>,
}

impl LinkPrint {
    /// Returns the print of a link between these devices; `None` where one has no UUID or no known driver.
    pub(super) fn new(id: LinkId, [src, dst]: [&DeviceInfo; 2]) -> Option<LinkPrint> {
        Some(LinkPrint {
            id,
            src: EndPrint::new(src)?,
            dst: EndPrint::new(dst)?,
            library: env!("CARGO_PKG_VERSION").into(),
            simulated: src.simulated || dst.simulated,
        })
    }

    /// Returns whether both are of one link, whatever drives it.
    pub(super) fn is_same_link(&self, other: &LinkPrint) -> bool {
        let end = |memory: MemoryId| (memory.device.kind, memory.kind);
        let ends = |print: &LinkPrint| {
            let LinkPrint { id, src, dst, .. } = print;
            (end(id.src), src.uuid, end(id.dst), dst.uuid, id.access)
        };
        let sort = |print: &LinkPrint| (print.engine(), print.simulated);
        ends(self) == ends(other) && sort(self) == sort(other)
    }

    /// Returns whether a verdict under this print holds under the other one.
    pub(super) fn holds_for(&self, here: &LinkPrint) -> bool {
        self.is_same_link(here)
            && self.src == here.src
            && self.dst == here.dst
            && self.library == here.library
    }

    /// Returns the engine with its owner: one of the ends, or another device.
    fn engine(&self) -> (Owner, u16) {
        let engine = self.id.engine;
        let owner = match engine.device {
            device if device == self.id.src.device => Owner::Src,
            device if device == self.id.dst.device => Owner::Dst,
            device => Owner::Other(device),
        };
        (owner, engine.index)
    }
}

#[derive(PartialEq, Eq)]
enum Owner {
    Src,
    Dst,
    Other(DeviceId),
}

impl EndPrint {
    fn new(device: &DeviceInfo) -> Option<EndPrint> {
        Some(EndPrint {
            uuid: device.uuid?,
            driver: device.driver.clone()?,
            pci: device.pci,
        })
    }
}
