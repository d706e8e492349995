//! Submission: small copies at once, the rest by the pool; dependencies, fences, outcomes.
//!
//! A small submission whose predecessors have settled runs before `submit` returns, takes no lock and allocates nothing.
//! Any other takes a slot, waits there for its predecessors, becomes a job of the pool, and settles on the thread that runs
//! its last piece. Slots and lists keep their memory: after the first submissions nothing is allocated, unless more are in
//! flight than ever before or one fails.

mod cut;
mod place;
mod slots;
mod strides;
mod task;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use transload_hal::{
    CompletionSink, ErrorClass, Fault, Fence, HOST, Op, Outcome, SubmitError, Waited, check_fences,
};

use crate::pool::{Crew, JobEnd, Limits, Pool, Work};
use crate::tuning::{Live, Tuning};
use crate::unwind;
pub(crate) use place::windows;
use slots::{CAPACITY, Slot, Slots, Watch, index_of};
use task::Task;
pub(crate) use task::is_reached;

/// Waits at least this long count as unlimited: the waiting thread runs pieces. A thread whose wait is limited runs none. A
/// page that comes from a disk, a slow drive or a transform would hold it beyond its limit.
const UNHURRIED: Duration = Duration::from_secs(3600);

/// The host's one copy queue. Dropping it completes what is in flight.
#[derive(Debug)]
pub(crate) struct Queue {
    pool: Pool<Submissions>,
    tuning: Tuning,
    /// Most threads of the pool.
    threads: u32,
}

/// The work of the pool's threads.
struct Submissions {
    slots: Slots,
    sink: OnceLock<Arc<dyn CompletionSink>>,
    /// Payload bytes of the submissions that have started and not ended.
    in_flight: AtomicUsize,
    /// How many submissions have become jobs of the pool.
    starts: AtomicU64,
    /// The number of inline submissions that failed. They settle at once, under fence numbers that no slot uses.
    failed_inline: AtomicU64,
    live: Live,
}

impl Queue {
    pub(crate) fn new(tuning: Tuning, limits: Limits) -> Self {
        let work = Submissions {
            slots: Slots::new(),
            sink: OnceLock::new(),
            in_flight: AtomicUsize::new(0),
            starts: AtomicU64::new(0),
            failed_inline: AtomicU64::new(0),
            live: Live::new(),
        };
        Self {
            pool: Pool::new(work, limits),
            tuning,
            threads: limits.threads,
        }
    }

    /// Whether operations end without a thread that waits for them.
    pub(crate) fn has_threads(&self) -> bool {
        self.threads > 0
    }

    pub(crate) fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.pool.work().sink.set(sink).is_ok()
    }

    /// Whether the pool's threads can be given another submission.
    pub(crate) fn has_room(&self) -> bool {
        self.has_threads() && self.pool.work().slots.has_room()
    }

    /// Starts operations, small ones on this thread if they may run `here`.
    ///
    /// # Safety
    /// As for `Backend::submit`.
    pub(crate) unsafe fn submit(
        &self,
        ops: &[Op<'_>],
        after: &[Fence],
        here: bool,
    ) -> Result<Fence, SubmitError> {
        let work = self.pool.work();
        check_fences(HOST, after)?;
        let mut pending = after
            .iter()
            .map(|fence| work.slots.is_pending(fence.number()));
        let ready = !pending.any(|is_pending| is_pending);
        let in_flight = work.in_flight.load(Ordering::Relaxed);
        if let ([op], true) = (ops, ready) {
            // SAFETY: the caller's contract; the predecessors have settled.
            if here && unsafe { task::copy_small(op, &self.tuning, in_flight) } {
                return Ok(Fence::immediate(HOST));
            }
            // The common case, without a second look at the operation.
            let task = Task::new(op, 0, &self.tuning, in_flight)?;
            let is_watched = in_flight == 0 && self.threads > 0 && task.is_narrowable();
            let (task, watch) = if is_watched {
                self.watch(task)
            } else {
                (task, None)
            };
            if here && task.inline {
                // SAFETY: the caller's contract; the predecessors have settled.
                return Ok(unsafe { self.run_inline(std::iter::once(task)) });
            }
            return self.enqueue(std::iter::once(Ok(task)), |_| 1, watch, &[]);
        }
        let task = |(index, op)| Task::new(op, index, &self.tuning, in_flight);
        let tasks = ops.iter().enumerate().map(task);
        let mut left_bytes = self.tuning.inline_below_bytes as u64;
        let mut is_small = |task: Task| {
            let left = left_bytes.checked_sub(task.len_bytes);
            left_bytes = left.unwrap_or(0);
            task.inline && left_bytes > 0
        };
        if ready && here && tasks.clone().all(|task| task.is_ok_and(&mut is_small)) {
            // Made again rather than kept, so that nothing is allocated for them.
            let tasks = tasks.filter_map(Result::ok);
            // SAFETY: the caller's contract; the predecessors have settled.
            return Ok(unsafe { self.run_inline(tasks) });
        }
        let threads = |len_bytes| self.tuning.choose(len_bytes as usize, in_flight).threads;
        self.enqueue(tasks, threads, None, after)
    }

    pub(crate) fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        let slots = &self.pool.work().slots;
        let number = fence.number();
        if !slots.is_pending(number) {
            return Waited::Settled;
        }
        if limit.is_zero() {
            return Waited::TimedOut;
        }
        // A limit past the end of the clock counts as unlimited.
        let deadline = Instant::now().checked_add(limit);
        let may_run = limit >= UNHURRIED;
        let job = u32::from(index_of(number));
        match self
            .pool
            .help(job, may_run, deadline, || !slots.is_pending(number))
        {
            true => Waited::Settled,
            false => Waited::TimedOut,
        }
    }

    pub(crate) fn progress(&self, fence: Fence) -> u64 {
        let number = fence.number();
        let slot = self.pool.work().slots.find(number);
        slot.map_or(0, |slot| slot.moved_bytes(number))
    }

    pub(crate) fn stop(&self, fence: Fence) -> u64 {
        let slots = &self.pool.work().slots;
        let number = fence.number();
        let Some(slot) = slots.find(number).filter(|_| slots.is_pending(number)) else {
            return 0;
        };
        // Read before the job is known to be of this fence. If it is, the slot has not been filled anew meanwhile.
        let task = slot.only_task();
        // For a submission that waits for its predecessors.
        slot.ask_to_stop(number);
        let job = u32::from(index_of(number));
        // The pieces of a failed submission do nothing, and its outcome is known.
        let is_current = || slots.is_pending(number) && !slot.has_failed();
        let leading = self.pool.stop(job, is_current);
        task.map_or(0, |task| task.leading_bytes(leading))
    }

    /// Narrows the copy to one thread if that was faster lately, and starts timing it.
    fn watch(&self, task: Task) -> (Task, Option<Watch>) {
        let work = self.pool.work();
        let wide = work.live.goes_wide(task.len_bytes);
        let task = if wide { task } else { task.narrowed() };
        (
            task,
            Some(Watch {
                begin: Instant::now(),
                wide,
                // Its own start is the next one.
                starts: work.starts.load(Ordering::Relaxed) + 1,
            }),
        )
    }

    /// # Safety
    /// As for `Backend::submit`, with nothing left to wait for.
    unsafe fn run_inline(&self, tasks: impl Iterator<Item = Task>) -> Fence {
        for task in tasks {
            let ran = unwind::catch(|| {
                // An inline task has one piece, or a few of a prefetch.
                // SAFETY: the caller's contract.
                (0..task.pieces()).try_for_each(|piece| unsafe { task.run(piece) })
            });
            let fault = match ran {
                Some(Ok(())) => continue,
                Some(Err(fault)) => fault,
                None => panicked(),
            };
            return self.pool.work().settle_failed(fault);
        }
        Fence::immediate(HOST)
    }

    fn enqueue(
        &self,
        tasks: impl Iterator<Item = Result<Task, SubmitError>>,
        threads: impl FnOnce(u64) -> u32,
        watch: Option<Watch>,
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        let work = self.pool.work();
        let limit = CAPACITY - 1;
        let (index, number) = work.slots.open().ok_or(SubmitError::Full { limit })?;
        if let Some(slot) = work.slots.get(index)
            && let Err(refused) = slot.fill(tasks, threads, watch)
        {
            slot.empty();
            work.slots.settle(index);
            work.slots.close(index);
            return Err(refused);
        }
        for fence in after {
            work.slots.wait_for(index, fence.number());
        }
        if work.slots.release(index)
            && let Some(slot) = work.slots.get(index)
        {
            let (extent, len_bytes) = slot.extent();
            work.add_in_flight(len_bytes);
            self.pool.start(u32::from(index), extent);
        }
        Ok(Fence::new(HOST, number))
    }
}

impl Submissions {
    fn slot(&self, job: u32) -> Option<(u16, &Slot)> {
        let index = u16::try_from(job).ok()?;
        Some((index, self.slots.get(index)?))
    }

    fn add_in_flight(&self, len_bytes: u64) {
        self.starts.fetch_add(1, Ordering::Relaxed);
        // Relaxed: a hint for tuning. Wrapping is undone by the same subtraction.
        self.in_flight
            .fetch_add(len_bytes as usize, Ordering::Relaxed);
    }

    fn record(&self, watch: Option<Watch>, len_bytes: u64) {
        if let Some(watch) = watch {
            // Beside another copy it had only a part of the threads, so its time says nothing about the width.
            if self.starts.load(Ordering::Relaxed) == watch.starts {
                let Watch { begin, wide, .. } = watch;
                self.live.record(len_bytes, wide, begin.elapsed());
            }
        }
    }

    fn tell(&self, number: u64, outcome: Outcome) {
        if let Some(sink) = self.sink.get() {
            // A sink that panics has broken its promise; fences and successors settle all the same.
            let _ = unwind::catch(|| sink.settle(Fence::new(HOST, number), outcome));
        }
    }

    /// Makes a fence that has settled as failed, and reports it.
    fn settle_failed(&self, fault: Fault) -> Fence {
        // Relaxed: only uniqueness counts. The top bit is beyond any slot's count of uses.
        let number = self.failed_inline.fetch_add(1, Ordering::Relaxed) | 1 << 63;
        self.tell(number, Outcome::Failed(fault));
        Fence::new(HOST, number)
    }
}

impl Work for Submissions {
    fn run(&self, job: u32, piece: u32) {
        let Some((_, slot)) = self.slot(job) else {
            return;
        };
        // SAFETY: the slot's fence settles in `finish`, after the last piece.
        unsafe { slot.run_piece(piece) };
    }

    fn finish(&self, job: u32, end: JobEnd, crew: &Crew<Self>) {
        let Some((index, slot)) = self.slot(job) else {
            return;
        };
        let (_, len_bytes) = slot.extent();
        if !matches!(end, JobEnd::Stopped { .. }) {
            self.record(slot.watch(), len_bytes);
        }
        self.in_flight
            .fetch_sub(len_bytes as usize, Ordering::Relaxed);
        let task = slot.only_task();
        let outcome = match (slot.empty(), end) {
            (Some(fault), _) => Outcome::Failed(fault),
            (None, JobEnd::Panicked) => Outcome::Failed(panicked()),
            (None, JobEnd::Stopped { leading }) => Outcome::Stopped {
                leading_bytes: task.map_or(0, |task| task.leading_bytes(leading)),
            },
            (None, JobEnd::Ran) => Outcome::Done,
        };
        // Told before the fence settles: a thread that sees it settled may look for the outcome.
        self.tell(slot.number(), outcome);
        self.slots.settle(index);
        while let Some(dependent) = self.slots.next_dependent(index) {
            if self.slots.release(dependent)
                && let Some(slot) = self.slots.get(dependent)
            {
                let (extent, len_bytes) = slot.extent();
                self.add_in_flight(len_bytes);
                crew.start_next(u32::from(dependent), extent, || slot.is_to_stop());
            }
        }
        self.slots.close(index);
    }
}

impl std::fmt::Debug for Submissions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Submissions")
            .field("in_flight_bytes", &self.in_flight)
            .finish_non_exhaustive()
    }
}

fn panicked() -> Fault {
    Fault::new(ErrorClass::Failed, "an operation panicked")
}

#[cfg(test)]
mod tests;
