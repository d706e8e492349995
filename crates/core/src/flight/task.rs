//! One operation of a flight, by role.

use crate::{Role, Span, StepKind};

/// Names a task among those that are under way: a chunk takes one step at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub struct TaskId {
    /// The lane of the plan.
    pub lane: u8,
    /// The chunk of the lane, counted from the start of the leg.
    pub chunk: u32,
}

/// Where a task's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Endpoint {
    /// In the source region.
    Src,
    /// In the destination region.
    Dst,
    /// At the start of a leased slot.
    Slot(SlotId),
}

/// A slot that the flight holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId {
    /// The lane of the plan.
    pub lane: u8,
    /// The ring of the lane.
    pub ring: u8,
    /// The slot, counted in the order that slots of the ring were granted during this leg.
    pub slot: u16,
}

/// What a task does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Work {
    /// Moves the bytes.
    Copy {
        /// From here.
        from: Endpoint,
        /// To there.
        to: Endpoint,
    },
    /// Shows the bytes to the transform.
    Transform {
        /// Where they are.
        at: Endpoint,
    },
    /// Makes the bytes visible to engines of other devices.
    MakeVisible {
        /// Where they are.
        at: Endpoint,
    },
}

/// One operation to submit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub struct Task {
    /// Its name until it settles.
    pub id: TaskId,
    /// The step of the lane that it is.
    pub step: u8,
    /// What it does.
    pub work: Work,
    /// The payload bytes that it is about.
    pub span: Span,
}

impl Work {
    pub(super) fn bind(kind: StepKind, endpoint: impl Fn(Role) -> Endpoint) -> Work {
        match kind {
            StepKind::Copy { from, to } => Work::Copy {
                from: endpoint(from),
                to: endpoint(to),
            },
            StepKind::Transform { at } => Work::Transform { at: endpoint(at) },
            StepKind::MakeVisible { at } => Work::MakeVisible { at: endpoint(at) },
        }
    }
}
