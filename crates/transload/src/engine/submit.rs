//! The submission of a transfer: it is started and the engine is turned, in one section under the lock for a small copy.

use alloc::sync::Arc;

use transload_core::Instant;

use super::command::Commands;
use super::event::EventState;
use super::shared::Shared;
use super::state::{Done, State};
use super::turn::Purpose;
use super::types::{Pace, TransferId, Which};
use crate::error::TransferError;
use crate::report::Report;

/// What became of a submission, in the form that handles keep: a report is large, and is not moved once more.
pub(crate) enum Submitted {
    UnderWay {
        shared: Arc<Shared>,
        id: TransferId,
    },
    /// The transfer was refused or was over at once, or its result was taken.
    Settled(Option<Result<Report, TransferError>>),
}

/// The purpose of a thread that submits a transfer: it makes a small copy itself, and takes its result.
struct Submit<F> {
    start: Option<F>,
    started: Option<Result<TransferId, TransferError>>,
    done: Done,
}

impl<F: FnOnce(&mut State, Instant) -> Result<TransferId, TransferError>> Purpose for Submit<F> {
    fn pace(&self) -> Pace {
        Pace {
            copies: match &self.started {
                Some(Ok(id)) => Which::one(*id),
                _ => Which::NONE,
            },
            slow: Which::NONE,
        }
    }

    fn begin(&mut self, state: &mut State, now: Instant, _commands: &mut Commands) {
        self.started = self.start.take().map(|start| start(state, now));
    }

    fn has_own(&mut self, state: &mut State) -> bool {
        if let Some(Ok(id)) = self.started {
            state.take_done(id, &mut self.done);
            if self.done.result.is_none() {
                state.leave_to_hardware(id);
            }
        }
        self.done.result.is_some()
    }
}

impl Shared {
    /// Starts a transfer with `start`, and turns the engine. Sets the events `then` if the request is refused: such a
    /// request is over, too.
    pub(crate) fn submit(
        self: &Arc<Self>,
        then: &[Arc<EventState>],
        start: impl FnOnce(&mut State, Instant) -> Result<TransferId, TransferError>,
    ) -> Submitted {
        if let Err(forked) = self.check_fork() {
            return Submitted::Settled(Some(Err(forked.into())));
        }
        let mut submit = Submit {
            start: Some(start),
            started: None,
            done: Done::default(),
        };
        let turn = self.turn_for(&mut submit);
        if submit.done.result.is_some() {
            self.hand_over(&turn);
            return Submitted::Settled(submit.done.result);
        }
        if turn.needs_listener {
            self.appoint(turn.seen, turn.next);
        }
        match submit.started {
            Some(Ok(id)) => Submitted::UnderWay {
                shared: Arc::clone(self),
                id,
            },
            Some(Err(error)) => self.refuse(error, then),
            None => unreachable!("a turn begins its purpose"),
        }
    }

    /// Refuses a request, and sets its events `then`.
    #[cold]
    pub(crate) fn refuse(
        self: &Arc<Self>,
        error: TransferError,
        then: &[Arc<EventState>],
    ) -> Submitted {
        let own = then.iter().filter(|event| event.manager == self.serial);
        own.for_each(|event| self.events_set(&event.set()));
        Submitted::Settled(Some(Err(error)))
    }
}
