//! From a machine description, as the files under `topologies/` are, to devices and ways.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use transload_core::schema::{self, SchemaError};
use transload_core::{
    Access, BackendId, Cost, DeviceId, DeviceInfo, DeviceKind, Inventory, Link, LinkClass,
    MemoryId, MemoryKind, Name,
};

use super::topology::{Row, pci, uuid};
use super::{DeviceDescription, Memory, Topology};

/// The reason why a file describes no machine with CUDA devices. Names the file, and the wrong field or value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The file was not read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No TOML, an unknown field, or a value of the wrong kind. Names line and field.
    #[error("{}: {source}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: Box<toml::de::Error>,
    },
    /// Well-formed, and no machine.
    #[error("{}: {source}", path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: SchemaError,
    },
    /// A machine, and nothing in it that could be a CUDA device.
    #[error(
        "{}: no device is of kind cuda, and none but the processors has a memory of kind device",
        path.display()
    )]
    NoDevice {
        /// The file.
        path: PathBuf,
    },
    /// A CUDA device without memory of its own.
    #[error("{}: device {device} has no memory of kind device", path.display())]
    NoDeviceMemory {
        /// The file.
        path: PathBuf,
        /// The device.
        device: DeviceId,
    },
    /// A device that the host cannot fill or read.
    #[error(
        "{}: {direction} device {device} leads no link: one joins it to pinned or pageable memory of a cpu, in both directions",
        path.display()
    )]
    NoHostLink {
        /// The file.
        path: PathBuf,
        /// `from` or `to`.
        direction: &'static str,
        /// The device.
        device: DeviceId,
    },
}

impl Topology {
    /// Reads a machine: every device of kind `cuda` if there is one, else every device with a memory of kind `device`
    /// that is no processor, in the order of their ids.
    ///
    /// Of several links between the same memories the first one counts. Between the host and a device, the link of the
    /// processor on the device's NUMA node takes precedence. A device without a link to itself copies within its memory
    /// as fast as the host does.
    ///
    /// A device whose links to pageable memory have the access `import`, both ways, walks the host's page tables. A
    /// device whose `managed` memory is listed with `host_addressable = false` does not share that memory with the host
    /// while it works.
    ///
    /// # Errors
    /// As [`TopologyError`] lists.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Topology, TopologyError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path).map_err(|source| TopologyError::Io {
            path: path.into(),
            source,
        })?;
        parse(path, &text)
    }
}

pub(super) fn parse(path: &Path, text: &str) -> Result<Topology, TopologyError> {
    let machine: schema::Machine =
        toml::from_str(text).map_err(|source| TopologyError::Syntax {
            path: path.into(),
            source: Box::new(source),
        })?;
    let inventory = machine
        .inventory(BackendId(Name::constant("cuda")))
        .map_err(|source| TopologyError::Schema {
            path: path.into(),
            source,
        })?;
    Reader { path, inventory }.topology(&machine.name)
}

struct Reader<'a> {
    path: &'a Path,
    inventory: Inventory,
}

impl Reader<'_> {
    fn topology(&self, machine: &str) -> Result<Topology, TopologyError> {
        let chosen = self.devices();
        if chosen.is_empty() {
            return Err(TopologyError::NoDevice {
                path: self.path.into(),
            });
        }
        let mut topology = Topology {
            devices: Vec::new(),
            channels: Vec::new(),
            rows: BTreeMap::new(),
        };
        for (ordinal, info) in chosen.iter().enumerate() {
            topology.devices.push(DeviceDescription {
                name: info.name.clone(),
                memory_bytes: self.memory_bytes(info.id)?,
                numa_node: info.numa_node,
                uuid: info.uuid.unwrap_or_else(|| uuid(machine, ordinal)),
                pci: pci(ordinal),
                walks_page_tables: self.walks_page_tables(info),
                shares_managed: self.shares_managed(info.id),
            });
        }
        for (ordinal, info) in chosen.iter().enumerate() {
            self.join_host(&mut topology, ordinal, info)?;
            for (peer, other) in chosen.iter().enumerate() {
                let ends = [info, other].map(|device| device.id.memory(MemoryKind::Device));
                if let Some(link) = self.links(ends[0], ends[1]).next() {
                    let (src, dst) = (Memory::Device(ordinal), Memory::Device(peer));
                    add(&mut topology, src, dst, link);
                }
            }
        }
        for ordinal in 0..chosen.len() {
            let device = Memory::Device(ordinal);
            if topology.row(device, device).is_none() {
                topology = topology.with_way(device, device, LinkClass::Local, Cost::ZERO);
            }
        }
        Ok(topology)
    }

    fn devices(&self) -> Vec<&DeviceInfo> {
        let all = self.inventory.devices.iter();
        let of_kind = |device: &&DeviceInfo| device.id.kind == DeviceKind::CUDA;
        let mut chosen: Vec<&DeviceInfo> = all.clone().filter(of_kind).collect();
        if chosen.is_empty() {
            let accelerators = all.filter(|device| {
                device.id.kind != DeviceKind::CPU && self.memory_bytes(device.id).is_ok()
            });
            chosen = accelerators.collect();
        }
        chosen.sort_by_key(|device| device.id);
        chosen
    }

    fn memory_bytes(&self, device: DeviceId) -> Result<u64, TopologyError> {
        let wanted = device.memory(MemoryKind::Device);
        let mut memories = self.inventory.memories.iter();
        let found = memories.find(|memory| memory.id == wanted);
        found
            .and_then(|memory| memory.total_bytes)
            .ok_or_else(|| TopologyError::NoDeviceMemory {
                path: self.path.into(),
                device,
            })
    }

    /// Where both links to pageable memory import it, the device needs no staging.
    fn walks_page_tables(&self, info: &DeviceInfo) -> bool {
        [true, false].into_iter().all(|to_device| {
            let link = self.host_link(MemoryKind::Pageable, info, to_device);
            link.is_some_and(|link| link.id.access == Access::Import)
        })
    }

    /// Unless managed memory is listed as none that the host reaches.
    fn shares_managed(&self, device: DeviceId) -> bool {
        let managed = device.memory(MemoryKind::Managed);
        let mut memories = self.inventory.memories.iter();
        let found = memories.find(|memory| memory.id == managed);
        found.is_none_or(|memory| memory.host_addressable)
    }

    /// Both directions between the host and a device. A machine may know pageable memory alone, whose links
    /// then stand for pinned memory too.
    fn join_host(
        &self,
        topology: &mut Topology,
        ordinal: usize,
        info: &DeviceInfo,
    ) -> Result<(), TopologyError> {
        for to_device in [true, false] {
            let ends = |host: Memory| match to_device {
                true => (host, Memory::Device(ordinal)),
                false => (Memory::Device(ordinal), host),
            };
            let pinned = self.host_link(MemoryKind::Pinned, info, to_device);
            let pageable = self.host_link(MemoryKind::Pageable, info, to_device);
            let Some(link) = pinned.or(pageable) else {
                return Err(TopologyError::NoHostLink {
                    path: self.path.into(),
                    direction: if to_device { "to" } else { "from" },
                    device: info.id,
                });
            };
            let (src, dst) = ends(Memory::Pinned);
            add(topology, src, dst, link);
            if let Some(link) = pageable {
                let (src, dst) = ends(Memory::Pageable);
                add(topology, src, dst, link);
            }
        }
        Ok(())
    }

    fn host_link(&self, kind: MemoryKind, info: &DeviceInfo, to_device: bool) -> Option<&Link> {
        let device = info.id.memory(MemoryKind::Device);
        let all = self.inventory.devices.iter();
        let mut processors: Vec<&DeviceInfo> =
            all.filter(|d| d.id.kind == DeviceKind::CPU).collect();
        // The order of the file otherwise: the sort is stable.
        processors.sort_by_key(|processor| processor.numa_node != info.numa_node);
        let mut links = processors.into_iter().filter_map(|processor| {
            let host = processor.id.memory(kind);
            let (src, dst) = if to_device {
                (host, device)
            } else {
                (device, host)
            };
            self.links(src, dst).next()
        });
        links.next()
    }

    fn links(&self, src: MemoryId, dst: MemoryId) -> impl Iterator<Item = &Link> {
        let all = self.inventory.links.iter();
        all.filter(move |link| link.id.src == src && link.id.dst == dst)
    }
}

/// One channel for each engine that the file names, however many links run on it.
fn add(topology: &mut Topology, src: Memory, dst: Memory, link: &Link) {
    let row = Row {
        channel: topology.channel(&link.id.engine.to_string()),
        class: link.class,
        cost: link.cost.clone(),
    };
    topology.rows.insert((src, dst), row);
}
