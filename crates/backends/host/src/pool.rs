//! A pool of parked threads that runs jobs made of pieces.
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
//! - **One wake-up in flight.** A start wakes one worker; a worker that finds more to do than it can
//!   take wakes the next. A start costs at most one system call.
//! - **Lazy.** Threads start when jobs want them and end with the pool. Where a thread cannot be started (in a browser, or
//!   past a limit of the process), the thread that starts a job runs it.
//!
//! - **Stopped between pieces.** [`Crew::stop`] drops the pieces of a job that no thread has taken. The job ends when
//!   the pieces that run have ended.
//!
//! After its first jobs, a pool allocates only when more jobs are in flight, or more threads at work, than ever before.

mod crew;
mod limits;
mod schedule;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

pub(crate) use crew::{Crew, Work};
pub use limits::{Limits, processors};
pub(crate) use schedule::{Extent, JobEnd, Side};

/// Owns the threads. Dropping it completes every job in flight, then joins the threads.
///
/// When the drop happens on one of its own workers (from [`Work::finish`]), that worker is not joined;
/// it ends by itself after what it is doing.
pub(crate) struct Pool<W: Work> {
    crew: Arc<Crew<W>>,
}

impl<W: Work> Pool<W> {
    /// A pool without threads yet.
    pub(crate) fn new(work: W, limits: Limits) -> Self {
        Self {
            crew: Crew::new(work, limits),
        }
    }

    /// Starts job `job`.
    ///
    /// Returns without waiting when a worker exists or can be started; otherwise it returns when the
    /// job is done. `job` must not be in flight already.
    pub(crate) fn start(&self, job: u32, extent: Extent) {
        self.crew.start(job, extent);
    }
}

impl<W: Work> Deref for Pool<W> {
    type Target = Crew<W>;

    fn deref(&self) -> &Crew<W> {
        &self.crew
    }
}

impl<W: Work> Drop for Pool<W> {
    fn drop(&mut self) {
        self.crew.close();
    }
}

impl<W: Work> fmt::Debug for Pool<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.crew.fmt(f)
    }
}
