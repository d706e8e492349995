//! The threads of a pool and what they share. A pool of parked threads runs jobs made of pieces.
//!
//! A job is a number that the owner chose and an [`Extent`]: a count of pieces and a width (how many
//! threads may work on it at once). The owner implements [`Work`]: what a piece does, and what happens
//! when the last piece is done. Threads that wait for a job take part in it ([`Crew::help`]), so a
//! blocking copy on two cores uses the waiting thread and one worker.
//!
//! - **No tick.** Workers park on a condition variable. After work they watch for more for at most
//!   [`Limits::linger`], because waking a parked thread costs as much as copying hundreds of KiB.
//! - **One lock,** held for some tens of instructions and never while a piece runs. Pieces are at
//!   least tens of KiB, so taking a claim under it costs under a hundredth of the piece, and every claim sees
//!   every job in flight, which is what shares the threads evenly among them.
//! - **One wake-up for each thread.** A start wakes one worker; a worker that finds more to do than it can take wakes the
//!   next. So their number doubles in the time of one wake-up, and a start costs at most one system call.
//! - **Lazy.** Threads start when jobs want them and end with the pool. Where a thread cannot be started (in a browser, or
//!   past a limit of the process), the thread that starts a job runs it.
//!
//! - **Stopped between pieces.** [`Crew::stop`] drops the pieces of a job that no thread has taken. The job ends when
//!   the pieces that run have ended.
//!
//! After its first jobs, a pool allocates only when more jobs are in flight, or more threads at work, than ever before.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::limits::Limits;
use super::schedule::{Claim, Extent, JobEnd, Schedule};
use crate::{raw, unwind};

/// Defines the jobs of a pool.
pub(crate) trait Work: Send + Sync + Sized + 'static {
    /// Runs piece `piece` of job `job`. Each piece of a job runs once; pieces run concurrently and in
    /// any order, though each side of the job hands them out one after the other. After a panic in one
    /// piece, and once the job is stopped, those not yet handed out are dropped.
    fn run(&self, job: u32, piece: u32);

    /// The job is over, as `end` says. Called once for each job, on the thread
    /// that ran the last piece or stopped the job, without a lock; it may start further jobs on `crew`. Its effects happen
    /// before [`Crew::help`] looks at its condition again.
    fn finish(&self, job: u32, end: JobEnd, crew: &Crew<Self>);
}

/// The state that the threads of a pool share; starts jobs and helps with them.
pub(crate) struct Crew<W> {
    work: W,
    limits: Limits,
    state: Mutex<State>,
    /// Parked workers wait here for `State::tickets`.
    wake: Condvar,
    /// Threads in [`Crew::help`] wait here for any job to end.
    ended: Condvar,
    /// Rises with every start, so that lingering workers notice without the lock.
    starts: AtomicU32,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// For the threads that a crew starts, which share it.
    me: Weak<Self>,
}

#[derive(Debug)]
struct State {
    schedule: Schedule,
    /// Workers that exist, the ones still starting included.
    workers: u32,
    /// Parked workers that have not been given a wake-up.
    parked: u32,
    /// Wake-ups given and not yet taken by a parked worker.
    tickets: u32,
    /// Workers still starting.
    starting: u32,
    /// Workers that watch `Crew::starts` before they park.
    lingering: u32,
    /// Threads in [`Crew::help`] that take part.
    helping: u32,
    /// Threads that wait on `Crew::ended`.
    waiting: u32,
    closing: bool,
}

/// What a thread must do, after it released the lock, for work that it leaves to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rouse {
    None,
    Parked,
    New,
}

/// The work left to a thread that has done its own part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
enum Duty {
    None,
    /// The pool has no workers: this thread runs what is in flight.
    Drain,
}

/// A waiting thread's part in its job; ended by its drop.
struct Part<'a, W: Work> {
    crew: &'a Crew<W>,
    /// Whether it counts among [`State::helping`].
    helps: bool,
}

impl<W: Work> Crew<W> {
    pub(super) fn new(work: W, limits: Limits) -> Arc<Self> {
        // Enough jobs in service to keep every thread busy with a job of its own, and then some.
        let window = (limits.threads as usize).saturating_mul(2).max(8);
        let state = State {
            schedule: Schedule::new(limits.jobs, window),
            workers: 0,
            parked: 0,
            tickets: 0,
            starting: 0,
            lingering: 0,
            helping: 0,
            waiting: 0,
            closing: false,
        };
        Arc::new_cyclic(|me| Crew {
            work,
            limits,
            state: Mutex::new(state),
            wake: Condvar::new(),
            ended: Condvar::new(),
            starts: AtomicU32::new(0),
            threads: Mutex::new(Vec::new()),
            me: Weak::clone(me),
        })
    }

    /// As [`Pool::start`](super::Pool::start).
    pub(super) fn start(&self, job: u32, extent: Extent) {
        if self.enqueue(job, extent, || false) == Duty::Drain {
            self.drain();
        }
    }

    /// Prints the pool.
    pub(super) fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Pool")
            .field("threads", &state.workers)
            .field("limit", &self.limits.threads)
            .field("jobs", &state.schedule.len())
            .finish()
    }

    /// Completes every job in flight, then joins the threads.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_all();
        // A worker may still start others while it drains; it stays in the list until it is joined, so
        // the list is empty only when no thread is left.
        loop {
            // A statement of its own: the list must not stay locked while a thread is joined.
            let thread = self.lock_threads().pop();
            let Some(thread) = thread else { break };
            if thread.thread().id() != std::thread::current().id() {
                // A worker catches the panics of its pieces; an error here has been told by its job.
                let _ = thread.join();
            }
        }
        self.drain();
    }

    /// The owner's data.
    pub(crate) fn work(&self) -> &W {
        &self.work
    }

    /// Worker threads that exist now.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> u32 {
        self.lock().workers
    }

    /// Starts a job from within [`Work::finish`], with the arguments of [`Pool::start`](super::Pool::start). Where
    /// `is_stopped`, the job ends without running a piece. `is_stopped` is called once, under the pool's lock: a [`Crew::stop`] that
    /// missed the job happened before the call.
    ///
    /// Never runs the job itself: where there are no workers, the thread that called `finish` finds it
    /// next.
    pub(crate) fn start_next(&self, job: u32, extent: Extent, is_stopped: impl FnOnce() -> bool) {
        // The thread that ended a job looks again (`run`).
        let _ = self.enqueue(job, extent, is_stopped);
    }

    /// Stops `job` if `is_current`: no piece of it begins from now on, and it ends as soon as those that run have ended.
    /// Returns how many leading pieces have run by now; 0 when the job is not in flight, not current, or
    /// has panicked.
    ///
    /// `is_current` is called once under the pool's lock, so it should be a load or two; numbers of jobs are used
    /// again, and it tells whether the job is still the one that is meant. Never waits for a piece. Where no piece
    /// runs, this thread calls [`Work::finish`]. A pool without threads leaves that to the thread that runs its
    /// jobs.
    pub(crate) fn stop(&self, job: u32, is_current: impl FnOnce() -> bool) -> u32 {
        let mut state = self.lock();
        if !is_current() {
            return 0;
        }
        let leading = state.schedule.stop(job);
        let end = match state.workers {
            // Another thread drains what is in flight. What the ending starts would be this thread's to run.
            0 => None,
            _ => state.schedule.claim_end(job),
        };
        drop(state);
        if let Some(end) = end
            && self.run(end) == Duty::Drain
        {
            self.drain();
        }
        leading
    }

    /// Takes part in `job` if it `may_run`, and waits until `is_over` or the deadline; returns the last
    /// `is_over()`. A piece once begun is finished, even past the deadline. Runs pieces of no other job, except in
    /// a pool that starts no threads ([`Limits::threads`] is 0).
    ///
    /// `is_over` must become true through [`Work::finish`] of some job; it is called often and under
    /// the pool's lock, so it should be a load or two. Blocks; a deadline of `None` is never. A deadline
    /// in the past still runs no piece and reports the state.
    pub(crate) fn help(
        &self,
        job: u32,
        may_run: bool,
        deadline: Option<Instant>,
        is_over: impl Fn() -> bool,
    ) -> bool {
        let mut part = Part {
            crew: self,
            helps: false,
        };
        self.take_part(job, may_run, deadline, is_over, &mut part)
    }

    fn take_part(
        &self,
        job: u32,
        may_run: bool,
        deadline: Option<Instant>,
        is_over: impl Fn() -> bool,
        part: &mut Part<'_, W>,
    ) -> bool {
        let mut lingered = false;
        loop {
            if is_over() {
                return true;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return is_over();
            }
            let mut state = self.lock();
            // A thread that may not run pieces is never needed: where no worker is, the thread that starts jobs runs them.
            let claim = match (may_run, self.limits.threads) {
                (false, _) => None,
                (true, 0) => state
                    .schedule
                    .claim_from(job)
                    .or_else(|| state.schedule.claim(None)),
                (true, _) => state.schedule.claim_from(job),
            };
            if let Some(claim) = claim {
                state.helping += u32::from(!part.helps);
                part.helps = true;
                let rouse = state.next_rouse(self.limits);
                drop(state);
                let duty = self.rouse(rouse);
                if self.run(claim) == Duty::Drain || duty == Duty::Drain {
                    // The pool has no worker to run jobs that other threads, or the job's ending, have started.
                    self.drain();
                }
                lingered = false;
                continue;
            }
            if part.helps {
                drop(state);
                part.stop();
                continue;
            }
            if !lingered {
                drop(state);
                lingered = true;
                self.linger(&is_over);
                continue;
            }
            if is_over() {
                return true;
            }
            state.waiting += 1;
            let mut state = match deadline {
                None => self
                    .ended
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    self.ended
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
            state.waiting -= 1;
        }
    }

    /// Runs what is in flight on this thread until nothing is left to hand out.
    fn drain(&self) {
        loop {
            let claim = self.lock().schedule.claim(None);
            match claim {
                // Continues until nothing is left, even if workers exist by now.
                Some(claim) => _ = self.run(claim),
                None => return,
            }
        }
    }

    /// Adds the job and wakes or starts a worker for it.
    fn enqueue(&self, job: u32, extent: Extent, is_stopped: impl FnOnce() -> bool) -> Duty {
        let mut state = self.lock();
        state.schedule.push(job, extent);
        if is_stopped() {
            state.schedule.stop(job);
        }
        let rouse = state.next_rouse(self.limits);
        let duty = state.duty();
        drop(state);
        // Relaxed: a lingering worker that sees the new number takes the lock, which orders the rest.
        self.starts.fetch_add(1, Ordering::Relaxed);
        match rouse {
            Rouse::New => self.rouse(rouse),
            _ => {
                let _ = self.rouse(rouse);
                duty
            }
        }
    }

    /// Wakes or starts the worker that the state asked for.
    fn rouse(&self, rouse: Rouse) -> Duty {
        match rouse {
            Rouse::None => Duty::None,
            Rouse::Parked => {
                self.wake.notify_one();
                Duty::None
            }
            Rouse::New => {
                // Always upgrades: the caller holds the crew through an `Arc`.
                let started = self.me.upgrade().is_none_or(|crew| start_worker(&crew));
                if started {
                    return Duty::None;
                }
                // A start that is pending keeps others from being woken. A parked worker takes over now; if the pool has no
                // workers, this thread runs the job, and jobs of other threads.
                let mut state = self.lock();
                if state.parked > 0 && state.next_rouse(self.limits) == Rouse::Parked {
                    drop(state);
                    self.wake.notify_one();
                    return Duty::None;
                }
                state.duty()
            }
        }
    }

    /// Runs the piece, if the claim has one; after the last piece, notifies the owner and every waiting thread. Returns
    /// whether this thread must run what the owner may have started then.
    fn run(&self, claim: Claim) -> Duty {
        let panicked = claim.piece.is_some_and(|piece| {
            let ran = unwind::catch(|| self.work.run(claim.job, piece));
            ran.is_none()
        });
        let mut state = self.lock();
        let Some(end) = state.schedule.complete(claim, panicked) else {
            return state.duty();
        };
        drop(state);
        // A panic in the owner's ending has nowhere to go; the worker and the waiting threads carry on.
        let _ = unwind::catch(|| self.work.finish(claim.job, end, self));
        // The owner's condition changed before this lock, and waiting threads look at it under the lock
        // before they sleep: either they saw it, or they are counted here.
        let state = self.lock();
        let (waiting, duty) = (state.waiting, state.duty());
        drop(state);
        if waiting > 0 {
            self.ended.notify_all();
        }
        duty
    }

    /// Watches `is_over` for at most [`Limits::linger`]; true when it came true.
    fn linger(&self, is_over: impl Fn() -> bool) -> bool {
        if self.limits.linger.is_zero() {
            return is_over();
        }
        let begin = Instant::now();
        loop {
            // The clock costs as much as a few dozen looks at a flag that another core writes.
            for _ in 0..32 {
                if is_over() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if begin.elapsed() >= self.limits.linger {
                return false;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Work> Drop for Part<'_, W> {
    fn drop(&mut self) {
        if self.helps {
            self.stop();
        }
    }
}

impl<W: Work> Part<'_, W> {
    /// Makes room for a worker, which other jobs may need.
    fn stop(&mut self) {
        self.helps = false;
        let mut state = self.crew.lock();
        state.helping -= 1;
        let rouse = state.next_rouse(self.crew.limits);
        drop(state);
        if self.crew.rouse(rouse) == Duty::Drain {
            self.crew.drain();
        }
    }
}

impl State {
    /// Without workers, the calling thread must run everything.
    fn duty(&self) -> Duty {
        match self.workers {
            0 => Duty::Drain,
            _ => Duty::None,
        }
    }

    /// Returns the worker to wake or start for the remaining pieces; counts the wake-up as given.
    fn next_rouse(&mut self, limits: Limits) -> Rouse {
        // Each thread that runs may have woken one: so their number doubles in the time of one wake-up.
        let under_way = self.tickets + self.starting + self.lingering;
        let running = (self.workers - self.parked + self.helping).saturating_sub(under_way);
        if under_way > running || under_way >= self.schedule.claimable() {
            return Rouse::None;
        }
        // A thread between two pieces takes the next one itself; an extra thread would take that piece and a processor
        // from it. But a helping thread serves only the job that it waits for: if no worker is awake, a job that no thread
        // serves gets a worker all the same.
        let awake = self.workers - self.parked;
        let is_busy = awake + self.helping >= limits.threads;
        if is_busy && !(awake == 0 && self.schedule.has_unserved()) {
            return Rouse::None;
        }
        if self.parked > 0 {
            self.parked -= 1;
            self.tickets += 1;
            return Rouse::Parked;
        }
        if self.workers < limits.threads && !self.closing {
            return Rouse::New;
        }
        Rouse::None
    }
}

/// Starts one worker, unless the limit was reached meanwhile. False when the system refuses.
fn start_worker<W: Work>(crew: &Arc<Crew<W>>) -> bool {
    // Held over the spawn: the pool's drop must see either no thread or its handle.
    let mut threads = crew.lock_threads();
    let number = {
        let mut state = crew.lock();
        if state.closing || state.workers >= crew.limits.threads {
            return true;
        }
        state.workers += 1;
        state.starting += 1;
        state.workers
    };
    let shared = Arc::clone(crew);
    match spawn(number, move || work(&shared)) {
        Ok(handle) => {
            threads.push(handle);
            true
        }
        Err(_) => {
            let mut state = crew.lock();
            state.workers -= 1;
            state.starting -= 1;
            false
        }
    }
}

fn spawn(number: u32, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    #[cfg(test)]
    tests::refusal()?;
    thread::Builder::new()
        .name(format!("transload-host-{number}"))
        .spawn(body)
}

fn work<W: Work>(crew: &Arc<Crew<W>>) {
    raw::stay_in_the_background();
    crew.lock().starting -= 1;
    let mut last = None;
    while let Some((claim, more)) = next_claim(crew, last) {
        // A worker is there, so that nothing is left to this thread in particular.
        let _ = crew.rouse(more);
        let _ = crew.run(claim);
        last = Some(claim.job);
    }
    crew.lock().workers -= 1;
}

/// Waits for the next piece. Returns it and the worker to wake for the rest, or `None` when the pool
/// closes.
fn next_claim<W: Work>(crew: &Crew<W>, last: Option<u32>) -> Option<(Claim, Rouse)> {
    let mut lingered = last.is_none();
    loop {
        let mut state = crew.lock();
        if let Some(claim) = state.schedule.claim(last) {
            let more = state.next_rouse(crew.limits);
            return Some((claim, more));
        }
        if state.closing {
            return None;
        }
        if !lingered && !crew.limits.linger.is_zero() {
            lingered = true;
            // Read under the lock: a start after this one changes the number, an earlier one has been
            // looked at just now.
            let seen = crew.starts.load(Ordering::Relaxed);
            state.lingering += 1;
            drop(state);
            crew.linger(|| crew.starts.load(Ordering::Relaxed) != seen);
            crew.lock().lingering -= 1;
            continue;
        }
        state.parked += 1;
        while state.tickets == 0 && !state.closing {
            state = crew
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.tickets > 0 {
            state.tickets -= 1;
            // A worker that came too late for the piece that it was woken for lingers before it parks:
            // small copies come one after the other, and a worker that parked at once would be late
            // for the next one, too.
            lingered = false;
        } else {
            state.parked -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
