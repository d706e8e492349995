//! Devices and the ways between them, as plain data.

use std::collections::BTreeMap;

use transload_core::{Cost, Curve, LinkClass, PciAddress, Uuid};

/// The name, size and place of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceDescription {
    /// The vendor's name, with a word that the device is simulated.
    pub name: String,
    /// The bytes of its memory.
    pub memory_bytes: u64,
    /// The NUMA node that it is attached to, where the machine has several.
    pub numa_node: Option<u32>,
    /// Its UUID, the same in every process with the same machine.
    pub uuid: Uuid,
    /// Its place on the bus; made up.
    pub pci: PciAddress,
    /// Whether it walks the host's page tables, so that its copy engines reach pageable memory in place.
    pub walks_page_tables: bool,
    /// Whether the host may touch managed memory while the device works.
    pub shares_managed: bool,
}

/// The source or destination of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Memory {
    /// Host memory that the driver has to stage.
    Pageable,
    /// Host memory that devices reach.
    Pinned,
    /// The memory of the device with that ordinal.
    Device(usize),
}

/// Devices and the ways between memories.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    pub(super) devices: Vec<DeviceDescription>,
    /// Names of the copy engines.
    pub(super) channels: Vec<String>,
    pub(super) rows: BTreeMap<(Memory, Memory), Row>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Row {
    /// Its position among the channels.
    pub(super) channel: usize,
    pub(super) class: LinkClass,
    pub(super) cost: Curve,
}

impl Topology {
    /// That many equal devices without a way from one to another, each with 1 GiB. Copies take no modelled time: they
    /// are as fast as the host copies.
    pub fn of(devices: usize) -> Topology {
        let mut topology = Topology {
            devices: Vec::new(),
            channels: Vec::new(),
            rows: BTreeMap::new(),
        };
        for ordinal in 0..devices {
            topology.devices.push(DeviceDescription {
                name: "Double of a CUDA device".into(),
                memory_bytes: 1 << 30,
                numa_node: None,
                uuid: uuid("double", ordinal),
                pci: pci(ordinal),
                walks_page_tables: false,
                shares_managed: true,
            });
            let device = Memory::Device(ordinal);
            topology = topology
                .with_way(Memory::Pinned, device, LinkClass::Pcie, Cost::ZERO)
                .with_way(device, Memory::Pinned, LinkClass::Pcie, Cost::ZERO)
                .with_way(device, device, LinkClass::Local, Cost::ZERO);
        }
        topology
    }

    /// The same with devices of another size.
    #[cfg(test)]
    pub fn with_memory_bytes(mut self, bytes: u64) -> Topology {
        for device in &mut self.devices {
            device.memory_bytes = bytes;
        }
        self
    }

    /// The same with a way from one memory to another, which replaces an existing one. It shares its copy engine with
    /// no other way, except that one engine moves pageable and pinned memory.
    ///
    /// # Panics
    /// When there is no such device, and when both memories are the host's.
    pub fn with_way(
        mut self,
        src: Memory,
        dst: Memory,
        class: LinkClass,
        cost: impl Into<Curve>,
    ) -> Topology {
        let mut devices = 0;
        for end in [src, dst] {
            if let Memory::Device(ordinal) = end {
                assert!(ordinal < self.devices.len(), "no device {ordinal}");
                devices += 1;
            }
        }
        assert!(devices > 0, "no copy engine moves bytes within the host");
        let name = format!("{src:?} to {dst:?}");
        let row = Row {
            channel: match self.row(src, dst) {
                Some(row) => row.channel,
                None => self.channel(&name),
            },
            class,
            cost: cost.into(),
        };
        self.rows.insert((src, dst), row);
        self
    }

    /// The devices, by ordinal.
    pub fn devices(&self) -> &[DeviceDescription] {
        &self.devices
    }

    /// The position of the channel of that name, which is added where there is none.
    pub(super) fn channel(&mut self, name: &str) -> usize {
        let found = self.channels.iter().position(|known| known == name);
        found.unwrap_or_else(|| {
            self.channels.push(name.into());
            self.channels.len() - 1
        })
    }

    /// Pageable memory takes the way of pinned memory where it has none of its own.
    pub(super) fn row(&self, src: Memory, dst: Memory) -> Option<&Row> {
        let row = self.rows.get(&(src, dst));
        row.or_else(|| self.rows.get(&(src.locked(), dst.locked())))
    }
}

impl Memory {
    fn locked(self) -> Memory {
        match self {
            Memory::Pageable => Memory::Pinned,
            other => other,
        }
    }
}

/// The same for the same machine and ordinal, in every process. UUIDs of version 8 (RFC 9562 section 5.8) have free
/// contents, here FNV-1a, twice.
pub(super) fn uuid(machine: &str, ordinal: usize) -> Uuid {
    let half = |seed: u8| {
        let ordinal = ordinal.to_le_bytes();
        let bytes = [seed].into_iter().chain(machine.bytes()).chain(ordinal);
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&half(0).to_be_bytes());
    bytes[8..].copy_from_slice(&half(1).to_be_bytes());
    bytes[6] = 0x80 | bytes[6] & 0x0f;
    bytes[8] = 0x80 | bytes[8] & 0x3f;
    Uuid(bytes)
}

/// One card on each bus, from bus 1 on.
pub(super) fn pci(ordinal: usize) -> PciAddress {
    PciAddress {
        domain: (ordinal / 255) as u32,
        bus: (ordinal % 255 + 1) as u8,
        device: 0,
        function: 0,
    }
}
