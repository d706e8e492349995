//! One size over one link, or from one memory to another.

use std::sync::Arc;

use transload_core::{LinkId, MemoryId, Method};

use super::report::Found;
use super::sample::Interval;
use crate::engine::checked::Only;
use crate::{Candidate, Report};

/// A measurement that yields one figure.
pub(super) struct Measurement {
    pub(super) src: MemoryId,
    pub(super) dst: MemoryId,
    pub(super) bytes: u64,
    /// The link that it goes over; `None` for a way of the planner's.
    pub(super) over: Option<LinkId>,
    /// What the planner expects of the way, of a pair of memories.
    pub(super) expected: Option<Arc<Candidate>>,
    /// Whether the planner has not chosen that way.
    pub(super) is_rival: bool,
    pub(super) state: State,
    /// The method of the last copy.
    pub(super) method: Option<Method>,
    /// The times of the copies, in nanoseconds.
    pub(super) times: Vec<u64>,
}

/// A measurement is looked at each time that it has so many times more.
const ENOUGH: usize = 16;

/// The interval of a median that is known well enough, on the longer side, as a part of the median.
const NARROW: f64 = 0.01;

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
            expected: None,
            is_rival: false,
            state: State::Unknown,
            method: None,
            times: Vec::new(),
        }
    }

    /// Returns the only way that its copies may take; `None` for the planner's choice.
    pub(super) fn only(&self) -> Option<Only> {
        let rival = self.expected.as_ref().filter(|_| self.is_rival);
        let way = rival.map(|way| Only::Way(Arc::clone(way)));
        self.over.map(Only::Link).or(way)
    }

    /// Returns whether a copy took the way that the planner expected: a link may have been barred meanwhile.
    pub(super) fn is_expected(&self, report: &Report) -> bool {
        let Some(expected) = &self.expected else {
            return true;
        };
        let plan = report.plan();
        plan.is_some_and(|plan| plan.links().eq(expected.links()))
    }

    /// Returns whether more times would hardly change the result.
    pub(super) fn is_known(&self) -> bool {
        let enough = self.times.len() >= ENOUGH && self.times.len().is_multiple_of(ENOUGH);
        enough && Interval::of(&self.times).is_some_and(|found| found.is_within(NARROW))
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
