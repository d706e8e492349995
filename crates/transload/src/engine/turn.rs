//! A turn of the engine: outcomes in, orders out, and what must not be done under the lock.

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

/// How things stand after a turn.
#[derive(Clone, Copy, Default)]
pub(super) struct Turn {
    /// The events that it has taken in, at least.
    pub(super) seen: u64,
    /// When something is to be done next.
    pub(super) next: Option<Instant>,
    /// A transfer needs a thread that listens.
    pub(super) needs_listener: bool,
}

impl Shared {
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
        let turn = self.turn_with(|| pace, |_, _, _| (), |_| pace == Pace::SERVING);
        if self.unattended.load(Ordering::Relaxed) > 0 {
            self.expect();
        }
        self.hand_over(&turn);
        turn.next
    }

    /// This thread turns the engine no longer: another one listens, if any transfer needs it.
    pub(super) fn hand_over(self: &Arc<Self>, turn: &Turn) {
        if self.advances && turn.needs_listener && !self.signal.is_heard() {
            self.appoint(turn.seen, turn.next);
        }
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
    ) -> Turn {
        let mut orders = Orders::new();
        let mut turn = Turn {
            seen: self.signal.seen(),
            ..Turn::default()
        };
        let mut after = None;
        let (mut is_late, mut is_idle, mut is_content) = (false, false, false);
        // Transfers of others need a thread that listens.
        let mut is_needed = false;
        // Where no thread does it for this one, this one does it all.
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
            // A page may be missing, a driver may take its time: another thread listens meanwhile.
            if is_needed && !orders.is_empty() {
                self.hand_over(&turn);
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
            self.appoint(u64::MAX, turn.next);
        }
        // A listener was told of each outcome, and of nothing that this thread did.
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

    /// Does what must not be done under the lock, with another thread listening where it may take any time.
    #[inline(never)]
    fn tidy_beside(self: &Arc<Self>, after: After, is_needed: bool, turn: &Turn) {
        if is_needed && after.calls_others(|waker| self.signal.is_parker(waker)) {
            self.hand_over(turn);
        }
        self.tidy(after);
    }

    /// Whether this thread runs inside a driver, which must not be entered again. Another thread does what is left then.
    #[inline]
    fn spares_drivers(&self) -> bool {
        cfg!(threads) && self.advances && transload_hal::in_callback()
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
        state.step(now, pace, self.spares_drivers(), &self.completions, orders);
        self.note_attended(state);
        state.next_deadline()
    }

    /// Has `f` touch the state, and then does what must not be done under the lock.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let (result, after) = self.state.with(|state| (f(state), take_after(state)));
        if let Some(after) = after {
            self.tidy(after);
        }
        result
    }

    /// Tells the backends that outcomes are to come by themselves: one that was given up too, for operations on borrowed
    /// bytes are waited for all the same.
    pub(super) fn expect(&self) {
        self.ask_each(|known| known.unattended, |backend| backend.expect());
    }

    /// Looks at the backends that must be looked at, if they have anything to do.
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
    fn tidy(&self, after: After) {
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
