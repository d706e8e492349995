//! The description of a machine: devices, memories and links with their figures, as a file holds them.
//!
//! Serde reads the types of this module. They keep every name as text and every figure as a signed integer, so that a
//! [`SchemaError`] tells what is wrong with a file, with the name of the thing and the limit. [`Machine::inventory`]
//! checks all of it and returns the input of the planner and of a simulated backend. This module does not depend on the
//! text format of the file.
//!
//! ```toml
//! schema = 1
//! name = "example"
//!
//! [[device]]
//! id = "cpu:0"
//! name = "host"
//! memory = [{ kind = "pageable", memory_bytes = 1_000_000_000 }]
//!
//! [[link]]
//! src = "cpu:0/pageable"
//! dst = "cpu:0/pageable"
//! engine = "cpu:0#0"
//! class = "local"
//! latency_ns = 100
//! bytes_per_second = 10_000_000_000
//! source = "one thread's memcpy, measured"
//! ```

mod convert;
mod error;
mod figures;

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

pub use error::{SCHEMA, SchemaError};

/// The largest number of links that a machine may describe. A mesh makes a link for each ordered pair of its members, so
/// a text of 1 MB could ask for 100 million links. The limit suffices for a mesh of 512 memories, of which a topology is
/// made within 110 MB. Eight GPUs on a switch have 56 such links.
pub const MOST_LINKS: u64 = 1 << 18;

/// A whole machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Machine {
    /// [`SCHEMA`].
    pub schema: i64,
    /// The name of the machine.
    pub name: String,
    /// Its devices, processors included.
    #[serde(default, rename = "device")]
    pub devices: Vec<DeviceEntry>,
    /// Its links.
    #[serde(default, rename = "link")]
    pub links: Vec<LinkEntry>,
    /// Groups of memories that all reach each other.
    #[serde(default, rename = "mesh")]
    pub meshes: Vec<MeshEntry>,
    /// The names of further machines that are like this one: each has the same devices, and the links and meshes that do not
    /// name another machine. Links between them are listed: `n1/sim:0/device`.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// The engine that runs transforms; none where absent.
    #[serde(default)]
    pub transform: Option<TransformEntry>,
}

/// A device and its memories.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DeviceEntry {
    /// Its name: `sim:0`.
    pub id: String,
    /// The vendor's name of the device.
    pub name: String,
    /// A software implementation of what is usually hardware.
    #[serde(default)]
    pub software: bool,
    /// The NUMA node that it is attached to.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// Its UUID.
    #[serde(default)]
    pub uuid: Option<String>,
    /// The driver that it pretends to have, with its version.
    #[serde(default)]
    pub driver: Option<String>,
    /// Where the figures come from.
    #[serde(default)]
    pub source: Option<String>,
    /// Its memories, the default one first. At least one.
    #[serde(rename = "memory")]
    pub memories: Vec<MemoryEntry>,
}

/// A memory of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct MemoryEntry {
    /// Its kind: `pageable`, `device`.
    pub kind: String,
    /// Its size in bytes.
    pub memory_bytes: i64,
    /// The largest single allocation in bytes; the whole memory unless given.
    #[serde(default)]
    pub max_alloc_bytes: Option<i64>,
    /// Where allocations start, in bytes, a power of two; 64, a cache line, unless given.
    #[serde(default)]
    pub alignment: Option<i64>,
    /// Whether the host can load and store there; by kind unless given: pageable, pinned, shared,
    /// managed and mapped memory it can, device memory and files it cannot.
    #[serde(default)]
    pub host_addressable: Option<bool>,
    /// Whether staging slots may be leased there; only in pinned memory unless given.
    #[serde(default)]
    pub staging: Option<bool>,
}

/// A directed link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LinkEntry {
    /// The memory that bytes come from.
    pub src: String,
    /// The memory that they go to.
    pub dst: String,
    /// The engine that moves them: `sim:0#1`.
    pub engine: String,
    /// The kind of connection: `local`, `fabric`, `pcie`, `storage` or `network`.
    pub class: String,
    /// How the engine reaches both ends: `native`, `import`, `peer` or `managed`; `native` unless
    /// given.
    #[serde(default)]
    pub access: Option<String>,
    /// Whether the same link also leads back.
    #[serde(default)]
    pub both: bool,
    /// The engine of the way back; the same one unless given.
    #[serde(default)]
    pub back_engine: Option<String>,
    /// Whether pitched shapes move in one operation.
    #[serde(default)]
    pub pitched: bool,
    /// The time that any copy takes, in nanoseconds; the class's default unless given.
    #[serde(default)]
    pub latency_ns: Option<i64>,
    /// The rate in bytes per second; the class's default unless given.
    #[serde(default)]
    pub bytes_per_second: Option<i64>,
    /// Several linear pieces in place of one latency and rate.
    #[serde(default)]
    pub curve: Option<Vec<PieceEntry>>,
    /// Where the figures come from.
    #[serde(default)]
    pub source: Option<String>,
}

/// One linear piece of a link's cost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PieceEntry {
    /// The first size that it holds for.
    pub from_bytes: i64,
    /// The time that any copy takes, in nanoseconds.
    pub latency_ns: i64,
    /// The rate in bytes per second.
    pub bytes_per_second: i64,
}

/// Memories that are joined pairwise in both directions, as a switch does. The engine of a link is
/// the one with index `engine_index` at the device that the bytes come from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct MeshEntry {
    /// The memories; at least two.
    pub members: Vec<String>,
    /// Which engine of the source's device moves the bytes.
    pub engine_index: u16,
    /// As in [`LinkEntry::class`].
    pub class: String,
    /// As in [`LinkEntry::access`]; `peer` unless given.
    #[serde(default)]
    pub access: Option<String>,
    /// As in [`LinkEntry::pitched`].
    #[serde(default)]
    pub pitched: bool,
    /// As in [`LinkEntry::latency_ns`].
    #[serde(default)]
    pub latency_ns: Option<i64>,
    /// As in [`LinkEntry::bytes_per_second`].
    #[serde(default)]
    pub bytes_per_second: Option<i64>,
    /// Where the figures come from.
    #[serde(default)]
    pub source: Option<String>,
}

/// The engine that runs transforms, such as checksums.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TransformEntry {
    /// The engine: `cpu:0#1`.
    pub engine: String,
    /// The time that any pass takes, in nanoseconds.
    pub latency_ns: i64,
    /// The rate in bytes per second.
    pub bytes_per_second: i64,
    /// Where the figures come from.
    #[serde(default)]
    pub source: Option<String>,
}
