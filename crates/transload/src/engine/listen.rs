//! How threads and tasks wait for the engine, and which thread listens meanwhile.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::task::Waker;
use core::time::Duration;

use transload_core::Instant;
use transload_hal::{Backend, BackendId, Fault, Fence, Waited};

use super::active::TransferId;
use super::order::Orders;
use super::shared::Shared;
use super::signal::{Listening, OwnParker, Parker};
use super::state::{Pace, State, Whose};
use super::unwind::guarded;
use super::wait::{Block, Wait};

/// The longest that a thread blocks in a backend before it looks for itself again. As good as for
/// ever, so that a backend may put the thread to any work; and an end, in case a driver forgets it.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);

/// The longest that a thread blocks in a backend that tells outcomes only to threads that call it, while it listens for
/// others. A copy elsewhere whose start and end both come while such a thread blocks is told two of these later; the
/// engine's aim is 5 ms.
const SLICE: Duration = Duration::from_millis(1);

impl Shared {
    /// Turns the engine until the transfer or guard is no longer under way, or `until` has passed.
    /// False when it still is. True in a child of `fork`, where the result is an error.
    ///
    /// The thread blocks in the backend of its own operations where it can, and another thread listens for the other
    /// transfers, if there are any that need it; else it parks, and listens itself if no other thread does.
    pub(crate) fn block_on(self: &Arc<Self>, id: TransferId, until: Option<Instant>) -> bool {
        if self.is_forked() {
            return true;
        }
        let parker = Parker::current();
        // The waker of a task that polled the transfer before.
        let mut theirs = None;
        let is_over = loop {
            let seen = self.signal.seen();
            let begin = |state: &mut State, _, _: &mut Orders| state.tend_no_more(id);
            let own = Pace {
                copies: Whose::one(id),
                slow: Whose::one(id),
            };
            let is_over = |state: &mut State| !state.is_awaited(id);
            let next = self.turn_with(|| own, begin, is_over).next;
            let mut waker = Some(parker.waker());
            let (wait, needs_listener) = self.state.with(|state| {
                let wait = state.wait_for(id, &mut waker);
                (wait, state.needs_listener())
            });
            theirs = theirs.or(waker.filter(|waker| !self.signal.is_parker(waker)));
            match wait {
                Wait::Over => {
                    self.leave_listening(needs_listener, seen, next);
                    break true;
                }
                _ if until.is_some_and(|until| self.clock.now() >= until) => {
                    let needs_listener = self.state.with(|state| {
                        state.tend_no_more(id);
                        state
                            .give_back_waker(id, &mut theirs, |waker| self.signal.is_parker(waker));
                        state.care_for(id.slot, self.advances);
                        state.needs_listener()
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
        // It is the executor's code, and what it panics about its own concern.
        let _ = guarded(|| drop(theirs));
        is_over
    }

    /// Blocks until no transfer is under way and none's buffers are still held, or `until` has passed:
    /// false when one still is, and in a child of `fork`, which cannot know.
    pub(crate) fn block_until_idle(self: &Arc<Self>, until: Option<Instant>) -> bool {
        if self.is_forked() {
            return false;
        }
        let parker = Parker::current();
        self.state.with(|state| state.care += 1);
        loop {
            let seen = self.signal.seen();
            let next = self
                .turn_with(|| Pace::SERVING, |_, _, _| (), |_| false)
                .next;
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
                    state.care -= 1;
                    state.needs_listener()
                });
                self.leave_listening(needs_listener, seen, next);
                return !is_moving;
            }
            self.rest(&parker, seen, until);
        }
    }

    /// Parks until this thread is called, or listens for all transfers until something happens; until that point in time at
    /// most.
    fn rest(&self, parker: &OwnParker, seen: u64, until: Option<Instant>) {
        match self.signal.listen(parker, seen) {
            Listening::News => {}
            #[cfg(threads)]
            Listening::Other => parker.park(self.limit(until, None)),
            Listening::Mine(charge) => {
                drop(charge);
                self.listen(until, |limit| parker.park(limit));
                self.signal.leave(parker);
            }
        }
    }

    /// Listens until that point in time at most: has backends tell outcomes by themselves, and blocks in one that does not.
    fn listen(&self, until: Option<Instant>, park: impl FnOnce(Option<Duration>)) {
        self.expect();
        // As it is now that this thread listens: who comes later with a deadline, or with operations to look at, calls it.
        let (next, attended) = self
            .state
            .with(|state| (state.next_deadline(), state.attended_block()));
        let limit = self.limit(until, next);
        match attended {
            Some(block) => self.wait_in(&block, limit.unwrap_or(SLICE).min(SLICE)),
            None => park(limit),
        }
    }

    /// What the manager's own thread does while it listens. Answers how long it may sleep, `None` for as long as it is not
    /// called.
    #[cfg(threads)]
    pub(crate) fn drive(self: &Arc<Self>) -> Option<Duration> {
        let turn = self.turn_with(|| Pace::SERVING, |_, _, _| (), |_| false);
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

    /// Does one thing that takes long, for the thread that does. False when there is none.
    #[cfg(threads)]
    pub(crate) fn toil(self: &Arc<Self>) -> bool {
        let mut has_order = false;
        let begin = |state: &mut State, _, orders: &mut Orders| {
            let order = state.later.pop_front();
            has_order = order.is_some();
            orders.extend(order);
        };
        let turn = self.turn_with(|| Pace::SERVING, begin, |_| false);
        self.hand_over(&turn);
        has_order
    }

    /// Waits a moment for the manager's own threads to let go of it, where nothing is under way.
    #[cfg(threads)]
    pub(crate) fn let_own_threads_go(&self) {
        if !self.is_forked() && self.state.with(|state| state.live == 0) {
            self.driver.let_go();
        }
    }

    /// Has another thread do what takes long; this one where there can be none.
    pub(super) fn have_toiled(self: &Arc<Self>) {
        #[cfg(threads)]
        if !self.driver.toil(self) {
            // A thread in a callback leaves it to the next one that turns the engine.
            while !transload_hal::in_callback() && self.toil() {}
        }
    }

    /// This thread listens no longer: the manager's own does, if any transfer needs it.
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

    /// Has the manager's own thread listen, unless another one does.
    pub(super) fn appoint(self: &Arc<Self>, seen: u64, next: Option<Instant>) {
        #[cfg(threads)]
        {
            let must_look = next.is_some() || self.attended.load(Ordering::Relaxed) > 0;
            if self.driver.can_listen() && self.signal.appoint(self, seen, must_look) {
                self.expect();
                // What needed it may have ended meanwhile.
                if !self.state.with(|state| state.needs_listener()) {
                    self.dismiss(next);
                } else if !must_look && self.attended.load(Ordering::Relaxed) > 0 {
                    // A thread that submitted just before the appointment found no listener to call.
                    self.signal.notify();
                }
            }
        }
        #[cfg(browser)]
        self.microtask.ensure(self);
        let _ = (seen, next);
    }

    /// Has the manager's own thread listen no longer, unless a transfer was submitted meanwhile that found it listening.
    pub(super) fn dismiss(self: &Arc<Self>, next: Option<Instant>) {
        if self.signal.dismiss().is_some() && self.state.with(|state| state.needs_listener()) {
            // Whatever happened in between, it looks.
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
        // Settled or not, the caller looks at what is in the queue.
        let waited: Result<Waited, Fault> = guarded(|| match fences {
            [fence] => backend.wait(*fence, limit.min(LONGEST)),
            fences => backend.wait_any(fences, limit.min(LONGEST)),
        });
        if let Err(fault) = waited {
            self.give_up_backend(name, &fault);
        }
    }

    /// Turns the engine, has `waker` called when the transfer is over, and sees to it that it will be. False when it is over
    /// already.
    pub(crate) fn poll(self: &Arc<Self>, id: TransferId, waker: &Waker) -> bool {
        if self.is_forked() {
            return false;
        }
        let seen = self.signal.seen();
        self.turn_at(Pace::SERVING);
        // Cloned before the lock is taken and dropped after it was let go: both are the executor's
        // code, and the last waker of a task may drop transfers with it.
        let mut own = Some(waker.clone());
        let needs_listener = self.state.with(|state| {
            let active = state.transfer(id).filter(|active| active.is_awaited())?;
            core::mem::swap(&mut active.waker, &mut own);
            state.care_for(id.slot, true);
            Some((state.needs_listener(), state.next_deadline()))
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

    /// Where no thread turns the engine, a task is woken by the next completion; and at once where
    /// completions are seen only by a task that looks.
    pub(crate) fn ensure_wake(&self, waker: &Waker) {
        #[cfg(not(threads))]
        if self.attended.load(Ordering::Relaxed) > 0 {
            waker.wake_by_ref();
        } else {
            self.signal.watch(waker);
        }
        // The system refuses a thread: the task looks for itself.
        #[cfg(threads)]
        if !self.driver.can_listen() {
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
