//! What a flight asks of its driver, and the outcomes of operations, legs and flights.

use alloc::sync::Arc;

use super::task::{SlotId, Task};
use crate::{Plan, Span};

/// The phase of a flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Moves the payload.
    Copy,
    /// Reads the source through the checksum; [`Endpoint::Src`](super::Endpoint::Src) is the source.
    CheckSrc,
    /// Reads the destination through the checksum; [`Endpoint::Src`](super::Endpoint::Src) is the destination.
    CheckDst,
}

/// Where a leg failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// The part of the work.
    pub phase: Phase,
    /// The lane of the plan and the step within it; `None` when slots could not be had, or the
    /// comparison found a difference.
    pub at: Option<(u8, u8)>,
    /// The payload bytes concerned.
    pub span: Span,
}

impl Failure {
    /// The failure of a transfer of `len_bytes` bytes before its first operation.
    pub const fn before(len_bytes: u64) -> Failure {
        Failure {
            phase: Phase::Copy,
            at: None,
            span: Span::new(0, len_bytes),
        }
    }
}

/// How a flight ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// Every byte arrived, and where asked for both ends were found to be equal.
    Done,
    /// No route was left.
    Failed(Failure),
    /// It was stopped after so many leading bytes had arrived; 0 with `started` false when nothing
    /// was ever submitted.
    Stopped {
        /// Why.
        reason: StopReason,
        /// Leading bytes of the destination that equal the source.
        leading_bytes: u64,
        /// Whether any operation was submitted.
        started: bool,
    },
}

/// Why a flight was stopped before its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StopReason {
    /// Its owner cancelled it.
    Cancelled,
    /// Its deadline passed.
    Deadline,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Settled {
    /// All its bytes moved.
    Done,
    /// The backend stopped it because the driver asked, and left some of its bytes out. In a flight that was not told to
    /// stop it counts as failed.
    Stopped {
        /// Leading bytes of the operation that moved.
        leading_bytes: u64,
    },
    /// It was accepted, and some or all of its bytes did not move.
    Failed,
    /// It was refused: nothing was done.
    Refused,
}

/// The next task of the flight's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Lease one slot for each of [`Flight::rings`](super::Flight::rings), all or none, then call
    /// [`Flight::handle_admitted`](super::Flight::handle_admitted) or [`Flight::handle_not_admitted`](super::Flight::handle_not_admitted).
    Lease,
    /// Submit an operation; call [`Flight::handle_settled`](super::Flight::handle_settled) when it has ended or was refused.
    Submit(Task),
    /// Take a slot back. No operation uses it any more.
    Return(SlotId),
    /// The leg failed: find another plan, then call [`Flight::handle_route`](super::Flight::handle_route).
    Route(Failure),
    /// Compare the two checksums, then call [`Flight::handle_compared`](super::Flight::handle_compared).
    Compare,
    /// The flight is over: no operation is under way, no slot is held, and nothing follows.
    Finish(Verdict),
}

/// A trial: leading bytes that went another way than the rest.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Tried {
    /// The way.
    pub plan: Arc<Plan>,
    /// The leading bytes that went over it.
    pub bytes: u64,
    /// How many nanoseconds they took.
    pub ns: u64,
}
