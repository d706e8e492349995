//! Memories, and what bytes pass on the way to them.

use alloc::vec::Vec;

use crate::{BackendId, MemoryId};

/// A memory as its backend describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Its name on this machine.
    pub id: MemoryId,
    /// The backend that allocates in it.
    pub backend: BackendId,
    /// Its size in bytes, where known.
    pub total_bytes: Option<u64>,
    /// The largest single allocation in bytes.
    pub max_alloc_bytes: u64,
    /// Every allocation starts at a multiple of this, a power of two.
    pub alignment: u64,
    /// Whether the host can load from and store to it through a pointer.
    pub host_addressable: bool,
    /// Whether the engine may lease staging slots in it.
    pub staging: bool,
    /// What bytes pass within its own machine.
    pub passage: Passage,
}

/// The memories that bytes pass within another machine, between its network and one of its memories, in their order. Large
/// copies pass them, for all that is known here; that machine plans each copy by itself. Empty for memory of this machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Passage {
    /// On the way into the memory, from the network on.
    pub into: Vec<MemoryId>,
    /// On the way out of it, to the network.
    pub out_of: Vec<MemoryId>,
}
