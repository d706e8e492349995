//! One size over one link, or from one memory to another.

use transload_core::{LinkId, MemoryId, Method};

use super::{Found, Interval};

/// What is measured as one figure.
pub(super) struct Cell {
    pub(super) src: MemoryId,
    pub(super) dst: MemoryId,
    pub(super) bytes: u64,
    /// The link that it goes over; `None` where the planner says how.
    pub(super) over: Option<LinkId>,
    pub(super) state: State,
    /// How the last copy went.
    pub(super) method: Option<Method>,
    /// What copies took, in nanoseconds.
    pub(super) times: Vec<u64>,
}

/// What is known of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Unknown,
    /// A pattern came back as it went.
    Right,
    Wrong,
    Failed(String),
}

impl Cell {
    pub(super) fn new(src: MemoryId, dst: MemoryId, bytes: u64, over: Option<LinkId>) -> Cell {
        Cell {
            src,
            dst,
            bytes,
            over,
            state: State::Unknown,
            method: None,
            times: Vec::new(),
        }
    }

    /// What came of it.
    pub(super) fn found(self) -> Found {
        match self.state {
            State::Wrong => Found::WrongBytes,
            State::Failed(reason) => Found::Failed(reason),
            State::Unknown => Found::NotReached,
            State::Right => Interval::of(&self.times).map_or(Found::NotReached, Found::Time),
        }
    }
}
