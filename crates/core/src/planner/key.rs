//! The key of a plan, and the planner's limits.

use crate::{MemoryId, defaults};

/// Everything that a plan depends on besides the machine. Small and `Copy`: it is the key of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PlanKey {
    /// Where the bytes are.
    pub src: MemoryId,
    /// Where they go; the same as `src` for a digest.
    pub dst: MemoryId,
    /// Whether the source and the destination have gaps, between rows or pieces. Such a region can be touched only by a link
    /// that is [pitched](crate::Link::pitched); for slots and for a region without gaps any link will do.
    pub pitched: [bool; 2],
    /// What the bytes are to go through.
    pub purpose: Purpose,
}

impl PlanKey {
    /// Returns the key of a copy between contiguous regions of two memories.
    pub const fn copy(src: MemoryId, dst: MemoryId) -> PlanKey {
        PlanKey {
            src,
            dst,
            pitched: [false; 2],
            purpose: Purpose::Copy,
        }
    }

    /// Returns the key of a copy that shows its bytes to a transform on the way.
    pub const fn copy_with_digest(src: MemoryId, dst: MemoryId) -> PlanKey {
        PlanKey {
            purpose: Purpose::CopyWithDigest,
            ..PlanKey::copy(src, dst)
        }
    }

    /// Returns the key of a reading of a contiguous region through a transform.
    pub const fn digest(src: MemoryId) -> PlanKey {
        PlanKey {
            purpose: Purpose::Digest,
            ..PlanKey::copy(src, src)
        }
    }

    /// The same for a source and a destination with gaps, where `pitched`.
    pub const fn pitched(self, pitched: [bool; 2]) -> PlanKey {
        PlanKey { pitched, ..self }
    }
}

/// What the bytes are to go through.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Purpose {
    /// They arrive at the destination.
    Copy,
    /// They arrive at the destination, and the first link converts them: one of the host's engine, whose work that is. Sizes
    /// are those of the bytes that arrive.
    Convert,
    /// They arrive at the destination, and a transform sees each of them once: in a slot where the
    /// route has one that the host can address, else in place in the source or the destination.
    CopyWithDigest,
    /// A transform sees each of them once: in place where the host can address the source, else in
    /// slots. There is no destination.
    Digest,
}

/// What plans must keep within.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// Staging that all rings of a plan may take together, in bytes.
    pub staging_bytes: u64,
    /// How many pipelines a plan may run at once, 1 to 4.
    pub lanes: u8,
}

impl Limits {
    /// The most lanes that a plan can have.
    pub const MAX_LANES: u8 = 4;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            staging_bytes: defaults::STAGING_BUDGET_BYTES,
            lanes: Limits::MAX_LANES,
        }
    }
}
