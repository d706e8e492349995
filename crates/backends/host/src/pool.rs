//! The pool of threads that copy: how many there are, and how long they watch for work before they park.

mod crew;
mod limits;
mod schedule;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

pub(crate) use crew::{Crew, Work};
pub(crate) use limits::DIRECT_READERS;
pub use limits::Limits;
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
