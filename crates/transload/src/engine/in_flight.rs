//! The backends, and the operations that are under way in them.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashMap;
use transload_core::flight::TaskId;
use transload_hal::{Backend, BackendId, Fault, Fence, Outcome};

use super::backlog::{Attempts, Backlog};
use super::command::{CommandKind, Commands, MAX_COMMANDS};
use super::types::{Line, Priority, TransferId};

/// A backend, with the engine's records about it.
pub(crate) struct Registered {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) id: BackendId,
    /// Whether its fences settle without a call.
    pub(crate) unattended: bool,
    /// Set when the backend panicked where the engine can know nothing of its fences any more.
    pub(crate) lost: Option<Fault>,
    /// Fences of it that have not settled.
    pending: usize,
    /// The same, for a backend whose fences settle only when a thread calls it.
    attended: BTreeSet<Fence>,
    backlog: Backlog,
}

impl Registered {
    /// Returns how many operations are under way.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    /// Returns the fences that settle only when a thread calls the backend, the oldest first.
    pub(crate) fn attended(&self) -> impl Iterator<Item = Fence> {
        self.attended.iter().copied()
    }
}

/// What is under way in backends.
pub(crate) struct InFlight {
    backends: Vec<Registered>,
    pending: HashMap<Fence, (TransferId, TaskId)>,
    /// Outcomes of fences that a thread has submitted and not recorded yet.
    early: Vec<(Fence, Outcome)>,
    /// Commands that threads have taken and not recorded yet.
    outstanding: usize,
    /// Fences of hints, and how they ended.
    hints: Vec<(Fence, Option<Outcome>)>,
    /// Transfers that wait for their turn in the order of another machine.
    entries: Vec<(Fence, TransferId)>,
    /// The transfer whose turn has just come, or never will.
    turn: Option<(TransferId, Outcome)>,
}

impl InFlight {
    /// Makes a list with room for `room` operations.
    pub(crate) fn with_capacity(room: usize) -> InFlight {
        InFlight {
            backends: Vec::new(),
            pending: HashMap::with_capacity(room),
            early: Vec::with_capacity(MAX_COMMANDS),
            outstanding: 0,
            hints: Vec::new(),
            entries: Vec::new(),
            turn: None,
        }
    }

    pub(crate) fn register(&mut self, id: BackendId, backend: Arc<dyn Backend>, unattended: bool) {
        self.backends.push(Registered {
            backend,
            id,
            unattended,
            lost: None,
            pending: 0,
            attended: BTreeSet::new(),
            backlog: Backlog::default(),
        });
    }

    /// Returns the backends, in the order of registration.
    pub(crate) fn backends(&self) -> &[Registered] {
        &self.backends
    }

    pub(crate) fn known(&self, id: BackendId) -> Option<&Registered> {
        self.backends.iter().find(|known| known.id == id)
    }

    fn known_mut(&mut self, id: BackendId) -> Option<&mut Registered> {
        self.backends.iter_mut().find(|known| known.id == id)
    }

    /// Counts commands that the thread which turns the engine takes.
    pub(crate) fn hand_out(&mut self, commands: &mut Commands) {
        self.outstanding += commands.len();
        for command in commands {
            if let CommandKind::Submit { since, .. } = &mut command.kind
                && let Some(known) = self.known_mut(command.backend_id)
            {
                *since = known.backlog.handle_call();
            }
        }
    }

    /// Takes in that a thread records that many commands.
    pub(crate) fn handle_recorded(&mut self, commands: usize) {
        self.outstanding -= commands;
    }

    /// Forgets early outcomes of fences that no thread is about to record: they belong to no command of this engine.
    pub(crate) fn forget_early(&mut self) {
        if self.outstanding == 0 {
            self.early.clear();
        }
    }

    /// Takes in that a call of `submit` has returned, and whether it leaves nothing under way.
    pub(crate) fn handle_returned(&mut self, backend: BackendId, has_ended: bool) {
        if let Some(known) = self.known_mut(backend) {
            known.backlog.handle_returned(has_ended);
        }
    }

    /// Takes in that an operation is under way. Returns the fault of its backend, if the backend was given up while it
    /// accepted the operation.
    pub(crate) fn handle_submitted(
        &mut self,
        fence: Fence,
        id: TransferId,
        task: TaskId,
    ) -> Option<Fault> {
        self.pending.insert(fence, (id, task));
        let known = self.known_mut(fence.backend())?;
        known.pending += 1;
        if !known.unattended {
            known.attended.insert(fence);
        }
        known.lost.clone()
    }

    /// Returns the outcome of a fence that settled before it was recorded.
    pub(crate) fn take_early(&mut self, fence: Fence) -> Option<Outcome> {
        let at = self.early.iter().position(|(early, _)| *early == fence)?;
        Some(self.early.swap_remove(at).1)
    }

    /// Takes in an outcome. Returns it with the operation that has ended; `None` if it is a hint's, or of a fence that
    /// was not recorded yet.
    pub(crate) fn handle_outcome(
        &mut self,
        fence: Fence,
        outcome: Outcome,
    ) -> Option<(TransferId, TaskId, Outcome)> {
        let operation = self.pending.remove(&fence);
        if operation.is_none() {
            if let Some(at) = self.entries.iter().position(|(known, _)| *known == fence) {
                self.turn = Some((self.entries.swap_remove(at).1, outcome));
                return None;
            }
            let Some((_, settled)) = self.hints.iter_mut().find(|(known, _)| *known == fence)
            else {
                self.early.push((fence, outcome));
                return None;
            };
            // A second outcome of one fence is a mistake of the backend.
            settled.get_or_insert(outcome);
            if let Some(known) = self.known_mut(fence.backend()) {
                known.backlog.handle_ended();
            }
            return None;
        }
        if let Some(known) = self.known_mut(fence.backend()) {
            known.pending -= 1;
            known.attended.remove(&fence);
            known.backlog.handle_ended();
        }
        operation.map(|(id, task)| (id, task, outcome))
    }

    /// Gives a backend up. Returns its operations, unless it is not known or was given up before.
    pub(crate) fn give_up(
        &mut self,
        backend: BackendId,
        fault: &Fault,
    ) -> Option<Vec<(Fence, TransferId)>> {
        let known = self
            .known_mut(backend)
            .filter(|known| known.lost.is_none())?;
        known.lost = Some(fault.clone());
        let of_it = self
            .pending
            .iter()
            .filter(|(fence, _)| fence.backend() == backend);
        Some(of_it.map(|(fence, (id, _))| (*fence, *id)).collect())
    }

    /// Returns whether the operation is under way.
    pub(crate) fn is_pending(&self, fence: Fence) -> bool {
        self.pending.contains_key(&fence)
    }

    /// Takes the transfers out of which operations are under way, for the end of the engine.
    pub(crate) fn take_pending(&mut self) -> impl Iterator<Item = TransferId> + use<> {
        core::mem::take(&mut self.pending)
            .into_values()
            .map(|(id, _)| id)
    }

    /// Returns whether operations wait for an engine of a backend.
    #[inline]
    pub(crate) fn has_queue(&self, line: Line) -> bool {
        { self.known(line.0) }.is_some_and(|known| known.backlog.has_queue(line))
    }

    /// Returns whether it is of use to ask a backend again that had no room for an operation handed out at `since`: an
    /// operation, a hint or a call of `submit` has ended since, or is under way and its end will be seen.
    pub(crate) fn may_have_room_after(&self, backend: BackendId, since: u64) -> bool {
        self.known(backend)
            .is_some_and(|known| known.backlog.has_ended_after(since) || self.is_engaged(known))
    }

    fn is_engaged(&self, known: &Registered) -> bool {
        let mut hints = self.hints.iter().filter(|(_, outcome)| outcome.is_none());
        let has_hint = |backend| hints.any(|(fence, _)| fence.backend() == backend);
        known.pending > 0 || known.backlog.is_called() || { has_hint }(known.id)
    }

    /// Makes an operation wait for an end in its backend after `since`. Returns false if there is no such backend.
    pub(crate) fn postpone(
        &mut self,
        line: Line,
        priority: Priority,
        id: TransferId,
        since: u64,
    ) -> bool {
        let Some(known) = self.known_mut(line.0) else {
            return false;
        };
        known.backlog.push(line, priority, id, since);
        true
    }

    /// Returns the next backend from that number on for which operations wait.
    #[inline]
    pub(crate) fn next_backlog(&self, from: usize) -> Option<usize> {
        (from..self.backends.len()).find(|at| !self.backends[*at].backlog.is_empty())
    }

    /// Begins to submit operations that have waited for that backend.
    pub(crate) fn begin_attempts(&mut self, at: usize) -> Attempts {
        let known = &self.backends[at];
        let takes_all = known.lost.is_some() || !self.is_engaged(known);
        self.backends[at].backlog.begin(takes_all)
    }

    pub(crate) fn end_attempts(&mut self, at: usize, attempts: Attempts) {
        self.backends[at].backlog.end(attempts);
    }

    /// Takes in that a thread is about to submit a hint.
    pub(crate) fn begin_hint(&mut self, backend: BackendId) {
        self.outstanding += 1;
        if let Some(known) = self.known_mut(backend) {
            known.backlog.handle_call();
        }
    }

    /// Takes in the backend's answer. Returns whether operations wait in the backlog that may have room now.
    pub(crate) fn handle_hint(
        &mut self,
        backend: BackendId,
        answer: &Result<Fence, Fault>,
    ) -> bool {
        self.outstanding -= 1;
        let mut is_under_way = false;
        if let Ok(fence) = answer
            && !fence.is_immediate()
        {
            let outcome = self.take_early(*fence);
            is_under_way = outcome.is_none();
            self.hints.push((*fence, outcome));
        }
        self.handle_returned(backend, !is_under_way);
        let is_backed_up = self
            .known(backend)
            .is_some_and(|known| !known.backlog.is_empty());
        !is_under_way && is_backed_up
    }

    /// Returns the outcome of a hint's fence once it is known, and forgets the fence.
    pub(crate) fn take_hint(&mut self, fence: Fence) -> Option<Outcome> {
        let at = self.hints.iter().position(|(known, _)| *known == fence)?;
        self.hints[at].1.as_ref()?;
        self.hints.swap_remove(at).1
    }

    /// Takes in that a transfer has its turn when a fence settles. Returns its outcome if it has.
    pub(crate) fn handle_entry(&mut self, fence: Fence, id: TransferId) -> Option<Outcome> {
        let outcome = self.take_early(fence);
        if outcome.is_none() {
            self.entries.push((fence, id));
        }
        outcome
    }

    /// Takes the transfer whose turn the last outcome was.
    pub(crate) fn take_turn(&mut self) -> Option<(TransferId, Outcome)> {
        self.turn.take()
    }

    /// Takes the transfers that wait for their turn in a backend.
    pub(crate) fn take_entries(
        &mut self,
        backend: BackendId,
    ) -> impl Iterator<Item = (Fence, TransferId)> + use<> {
        let (of_it, others) = core::mem::take(&mut self.entries)
            .into_iter()
            .partition::<Vec<_>, _>(|(fence, _)| fence.backend() == backend);
        self.entries = others;
        of_it.into_iter()
    }

    /// Forgets a hint's fence: no thread waits for it any more.
    pub(crate) fn forget_hint(&mut self, fence: Fence) {
        self.hints.retain(|(known, _)| *known != fence);
    }
}
