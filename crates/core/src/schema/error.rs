//! Errors in a machine's description.

use alloc::boxed::Box;
use alloc::string::String;

use crate::{DeviceId, EngineId, LinkId, MemoryId, ParseError, TopologyError};

/// The version of this schema.
pub const SCHEMA: i64 = 1;

/// Why a description was refused. Names the thing and, for figures, the limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// A file of another version.
    #[error("the machine has schema {found}; this version reads schema {}", SCHEMA)]
    Version {
        /// The file's version.
        found: i64,
    },
    /// A machine without devices.
    #[error("the machine {name:?} has no devices")]
    NoDevices {
        /// The machine's name.
        name: String,
    },
    /// A device without memories.
    #[error("device {device} has no memory")]
    NoMemory {
        /// The device.
        device: DeviceId,
    },
    /// A text that names no device, memory or UUID.
    #[error("{thing}: {source}")]
    Text {
        /// The entry that it stands in.
        thing: String,
        /// What is wrong with it.
        r#source: ParseError,
    },
    /// A text that names no engine.
    #[error("{thing}: {text:?} is not an engine: write device#index, as in sim:0#1")]
    Engine {
        /// The entry that it stands in.
        thing: String,
        /// What was written.
        text: String,
    },
    /// A word outside the few that are allowed.
    #[error("{thing}: {field} is {text:?}, not one of {allowed}")]
    Word {
        /// The entry that it stands in.
        thing: String,
        /// The field.
        field: &'static str,
        /// What was written.
        text: String,
        /// What may be written.
        allowed: &'static str,
    },
    /// A figure that no machine has.
    #[error("{thing}: {field} = {value} is outside {min}..={max}")]
    Figure {
        /// The entry that it stands in.
        thing: String,
        /// The field.
        field: &'static str,
        /// What was written.
        value: i64,
        /// The smallest that is allowed.
        min: i64,
        /// The largest that is allowed.
        max: i64,
    },
    /// An alignment that is no power of two.
    #[error("memory {memory}: alignment {alignment} is not a power of two")]
    Alignment {
        /// The memory.
        memory: MemoryId,
        /// What was written.
        alignment: i64,
    },
    /// Two fields that exclude each other.
    #[error("{thing}: {field} cannot stand beside {other}")]
    Conflict {
        /// The entry.
        thing: String,
        /// One field.
        field: &'static str,
        /// The other.
        other: &'static str,
    },
    /// Pieces of a curve that do not rise from 0.
    #[error("{thing}: {source}")]
    Curve {
        /// The entry.
        thing: String,
        /// What is wrong with the pieces.
        r#source: crate::CurveError,
    },
    /// Two devices of one name.
    #[error("device {device} is described twice")]
    DuplicateDevice {
        /// The name.
        device: DeviceId,
    },
    /// Two memories of one name.
    #[error("memory {memory} is described twice")]
    DuplicateMemory {
        /// The name.
        memory: MemoryId,
    },
    /// Two links of one name.
    #[error("the link {src} → {dst} over {engine} is described twice", src = link.src, dst = link.dst, engine = link.engine)]
    DuplicateLink {
        /// The name.
        link: Box<LinkId>,
    },
    /// A link or a mesh that ends at no memory of the machine.
    #[error("{thing} ends at memory {memory}, which the machine does not have")]
    UnknownMemory {
        /// The entry.
        thing: String,
        /// The end.
        memory: MemoryId,
    },
    /// An engine of a device that the machine does not have.
    #[error("{thing} runs on engine {engine}, whose device the machine does not have")]
    UnknownEngine {
        /// The entry.
        thing: String,
        /// The engine.
        engine: EngineId,
    },
    /// A mesh with fewer than two members.
    #[error("a mesh joins at least two memories, and this one has {members}")]
    SmallMesh {
        /// How many it has.
        members: usize,
    },
    /// More links than [`MOST_LINKS`](super::MOST_LINKS), each pair of a mesh's members counted twice, once a direction.
    #[error(
        "the machine describes {links} links; at most {limit} are read: describe fewer links, or smaller meshes"
    )]
    TooManyLinks {
        /// How many the links and meshes make together.
        links: u64,
        /// The largest number that is read.
        limit: u64,
    },
    /// What a topology objects to and no rule above found.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}
