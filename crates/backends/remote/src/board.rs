//! Submissions under way, for both backends of this crate.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use transload_hal::{BackendId, CompletionSink, Fence, Outcome, Sleepers, SubmitError, Waited};

/// Submissions under way at a time, so that later ones with a higher priority can go first.
const MOST_SUBMISSIONS: usize = 1024;

/// The submissions of a backend. Each has one fence and one or more operations, and settles with the last of them.
pub(crate) struct Board {
    backend: BackendId,
    sink: OnceLock<Arc<dyn CompletionSink>>,
    open: Mutex<Open>,
    sleepers: Sleepers,
}

#[derive(Default)]
struct Open {
    /// The last number.
    last: u64,
    jobs: HashMap<u64, Job>,
}

/// A submission that has not settled.
struct Job {
    /// Operations that have not ended.
    left: usize,
    /// Bytes that have moved, as far as is known.
    moved: u64,
    /// How it ends, so far.
    outcome: Outcome,
    is_single: bool,
}

impl Board {
    pub(crate) fn new(backend: BackendId) -> Board {
        Board {
            backend,
            sink: OnceLock::new(),
            open: Mutex::default(),
            sleepers: Sleepers::default(),
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Each change is whole when it may panic.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.sink.set(sink).is_ok()
    }

    /// Begins a submission of so many operations, which are told to [`Board::end`] one by one. Its fence names the lane.
    pub(crate) fn begin(&self, operations: usize, lane: u64) -> Result<Fence, SubmitError> {
        if operations == 0 {
            return Ok(Fence::immediate(self.backend));
        }
        let mut open = self.open();
        if open.jobs.len() >= MOST_SUBMISSIONS {
            return Err(SubmitError::Full {
                limit: MOST_SUBMISSIONS,
            });
        }
        open.last += 1;
        let fence = Fence::in_lane(self.backend, lane, open.last);
        open.jobs.insert(
            fence.number(),
            Job {
                left: operations,
                moved: 0,
                outcome: Outcome::Done,
                is_single: operations == 1,
            },
        );
        Ok(fence)
    }

    /// Sets how many operations a submission has of which none was started.
    pub(crate) fn expect(&self, fence: Fence, operations: usize) {
        if let Some(job) = self.open().jobs.get_mut(&fence.number()) {
            job.left = operations;
            job.is_single = operations == 1;
        }
    }

    /// Takes a submission back of which nothing was started.
    pub(crate) fn forget(&self, fence: Fence) {
        self.open().jobs.remove(&fence.number());
    }

    /// Takes in that an operation of a submission has moved further bytes.
    pub(crate) fn advance(&self, number: u64, bytes: u64) {
        if let Some(job) = self.open().jobs.get_mut(&number) {
            job.moved += bytes;
        }
    }

    /// Takes in that an operation of a submission is quiet. The last one settles the fence: as the first failure, else as
    /// stopped if one was stopped.
    pub(crate) fn end(&self, number: u64, outcome: Outcome) {
        let mut open = self.open();
        let Some(job) = open.jobs.get_mut(&number) else {
            return;
        };
        job.left -= 1;
        job.outcome = match (&job.outcome, outcome) {
            (Outcome::Failed(_) | Outcome::Lost(_), _) => job.outcome.clone(),
            (_, failed @ (Outcome::Failed(_) | Outcome::Lost(_))) => failed,
            (_, Outcome::Stopped { leading_bytes }) => Outcome::Stopped {
                leading_bytes: if job.is_single { leading_bytes } else { 0 },
            },
            (known, _) => known.clone(),
        };
        if job.left > 0 {
            return;
        }
        if let Some(job) = open.jobs.remove(&number)
            && let Some(sink) = self.sink.get()
        {
            // Under the lock, so that a thread that finds the fence settled finds its outcome at the sink.
            sink.settle(Fence::new(self.backend, number), job.outcome);
        }
        drop(open);
        self.sleepers.wake();
    }

    pub(crate) fn is_open(&self, fence: &Fence) -> bool {
        self.open().jobs.contains_key(&fence.number())
    }

    /// Waits until one of the fences has settled.
    pub(crate) fn wait(&self, fences: &[Fence], limit: Duration) -> Waited {
        if fences.is_empty() {
            return Waited::TimedOut;
        }
        let begun = (Instant::now(), limit);
        let is_pending =
            |open: &Open| { fences.iter() }.all(|fence| open.jobs.contains_key(&fence.number()));
        self.sleepers.sleep_while(self.open(), begun, is_pending)
    }

    pub(crate) fn progress(&self, fence: Fence) -> u64 {
        self.open()
            .jobs
            .get(&fence.number())
            .map_or(0, |job| job.moved)
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Board({}, {} open)",
            self.backend,
            self.open().jobs.len()
        )
    }
}
