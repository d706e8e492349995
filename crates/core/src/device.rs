//! Names of devices, memories and places, and their notation.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::str::FromStr;

use crate::{BackendId, Name, ParseError};

/// The kind of a device: `cpu`, `cuda`, `wgpu`, `metal`, `sim`, or any kind that a backend registers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKind(pub Name);

impl DeviceKind {
    /// Processors and the memory they load from and store to.
    pub const CPU: DeviceKind = DeviceKind(Name::constant("cpu"));
    /// CUDA devices.
    pub const CUDA: DeviceKind = DeviceKind(Name::constant("cuda"));
    /// Adapters reached through wgpu.
    pub const WGPU: DeviceKind = DeviceKind(Name::constant("wgpu"));
    /// Metal devices.
    pub const METAL: DeviceKind = DeviceKind(Name::constant("metal"));
    /// Networks to other machines. They have engines and no memory; `net:0` of this machine are its own ways out and in.
    pub const NETWORK: DeviceKind = DeviceKind(Name::constant("net"));
    /// Simulated devices; never hardware.
    pub const SIM: DeviceKind = DeviceKind(Name::constant("sim"));
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The machine that a device belongs to: the one that the program runs on, or another one by the name that the program
/// gave it when it connected. Every program names other machines for itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node(Option<Name>);

impl Node {
    /// The machine that the program runs on.
    pub const HERE: Node = Node(None);

    /// Returns the other machine of that name.
    pub const fn named(name: Name) -> Node {
        Node(Some(name))
    }

    /// Returns the name of another machine; `None` for this one.
    pub const fn name(self) -> Option<Name> {
        self.0
    }

    /// Returns whether it is the machine that the program runs on.
    pub const fn is_here(self) -> bool {
        self.0.is_none()
    }
}

/// Plans are looked up by four devices, which mostly are here: nothing is hashed for those.
impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if let Some(name) = self.0 {
            name.hash(state);
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref().map_or("here", Name::as_str))
    }
}

/// One device: a kind and an index that counts from 0, written `cuda:1`, and `box2/cuda:1` where it belongs to another
/// machine. The index may be left out when it is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// The machine that it belongs to.
    pub node: Node,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// Its position among the devices of its kind.
    pub index: u32,
}

impl DeviceId {
    /// The first processor.
    pub const CPU0: DeviceId = DeviceId::new(DeviceKind::CPU, 0);

    /// Returns the device number `index` of `kind`.
    pub const fn new(kind: DeviceKind, index: u32) -> DeviceId {
        DeviceId {
            node: Node::HERE,
            kind,
            index,
        }
    }

    /// Returns the device of the same kind and index at `node`.
    pub const fn at(self, node: Node) -> DeviceId {
        DeviceId { node, ..self }
    }

    /// Returns whether it is a processor of the machine that the program runs on.
    pub fn is_host(self) -> bool {
        self.node.is_here() && self.kind == DeviceKind::CPU
    }

    /// Returns the name of the backend that brings it, unless a program chose another one: its machine's, or its kind's.
    pub fn backend(self) -> BackendId {
        BackendId(self.node.name().unwrap_or(self.kind.0))
    }

    /// Returns the memory of `kind` at this device.
    pub const fn memory(self, kind: MemoryKind) -> MemoryId {
        MemoryId { device: self, kind }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(node) = self.node.name() {
            write!(f, "{node}/")?;
        }
        write!(f, "{}:{}", self.kind, self.index)
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DeviceId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<DeviceId, ParseError> {
        let (node, local) = match text.split_once('/') {
            Some((node, local)) => {
                let name = Name::new(node).ok_or_else(|| ParseError::device(text))?;
                (Node::named(name), local)
            }
            None => (Node::HERE, text),
        };
        let (kind, index) = match local.split_once(':') {
            Some((kind, index)) => (kind, Some(index)),
            None => (local, None),
        };
        let kind = Name::new(kind).ok_or_else(|| ParseError::device(text))?;
        let index = match index {
            None => 0,
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| ParseError::device(text))?
            }
            Some(_) => return Err(ParseError::device(text)),
        };
        Ok(DeviceId::new(DeviceKind(kind), index).at(node))
    }
}

/// The kind of a memory, which decides which code and devices can reach it and how.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary host memory that the operating system may page out.
    Pageable,
    /// Host memory locked in place and registered with a device's driver.
    Pinned,
    /// A device's own memory.
    Device,
    /// Memory that a driver migrates between host and device. Before other engines touch it, its device is asked to
    /// [make it visible](crate::StepKind::MakeVisible).
    Managed,
    /// Device memory that other engines see through a mapping: before they touch it, its device is asked to [make it
    /// visible](crate::StepKind::MakeVisible).
    Mapped,
    /// Memory that the host writes and a device copies out of.
    Upload,
    /// Memory that a device copies into and the host reads.
    Readback,
    /// Host memory that has a handle and can be mapped by other processes.
    Shared,
    /// A file, reached by positioned reads and writes.
    File,
    /// A file whose bytes are read past the system's cache, from the disk.
    Disk,
}

impl MemoryKind {
    /// Every kind, in the order of declaration.
    pub const ALL: [MemoryKind; 10] = [
        MemoryKind::Pageable,
        MemoryKind::Pinned,
        MemoryKind::Device,
        MemoryKind::Managed,
        MemoryKind::Mapped,
        MemoryKind::Upload,
        MemoryKind::Readback,
        MemoryKind::Shared,
        MemoryKind::File,
        MemoryKind::Disk,
    ];

    /// Returns whether the memory is a file, whose bytes have no addresses.
    pub const fn is_file(self) -> bool {
        matches!(self, MemoryKind::File | MemoryKind::Disk)
    }

    /// Returns whether a device works on the memory for its users while other engines reach it in place. The device is
    /// then asked to [make it visible](crate::StepKind::MakeVisible) before they touch it.
    ///
    /// Transfers are ordered among each other without this, but only the driver knows the work that users give a device
    /// themselves. A device's own engines need not ask, since users order their commands with those. Pinned memory
    /// needs no question either: it belongs to the host, and the device is the guest.
    pub const fn is_hidden(self) -> bool {
        matches!(self, MemoryKind::Managed | MemoryKind::Mapped)
    }

    /// Returns whether a buffer belongs to the host or to the device as a whole, never in parts to both.
    pub const fn takes_turns(self) -> bool {
        matches!(self, MemoryKind::Upload | MemoryKind::Readback)
    }

    /// Returns the kind in lower case, as it is written in a place: `cpu:0/shared`.
    pub const fn as_str(self) -> &'static str {
        match self {
            MemoryKind::Pageable => "pageable",
            MemoryKind::Pinned => "pinned",
            MemoryKind::Device => "device",
            MemoryKind::Managed => "managed",
            MemoryKind::Mapped => "mapped",
            MemoryKind::Upload => "upload",
            MemoryKind::Readback => "readback",
            MemoryKind::Shared => "shared",
            MemoryKind::File => "file",
            MemoryKind::Disk => "disk",
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for MemoryKind {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<MemoryKind, ParseError> {
        MemoryKind::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| ParseError::memory(text))
    }
}

/// One memory of the machine: a kind of memory at a device, written `cpu:0/shared`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId {
    /// The device that the memory belongs to.
    pub device: DeviceId,
    /// The kind of the memory.
    pub kind: MemoryKind,
}

impl MemoryId {
    /// As [`MemoryKind::is_hidden`], and false for memory of other machines, which their own engines make visible.
    pub const fn is_hidden(self) -> bool {
        self.device.node.is_here() && self.kind.is_hidden()
    }
}

impl fmt::Display for MemoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.device, self.kind)
    }
}

impl fmt::Debug for MemoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MemoryId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<MemoryId, ParseError> {
        let (device, kind) = text
            .rsplit_once('/')
            .ok_or_else(|| ParseError::memory(text))?;
        Ok(MemoryId {
            device: device.parse()?,
            kind: kind.parse()?,
        })
    }
}

/// A device's universally unique id, written as 32 hexadecimal digits in groups of 8-4-4-4-12.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Uuid, ParseError> {
        let error = || ParseError::device(text);
        // Vendor tools print `GPU-…`.
        let digits = text
            .strip_prefix("GPU-")
            .or_else(|| text.strip_prefix("gpu-"))
            .unwrap_or(text);
        let groups = [8, 4, 4, 4, 12];
        let mut bytes = [0; 16];
        let mut nibbles = 0;
        let mut parts = digits.split('-');
        for len in groups {
            let part = parts.next().filter(|p| p.len() == len).ok_or_else(error)?;
            for c in part.chars() {
                let digit = c.to_digit(16).ok_or_else(error)? as u8;
                bytes[nibbles / 2] = bytes[nibbles / 2] << 4 | digit;
                nibbles += 1;
            }
        }
        match parts.next() {
            None => Ok(Uuid(bytes)),
            Some(_) => Err(error()),
        }
    }
}

/// A device as users name it: by id or by UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceName {
    /// `cuda:1`
    Id(DeviceId),
    /// `GPU-8c9e…`, which stays the same when the order of devices changes.
    Uuid(Uuid),
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Id(id) => id.fmt(f),
            DeviceName::Uuid(uuid) => uuid.fmt(f),
        }
    }
}

impl FromStr for DeviceName {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<DeviceName, ParseError> {
        match text.parse() {
            Ok(uuid) => Ok(DeviceName::Uuid(uuid)),
            Err(_) => text.parse().map(DeviceName::Id),
        }
    }
}

/// A place for bytes: a device, and the kind of its memory if the default is not wanted.
///
/// Written `cuda:0`, `cpu:0/shared`, `box2/cuda:0`, `box2/cpu:0/shared`, or with a UUID in place of a device of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The device.
    pub device: DeviceName,
    /// The kind of memory; `None` takes the first memory that the device's backend lists for it.
    pub memory: Option<MemoryKind>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.memory {
            None => self.device.fmt(f),
            Some(kind) => write!(f, "{}/{kind}", self.device),
        }
    }
}

impl FromStr for Place {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Place, ParseError> {
        // What follows the last slash is a device behind a machine's name, as in `box2/cuda`, and else a memory.
        let (device, memory) = match text.rsplit_once('/') {
            Some((node, device))
                if !node.is_empty()
                    && !node.contains(['/', ':'])
                    && device.parse::<MemoryKind>().is_err()
                    && device.parse::<DeviceId>().is_ok() =>
            {
                let _: Name = node.parse()?;
                (text, None)
            }
            Some((device, kind)) => (device, Some(kind.parse()?)),
            None => (text, None),
        };
        Ok(Place {
            device: device.parse()?,
            memory,
        })
    }
}

impl From<DeviceId> for Place {
    fn from(device: DeviceId) -> Place {
        Place {
            device: DeviceName::Id(device),
            memory: None,
        }
    }
}

impl From<MemoryId> for Place {
    fn from(memory: MemoryId) -> Place {
        Place {
            device: DeviceName::Id(memory.device),
            memory: Some(memory.kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn device_ids_round_trip_and_the_index_is_optional() {
        for text in ["cpu:0", "cuda:12", "npu-x:4294967295"] {
            let id: DeviceId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
        }
        assert_eq!("metal".parse::<DeviceId>().unwrap().to_string(), "metal:0");
    }

    #[test]
    fn the_refusal_of_a_memory_lists_those_that_can_be_written() {
        let error = "floppy".parse::<MemoryKind>().unwrap_err().to_string();
        for kind in MemoryKind::ALL {
            assert!(error.contains(kind.as_str()), "{error}");
        }
    }

    #[test]
    fn malformed_devices_are_refused_by_name() {
        for text in [
            "",
            ":",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:4294967296",
            "CUDA:0",
            "cuda:0:1",
        ] {
            let error = text.parse::<DeviceId>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn a_device_of_another_machine_is_written_behind_the_name_of_the_machine() {
        let here: DeviceId = "cuda:1".parse().unwrap();
        let there = here.at(Node::named(Name::constant("box2")));
        assert!(here.node.is_here() && here < there && here != there);
        assert_eq!(there.to_string(), "box2/cuda:1");
        assert_eq!("box2/cuda:1".parse(), Ok(there));
        assert!(DeviceId::CPU0.is_host() && !DeviceId::CPU0.at(there.node).is_host());
        for text in [
            "box2/cpu:0/shared",
            "box2/cuda:0",
            "file/cpu:0",
            "cpu/cuda:3",
        ] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        // The shortest notations: a word behind the only slash is a memory if it can be one.
        let place = |text: &str| text.parse::<Place>().map(|place| place.to_string());
        assert_eq!(place("box2/cuda").unwrap(), "box2/cuda:0");
        assert_eq!(place("cuda/pinned").unwrap(), "cuda:0/pinned");
        for (text, wrong) in [
            ("/cuda:0", "\"cuda:0\""),
            ("box2/", "\"\""),
            ("a/b/c/d", "\"d\""),
            ("a//b", "\"b\""),
            ("Box2/cuda:0", "\"Box2\""),
            ("box2/x/cuda:0", "\"cuda:0\""),
            ("sixteen-letters-/cpu:0", "\"sixteen-letters-\""),
        ] {
            let error = place(text).unwrap_err().to_string();
            assert!(error.starts_with(wrong), "{error}");
        }
    }

    #[test]
    fn places_round_trip() {
        for text in [
            "cpu:0",
            "cpu:0/shared",
            "01020304-0506-0708-090a-0b0c0d0e0f10/device",
        ] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        let vendor: DeviceName = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10".parse().unwrap();
        assert!(matches!(vendor, DeviceName::Uuid(Uuid(bytes)) if bytes[15] == 0x10));
        assert!("cpu:0/floppy".parse::<Place>().is_err());
    }
}
