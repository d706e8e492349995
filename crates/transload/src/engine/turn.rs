//! A turn of the engine: takes outcomes in, carries orders out, and does the work for which the lock must not be held.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use transload_core::Instant;
use transload_hal::Backend;

use super::kept::Verdict;
use super::order::{Deeds, Orders, execute};
use super::shared::Shared;
use super::state::{After, Pace, Registered, State, Whose};
use super::unwind::guarded;

/// The state of the engine after a turn.
#[derive(Clone, Copy, Default)]
pub(super) struct Turn {
    /// The number of events that the turn has taken in, at least.
    pub(super) seen: u64,
    /// The time at which the engine must be turned again.
    pub(super) next: Option<Instant>,
    /// A transfer needs a thread that listens.
    pub(super) needs_listener: bool,
}

impl Shared {
    /// Does the work that can be done now, and returns the time at which the engine must be turned again. Backends
    /// report the operations that are then under way without a call, since the caller may turn the engine only much
    /// later.
    pub(crate) fn turn(self: &Arc<Self>) -> Option<Instant> {
        self.turn_at(Pace::FULL)
    }

    /// The same, except work that takes long: a thread of the manager's own does that.
    pub(crate) fn turn_quickly(self: &Arc<Self>) -> Option<Instant> {
        self.turn_at(Pace::QUICK)
    }

    pub(super) fn turn_at(self: &Arc<Self>, pace: Pace) -> Option<Instant> {
        if self.is_forked() {
            return None;
        }
        // A thread that serves other transfers in passing stops after one round.
        let turn = self.turn_with(|| pace, |_, _, _| (), |_| pace == Pace::SERVING);
        if self.unattended.load(Ordering::Relaxed) > 0 {
            self.expect();
        }
        self.hand_over(&turn);
        turn.next
    }

    /// Called when this thread stops turning the engine: another one listens, if any transfer needs that.
    pub(super) fn hand_over(self: &Arc<Self>, turn: &Turn) {
        if self.advances && turn.needs_listener && !self.signal.is_heard() {
            self.appoint(turn.seen, turn.next);
        }
    }

    /// Takes in outcomes that have arrived, where transfers advance by themselves: a program that asks for the progress
    /// of a transfer need not wait for it.
    pub(crate) fn look(self: &Arc<Self>) {
        if self.advances {
            self.turn_at(Pace::SERVING);
        }
    }

    /// Lets `begin` change the state, turns the engine, and lets `look` see the state after each step. All three run in
    /// one section under the lock where that is enough, because such steps are the whole cost of a small copy. The
    /// closures leave results in captured variables, which are not moved.
    ///
    /// Ends when no work is left, or when `look` returns that this thread has the outcome that it waits for. The
    /// listener then does the work for other transfers.
    pub(super) fn turn_with(
        self: &Arc<Self>,
        pace: impl Fn() -> Pace,
        begin: impl FnOnce(&mut State, Instant, &mut Orders),
        mut look: impl FnMut(&mut State) -> bool,
    ) -> Turn {
        let mut orders = Orders::new();
        let mut turn = Turn {
            seen: self.signal.seen(),
            ..Turn::default()
        };
        let mut after = None;
        let (mut is_late, mut is_idle, mut is_content) = (false, false, false);
        // Other transfers need a thread that listens.
        let mut is_needed = false;
        // Where the manager has no thread of its own, this thread does all work.
        let pace = || match self.advances {
            true => pace(),
            false => Pace::FULL,
        };
        self.pump();
        let now = self.clock.now();
        self.state.with(|state| {
            begin(state, now, &mut orders);
            turn.next = self.step(state, now, pace(), &mut orders);
            let has_own = look(state);
            turn.needs_listener = state.needs_listener();
            is_content = has_own && turn.needs_listener;
            is_needed = turn.needs_listener && state.others_need_listener(pace().copies);
            after = take_after(state);
            (is_late, is_idle) = (!state.later.is_empty(), state.care == 0);
        });
        if let Some(after) = after.take() {
            self.tidy_beside(after, is_needed, &turn);
        }
        let mut deeds = Deeds::new();
        let mut is_news = self.completions.has_any();
        let mut is_left = false;
        while !orders.is_empty() || is_news {
            is_content = is_content && self.can_leave();
            if is_content && orders.is_empty() {
                break;
            }
            // A page fault or a driver may take long: another thread listens meanwhile.
            if is_needed && !orders.is_empty() {
                self.hand_over(&turn);
            }
            execute(&orders, &mut deeds);
            // Drops this thread's views of the buffers before any thread can learn that a transfer is over.
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
                    turn.next = self.step(state, now, pace(), &mut orders);
                    is_content = look(state);
                }
                turn.needs_listener = state.needs_listener();
                is_content &= turn.needs_listener;
                is_needed = turn.needs_listener && state.others_need_listener(pace().copies);
                after = take_after(state);
                (is_late, is_idle) = (!state.later.is_empty(), state.care == 0);
            });
            if let Some(after) = after.take() {
                self.tidy_beside(after, is_needed, &turn);
            }
            let is_attended = self.attended.load(Ordering::Relaxed) > 0;
            // The look above came before operations that were just submitted to a backend that must be called; and a
            // step takes in a limited number of outcomes.
            is_news = had_deeds && is_attended || self.completions.has_any();
            let is_heard = self.signal.is_heard();
            // The rest of a transfer is submitted after the outcomes of its first operations, whichever thread takes
            // them in. A thread that listens called `Backend::expect` before these operations were submitted.
            if had_deeds && (is_awaited || is_heard) {
                self.expect();
            }
            if had_deeds && is_attended && is_heard {
                self.signal.notify();
            }
        }
        if is_left || is_content && is_news {
            self.appoint(u64::MAX, turn.next);
        }
        // A listener was notified of each outcome, but not of what this thread did.
        if is_left {
            self.signal.notify();
        }
        if is_late && (pace().slow != Whose::ALL || self.spares_drivers()) {
            self.have_toiled();
        }
        if is_idle && self.signal.is_heard() {
            self.dismiss(turn.next);
        }
        turn
    }

    /// Does the work for which the lock must not be held. Another thread listens meanwhile if the work may take any
    /// time.
    #[inline(never)]
    fn tidy_beside(self: &Arc<Self>, after: After, is_needed: bool, turn: &Turn) {
        if is_needed && after.calls_others(|waker| self.signal.is_parker(waker)) {
            self.hand_over(turn);
        }
        self.tidy(after);
    }

    /// Returns whether this thread runs inside a driver, which must not be entered again. Another thread does the rest
    /// of the work then.
    #[inline]
    fn spares_drivers(&self) -> bool {
        cfg!(threads) && self.advances && transload_hal::in_callback()
    }

    /// Returns whether another thread turns the engine if this one does not.
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
        state.step(now, pace, self.spares_drivers(), &self.completions, orders);
        self.note_attended(state);
        state.next_deadline()
    }

    /// Lets `f` change the state, and then does the work for which the lock must not be held.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let (result, after) = self.state.with(|state| (f(state), take_after(state)));
        if let Some(after) = after {
            self.tidy(after);
        }
        result
    }

    /// Calls `Backend::expect` of each backend that completes unattended. This includes a backend that was given up,
    /// because calls with borrowed bytes still wait for its operations.
    pub(super) fn expect(&self) {
        self.ask_each(|known| known.unattended, |backend| backend.expect());
    }

    /// Calls `Backend::pump` of the backends that need it, if they have operations under way.
    #[inline]
    fn pump(&self) {
        if self.attended.load(Ordering::Relaxed) > 0 {
            self.pump_each();
        }
    }

    #[cold]
    fn pump_each(&self) {
        let is_busy = |known: &Registered| !known.unattended && known.lost.is_none();
        self.ask_each(is_busy, |backend| backend.pump());
    }

    /// Calls `ask` for every backend of a kind that has operations under way, without the lock.
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

    /// Does the work for which the lock must not be held.
    fn tidy(&self, after: After) {
        let After {
            mut wakers,
            mut buffers,
            verdicts,
            ended,
            metrics,
        } = after;
        // The user's code runs here. Its panics are caught, so that they cut short neither orders that are still to be
        // carried out nor a borrowed copy. The lists keep their allocation for the next time.
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

    /// Passes new verdicts to the keeper of verdicts.
    fn keep(&self, verdicts: Vec<Verdict>) {
        #[cfg(feature = "std")]
        if let Some(keeper) = &self.keeper {
            keeper.keep(verdicts);
            return;
        }
        drop(verdicts);
    }
}

/// Returns the work that a step leaves for the time after the lock is released.
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
