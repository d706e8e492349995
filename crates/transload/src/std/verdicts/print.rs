//! What a verdict holds for: two devices, what drives them, and what moves bytes between them.

use transload_core::{DeviceId, DeviceInfo, LinkId, MemoryId, PciAddress, Uuid};

/// A link, and what tells it from others and from itself after a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LinkPrint {
    /// As the process called it that found out. Numbers of devices change with what a process may see.
    pub(super) id: LinkId,
    pub(super) src: EndPrint,
    pub(super) dst: EndPrint,
    /// The version of this library: another one may copy otherwise.
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
    /// The print of a link between these devices; `None` where one has no UUID or no known driver.
    pub(super) fn new(id: LinkId, [src, dst]: [&DeviceInfo; 2]) -> Option<LinkPrint> {
        Some(LinkPrint {
            id,
            src: EndPrint::new(src)?,
            dst: EndPrint::new(dst)?,
            library: env!("CARGO_PKG_VERSION").into(),
            simulated: src.simulated || dst.simulated,
        })
    }

    /// Whether both are of one link, whatever drives it.
    pub(super) fn is_same_link(&self, other: &LinkPrint) -> bool {
        let end = |memory: MemoryId| (memory.device.kind, memory.kind);
        let ends = |print: &LinkPrint| {
            let LinkPrint { id, src, dst, .. } = print;
            (end(id.src), src.uuid, end(id.dst), dst.uuid, id.access)
        };
        let sort = |print: &LinkPrint| (print.engine(), print.simulated);
        ends(self) == ends(other) && sort(self) == sort(other)
    }

    /// Whether what was found out under this print holds under the other one.
    pub(super) fn holds_for(&self, here: &LinkPrint) -> bool {
        self.is_same_link(here)
            && self.src == here.src
            && self.dst == here.dst
            && self.library == here.library
    }

    /// The engine, and whose it is: that of an end, or of a device beside.
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
