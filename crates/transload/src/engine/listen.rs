//! Waits of threads and tasks for the engine, and the choice of the thread that listens meanwhile.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::task::Waker;
use core::time::Duration;

use arrayvec::ArrayVec;
use transload_core::Instant;
use transload_hal::{Backend, BackendId, Fault, Fence, Waited};

use super::active::Active;
use super::command::Commands;
use super::shared::Shared;
#[cfg(threads)]
use super::signal::{Charge, Driven};
use super::signal::{Listening, OwnParker, Parker};
use super::state::State;
use super::trace::{Recorder, What};
#[cfg(threads)]
use super::turn::ForAll;
use super::turn::{Purpose, QUICK_COMMANDS};
use super::types::{Pace, TransferId, Which};
use super::unwind::guarded;

/// The longest time that a thread blocks in a backend before it looks at the engine again: long enough for the backend
/// to put the thread to any work, and an end in case a driver never reports.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);

/// The longest time that a listener blocks in a backend that tells outcomes only to threads that call it. A copy
/// elsewhere that starts and ends while such a thread blocks is reported two of these later; the engine's aim is 5 ms.
const SLICE: Duration = Duration::from_millis(1);

/// The purpose of a thread that waits for a transfer or guard, until then at most.
struct Await(TransferId, Option<Instant>);

impl Purpose for Await {
    fn pace(&self) -> Pace {
        Pace {
            copies: Which::one(self.0),
            slow: Which::one(self.0),
        }
    }

    fn begin(&mut self, state: &mut State, _now: Instant, _commands: &mut Commands) {
        state.end_wait(self.0);
    }

    fn take_own(&mut self, state: &mut State) -> bool {
        !state.is_awaited(self.0) || self.1.is_some_and(|until| state.now >= until)
    }
}

/// The purpose of a thread that waits until nothing is under way, until then at most. Once that is over, it does no more
/// than a call that does not wait.
struct Idle {
    until: Option<Instant>,
    is_late: bool,
}

impl Purpose for Idle {
    fn pace(&self) -> Pace {
        Pace::SERVING
    }

    fn take_own(&mut self, state: &mut State) -> bool {
        self.is_late = self.until.is_some_and(|until| state.now >= until);
        false
    }

    fn most(&self) -> usize {
        match self.is_late {
            true => QUICK_COMMANDS,
            false => usize::MAX,
        }
    }
}

/// The purpose of the thread for commands that take long: it executes one of them.
#[cfg(threads)]
#[derive(Default)]
struct Slow {
    has_command: bool,
}

#[cfg(threads)]
impl Purpose for Slow {
    fn pace(&self) -> Pace {
        Pace::SERVING
    }

    fn begin(&mut self, state: &mut State, _now: Instant, commands: &mut Commands) {
        let command = state.later.pop();
        self.has_command = command.is_some();
        commands.extend(command);
    }
}

impl Shared {
    /// Turns the engine until the transfer or guard is no longer under way, or `until` has passed. Returns false in the
    /// latter case. Returns true in a child of `fork`, where the result is an error.
    ///
    /// The thread blocks in the backend of its own operations where it can; another thread then listens for the other
    /// transfers, if any of them needs that. Otherwise the thread parks, and listens itself if no other thread does.
    pub(crate) fn block_on(self: &Arc<Self>, id: TransferId, until: Option<Instant>) -> bool {
        if self.is_forked() {
            return true;
        }
        let parker = Parker::current();
        // The waker of a task that polled the transfer before.
        let mut theirs = None;
        let is_over = loop {
            let seen = self.signal.seen();
            let next = self.turn_for(&mut Await(id, until)).next;
            let mut waker = Some(parker.waker());
            let (wait, needs_listener) = self.state.with(|state| {
                let wait = state.wait_for(id, &mut waker);
                (wait, state.table.needs_listener())
            });
            theirs = theirs.or(waker.filter(|waker| !self.signal.is_parker(waker)));
            match wait {
                Wait::Over => {
                    self.leave_listening(needs_listener, seen, next);
                    break true;
                }
                _ if until.is_some_and(|until| self.clock.now() >= until) => {
                    let needs_listener = self.state.with(|state| {
                        state.end_wait(id);
                        state.set_watched(id, false);
                        state
                            .give_back_waker(id, &mut theirs, |waker| self.signal.is_parker(waker));
                        state.table.set_needs_listener(id.index, self.advances);
                        state.table.needs_listener()
                    });
                    self.leave_listening(needs_listener, seen, next);
                    break self.is_settled(id);
                }
                Wait::Block(block, deadline) => {
                    self.leave_listening(needs_listener, seen, next);
                    let slice = block.is_shared.then_some(SLICE);
                    let limit = self.limit(until, deadline).into_iter().chain(slice).min();
                    self.wait_in(&block, limit.unwrap_or(LONGEST));
                }
                Wait::Park => self.rest(&parker, seen, until),
            }
        };
        // The drop runs the executor's code, whose panics are caught.
        let _ = guarded(|| drop(theirs));
        is_over
    }

    /// Blocks until no transfer is under way and their buffers are dropped, or `until` has passed. Returns false in the
    /// latter case, and in a child of `fork`, which cannot know.
    pub(crate) fn block_until_idle(self: &Arc<Self>, until: Option<Instant>) -> bool {
        if self.is_forked() {
            return false;
        }
        let parker = Parker::current();
        self.state.with(|state| state.table.set_needs_idle(true));
        loop {
            let seen = self.signal.seen();
            let mut purpose = Idle {
                until,
                is_late: false,
            };
            let next = self.turn_for(&mut purpose).next;
            // The browser goes on only when the page's own code has returned to it.
            let is_late = cfg!(browser) || until.is_some_and(|until| self.clock.now() >= until);
            let is_moving = self.state.with(|state| {
                let is_moving = state.is_moving();
                if is_moving && !is_late {
                    state.watch_idle(parker.waker());
                }
                is_moving
            });
            if !is_moving || is_late {
                let needs_listener = self.state.with(|state| {
                    state.table.set_needs_idle(false);
                    state.table.needs_listener()
                });
                self.leave_listening(needs_listener, seen, next);
                return !is_moving;
            }
            self.rest(&parker, seen, until);
        }
    }

    /// Parks until this thread is woken, or listens for all transfers until something happens; in both cases until
    /// `until` at most.
    fn rest(&self, parker: &OwnParker, seen: u64, until: Option<Instant>) {
        match self.signal.listen(parker, seen) {
            Listening::News => {}
            #[cfg(threads)]
            Listening::Other => self.park(parker, self.limit(until, None)),
            Listening::Mine(charge) => {
                #[cfg(threads)]
                drop(charge);
                #[cfg(not(threads))]
                let _ = charge;
                self.listen(until, |limit| self.park(parker, limit));
                self.signal.leave(parker);
            }
        }
    }

    fn park(&self, parker: &OwnParker, limit: Option<Duration>) {
        Recorder::around(self.recorder.as_deref(), What::Park, || parker.park(limit));
    }

    /// Listens until `until` at most: asks backends to report outcomes without a call, and blocks in one that needs a
    /// call.
    fn listen(&self, until: Option<Instant>, park: impl FnOnce(Option<Duration>)) {
        self.expect();
        // Reads the state after this thread became the listener: threads that later set a deadline, or submit
        // operations to a backend that needs a call, notify it.
        let (next, attended) = self
            .state
            .with(|state| (state.next_deadline(), state.attended_block()));
        let limit = self.limit(until, next);
        match attended {
            Some(block) => self.wait_in(&block, limit.unwrap_or(SLICE).min(SLICE)),
            None => park(limit),
        }
    }

    /// Waits a moment for the manager's own threads to drop their handles of it, where nothing is under way.
    #[cfg(threads)]
    pub(crate) fn let_own_threads_go(&self) {
        if !self.is_forked() && self.state.with(|state| state.table.live() == 0) {
            self.driver.let_go();
        }
    }

    /// Has another thread execute the commands that take long, or does so itself where there can be no other thread.
    pub(super) fn hand_over_slow(self: &Arc<Self>) {
        #[cfg(threads)]
        if !self.driver.execute_slow(Arc::clone(self) as Charge) {
            // A thread in a callback leaves them to the next thread that turns the engine.
            while !transload_hal::in_callback() && Arc::clone(self).execute_slow() {}
        }
    }

    /// Ends the listening of this thread: the manager's own thread listens, if any transfer needs that.
    pub(super) fn leave_listening(
        self: &Arc<Self>,
        needs_listener: bool,
        seen: u64,
        next: Option<Instant>,
    ) {
        match needs_listener {
            true => self.appoint(seen, next),
            false => self.dismiss(next),
        }
    }

    /// Makes the manager's own thread listen, unless another one does.
    pub(super) fn appoint(self: &Arc<Self>, seen: u64, next: Option<Instant>) {
        #[cfg(threads)]
        {
            let must_look = next.is_some() || self.attended.load(Ordering::Relaxed) > 0;
            let charge = || Arc::clone(self) as Charge;
            if self.driver.ensure_listener() && self.signal.appoint(charge, seen, must_look) {
                self.expect();
                // The transfer that needed a listener may have ended meanwhile.
                if !self.state.with(|state| state.table.needs_listener()) {
                    self.dismiss(next);
                } else if !must_look && self.attended.load(Ordering::Relaxed) > 0 {
                    // A thread that submitted just before the appointment found no listener to notify.
                    self.signal.notify();
                }
            }
        }
        #[cfg(browser)]
        self.microtask.ensure(self);
        let _ = (seen, next);
    }

    /// Ends the listening of the manager's own thread, unless a transfer was submitted meanwhile that relies on it.
    pub(super) fn dismiss(self: &Arc<Self>, next: Option<Instant>) {
        if self.signal.dismiss().is_some() && self.state.with(|state| state.table.needs_listener())
        {
            // The thread looks, whatever happened in between.
            self.appoint(u64::MAX, next);
        }
    }

    /// Blocks in a backend.
    pub(super) fn wait_in(&self, block: &Block, limit: Duration) {
        self.wait_for_fences(&*block.backend, block.name, &block.fences, limit);
    }

    pub(crate) fn wait_for_fences(
        &self,
        backend: &dyn Backend,
        name: BackendId,
        fences: &[Fence],
        limit: Duration,
    ) {
        // Settled or not, the caller looks at the queue of outcomes.
        let wait = || match fences {
            [fence] => backend.wait(*fence, limit.min(LONGEST)),
            fences => backend.wait_any(fences, limit.min(LONGEST)),
        };
        let recorder = self.recorder.as_deref();
        let waited: Result<Waited, Fault> =
            Recorder::around(recorder, What::Wait(name), || guarded(wait));
        if let Err(fault) = waited {
            self.give_up_backend(name, &fault);
        }
    }

    /// Turns the engine, registers `waker` to be called when the transfer is over, and ensures that it will be called.
    /// Returns false when the transfer is over already.
    pub(crate) fn poll(self: &Arc<Self>, id: TransferId, waker: &Waker) -> bool {
        if self.is_forked() {
            return false;
        }
        let seen = self.signal.seen();
        self.turn_in_passing();
        // Cloned before the lock is taken and dropped after its release: both run the executor's code, and the last
        // waker of a task may drop transfers with it.
        let mut own = Some(waker.clone());
        let needs_listener = self.state.with(|state| {
            let active = state
                .table
                .find_mut(id)
                .filter(|active| active.is_awaited())?;
            core::mem::swap(&mut active.waker, &mut own);
            state.set_watched(id, true);
            state.table.set_needs_listener(id.index, true);
            Some((state.table.needs_listener(), state.next_deadline()))
        });
        drop(own);
        match needs_listener {
            Some((true, next)) => self.appoint(seen, next),
            Some((false, _)) => {}
            None => return false,
        }
        self.ensure_wake(waker);
        true
    }

    /// Where no thread turns the engine, the next completion wakes the task. Where completions are seen only by a task
    /// that looks, the task is woken at once.
    pub(crate) fn ensure_wake(&self, waker: &Waker) {
        #[cfg(not(threads))]
        if self.attended.load(Ordering::Relaxed) > 0 {
            waker.wake_by_ref();
        } else {
            self.signal.watch(waker);
        }
        // The system refuses a thread: the task has to look for itself.
        #[cfg(threads)]
        if !self.driver.ensure_listener() {
            waker.wake_by_ref();
        }
    }

    fn limit(&self, until: Option<Instant>, next: Option<Instant>) -> Option<Duration> {
        let at = match (until, next) {
            (Some(until), Some(next)) => until.min(next),
            (one, other) => one.or(other)?,
        };
        Some(at.since(self.clock.now()))
    }
}

#[cfg(threads)]
impl Driven for Shared {
    fn drive(self: Arc<Self>) -> Option<Duration> {
        let turn = self.turn_for(&mut ForAll(Pace::SERVING));
        if !turn.needs_listener {
            self.dismiss(turn.next);
            return None;
        }
        if !self.signal.is_own() {
            return None;
        }
        let mut sleep = Some(Duration::ZERO);
        self.listen(None, |limit| sleep = limit);
        sleep
    }

    fn execute_slow(self: Arc<Self>) -> bool {
        let mut slow = Slow::default();
        let turn = self.turn_for(&mut slow);
        self.hand_over(&turn);
        slow.has_command
    }
}

#[cfg(browser)]
impl crate::std::PageDriven for Shared {
    fn microtask(&self) -> &crate::std::Microtask {
        &self.microtask
    }

    fn signal(&self) -> &Arc<super::signal::Signal> {
        &self.signal
    }

    fn drive(self: &Arc<Self>) -> bool {
        self.turn_quickly();
        self.state.with(|state| state.table.live() > 0)
    }

    fn ensure_wake(&self, waker: &Waker) {
        Shared::ensure_wake(self, waker);
    }

    fn next_deadline(&self) -> (Instant, Option<Instant>) {
        let next = self.state.with(|state| state.next_deadline());
        (self.clock.now(), next)
    }
}

/// How many fences a thread waits for at once: as many as the largest plan has under way, four lanes
/// of four slots.
const MOST_FENCES: usize = 16;

type Fences = ArrayVec<Fence, MOST_FENCES>;

/// Fences of one backend to block on.
pub(super) struct Block {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) name: BackendId,
    pub(super) fences: Fences,
    /// Whether the thread may wait for an outcome of another backend too.
    pub(super) is_shared: bool,
}

/// The decision for a thread that waits for a transfer.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives on the stack of the thread that waits; a box would allocate"
)]
pub(super) enum Wait {
    /// The result is known.
    Over,
    /// Block in the backend, until the transfer's own deadline at most. The thread counts as the transfer's waiter.
    Block(Block, Option<Instant>),
    /// Park. The waker is called when the transfer is over.
    Park,
}

impl State {
    /// Returns how a thread waits for a transfer or guard: on the transfer's own fences if it has any, for then the
    /// backend may put the thread to work. Leaves the waker that is not needed in `waker`, to be dropped without the
    /// lock.
    pub(super) fn wait_for(&mut self, id: TransferId, waker: &mut Option<Waker>) -> Wait {
        if !self.is_awaited(id) {
            return Wait::Over;
        }
        self.table.set_needs_listener(id.index, true);
        self.set_watched(id, true);
        let active = &self.table[id.index];
        if let Some(block) = self.own_block(active) {
            let deadline = active.deadline;
            self.table.set_waiter(id.index, true);
            return Wait::Block(block, deadline);
        }
        core::mem::swap(&mut self.table[id.index].waker, waker);
        Wait::Park
    }

    /// Records that no thread is blocked in a backend for the transfer any more.
    pub(super) fn end_wait(&mut self, id: TransferId) {
        if self.table.find(id).is_some() {
            self.table.set_waiter(id.index, false);
        }
    }

    /// Called when a thread waits for the transfer no longer: its end wakes the task again that polled it before.
    /// Leaves wakers in `theirs`, to be dropped without the lock.
    pub(super) fn give_back_waker(
        &mut self,
        id: TransferId,
        theirs: &mut Option<Waker>,
        is_parker: impl FnOnce(&Waker) -> bool,
    ) {
        if let Some(active) = self.table.find_mut(id)
            && active.is_awaited()
            && active.waker.as_ref().is_some_and(is_parker)
        {
            core::mem::swap(&mut active.waker, theirs);
        }
    }

    fn own_block(&self, active: &Active) -> Option<Block> {
        let own = || active.flying.iter().map(|(fence, _)| *fence);
        let known = || own().filter_map(|fence| self.in_flight.known(fence.backend()));
        let attended = known().find(|known| !known.unattended);
        let known = attended.or_else(|| known().next())?;
        let is_alone = own().all(|fence| fence.backend() == known.id);
        // We do not block in one backend while an outcome of another one may arrive: that would stall the pipeline. A
        // backend that was given up is not asked to wait again.
        if known.unattended && (known.lost.is_some() || !is_alone) {
            return None;
        }
        let fences = own().filter(|fence| fence.backend() == known.id);
        Some(Block {
            backend: Arc::clone(&known.backend),
            name: known.id,
            fences: fences.take(MOST_FENCES).collect(),
            is_shared: !is_alone,
        })
    }

    /// Returns fences of a backend that settles them only when a thread calls it, the oldest first.
    pub(super) fn attended_block(&self) -> Option<Block> {
        let mut backends = self.in_flight.backends().iter();
        let known = backends.find(|known| known.attended().next().is_some())?;
        let oldest = known.attended().take(MOST_FENCES);
        Some(Block {
            backend: Arc::clone(&known.backend),
            name: known.id,
            fences: oldest.collect(),
            is_shared: true,
        })
    }
}
