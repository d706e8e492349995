//! How many threads a pool has, and how long they watch for work.

use std::time::Duration;

use transload_hal::processors;

/// The threads that read one file past the system's cache, however few processors there are: they wait most of the time.
pub(crate) const DIRECT_READERS: u32 = 4;

/// Bounds of the pool of threads that copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of worker threads; with 0, the thread that starts a job runs it. Workers sleep while this many
    /// threads are at work, counting threads that wait for a job and take part in it.
    pub threads: u32,
    /// How long an idle worker, or a waiting thread whose job is all handed out, watches for news
    /// before it parks. Zero parks at once.
    pub linger: Duration,
    /// Jobs in flight for which room is made up front.
    pub jobs: usize,
}

impl Limits {
    /// Sets the maximum number of worker threads.
    #[must_use]
    pub fn with_threads(mut self, threads: u32) -> Self {
        self.threads = threads;
        self
    }

    /// Sets how long an idle thread watches for news before it parks.
    #[must_use]
    pub fn with_linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Sets for how many jobs in flight room is made up front.
    #[must_use]
    pub fn with_jobs(mut self, jobs: usize) -> Self {
        self.jobs = jobs;
        self
    }
}

impl Default for Limits {
    /// A thread for each processor that this process may use, at least four, as many as read a file past the cache, and
    /// none on `wasm32`; 20 µs of lingering, about what a
    /// parked thread takes to wake on the virtual machines measured (none with a single processor); 64
    /// jobs.
    fn default() -> Self {
        let processors = processors();
        Self {
            threads: if cfg!(target_family = "wasm") {
                0
            } else {
                processors.max(DIRECT_READERS)
            },
            linger: if processors > 1 {
                Duration::from_micros(20)
            } else {
                Duration::ZERO
            },
            jobs: 64,
        }
    }
}
