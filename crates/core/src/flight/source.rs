//! Flights whose source is filled while they read it: the destination of another flight.

use super::{Failure, Flight, Phase, State};
use crate::Span;

impl Flight {
    /// Says that the source has its first `bytes` payload bytes so far: the destination of another flight, which brings
    /// the others. Copies no byte that is not there. Until this is called all are.
    pub fn handle_source(&mut self, bytes: u64) {
        self.there = bytes;
    }

    /// Returns how many leading payload bytes the source has.
    pub fn source_bytes(&self) -> u64 {
        self.there.min(self.len_bytes)
    }

    /// The source will not get further bytes, or is too slow: the leg ends as a failed one does, and the flight asks for a
    /// route from another source. Ignored when no copy is under way.
    pub fn handle_source_lost(&mut self) {
        if self.phase == Phase::Copy && matches!(self.state, State::Boarding { .. } | State::Moving)
        {
            self.leg.stop();
            self.state = State::Failing(Failure {
                phase: self.phase,
                at: None,
                span: Span::new(self.leading_bytes(), self.len_bytes - self.leading_bytes()),
            });
        }
    }

    /// Returns whether the source has nothing yet that the leg could begin with.
    pub(super) fn lacks_source(&self) -> bool {
        let chunk_bytes = self.leg.plan().map_or(0, |plan| plan.chunk_bytes());
        let first = self.arrived.saturating_add(chunk_bytes).min(self.len_bytes);
        self.phase == Phase::Copy && self.there < first
    }
}
