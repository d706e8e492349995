//! The engine behind every handle: who turns it, and how threads wait for it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use core::task::Waker;
use core::time::Duration;

use arrayvec::ArrayVec;
use transload_core::{Footprint, Instant};
use transload_hal::{Backend, BackendId, Clock, Fault, Fence, Waited};

use super::active::{Operand, Stage, TransferId};
use super::completions::Completions;
use super::kept::Verdict;
use super::order::{Deeds, Orders, execute};
use super::signal::Signal;
use super::state::{After, Done, State};
use super::sync::{AtomicUsize, Lock};
use super::unwind::guarded;
use super::wait::{Wait, any_attended, wait_for};
use crate::{Report, Transfer, TransferError};

/// What every handle of a manager points to.
pub(crate) struct Shared {
    /// Tells managers apart, the ones that are gone too.
    pub(crate) serial: usize,
    pub(crate) state: Lock<State>,
    pub(crate) completions: Arc<Completions>,
    pub(crate) signal: Arc<Signal>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Backends that must be looked at have so many operations under way.
    attended: AtomicUsize,
    /// Threads that are parked at the signal, or about to.
    parked: AtomicUsize,
    /// Backends whose outcomes come by themselves have so many operations under way.
    unattended: AtomicUsize,
    /// Threads that sleep until an outcome comes, having said so to the backends.
    sleeping: AtomicUsize,
    #[cfg(threads)]
    pub(crate) driver: crate::std::Driver,
    #[cfg(browser)]
    pub(crate) microtask: crate::std::Microtask,
    /// Whoever keeps what proofs find out, if anybody does.
    #[cfg(feature = "std")]
    pub(crate) keeper: Option<crate::std::Keeper>,
}

/// The longest that a thread blocks in a backend before it looks for itself again. As good as for
/// ever, so that a backend may put the thread to any work; and an end, in case a driver forgets it.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);

impl Shared {
    pub(crate) fn new(state: State, signal: Arc<Signal>, clock: Arc<dyn Clock>) -> Shared {
        static SERIALS: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);
        Shared {
            serial: SERIALS.fetch_add(1, Ordering::Relaxed),
            state: Lock::new(state),
            completions: Arc::new(Completions::new(Arc::clone(&signal))),
            #[cfg(threads)]
            driver: crate::std::Driver::new(Arc::clone(&signal)),
            #[cfg(browser)]
            microtask: crate::std::Microtask::default(),
            #[cfg(feature = "std")]
            keeper: None,
            signal,
            clock,
            attended: AtomicUsize::new(0),
            parked: AtomicUsize::new(0),
            unattended: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
        }
    }

    #[cfg(feature = "std")]
    pub(crate) fn with_keeper(mut self, keeper: Option<crate::std::Keeper>) -> Shared {
        self.keeper = keeper;
        self
    }

    /// Does what can be done now, and answers when something is to be done next. What is under way then becomes known
    /// by itself, for whoever turns without a wait to follow looks again some time.
    pub(crate) fn turn(&self) -> Option<Instant> {
        let next = self.turn_with(|_, _| (), |_| ());
        if self.unattended.load(Ordering::Relaxed) > 0 {
            self.expect();
        }
        next
    }

    /// Has `begin` touch the state, turns the engine, and has `look` see the state after each step:
    /// all three in one go under the lock where that will do, for a small copy's whole cost is in
    /// such steps. What they find they leave in what they capture, which is moved nowhere.
    fn turn_with(
        &self,
        begin: impl FnOnce(&mut State, Instant),
        mut look: impl FnMut(&mut State),
    ) -> Option<Instant> {
        let mut orders = Orders::new();
        let (mut after, mut next) = (Left::default(), None);
        self.pump();
        let now = self.clock.now();
        self.state.with(|state| {
            begin(state, now);
            next = self.step(state, now, &mut orders);
            look(state);
            after = take_after(state);
        });
        self.tidy(core::mem::take(&mut after));
        let mut deeds = Deeds::new();
        let mut is_news = false;
        while !orders.is_empty() || is_news {
            execute(&orders, &mut deeds);
            // Before anybody can learn that a transfer is over: no view of its buffers is left then.
            orders.clear();
            let had_deeds = !deeds.is_empty();
            let mut is_awaited = false;
            self.pump();
            let now = self.clock.now();
            self.state.with(|state| {
                is_awaited = deeds.iter().any(|deed| !state.is_out(deed.id));
                state.record(&mut deeds);
                next = self.step(state, now, &mut orders);
                look(state);
                after = take_after(state);
            });
            self.tidy(core::mem::take(&mut after));
            // What was just submitted to a backend that must be looked at was not there for the
            // look above.
            is_news = had_deeds && self.attended.load(Ordering::Relaxed) > 0;
            // The rest of a transfer follows upon the outcomes of what there is of it, whoever learns of them; and
            // who sleeps has spoken to the backends before these operations were there.
            if had_deeds && (is_awaited || self.sleeping.load(Ordering::SeqCst) > 0) {
                self.expect();
            }
        }
        next
    }

    fn step(&self, state: &mut State, now: Instant, orders: &mut Orders) -> Option<Instant> {
        state.step(now, &self.completions, orders);
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
        let mut refused = None;
        let mut done = Done::default();
        let id = Cell::new(None);
        let begin = |state: &mut State, now| match accept(state, now) {
            Ok(accepted) => id.set(Some(accepted)),
            Err(error) => refused = Some(error),
        };
        let look = |state: &mut State| {
            if let Some(id) = id.get() {
                state.take_done(id, &mut done);
            }
        };
        self.turn_with(begin, look);
        if done.result.is_some() {
            return Transfer::settled(done.result);
        }
        match (id.get(), refused) {
            (_, Some(error)) => Transfer::settled(Some(Err(error))),
            (Some(id), None) => Transfer::submitted(Arc::clone(self), id),
            (None, None) => unreachable!("it was accepted or refused"),
        }
    }

    /// Enters a guard on a region.
    pub(crate) fn guard(&self, end: Operand, footprint: Footprint) -> TransferId {
        self.state.with(|state| {
            let slot = state.take_place();
            let active = &mut state.transfers[slot as usize];
            active.stage = Stage::Waiting;
            active.src = Some(end);
            state.enter(slot, &[footprint], &[]);
            state.id(slot)
        })
    }

    /// Leaves a guard.
    pub(crate) fn unguard(&self, id: TransferId) {
        let after = self.state.with(|state| {
            let end = state.transfer(id).and_then(|active| active.src.take());
            if end.is_some() {
                state.leave(id.slot);
                state.free_place(id.slot);
            }
            state.after.buffers.extend(end.map(|end| end.buffer));
            state.news = true;
            take_after(state)
        });
        self.tidy(after);
        self.turn();
    }

    /// Turns the engine until the transfer or guard is no longer under way, or `until` has passed.
    /// False when it still is.
    pub(crate) fn block_on(&self, id: TransferId, until: Option<Instant>) -> bool {
        loop {
            if self.is_settled(id) {
                return true;
            }
            // Counted before the events are, so that whoever notifies after this sees a waiter.
            self.parked.fetch_add(1, Ordering::SeqCst);
            let seen = self.signal.seen();
            let next = self.turn_with(|_, _| (), |_| ());
            let wait = self.state.with(|state| wait_for(state, id));
            let limit = self.limit(until, next);
            match wait {
                Wait::Over => {}
                _ if limit == Some(Duration::ZERO) => {}
                Wait::Fences(backend, name, fences) => {
                    self.wait_in(&*backend, name, &fences, limit.unwrap_or(LONGEST));
                }
                Wait::Park => self.rest(seen, limit),
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
            if until.is_some_and(|until| self.clock.now() >= until) {
                self.turn();
                return self.is_settled(id);
            }
        }
    }

    /// Blocks in a backend.
    pub(crate) fn wait_in(
        &self,
        backend: &dyn Backend,
        name: BackendId,
        fences: &[Fence],
        limit: Duration,
    ) {
        // Settled or not, whoever called looks at what is in the queue.
        let waited: Result<Waited, Fault> = guarded(|| match fences {
            [fence] => backend.wait(*fence, limit.min(LONGEST)),
            fences => backend.wait_any(fences, limit.min(LONGEST)),
        });
        if let Err(fault) = waited {
            self.give_up_backend(name, &fault);
        }
    }

    /// The result of a transfer that is over, which frees its place.
    pub(crate) fn take_result(&self, id: TransferId) -> Option<Result<Report, TransferError>> {
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

    /// Nobody holds the transfer's handle any more.
    pub(crate) fn detach(self: &Arc<Self>, id: TransferId) {
        let live = self.state.with(|state| {
            let Some(active) = state.transfer(id) else {
                return false;
            };
            if active.is_live() {
                active.detached = true;
                return true;
            }
            false
        });
        if live {
            self.ensure_driver();
        } else {
            drop(self.take_result(id));
        }
    }

    /// Asks the transfer to stop. Answers whether it had begun.
    pub(crate) fn cancel(&self, id: TransferId) -> bool {
        let (started, after) = self
            .state
            .with(|state| (state.cancel(id), take_after(state)));
        self.tidy(after);
        self.turn();
        started
    }

    /// Has `waker` called when the transfer is over. False when it is already.
    pub(crate) fn watch(&self, id: TransferId, waker: &Waker) -> bool {
        // Cloned before the lock is taken and dropped after it was let go: both are the executor's
        // code, and the last waker of a task may drop transfers with it.
        let mut waker = Some(waker.clone());
        self.state.with(|state| match state.transfer(id) {
            Some(active) if active.is_awaited() => {
                core::mem::swap(&mut active.waker, &mut waker);
                true
            }
            _ => false,
        })
    }

    /// Payload bytes of a transfer that have arrived, and all of them.
    pub(crate) fn progress(&self, id: TransferId) -> Option<(u64, u64)> {
        self.state.with(|state| {
            let active = state.transfer(id)?;
            let all = active.src.as_ref()?.shape.payload_bytes();
            let flight = active.flight.as_ref()?;
            Some((flight.copied_bytes(), all))
        })
    }

    /// Events were set that these transfers waited for.
    pub(crate) fn events_set(self: &Arc<Self>, waiting: &[TransferId]) {
        if waiting.is_empty() {
            return;
        }
        let after = self.state.with(|state| {
            state.handle_events(waiting);
            take_after(state)
        });
        self.tidy(after);
        self.turn();
    }

    /// Work that needs somebody to turn the engine, for the thread that does.
    #[cfg(threads)]
    pub(crate) fn drive(&self) -> bool {
        self.turn_and_rest(None, |state| state.live > 0)
    }

    /// Turns the engine, and answers whether the transfer or guard is no longer under way: nobody can wait longer
    /// where the page's only thread must return to the browser.
    #[cfg(browser)]
    pub(crate) fn settles_now(&self, id: TransferId) -> bool {
        self.turn();
        self.is_settled(id)
    }

    /// Whether a transfer is under way.
    #[cfg(browser)]
    pub(crate) fn is_live(&self) -> bool {
        self.state.with(|state| state.live > 0)
    }

    /// Blocks until no transfer is under way and none's buffers are still held, or `until` has passed:
    /// false when one still is.
    pub(crate) fn block_until_idle(&self, until: Option<Instant>) -> bool {
        while self.turn_and_rest(until, State::is_moving) {
            // The browser goes on only when the page's own code has returned to it.
            if cfg!(browser) || until.is_some_and(|until| self.clock.now() >= until) {
                self.turn();
                return !self.state.with(|state| state.is_moving());
            }
        }
        true
    }

    /// Turns the engine and, if `is_busy` says so then, blocks until something happens or `until` has
    /// passed. Answers what `is_busy` said.
    fn turn_and_rest(&self, until: Option<Instant>, is_busy: impl FnOnce(&State) -> bool) -> bool {
        // Counted before the events are, so that whoever notifies after this sees a waiter.
        self.parked.fetch_add(1, Ordering::SeqCst);
        let seen = self.signal.seen();
        let next = self.turn();
        let (busy, wait) = self
            .state
            .with(|state| (is_busy(state), any_attended(state)));
        let limit = self.limit(until, next);
        match wait {
            _ if !busy || limit == Some(Duration::ZERO) => {}
            Some(Wait::Fences(backend, name, fences)) => {
                self.wait_in(&*backend, name, &fences, limit.unwrap_or(LONGEST));
            }
            _ => self.rest(seen, limit),
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
        busy
    }

    /// Sleeps until something happens after event `seen`, or the limit passes.
    fn rest(&self, seen: u64, limit: Option<Duration>) {
        // Counted first: whoever submits after the backends were spoken to finds that somebody sleeps.
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        self.expect();
        self.signal.park(seen, limit);
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Tells the backends that outcomes are to come by themselves: one that was given up too, for operations on borrowed
    /// bytes are waited for all the same.
    fn expect(&self) {
        for index in 0.. {
            let known = self.state.with(|state| {
                let known = state.backends.get(index)?;
                let is_asked = known.unattended && known.pending > 0;
                Some((is_asked.then(|| Arc::clone(&known.backend)), known.id))
            });
            let Some((backend, name)) = known else { return };
            if let Some(Err(fault)) = backend.map(|backend| guarded(|| backend.expect())) {
                self.give_up_backend(name, &fault);
            }
        }
    }

    pub(crate) fn ensure_driver(self: &Arc<Self>) {
        #[cfg(threads)]
        self.driver.ensure(self);
        #[cfg(browser)]
        self.microtask.ensure(self);
    }

    /// Where no thread turns the engine, a task is woken by the next completion; and at once where
    /// completions are seen only by who looks.
    pub(crate) fn ensure_wake(&self, waker: &Waker) {
        #[cfg(not(threads))]
        if self.attended.load(Ordering::Relaxed) > 0 {
            waker.wake_by_ref();
        } else {
            self.signal.watch(waker);
        }
        #[cfg(threads)]
        let _ = waker;
    }

    pub(crate) fn give_up_backend(&self, name: BackendId, fault: &Fault) {
        let after = self.state.with(|state| {
            state.give_up_backend(name, fault);
            take_after(state)
        });
        self.tidy(after);
    }

    pub(crate) fn is_settled(&self, id: TransferId) -> bool {
        self.state
            .with(|state| state.transfer(id).is_none_or(|active| !active.is_awaited()))
    }

    /// Looks at the backends that must be looked at, if they have anything to do.
    fn pump(&self) {
        if self.attended.load(Ordering::Relaxed) == 0 {
            return;
        }
        let attended: ArrayVec<(Arc<dyn Backend>, BackendId), 8> = self.state.with(|state| {
            let known = state.backends.iter();
            let busy = known
                .filter(|known| !known.unattended && known.pending > 0 && known.lost.is_none());
            busy.map(|known| (Arc::clone(&known.backend), known.id))
                .take(8)
                .collect()
        });
        for (backend, name) in attended {
            if let Err(fault) = guarded(|| backend.pump()) {
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
    fn tidy(&self, left: Left) {
        match left.after {
            None => self.announce(left.news),
            Some(after) => self.carry_out(after, left.news),
        }
    }

    fn announce(&self, news: bool) {
        if news && self.parked.load(Ordering::SeqCst) > 0 {
            self.signal.notify();
        }
    }

    fn carry_out(&self, after: After, news: bool) {
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
                if state.after.buffers.capacity() == 0 {
                    core::mem::swap(&mut state.after.buffers, &mut buffers);
                }
            });
        }
        self.announce(news || releases);
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

    fn limit(&self, until: Option<Instant>, next: Option<Instant>) -> Option<Duration> {
        let at = match (until, next) {
            (Some(until), Some(next)) => until.min(next),
            (one, other) => one.or(other)?,
        };
        Some(at.since(self.clock.now()))
    }
}

/// What a step leaves to do once the lock is let go.
#[derive(Default)]
struct Left {
    after: Option<After>,
    /// Whether threads that are parked may have waited for it.
    news: bool,
}

fn take_after(state: &mut State) -> Left {
    let after = &mut state.after;
    state.releasing += usize::from(!after.buffers.is_empty());
    Left {
        after: (!after.is_empty()).then(|| core::mem::take(after)),
        news: core::mem::take(&mut state.news),
    }
}

/// Keeps the compiler honest: handles are shared between threads wherever there are any.
#[cfg(threads)]
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Shared>();
};
