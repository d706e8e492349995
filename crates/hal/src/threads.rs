//! Threads of backends: those that wait for a fence, and one that serves.

use std::io;
use std::string::String;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Waited;

/// The threads that sleep until what a mutex guards has changed. Waking costs nothing where none sleeps.
#[derive(Debug, Default)]
pub struct Sleepers {
    /// Changed under the mutex alone.
    count: AtomicU32,
    changed: Condvar,
}

impl Sleepers {
    /// Lets go of the mutex and sleeps until [`Sleepers::wake`] is called or the limit has passed; then holds the mutex
    /// again. May return earlier.
    pub fn sleep<'a, T>(&self, state: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let waited = self.changed.wait_timeout(state, limit);
        self.count.fetch_sub(1, Ordering::Relaxed);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Sleeps as long as `is_pending` is true of the state, but not longer than `limit` after `begun`.
    pub fn sleep_while<T>(
        &self,
        mut state: MutexGuard<'_, T>,
        (begun, limit): (Instant, Duration),
        is_pending: impl Fn(&T) -> bool,
    ) -> Waited {
        while is_pending(&state) {
            let Some(left) = limit.checked_sub(begun.elapsed()) else {
                return Waited::TimedOut;
            };
            state = self.sleep(state, left);
        }
        Waited::Settled
    }

    /// Wakes all. The caller has changed the state under the mutex, which it may hold or have let go of since.
    pub fn wake(&self) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }
}

/// A thread of a backend, which is started when it is first needed.
#[derive(Debug, Default)]
pub struct Worker {
    /// The thread, and the process that it runs in.
    started: Mutex<Option<(JoinHandle<()>, u32)>>,
}

impl Worker {
    /// Starts the thread, if this was not done before, with the name and the work that `make` gives.
    ///
    /// # Errors
    /// As [`spawn`].
    pub fn start<W: FnOnce() + Send + 'static>(
        &self,
        make: impl FnOnce() -> (String, W),
    ) -> io::Result<()> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if started.is_none() {
            let (name, work) = make();
            let thread = spawn(name, work)?;
            *started = Some((thread, std::process::id()));
        }
        Ok(())
    }

    /// Waits for the end of the thread, if it was started. Does not wait on the thread itself, or in a forked child, where
    /// it does not run.
    pub fn join(&mut self) {
        let started = self.started.get_mut();
        let started = started.unwrap_or_else(PoisonError::into_inner).take();
        if let Some((thread, process)) = started
            && thread.thread().id() != thread::current().id()
            && process == std::process::id()
        {
            // If it panicked, the work that it served is lost, and nothing else.
            let _ = thread.join();
        }
    }
}

/// Starts a thread.
///
/// # Errors
/// When the system refuses a thread: the error says so, and what to do.
pub fn spawn<T: Send + 'static>(
    name: String,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let thread = thread::Builder::new().name(name).spawn(work);
    thread.map_err(|error| {
        let told = std::format!(
            "the system gave no thread: {error}; end other threads or processes, or raise the limit, as `ulimit -u` does"
        );
        io::Error::new(error.kind(), told)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn a_sleeper_wakes_when_the_state_has_changed_and_not_before() {
        let shared = Arc::new((Mutex::new(false), Sleepers::default()));
        let of_thread = Arc::clone(&shared);
        let sleeper = thread::spawn(move || {
            let (state, sleepers) = &*of_thread;
            let forever = (Instant::now(), Duration::MAX);
            sleepers.sleep_while(state.lock().unwrap(), forever, |is_over| !is_over)
        });
        *shared.0.lock().unwrap() = true;
        shared.1.wake();
        assert_eq!(sleeper.join().unwrap(), Waited::Settled);
        let (state, sleepers) = &*shared;
        let at_once = (Instant::now(), Duration::ZERO);
        let waited = sleepers.sleep_while(state.lock().unwrap(), at_once, |is_over| *is_over);
        assert_eq!(waited, Waited::TimedOut);
    }

    #[test]
    fn a_worker_is_started_once_and_joined() {
        let mut worker = Worker::default();
        let (tell, told) = mpsc::channel();
        for number in [1, 2] {
            let tell = tell.clone();
            let work = move || tell.send(number).unwrap();
            worker.start(|| ("worker".into(), work)).unwrap();
        }
        worker.join();
        drop(tell);
        assert_eq!(told.iter().collect::<std::vec::Vec<_>>(), [1]);
    }
}
