//! A turn of the engine: a thread takes outcomes in, executes commands, and does the work for which the lock must not
//! be held.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use transload_core::Instant;
use transload_hal::Backend;

use super::command::{Answers, Commands};
use super::completions::Completions;
use super::event::EventState;
use super::execute::execute;
use super::in_flight::Registered;
use super::shared::Shared;
use super::state::{After, Done, State};
use super::trace::What;
use super::types::{Pace, TransferId, Which};
use super::unwind::guarded;
use super::verdict::Verdict;
use crate::error::TransferError;
use crate::report::Report;

/// Why a thread turns the engine.
pub(super) trait Purpose {
    /// Returns the work that the thread does itself.
    fn pace(&self) -> Pace;

    /// Changes the state before the first step.
    fn begin(&mut self, _state: &mut State, _now: Instant, _commands: &mut Commands) {}

    /// Takes out of the state what the thread came for, after each step. Returns whether the thread has it: it then
    /// leaves the rest of the work to the thread that listens.
    fn take_own(&mut self, _state: &mut State) -> bool {
        false
    }

    /// Returns how many commands the thread executes before it leaves the rest to another thread: a call that does not
    /// wait must return, however long a chain of transfers is.
    fn most(&self) -> usize {
        usize::MAX
    }
}

/// As many commands as a call executes that does not wait: the copies of two parts of a batch. With copies of 64 bytes that
/// takes some 0.3 ms (EPYC, 2 cores).
pub(super) const QUICK_COMMANDS: usize = 2 * Completions::AT_ONCE;

/// After so many commands a turn lets threads go first that sleep until they have the lock.
const GIVES_WAY_AFTER: usize = Completions::AT_ONCE / 4;

/// The purpose of a thread that works for all transfers.
pub(super) struct ForAll(pub(super) Pace);

impl Purpose for ForAll {
    fn pace(&self) -> Pace {
        self.0
    }

    fn most(&self) -> usize {
        match self.0 {
            Pace::QUICK => QUICK_COMMANDS,
            _ => usize::MAX,
        }
    }
}

/// The purpose of a thread that makes one round for all transfers in passing.
struct InPassing;

impl Purpose for InPassing {
    fn pace(&self) -> Pace {
        Pace::SERVING
    }

    fn take_own(&mut self, _state: &mut State) -> bool {
        true
    }
}

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
        self.turn_once(&mut ForAll(Pace::FULL))
    }

    /// The same, except work that takes long: a thread of the manager's own does that.
    pub(crate) fn turn_quickly(self: &Arc<Self>) -> Option<Instant> {
        self.turn_once(&mut ForAll(Pace::QUICK))
    }

    /// Makes one round for other transfers in passing.
    pub(super) fn turn_in_passing(self: &Arc<Self>) {
        self.turn_once(&mut InPassing);
    }

    fn turn_once(self: &Arc<Self>, purpose: &mut impl Purpose) -> Option<Instant> {
        if self.is_forked() {
            return None;
        }
        let turn = self.turn_for(purpose);
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
    pub(crate) fn take_outcomes(self: &Arc<Self>) {
        if self.advances {
            self.turn_in_passing();
        }
    }

    /// The loop of the engine. Each round has three parts:
    ///
    /// 1. With the lock: record the answers to the last commands, let the state take a step, which fills the list of
    ///    commands, and let the purpose look at the state.
    /// 2. Without the lock: tidy, which calls wakers and drops buffers.
    /// 3. Without the lock: execute the commands, which calls backends.
    ///
    /// Begin, step and look run in one section under the lock, because such sections are the whole cost of a small copy.
    ///
    /// The loop ends when no work is left, when the purpose has the outcome that it waits for, or when the thread has done
    /// as much as its purpose allows. The listener then does the work for other transfers.
    pub(super) fn turn_for<P: Purpose>(self: &Arc<Self>, purpose: &mut P) -> Turn {
        let (mut commands, mut answers) = (Commands::new(), Answers::new());
        let mut turn = Turn {
            seen: self.signal.seen(),
            ..Turn::default()
        };
        let recorder = self.recorder.as_deref();
        let (mut begun, mut has_called) = (None, false);
        let mut is_first = true;
        // This thread has what it came for, and leaves the rest to another one: its next round only records answers.
        let mut is_leaving = false;
        // The commands that this thread has executed, and how many they are when it gives way. A step that looked at as many
        // transfers as it may counts as as many commands.
        let (mut done, mut gives_way) = (0, GIVES_WAY_AFTER);
        loop {
            let had_answers = !answers.is_empty();
            self.pump();
            let now = self.clock.now();
            let begun = *begun.get_or_insert(now);
            let mut round = Round {
                is_last: is_leaving,
                ..Round::default()
            };
            self.state.with(|state| {
                if had_answers {
                    round.is_partial = answers.iter().any(|answer| state.is_partial(answer));
                    state.record(&mut answers);
                }
                if is_first {
                    purpose.begin(state, now, &mut commands);
                }
                if round.is_last {
                    self.note_attended(state);
                } else {
                    turn.next = self.step(state, now, self.pace(purpose), &mut commands);
                    is_leaving = purpose.take_own(state) || done >= purpose.most();
                    round.has_more = state.has_more();
                }
                let (table, own) = (&state.table, self.pace(purpose).copies);
                turn.needs_listener = table.needs_listener();
                // Where transfers need no listener, nothing is left to leave.
                is_leaving &= turn.needs_listener;
                round.is_needed = turn.needs_listener && table.others_need_listener(own);
                (round.is_late, round.is_idle) = (!state.later.is_empty(), table.is_idle());
                round.after = state.take_after();
            });
            is_first = false;
            if let Some(after) = round.after.take() {
                self.tidy_beside(after, round.is_needed, &turn);
            }
            let mut is_news = round.has_more || self.completions.has_any();
            if had_answers {
                is_news |= self.tell_backends(round.is_partial);
            }
            is_leaving = is_leaving && (commands.is_empty() && !is_news || self.ensure_other());
            if commands.is_empty() && (is_leaving || !is_news) {
                round.leaves_news = is_leaving && is_news;
                self.end_turn(purpose, &round, &turn);
                if let (Some(recorder), true) = (recorder, has_called) {
                    recorder.add(begun, What::Turn);
                }
                return turn;
            }
            // A page fault or a driver may take long: another thread listens meanwhile.
            if round.is_needed && !commands.is_empty() {
                self.hand_over(&turn);
            }
            has_called = true;
            execute(&commands, &mut answers, recorder);
            done += match round.has_more && !commands.is_full() {
                true => Completions::AT_ONCE,
                false => commands.len().max(1),
            };
            // Drops this thread's views of the buffers before any thread can learn that a transfer is over.
            commands.clear();
            if done >= gives_way {
                self.state.give_way();
                gives_way = done + GIVES_WAY_AFTER;
            }
        }
    }

    /// Asks backends to tell the outcomes of operations that were just submitted, where the thread that listens may not.
    /// Returns whether a backend must be looked at again: the last look came before operations that were submitted to a
    /// backend that must be called.
    fn tell_backends(&self, is_partial: bool) -> bool {
        let is_attended = self.attended.load(Ordering::Relaxed) > 0;
        let is_heard = self.signal.is_heard();
        // The rest of a transfer is submitted after the outcomes of its first operations, whichever thread takes
        // them in. A thread that listens called `Backend::expect` before these operations were submitted.
        if is_partial || is_heard {
            self.expect();
        }
        if is_attended && is_heard {
            self.signal.notify();
        }
        is_attended
    }

    /// Leaves what this thread has not done to others.
    fn end_turn<P: Purpose>(self: &Arc<Self>, purpose: &P, round: &Round, turn: &Turn) {
        if round.is_last || round.leaves_news {
            self.appoint(u64::MAX, turn.next);
        }
        // A listener was notified of each outcome, but not of what this thread did.
        if round.is_last || round.has_more {
            self.signal.notify();
        }
        if round.is_late && (self.pace(purpose).slow != Which::ALL || self.spares_drivers()) {
            self.hand_over_slow();
        }
        if round.is_idle && self.signal.is_heard() {
            self.dismiss(turn.next);
        }
    }

    /// Where the manager has no thread of its own, this thread does all work.
    #[inline]
    fn pace<P: Purpose>(&self, purpose: &P) -> Pace {
        match self.advances {
            true => purpose.pace(),
            false => Pace::FULL,
        }
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

    /// Ensures that another thread turns the engine if this one does not. Returns false where none can.
    fn ensure_other(&self) -> bool {
        #[cfg(threads)]
        let is_there = self.advances && self.driver.ensure_listener();
        #[cfg(not(threads))]
        let is_there = false;
        is_there
    }

    fn step(
        &self,
        state: &mut State,
        now: Instant,
        pace: Pace,
        commands: &mut Commands,
    ) -> Option<Instant> {
        let spares_drivers = self.spares_drivers();
        state.step(now, pace, spares_drivers, &self.completions, commands);
        self.note_attended(state);
        state.next_deadline()
    }

    /// Lets `f` change the state, and then does the work for which the lock must not be held.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let (result, after) = self.state.with(|state| (f(state), state.take_after()));
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
                let known = state.in_flight.backends().get(index)?;
                let is_asked = known.pending() > 0 && is_meant(known);
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
        for known in state.in_flight.backends() {
            match known.unattended {
                true => unattended += known.pending(),
                false => attended += known.pending(),
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
        // The user's code runs here. Its panics are caught, so that they cut short neither commands that are still to be
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

    /// Passes new verdicts to the thread that keeps them.
    fn keep(&self, verdicts: Vec<Verdict>) {
        #[cfg(feature = "std")]
        if let Some(writer) = &self.writer {
            writer.keep(verdicts);
            return;
        }
        drop(verdicts);
    }
}

/// What the section under the lock leaves for the rest of a round.
#[derive(Default)]
struct Round {
    after: Option<After>,
    /// More of a transfer is left to be submitted than was just recorded.
    is_partial: bool,
    /// Transfers other than this thread's own need a thread that listens.
    is_needed: bool,
    /// Commands that take long wait for a thread.
    is_late: bool,
    /// The thread left after the round before: it records answers and takes no step.
    is_last: bool,
    /// The step did as much as it may, and left more behind.
    has_more: bool,
    /// Outcomes arrived that the thread leaves to another one.
    leaves_news: bool,
    /// No transfer needs a thread that listens.
    is_idle: bool,
}

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

    fn take_own(&mut self, state: &mut State) -> bool {
        if let Some(Ok(id)) = self.started {
            state.take_done(id, &mut self.done);
            if self.done.result.is_none() {
                state.leave_to_hardware(id);
            }
        }
        self.done.result.is_some()
    }

    fn most(&self) -> usize {
        QUICK_COMMANDS
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
        own.for_each(|event| self.event_set(event.set()));
        Submitted::Settled(Some(Err(error)))
    }
}
