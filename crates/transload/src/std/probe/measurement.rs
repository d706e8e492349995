//! One size over one link, or from one memory to another.

use transload_core::{LinkId, MemoryId, Method};

use super::report::Found;
use super::sample::Interval;

/// A measurement that yields one figure.
pub(super) struct Measurement {
    pub(super) src: MemoryId,
    pub(super) dst: MemoryId,
    pub(super) bytes: u64,
    /// The link that it goes over; `None` for the planner's choice.
    pub(super) over: Option<LinkId>,
    pub(super) state: State,
    /// The method of the last copy.
    pub(super) method: Option<Method>,
    /// The times of the copies, in nanoseconds.
    pub(super) times: Vec<u64>,
}

/// The state of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Unknown,
    /// A pattern came back unchanged.
    Right,
    Wrong,
    Failed(String),
}

impl Measurement {
    pub(super) fn new(
        src: MemoryId,
        dst: MemoryId,
        bytes: u64,
        over: Option<LinkId>,
    ) -> Measurement {
        Measurement {
            src,
            dst,
            bytes,
            over,
            state: State::Unknown,
            method: None,
            times: Vec::new(),
        }
    }

    /// Returns the measurement's result.
    pub(super) fn found(self) -> Found {
        match self.state {
            State::Wrong => Found::WrongBytes,
            State::Failed(reason) => Found::Failed(reason),
            State::Unknown => Found::NotReached,
            State::Right => Interval::of(&self.times).map_or(Found::NotReached, Found::Time),
        }
    }
}
