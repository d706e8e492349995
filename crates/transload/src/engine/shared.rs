//! The engine behind every handle: which thread turns it, and how threads wait for it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use transload_core::{Footprint, Instant};
use transload_hal::{Backend, BackendId, Clock, Fault, Fence, Process, ProcessBound};

use super::active::{Operand, TransferId};
use super::completions::Completions;
use super::event::EventCell;
use super::held::Deadlock;
use super::kept::Verdict;
use super::order::{Deeds, Orders, execute};
use super::signal::Signal;
use super::state::{After, Done, Pace, Registered, State, Whose};
use super::sync::{AtomicUsize, Lock};
use super::unwind::guarded;
use crate::error::Forked;
use crate::{Report, StagingBudget, Transfer, TransferError};

/// What every handle of a manager points to.
///
/// In a child of `fork` the entry points of a manager of the parent's return at once. They touch no lock, since a thread
/// that is missing in the child may hold it, and no backend. What would end threads, take locks or call drivers when it is
/// dropped is bound to the process.
pub(crate) struct Shared {
    /// Tells managers apart, the ones that are gone too.
    pub(crate) serial: usize,
    /// The process that made the manager.
    pub(crate) process: Process,
    pub(crate) state: ProcessBound<Lock<State>>,
    pub(crate) budget: Arc<StagingBudget>,
    pub(crate) completions: Arc<Completions>,
    pub(crate) signal: Arc<Signal>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Backends that must be looked at have so many operations under way.
    pub(super) attended: AtomicUsize,
    /// Backends whose outcomes come by themselves have so many operations under way.
    unattended: AtomicUsize,
    #[cfg(threads)]
    pub(crate) driver: ProcessBound<crate::std::Driver>,
    #[cfg(browser)]
    pub(crate) microtask: crate::std::Microtask,
    /// Keeps what proofs find out, where the manager was asked to.
    #[cfg(feature = "std")]
    pub(crate) keeper: Option<ProcessBound<crate::std::Keeper>>,
    /// Whether transfers whose handle is held advance by themselves.
    pub(crate) advances: bool,
}

impl Shared {
    pub(crate) fn new(state: State, signal: Arc<Signal>, clock: Arc<dyn Clock>) -> Shared {
        static SERIALS: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);
        #[cfg(feature = "std")]
        crate::std::watch();
        Shared {
            advances: state.advances,
            serial: SERIALS.fetch_add(1, Ordering::Relaxed),
            process: Process::current(),
            budget: Arc::clone(state.pool.budget()),
            state: ProcessBound::new(Lock::new(state)),
            completions: Arc::new(Completions::new(Arc::clone(&signal))),
            #[cfg(threads)]
            driver: ProcessBound::new(crate::std::Driver::new(Arc::clone(&signal))),
            #[cfg(browser)]
            microtask: crate::std::Microtask::default(),
            #[cfg(feature = "std")]
            keeper: None,
            signal,
            clock,
            attended: AtomicUsize::new(0),
            unattended: AtomicUsize::new(0),
        }
    }

    #[cfg(feature = "std")]
    pub(crate) fn with_keeper(mut self, keeper: Option<crate::std::Keeper>) -> Shared {
        self.keeper = keeper.map(ProcessBound::new);
        self
    }

    /// Whether this process is a child of the one that made the manager. Costs one relaxed load.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Refuses what a child of the manager's process asks for.
    #[inline]
    pub(crate) fn check_fork(&self) -> Result<(), Forked> {
        match self.is_forked() {
            false => Ok(()),
            true => Err(Forked),
        }
    }

    /// Has `f` look at the state, for a caller that wants nothing else.
    pub(crate) fn inspect<R>(&self, f: impl FnOnce(&mut State) -> R) -> Result<R, Forked> {
        self.check_fork()?;
        Ok(self.state.with(f))
    }

    /// Does what can be done now, and answers when something is to be done next. What is under way then becomes known
    /// by itself, for the caller looks again some time.
    pub(crate) fn turn(self: &Arc<Self>) -> Option<Instant> {
        self.turn_at(Pace::FULL)
    }

    /// The same, but for what takes long: a thread of the manager's own does that.
    pub(crate) fn turn_quickly(self: &Arc<Self>) -> Option<Instant> {
        self.turn_at(Pace::QUICK)
    }

    pub(super) fn turn_at(self: &Arc<Self>, pace: Pace) -> Option<Instant> {
        if self.is_forked() {
            return None;
        }
        // Who serves others in passing goes on after one round.
        let next = self.turn_with(|| pace, |_, _, _| (), |_| pace == Pace::SERVING);
        if self.unattended.load(Ordering::Relaxed) > 0 {
            self.expect();
        }
        next
    }

    /// Takes in what has happened, where transfers advance by themselves: a program that asks how far one is need not wait
    /// for it.
    pub(crate) fn look(self: &Arc<Self>) {
        if self.advances {
            self.turn_at(Pace::SERVING);
        }
    }

    /// Has `begin` touch the state, turns the engine, and has `look` see the state after each step:
    /// all three in one go under the lock where that will do, for a small copy's whole cost is in
    /// such steps. What they find they leave in what they capture, which is moved nowhere.
    ///
    /// Ends when nothing is left to do, or `look` says that this thread has what it came for: what others need then the
    /// listener does.
    pub(super) fn turn_with(
        self: &Arc<Self>,
        pace: impl Fn() -> Pace,
        begin: impl FnOnce(&mut State, Instant, &mut Orders),
        mut look: impl FnMut(&mut State) -> bool,
    ) -> Option<Instant> {
        let mut orders = Orders::new();
        let (mut after, mut next) = (None, None);
        let (mut is_late, mut is_idle, mut is_content) = (false, false, false);
        // Where no thread does it for this one, this one does it all.
        let pace = || match self.advances {
            true => pace(),
            false => Pace::FULL,
        };
        self.pump();
        let now = self.clock.now();
        self.state.with(|state| {
            begin(state, now, &mut orders);
            next = self.step(state, now, pace(), &mut orders);
            is_content = look(state) && state.needs_listener();
            after = take_after(state);
            (is_late, is_idle) = (!state.later.is_empty(), state.care == 0);
        });
        self.tidy(after.take());
        let mut deeds = Deeds::new();
        let mut is_news = self.completions.has_any();
        let mut is_left = false;
        while !orders.is_empty() || is_news {
            is_content = is_content && self.can_leave();
            if is_content && orders.is_empty() {
                break;
            }
            execute(&orders, &mut deeds);
            // Before anybody can learn that a transfer is over: no view of its buffers is left then.
            orders.clear();
            let had_deeds = !deeds.is_empty();
            let mut is_awaited = false;
            self.pump();
            let now = self.clock.now();
            self.state.with(|state| {
                is_awaited = deeds.iter().any(|deed| state.is_partial(deed));
                state.record(&mut deeds);
                is_left = is_content;
                if is_content {
                    self.note_attended(state);
                } else {
                    next = self.step(state, now, pace(), &mut orders);
                    is_content = look(state) && state.needs_listener();
                }
                after = take_after(state);
                (is_late, is_idle) = (!state.later.is_empty(), state.care == 0);
            });
            self.tidy(after.take());
            let is_attended = self.attended.load(Ordering::Relaxed) > 0;
            // What was just submitted to a backend that must be looked at was not there for the
            // look above; and a step takes in so many outcomes, and no more.
            is_news = had_deeds && is_attended || self.completions.has_any();
            let is_heard = self.signal.is_heard();
            // The rest of a transfer follows upon the outcomes of what there is of it, whichever thread learns of them;
            // and a thread that listens has spoken to the backends before these operations were there.
            if had_deeds && (is_awaited || is_heard) {
                self.expect();
            }
            if had_deeds && is_attended && is_heard {
                self.signal.notify();
            }
        }
        if is_left || is_content && is_news {
            self.appoint(u64::MAX, next);
        }
        // A listener was told of each outcome, and of nothing that this thread did.
        if is_left {
            self.signal.notify();
        }
        if is_late && pace().slow != Whose::ALL {
            self.have_toiled();
        }
        if is_idle && self.signal.is_heard() {
            self.dismiss(next);
        }
        next
    }

    /// Whether another thread turns the engine if this one does not.
    fn can_leave(&self) -> bool {
        #[cfg(threads)]
        let can_leave = self.advances && self.driver.can_listen();
        #[cfg(not(threads))]
        let can_leave = false;
        can_leave
    }

    fn step(
        &self,
        state: &mut State,
        now: Instant,
        pace: Pace,
        orders: &mut Orders,
    ) -> Option<Instant> {
        state.step(now, pace, &self.completions, orders);
        self.note_attended(state);
        state.next_deadline(now)
    }

    /// Has `f` touch the state, and then does what must not be done under the lock.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let (result, after) = self.state.with(|state| (f(state), take_after(state)));
        self.tidy(after);
        result
    }

    /// Has `accept` take a transfer in; a small copy is done when this returns, and has its result.
    pub(crate) fn submit(
        self: &Arc<Self>,
        accept: impl FnOnce(&mut State, Instant) -> Result<TransferId, TransferError>,
    ) -> Transfer {
        if let Err(forked) = self.check_fork() {
            return Transfer::settled(Some(Err(forked.into())));
        }
        let mut refused = None;
        let mut done = Done::default();
        let mut needs_listener = false;
        let id = Cell::new(None);
        let begin = |state: &mut State, now, _: &mut Orders| match accept(state, now) {
            Ok(accepted) => id.set(Some(accepted)),
            Err(error) => refused = Some(error),
        };
        let look = |state: &mut State| {
            if let Some(id) = id.get() {
                state.take_done(id, &mut done);
                if done.result.is_none() {
                    state.leave_to_hardware(id);
                    needs_listener = state.needs_listener();
                }
            }
            done.result.is_some()
        };
        let seen = self.signal.seen();
        let pace = || Pace {
            copies: id.get().map_or(Whose::NOBODYS, Whose::one),
            slow: Whose::NOBODYS,
        };
        let next = self.turn_with(pace, begin, look);
        if done.result.is_some() {
            return Transfer::settled(done.result);
        }
        if needs_listener {
            self.appoint(seen, next);
        }
        match (id.get(), refused) {
            (_, Some(error)) => Transfer::settled(Some(Err(error))),
            (Some(id), None) => Transfer::submitted(Arc::clone(self), id),
            (None, None) => unreachable!("it was accepted or refused"),
        }
    }

    /// Sets the events of a request that was refused: it is over, too.
    #[inline]
    pub(crate) fn tell_refused(self: &Arc<Self>, submitted: &Transfer, then: &[Arc<EventCell>]) {
        if !then.is_empty() && submitted.is_refused() {
            let own = |event: &&Arc<EventCell>| event.manager == self.serial;
            then.iter()
                .filter(own)
                .for_each(|event| self.events_set(&event.set()));
        }
    }

    /// Leaves those transfers to hardware that need no thread, and has one listen if any needs it.
    pub(crate) fn leave_to_hardware(self: &Arc<Self>, ids: &[TransferId]) {
        for some in ids.chunks(Completions::AT_ONCE) {
            self.state
                .with(|state| some.iter().for_each(|id| state.leave_to_hardware(*id)));
        }
        let (needs_listener, next) = self
            .state
            .with(|state| (state.needs_listener(), state.next_deadline(state.now)));
        if needs_listener {
            self.appoint(u64::MAX, next);
        }
    }

    /// Enters a guard on a region. The caller has made sure that this process is not forked, here and for `ask`.
    pub(crate) fn guard(&self, end: Operand, footprint: Footprint) -> TransferId {
        self.state.with(|state| state.guard(end, footprint))
    }

    /// Enters a guard on a region, and blocks until it has its turn.
    ///
    /// # Errors
    /// When this thread would wait for good. The guard is gone then.
    pub(crate) fn guard_in_turn(
        self: &Arc<Self>,
        end: Operand,
        footprint: Footprint,
    ) -> Result<TransferId, Deadlock> {
        let (id, has_turn) = self.state.with(|state| {
            let id = state.guard(end, footprint);
            (id, state.has_turn(id))
        });
        if !has_turn {
            if let Err(deadlock) = self.may_wait(id) {
                self.unguard(id);
                return Err(deadlock);
            }
            self.block_on(id, None);
        }
        Ok(id)
    }

    /// Enters a guard on a region if nothing stands before it.
    pub(crate) fn guard_now(
        self: &Arc<Self>,
        end: Operand,
        footprint: Footprint,
    ) -> Option<TransferId> {
        self.look();
        self.state.with(|state| {
            let is_free = !state.hazards.conflicts(&[footprint]);
            is_free.then(|| state.guard(end, footprint))
        })
    }

    /// Leaves a guard.
    pub(crate) fn unguard(self: &Arc<Self>, id: TransferId) {
        // Of a guard that was awaited and has not come: it is the executor's code.
        let mut waker = None;
        let (must_turn, after) = self.state.with(|state| {
            let active = state.transfer(id);
            let end = active.and_then(|active| {
                waker = active.waker.take();
                active.src.take()
            });
            if end.is_some() {
                state.leave(id.slot);
                state.free_place(id.slot);
            }
            state.after.buffers.extend(end.map(|end| end.buffer));
            (state.has_ready() || !self.advances, take_after(state))
        });
        self.tidy(after);
        if must_turn {
            self.turn_quickly();
        }
    }

    /// The result of a transfer that is over, which frees its place.
    pub(crate) fn take_result(&self, id: TransferId) -> Option<Result<Report, TransferError>> {
        if let Err(forked) = self.check_fork() {
            return Some(Err(forked.into()));
        }
        let (mut result, mut ends) = (None, [None, None]);
        self.state.with(|state| {
            let Some(active) = state.transfer(id) else {
                return;
            };
            result = active.result.take();
            // One that is told before its operations are quiet goes on without its owner.
            if result.is_some() && !active.is_live() {
                ends = [active.src.take(), active.dst.take()];
                state.free_place(id.slot);
            }
        });
        drop(ends);
        result
    }

    /// The transfer's handle is gone.
    pub(crate) fn detach(self: &Arc<Self>, id: TransferId) {
        if self.is_forked() {
            return;
        }
        let is_live = self.state.with(|state| {
            let active = state.transfer(id)?;
            if !active.is_live() {
                return None;
            }
            active.detached = true;
            let cancels = active.cancel_on_drop;
            state.care_for(id.slot, true);
            if cancels {
                state.cancel(id);
            }
            Some((cancels, state.needs_listener()))
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

    /// Asks the transfer to stop. Answers whether it had begun.
    pub(crate) fn cancel(self: &Arc<Self>, id: TransferId) -> bool {
        if self.is_forked() {
            return false;
        }
        let started = self.change(|state| state.cancel(id));
        self.turn_quickly();
        started
    }

    /// Payload bytes of a transfer that have arrived, and all of them.
    pub(crate) fn progress(&self, id: TransferId) -> Option<(u64, u64)> {
        // As many as the largest plan has under way.
        let mut flying = ArrayVec::<(Arc<dyn Backend>, Fence), 16>::new();
        let asked = self.inspect(|state| {
            let active = state.transfer(id)?;
            let all = active.src.as_ref()?.shape.payload_bytes();
            let flight = active.flight.as_ref()?;
            let arrived = flight.copied_bytes();
            let last = active.flying.iter();
            let last = last.filter(|(_, task)| flight.is_last_step(*task));
            let fences: ArrayVec<Fence, 16> = last.map(|(fence, _)| *fence).take(16).collect();
            for fence in fences {
                let known = state.registered(fence.backend());
                flying.extend(known.map(|known| (Arc::clone(&known.backend), fence)));
            }
            Some((arrived, all))
        });
        let (arrived, all) = asked.unwrap_or(None)?;
        let moved = flying
            .iter()
            .map(|(backend, fence)| guarded(|| backend.progress(*fence)).unwrap_or(0));
        let arrived = arrived.saturating_add(moved.sum()).min(all);
        // What an operation has moved is told no more once it has settled, and its end is taken in later.
        let shown = self.state.with(|state| {
            let active = state.transfer(id)?;
            active.shown_bytes = active.shown_bytes.max(arrived);
            Some(active.shown_bytes)
        });
        Some((shown.unwrap_or(arrived), all))
    }

    /// The fences that a transfer still waits for, once nothing of it is left to be submitted.
    pub(crate) fn fences(&self, id: TransferId) -> Option<Vec<Fence>> {
        self.inspect(|state| state.fences(id)).unwrap_or(None)
    }

    /// Events were set that these transfers waited for.
    pub(crate) fn events_set(self: &Arc<Self>, waiting: &[TransferId]) {
        if waiting.is_empty() {
            return;
        }
        for some in waiting.chunks(Completions::AT_ONCE) {
            self.change(|state| state.handle_events(some));
            self.turn_quickly();
        }
    }

    /// Whether a transfer is under way.
    #[cfg(browser)]
    pub(crate) fn is_live(&self) -> bool {
        self.state.with(|state| state.live > 0)
    }

    /// Tells the backends that outcomes are to come by themselves: one that was given up too, for operations on borrowed
    /// bytes are waited for all the same.
    pub(super) fn expect(&self) {
        self.ask_each(|known| known.unattended, |backend| backend.expect());
    }

    pub(crate) fn give_up_backend(&self, name: BackendId, fault: &Fault) {
        let is_new = self.change(|state| {
            let known = state.registered(name);
            let is_new = known.is_some_and(|known| known.lost.is_none());
            state.give_up_backend(name, fault);
            is_new
        });
        if is_new {
            // The caller may not turn the engine again, and its transfers are to be looked at.
            self.signal.notify();
        }
    }

    pub(crate) fn is_settled(&self, id: TransferId) -> bool {
        let is_awaited =
            |state: &mut State| state.transfer(id).is_some_and(|active| active.is_awaited());
        !self.inspect(is_awaited).unwrap_or(false)
    }

    /// Looks at the backends that must be looked at, if they have anything to do.
    fn pump(&self) {
        if self.attended.load(Ordering::Relaxed) > 0 {
            let is_busy = |known: &Registered| !known.unattended && known.lost.is_none();
            self.ask_each(is_busy, |backend| backend.pump());
        }
    }

    /// Asks every backend of a sort that has operations under way, without the lock.
    fn ask_each(&self, is_meant: impl Fn(&Registered) -> bool, ask: impl Fn(&dyn Backend)) {
        for index in 0.. {
            let known = self.state.with(|state| {
                let known = state.backends.get(index)?;
                let is_asked = known.pending > 0 && is_meant(known);
                Some((is_asked.then(|| Arc::clone(&known.backend)), known.id))
            });
            let Some((backend, name)) = known else { return };
            if let Some(Err(fault)) = backend.map(|backend| guarded(|| ask(&*backend))) {
                self.give_up_backend(name, &fault);
            }
        }
    }

    fn note_attended(&self, state: &State) {
        let (mut attended, mut unattended) = (0, 0);
        for known in &state.backends {
            match known.unattended {
                true => unattended += known.pending,
                false => attended += known.pending,
            }
        }
        self.attended.store(attended, Ordering::Relaxed);
        self.unattended.store(unattended, Ordering::Relaxed);
    }

    /// Does what must not be done under the lock.
    fn tidy(&self, after: Option<After>) {
        let Some(after) = after else { return };
        let After {
            mut wakers,
            mut buffers,
            verdicts,
            ended,
            metrics,
        } = after;
        // A user's own code runs here, and what it panics about is its own concern: neither orders
        // that are still to be carried out nor a borrowed copy may be cut short by it. The lists keep
        // their room for the next time.
        let releases = !buffers.is_empty();
        for buffer in buffers.drain(..) {
            let _ = guarded(|| drop(buffer));
        }
        ended.iter().for_each(|ended| ended.tell(metrics));
        self.keep(verdicts);
        if releases {
            self.state.with(|state| {
                state.releasing -= 1;
                state.tell_idlers(&mut wakers);
                if state.after.buffers.capacity() == 0 {
                    core::mem::swap(&mut state.after.buffers, &mut buffers);
                }
            });
        }
        if wakers.is_empty() {
            return;
        }
        for waker in wakers.drain(..) {
            let _ = guarded(|| waker.wake());
        }
        self.state.with(|state| {
            if state.after.wakers.capacity() == 0 {
                core::mem::swap(&mut state.after.wakers, &mut wakers);
            }
        });
    }

    /// Hands new verdicts to whoever keeps them.
    fn keep(&self, verdicts: Vec<Verdict>) {
        #[cfg(feature = "std")]
        if let Some(keeper) = &self.keeper {
            keeper.keep(verdicts);
            return;
        }
        drop(verdicts);
    }
}

/// What a step leaves to do once the lock is let go.
#[inline(always)]
fn take_after(state: &mut State) -> Option<After> {
    match state.after.is_empty() && state.idlers.is_empty() {
        true => None,
        false => take_some(state),
    }
}

#[cold]
fn take_some(state: &mut State) -> Option<After> {
    state.releasing += usize::from(!state.after.buffers.is_empty());
    if !state.idlers.is_empty() {
        let mut wakers = core::mem::take(&mut state.after.wakers);
        state.tell_idlers(&mut wakers);
        state.after.wakers = wakers;
    }
    let after = &mut state.after;
    (!after.is_empty()).then(|| core::mem::take(after))
}

/// Keeps the compiler honest: handles are shared between threads wherever there are any.
#[cfg(threads)]
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Shared>();
};
