//! What to allocate.

/// A request for memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct AllocSpec {
    /// How many bytes. 0 gives an empty buffer.
    pub len_bytes: u64,
    /// The first byte's address is a multiple of this power of two, or of the memory's own alignment
    /// if that is larger.
    pub alignment: u64,
    /// Back the memory by huge pages where the system has them.
    pub huge_pages: bool,
    /// The engine will use it as a staging slot: reused often, never seen by users.
    pub staging: bool,
}

impl AllocSpec {
    /// `len_bytes` bytes, with the memory's own alignment.
    pub const fn bytes(len_bytes: u64) -> AllocSpec {
        AllocSpec {
            len_bytes,
            alignment: 1,
            huge_pages: false,
            staging: false,
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
}
