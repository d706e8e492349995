//! The key of a plan, and the planner's limits.

use crate::{DeviceId, Link, LinkId, MemoryId, defaults};

/// Everything that a plan depends on besides the machine. Small and `Copy`: it is the key of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PlanKey {
    /// Where the bytes are.
    pub src: MemoryId,
    /// Where they go; the same as `src` for a digest.
    pub dst: MemoryId,
    /// How the bytes of the source and of the destination lie.
    pub forms: [Form; 2],
    /// What the bytes are to go through.
    pub purpose: Purpose,
}

impl PlanKey {
    /// Returns the key of a copy between contiguous regions of two memories.
    pub const fn copy(src: MemoryId, dst: MemoryId) -> PlanKey {
        PlanKey {
            src,
            dst,
            forms: [Form::Contiguous; 2],
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

    /// Returns whether slots may lie in a staging memory. One that is an end's is no step further, unless the bytes are brought
    /// together or converted there, by a link within that memory.
    pub(crate) fn may_stage_in(&self, memory: MemoryId) -> bool {
        let packs = self.forms.map(|form| form != Form::Contiguous);
        let [src, dst] = match self.purpose {
            // Rows are read where they are. There is no destination.
            Purpose::Digest => [self.forms[0] == Form::Elements, true],
            Purpose::Convert => [true, packs[1]],
            Purpose::Copy | Purpose::CopyWithDigest => packs,
        };
        (memory != self.src || src) && (memory != self.dst || dst)
    }

    /// The same for a source and a destination with gaps, where `pitched`.
    pub const fn pitched(self, pitched: [bool; 2]) -> PlanKey {
        let [src, dst] = pitched;
        PlanKey {
            forms: [Form::of(src), Form::of(dst)],
            ..self
        }
    }
}

/// How the bytes of a region lie. Slots are contiguous. A link of another machine's touches gaps there alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Form {
    /// Without gaps: any link will do.
    #[default]
    Contiguous,
    /// With gaps between rows or pieces: only a link that is [pitched](crate::Link::pitched) touches them.
    Rows,
    /// Elements at strides that no rows tell: only a pitched link of the host's engine or of the memory's own device touches them,
    /// and no transform.
    Elements,
}

impl Form {
    /// Returns whether a link touches a region whose bytes lie so, as its source, 0, or its destination, 1.
    pub fn is_taken_by(self, link: &Link, end: usize) -> bool {
        let LinkId {
            src, dst, engine, ..
        } = link.id;
        let [own, other] = if end == 0 { [src, dst] } else { [dst, src] };
        let (own, other) = (own.device, other.device);
        let by_host = engine.device == DeviceId::CPU0;
        match self {
            Form::Contiguous => true,
            _ if !link.pitched => false,
            // Another machine does at its end what its own engines do.
            _ if own.node != other.node && !by_host => !own.node.is_here(),
            Form::Rows => true,
            Form::Elements => by_host || engine.device == own,
        }
    }

    const fn of(has_gaps: bool) -> Form {
        match has_gaps {
            true => Form::Rows,
            false => Form::Contiguous,
        }
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
