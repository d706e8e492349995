//! The engine behind every handle: the functions that handles call.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use transload_core::Footprint;
use transload_hal::{Backend, BackendId, Clock, Fault, Fence, Process, ProcessBound};

use super::admission::budget::StagingBudget;
use super::completions::Completions;
use super::event::Waiting;
use super::operand::Operand;
use super::signal::Signal;
use super::state::State;
use super::sync::{AtomicUsize, Lock};
use super::trace::Recorder;
use super::types::TransferId;
use super::unwind::guarded;
use crate::error::{Forked, TransferError};
use crate::report::Report;

/// The state that all handles of a manager share.
///
/// # Protocol
/// A thread that calls the engine does so in this order:
/// 1. `submit` starts a transfer and turns the engine; a small copy is over when it returns. `start_guard` starts a
///    guard, `cancel` and `detach` stop a transfer and give its handle up.
/// 2. Whatever changes the state outside a turn goes through `change`, which does afterwards what must not be done under
///    the lock. `inspect` only looks.
/// 3. A thread that has changed the state so that transfers may go on turns the engine: `turn_quickly`, or
///    `turn_for` where it has a purpose of its own. A turn ends with nothing left to do, or with the rest handed over.
/// 4. A thread that stops turning the engine while a transfer needs a listener appoints one: `hand_over`, `appoint`,
///    `leave_listening`. A thread that finds that none is needed dismisses it: `dismiss`.
/// 5. A thread that waits asks `may_wait` first, then blocks in `block_on` or registers a waker with `poll`, and takes
///    the result with `take_result`.
///
/// Backends and callbacks call [`Completions`] alone, which queues and notifies.
///
/// In a child of `fork` the entry points of a manager of the parent's return at once. They take no lock, since a thread
/// that is missing in the child may hold it, and call no backend. Fields whose drop would end threads, take locks or
/// call drivers are bound to the process.
pub(crate) struct Shared {
    /// Identifies the manager among all of the process, dropped ones included.
    pub(crate) serial: usize,
    /// The process that made the manager.
    pub(crate) process: Process,
    pub(crate) state: ProcessBound<Lock<State>>,
    pub(crate) budget: Arc<StagingBudget>,
    pub(crate) completions: Arc<Completions>,
    pub(crate) signal: Arc<Signal>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Records what is done, where the manager was asked to.
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// The number of operations under way in backends that settle fences only when a thread calls them.
    pub(super) attended: AtomicUsize,
    /// The number of operations under way in backends that complete unattended.
    pub(super) unattended: AtomicUsize,
    #[cfg(threads)]
    pub(crate) driver: ProcessBound<crate::std::Driver>,
    #[cfg(browser)]
    pub(crate) microtask: crate::std::Microtask,
    /// Keeps the verdicts of proofs, where the manager was asked to.
    #[cfg(feature = "std")]
    pub(crate) writer: Option<ProcessBound<crate::std::VerdictWriter>>,
    /// What discovery looks for.
    #[cfg(feature = "std")]
    pub(crate) kinds: crate::std::Kinds,
    /// Whether transfers whose handle is held advance by themselves.
    pub(crate) advances: bool,
}

impl Shared {
    pub(crate) fn new(state: State, signal: Arc<Signal>, clock: Arc<dyn Clock>) -> Shared {
        static SERIALS: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);
        #[cfg(feature = "std")]
        crate::std::watch();
        let completions = Completions::new(Arc::clone(&signal), state.recorder.clone());
        Shared {
            advances: state.advances,
            serial: SERIALS.fetch_add(1, Ordering::Relaxed),
            process: Process::current(),
            budget: Arc::clone(state.admission.budget()),
            recorder: state.recorder.clone(),
            state: ProcessBound::new(Lock::new(state)),
            completions: Arc::new(completions),
            #[cfg(threads)]
            driver: ProcessBound::new(crate::std::Driver::new(Arc::clone(&signal))),
            #[cfg(browser)]
            microtask: crate::std::Microtask::default(),
            #[cfg(feature = "std")]
            writer: None,
            #[cfg(feature = "std")]
            kinds: Default::default(),
            signal,
            clock,
            attended: AtomicUsize::new(0),
            unattended: AtomicUsize::new(0),
        }
    }

    #[cfg(feature = "std")]
    pub(crate) fn with_writer(mut self, writer: Option<crate::std::VerdictWriter>) -> Shared {
        self.writer = writer.map(ProcessBound::new);
        self
    }

    /// Returns whether this process is a child of the one that made the manager. Costs one relaxed load.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Returns an error in a child of the manager's process.
    #[inline]
    pub(crate) fn check_fork(&self) -> Result<(), Forked> {
        match self.is_forked() {
            false => Ok(()),
            true => Err(Forked),
        }
    }

    /// Calls `f` with the state, without a turn of the engine.
    pub(crate) fn inspect<R>(&self, f: impl FnOnce(&mut State) -> R) -> Result<R, Forked> {
        self.check_fork()?;
        Ok(self.state.with(f))
    }

    /// Leaves those transfers to hardware that need no thread, and has a thread listen if any needs one.
    pub(crate) fn leave_to_hardware(self: &Arc<Self>, ids: &[TransferId]) {
        for some in ids.chunks(Completions::AT_ONCE) {
            self.state
                .with(|state| some.iter().for_each(|id| state.leave_to_hardware(*id)));
            self.state.give_way();
        }
        let (needs_listener, next) = self
            .state
            .with(|state| (state.table.needs_listener(), state.next_deadline()));
        self.leave_listening(needs_listener, u64::MAX, next);
    }

    /// Starts a guard on a region. Also returns whether the guard has its turn. The caller has checked that this process
    /// is not forked, here and for `ask`.
    pub(crate) fn start_guard(&self, end: Operand, footprint: Footprint) -> (TransferId, bool) {
        self.state.with(|state| state.start_guard(end, footprint))
    }

    /// Removes a guard.
    pub(crate) fn unguard(self: &Arc<Self>, id: TransferId) {
        // The waker of a guard that is awaited and not reached: it runs the executor's code when it is dropped.
        let mut waker = None;
        let (must_turn, is_idle) = self.change(|state| {
            let active = state.table.find_mut(id);
            let end = active.and_then(|active| {
                waker = active.waker.take();
                active.src.take()
            });
            if end.is_some() {
                state.table.leave(id.index);
                state.free_place(id.index);
            }
            state.after.buffers.extend(end.map(|end| end.buffer));
            let has_more = state.has_more();
            (has_more || !self.advances, state.table.is_idle())
        });
        if must_turn {
            self.turn_quickly();
        } else if is_idle && self.signal.is_heard() {
            self.dismiss(None);
        }
    }

    /// Returns the result of a transfer that is over, and frees its place.
    pub(crate) fn take_result(&self, id: TransferId) -> Option<Result<Report, TransferError>> {
        if let Err(forked) = self.check_fork() {
            return Some(Err(forked.into()));
        }
        let (mut result, mut ends) = (None, [None, None]);
        self.state.with(|state| {
            let Some(active) = state.table.find_mut(id) else {
                return;
            };
            result = active.result.take();
            // A transfer whose result is taken before its operations are quiet goes on without its owner.
            if result.is_some() && !active.is_live() {
                ends = [active.src.take(), active.dst.take()];
                state.free_place(id.index);
            }
        });
        drop(ends);
        result
    }

    /// Called when the transfer's handle is dropped.
    pub(crate) fn detach(self: &Arc<Self>, id: TransferId) {
        if self.is_forked() {
            return;
        }
        let is_live = self.state.with(|state| {
            let active = state.table.find_mut(id)?;
            if !active.is_live() {
                return None;
            }
            active.detached = true;
            let cancels = active.cancel_on_drop;
            state.table.set_needs_listener(id.index, true);
            if cancels {
                state.cancel(id);
            }
            Some((cancels, state.table.needs_listener()))
        });
        match is_live {
            Some((true, _)) => drop(self.turn_quickly()),
            Some((false, _)) => {}
            None => return drop(self.take_result(id)),
        }
        if matches!(is_live, Some((_, true))) {
            self.appoint(u64::MAX, None);
        }
    }

    /// Asks transfers to stop, the last one first: none of them starts because one before it was stopped. Returns whether
    /// one of them had begun.
    pub(crate) fn cancel(self: &Arc<Self>, ids: &[TransferId]) -> bool {
        if self.is_forked() {
            return false;
        }
        let mut has_begun = false;
        for some in ids.rchunks(Completions::AT_ONCE) {
            let some = some.iter().rev();
            self.change(|state| some.for_each(|id| has_begun |= state.cancel(*id)));
            self.state.give_way();
        }
        self.turn_quickly();
        has_begun
    }

    /// Returns how many payload bytes of a transfer have arrived, and how many there are in all.
    pub(crate) fn progress(&self, id: TransferId) -> Option<(u64, u64)> {
        // As many operations as the largest plan has under way.
        let mut flying = ArrayVec::<(Arc<dyn Backend>, Fence), 16>::new();
        let asked = self.inspect(|state| {
            let active = state.table.find_mut(id)?;
            let flight = active.flight.as_ref()?;
            let all = flight.len_bytes();
            let arrived = flight.copied_bytes();
            let last = active.flying.iter();
            let last = last.filter(|(_, task)| flight.is_last_step(*task));
            let fences: ArrayVec<Fence, 16> = last.map(|(fence, _)| *fence).take(16).collect();
            for fence in fences {
                let known = state.in_flight.known(fence.backend());
                flying.extend(known.map(|known| (Arc::clone(&known.backend), fence)));
            }
            Some((arrived, all))
        });
        let (arrived, all) = asked.unwrap_or(None)?;
        let moved = flying
            .iter()
            .map(|(backend, fence)| guarded(|| backend.progress(*fence)).unwrap_or(0));
        let arrived = arrived.saturating_add(moved.sum()).min(all);
        // Keeps the number from falling: a backend reports no progress of an operation that has settled, and the engine
        // takes in its outcome only later.
        let shown = self.state.with(|state| {
            let active = state.table.find_mut(id)?;
            active.shown_bytes = active.shown_bytes.max(arrived);
            Some(active.shown_bytes)
        });
        Some((shown.unwrap_or(arrived), all))
    }

    /// Returns the fences that a transfer still waits for, once all of its operations are submitted.
    pub(crate) fn fences(&self, id: TransferId) -> Option<Vec<Fence>> {
        self.inspect(|state| state.fences(id)).unwrap_or(None)
    }

    /// Takes in that an event was set for which these transfers waited. Leaves what takes long to another thread, where one
    /// can be.
    pub(crate) fn event_set(self: &Arc<Self>, waiting: Waiting) {
        if waiting.len() > 0 {
            self.change(|state| state.awaited.push(waiting));
            self.turn_quickly();
        }
    }

    /// The same for the event of a call that starts many transfers, which starts them itself.
    pub(crate) fn gate_set(self: &Arc<Self>, mut waiting: Waiting) {
        while waiting.len() > 0 {
            let some: Vec<TransferId> = waiting.by_ref().take(Completions::AT_ONCE).collect();
            self.event_set(some.into_iter());
            self.state.give_way();
        }
    }

    pub(crate) fn give_up_backend(&self, name: BackendId, fault: &Fault) {
        let is_new = self.change(|state| state.give_up_backend(name, fault));
        if is_new {
            // The caller may not turn the engine again, and its transfers must be looked at.
            self.signal.notify();
        }
    }

    pub(crate) fn is_settled(&self, id: TransferId) -> bool {
        let is_awaited = self.inspect(|state| state.is_awaited(id));
        !is_awaited.unwrap_or(false)
    }
}

/// A compile-time check: handles are shared between threads wherever there are any.
#[cfg(threads)]
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Shared>();
};
