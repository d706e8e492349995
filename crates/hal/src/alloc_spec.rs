//! What to allocate.

/// A request for memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct AllocSpec {
    /// How many bytes. 0 gives an empty buffer.
    pub len_bytes: u64,
    /// The address of the first byte is a multiple of this power of two, or of the memory's own alignment if that is
    /// larger.
    pub alignment: u64,
    /// Back the memory by huge pages where the system has them.
    pub huge_pages: bool,
    /// The engine will use it as a staging slot: reused often, never seen by users.
    pub staging: bool,
    /// The memory will be exported or shared with another process. Where ordinary allocations cannot leave the process,
    /// this one can if the memory supports that at all; it may take longer to allocate and to free. Memories whose
    /// allocations can all be exported, or none, ignore this.
    pub shareable: bool,
    /// The host only writes the memory, front to back, and devices read it. Where the system has such memory, it is
    /// kept out of the processors' caches, so that devices need not look there. The host can read it, but very slowly.
    /// Memories of other kinds ignore this.
    pub write_combined: bool,
    /// All bytes are 0 at first. Without this, memory of the host may have bytes that this process wrote before. Memories of
    /// other devices ignore it.
    pub zeroed: bool,
}

impl AllocSpec {
    /// Makes a request for `len_bytes` bytes, with the memory's own alignment.
    pub const fn bytes(len_bytes: u64) -> AllocSpec {
        AllocSpec {
            len_bytes,
            alignment: 1,
            huge_pages: false,
            staging: false,
            shareable: false,
            write_combined: false,
            zeroed: false,
        }
    }

    /// The same, aligned to `alignment`.
    pub const fn aligned(mut self, alignment: u64) -> AllocSpec {
        self.alignment = alignment;
        self
    }

    /// The same, on huge pages where the system has them.
    pub const fn with_huge_pages(mut self) -> AllocSpec {
        self.huge_pages = true;
        self
    }

    /// The same, as a staging slot.
    pub const fn for_staging(mut self) -> AllocSpec {
        self.staging = true;
        self
    }

    /// The same, to be given out.
    pub const fn for_sharing(mut self) -> AllocSpec {
        self.shareable = true;
        self
    }

    /// The same, for the host to write and devices to read.
    pub const fn with_write_combining(mut self) -> AllocSpec {
        self.write_combined = true;
        self
    }

    /// The same, all bytes 0.
    pub const fn zeroed(mut self) -> AllocSpec {
        self.zeroed = true;
        self
    }
}
