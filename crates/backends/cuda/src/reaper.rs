//! Threads that free memory which the driver frees only once devices are idle.
//!
//! CUDA waits in `cuMemFree`, `cuMemFreeHost` and `cuMemHostUnregister` for what devices have under way, though nothing
//! of it uses the memory (CUDA C++ Programming Guide, Implicit Synchronization). A buffer is freed on the thread that
//! drops it, often one that serves other transfers, and a stream that never answers would block that thread for good.
//! So while something is under way, dedicated threads free: one for each device, and one for memory that all devices
//! reach, which is freed once all of them are idle. So a stream that never answers keeps no memory of other devices.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use transload_hal::{Sleepers, Worker};

/// How long an allocation that finds no memory waits for memory that is about to be freed.
const PATIENCE: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// The reapers that a device uses.
#[derive(Clone, Debug)]
pub(crate) struct Reapers {
    /// Submissions to any device that have not settled.
    under_way: Arc<AtomicU64>,
    /// Memory of the device.
    pub(crate) own: Arc<Reaper>,
    /// Memory that all devices reach.
    pub(crate) common: Arc<Reaper>,
}

/// Runs jobs that free memory, one after the other.
pub(crate) struct Reaper {
    under_way: Arc<AtomicU64>,
    post: Arc<Post>,
    thread: Worker,
}

#[derive(Default)]
struct Post {
    state: Mutex<State>,
    /// There is a job, or no more will come.
    work: Condvar,
    /// Threads that wait until a job is done.
    sleepers: Sleepers,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    is_busy: bool,
    is_closing: bool,
}

impl Reapers {
    /// The reapers of the first device.
    pub(crate) fn new() -> Reapers {
        let under_way = Arc::default();
        Reapers {
            own: Reaper::new(&under_way),
            common: Reaper::new(&under_way),
            under_way,
        }
    }

    /// The reapers of another device, which share the common one.
    pub(crate) fn another(&self) -> Reapers {
        Reapers {
            own: Reaper::new(&self.under_way),
            ..self.clone()
        }
    }

    /// Whether every submission to any device has settled.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) == 0
    }

    /// A submission was made.
    pub(crate) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// A submission has settled.
    pub(crate) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reaper {
    fn new(under_way: &Arc<AtomicU64>) -> Arc<Reaper> {
        Arc::new(Reaper {
            under_way: Arc::clone(under_way),
            post: Arc::default(),
            thread: Worker::default(),
        })
    }

    /// Runs the job on this thread if nothing is under way, else later on the reaper's thread.
    pub(crate) fn free(&self, job: impl FnOnce() + Send + 'static) {
        if self.under_way.load(Ordering::Relaxed) == 0 || !self.has_thread() {
            return job();
        }
        self.post.lock().jobs.push_back(Box::new(job));
        self.post.work.notify_one();
    }

    /// Waits until all queued jobs are done, at most for `PATIENCE`. Returns false if there were none.
    pub(crate) fn settle(&self) -> bool {
        let state = self.post.lock();
        let had_work = state.is_working();
        let sleepers = &self.post.sleepers;
        sleepers.sleep_while(state, (Instant::now(), PATIENCE), State::is_working);
        had_work
    }

    /// Starts the thread if it does not run.
    fn has_thread(&self) -> bool {
        let start = || {
            let post = Arc::clone(&self.post);
            ("transload-cuda-reaper".into(), move || post.run())
        };
        self.thread.start(start).is_ok()
    }
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper")
            .field("under_way", &self.under_way)
            .finish_non_exhaustive()
    }
}

impl Drop for Reaper {
    /// The thread frees what is left; it may be waiting for a stream that never answers.
    fn drop(&mut self) {
        let mut state = self.post.lock();
        state.is_closing = true;
        let is_idle = !state.is_working();
        drop(state);
        self.post.work.notify_one();
        if is_idle {
            self.thread.join();
        }
    }
}

impl State {
    fn is_working(&self) -> bool {
        self.is_busy || !self.jobs.is_empty()
    }
}

impl Post {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            // Users' owners are dropped here, too. A panic in one must not keep the others from being dropped.
            let _ = catch_unwind(AssertUnwindSafe(job));
            self.lock().is_busy = false;
            self.sleepers.wake();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.is_busy = true;
                return Some(job);
            }
            if state.is_closing {
                return None;
            }
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn nothing_waits_for_a_job_while_something_is_under_way() {
        let reapers = Reapers::new();
        let reaper = &reapers.own;
        let here = std::thread::current().id();
        let (tell, told) = mpsc::channel();
        let say = tell.clone();
        reaper.free(move || say.send(std::thread::current().id()).unwrap());
        assert_eq!(told.recv().unwrap(), here, "nothing was under way");
        // A submission to any device counts.
        reapers.another().begin();
        let (go, going) = mpsc::channel::<()>();
        reaper.free(move || {
            going.recv().unwrap();
            tell.send(std::thread::current().id()).unwrap();
        });
        go.send(()).unwrap();
        assert_ne!(told.recv().unwrap(), here);
        reaper.settle();
        reapers.end();
        assert!(!reaper.settle());
    }
}
