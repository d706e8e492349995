//! Submissions under way, and the thread that their requests run on.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use transload::hal::{
    CompletionSink, Fault, Fence, Outcome, Sleepers, SubmitError, Waited, Worker,
};

use super::fetch::Requests;
use super::{BACKEND, fault};

/// Requests under way at a time. With a server on loopback that answers after 50 ms and sends 100 MB/s over each connection,
/// 8, 16, 32 and 64 requests of 4 MiB brought 366, 720, 1023 and 1063 MB/s (2 cores).
pub(super) const IN_FLIGHT: usize = 32;

/// Submissions under way at a time, so that later ones with a higher priority can go first.
const MOST_SUBMISSIONS: usize = 64;

/// The submissions of a backend.
#[derive(Debug)]
pub(super) struct Queue {
    board: Arc<Board>,
    room: Arc<Semaphore>,
    /// The thread's runtime, and what ends it when it is dropped.
    runtime: Mutex<Option<(Handle, oneshot::Sender<()>)>>,
    thread: Worker,
}

/// What is known of submissions.
#[derive(Default)]
struct Board {
    sink: OnceLock<Arc<dyn CompletionSink>>,
    /// The last number, and the submissions that have not settled.
    open: Mutex<(u64, HashMap<u64, Open>)>,
    sleepers: Sleepers,
}

/// A submission that has not settled.
#[derive(Default)]
struct Open {
    progress: Arc<Progress>,
    /// `None` until its task has started.
    task: Option<AbortHandle>,
}

#[derive(Default)]
struct Progress {
    moved: AtomicU64,
    is_stopped: AtomicBool,
}

/// A submission, held by each of its requests. The last one to let go settles the fence: no request writes any more then.
struct Job {
    fence: Fence,
    board: Arc<Board>,
    progress: Arc<Progress>,
    result: OnceLock<Result<(), String>>,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            board: Arc::default(),
            room: Arc::new(Semaphore::new(IN_FLIGHT)),
            runtime: Mutex::default(),
            thread: Worker::default(),
        }
    }
}

impl Queue {
    /// Returns the runtime, whose thread it starts at the first call.
    fn runtime(&self) -> io::Result<Handle> {
        let mut started = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((handle, _)) = &*started {
            return Ok(handle.clone());
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, (end, ended)) = (runtime.handle().clone(), oneshot::channel());
        let work = move || {
            // An error says that the sender is gone, which is the sign to end.
            let _ = runtime.block_on(ended);
            // Look-ups of names may take long, and have nothing of ours.
            runtime.shutdown_background();
        };
        self.thread.start(|| ("transload-remote".into(), work))?;
        *started = Some((handle.clone(), end));
        Ok(handle)
    }

    /// Waits for a future that runs on the thread.
    pub(super) fn block_on<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> io::Result<T> {
        let (tell, told) = mpsc::channel();
        self.runtime()?.spawn(async move {
            let _ = tell.send(future.await);
        });
        told.recv()
            .map_err(|_| io::Error::other("the store panicked"))
    }

    /// Starts requests that belong together.
    pub(super) fn start(&self, requests: Requests) -> Result<Fence, SubmitError> {
        if requests.0.is_empty() {
            return Ok(Fence::immediate(BACKEND));
        }
        let refused =
            |error: io::Error| SubmitError::Refused(Fault::of_io("cannot send requests", &error));
        let runtime = self.runtime().map_err(refused)?;
        let progress = Arc::<Progress>::default();
        let number = {
            let (last, open) = &mut *self.board.open();
            if open.len() >= MOST_SUBMISSIONS {
                return Err(SubmitError::Full {
                    limit: MOST_SUBMISSIONS,
                });
            }
            *last += 1;
            let progress = Arc::clone(&progress);
            open.insert(
                *last,
                Open {
                    progress,
                    task: None,
                },
            );
            *last
        };
        let job = Arc::new(Job {
            fence: Fence::new(BACKEND, number),
            board: Arc::clone(&self.board),
            progress,
            result: OnceLock::new(),
        });
        let task = runtime.spawn(Job::run(Arc::clone(&job), requests, Arc::clone(&self.room)));
        if let Some(open) = self.board.open().1.get_mut(&number) {
            open.task = Some(task.abort_handle());
        }
        Ok(job.fence)
    }

    pub(super) fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.board.sink.set(sink).is_ok()
    }

    pub(super) fn is_open(&self, fence: &Fence) -> bool {
        self.board.open().1.contains_key(&fence.number())
    }

    /// Waits until one of the fences has settled.
    pub(super) fn wait(&self, fences: &[Fence], limit: Duration) -> Waited {
        if fences.is_empty() {
            return Waited::TimedOut;
        }
        let begun = (Instant::now(), limit);
        let is_pending = |open: &(u64, HashMap<u64, Open>)| {
            { fences.iter() }.all(|fence| open.1.contains_key(&fence.number()))
        };
        self.board
            .sleepers
            .sleep_while(self.board.open(), begun, is_pending)
    }

    pub(super) fn progress(&self, fence: Fence) -> u64 {
        let open = self.board.open();
        let found = open.1.get(&fence.number());
        found.map_or(0, |open| open.progress.moved.load(Ordering::Relaxed))
    }

    /// Ends the requests of a submission.
    pub(super) fn stop(&self, fence: Fence) {
        let task = self.board.open().1.get(&fence.number()).and_then(|open| {
            open.progress.is_stopped.store(true, Ordering::Relaxed);
            open.task.clone()
        });
        // Without the lock, which the end of the job takes.
        if let Some(task) = task {
            task.abort();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let runtime = self.runtime.get_mut();
        *runtime.unwrap_or_else(PoisonError::into_inner) = None;
        self.thread.join();
    }
}

impl Board {
    fn open(&self) -> MutexGuard<'_, (u64, HashMap<u64, Open>)> {
        // Each change is whole when it may panic.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Board({} open)", self.open().1.len())
    }
}

impl Job {
    /// Runs the requests. When one fails, or the task is aborted, the others are.
    async fn run(self: Arc<Job>, requests: Requests, room: Arc<Semaphore>) {
        let mut all = JoinSet::new();
        for request in requests.0 {
            let (job, room) = (Arc::clone(&self), Arc::clone(&room));
            all.spawn(async move {
                // The semaphore is never closed.
                let _permit = room.acquire().await;
                request.run(&job.progress.moved).await
            });
        }
        while let Some(ended) = all.join_next().await {
            let ended = ended.unwrap_or_else(|error| Err(format!("the store failed: {error}")));
            if ended.is_err() {
                let _ = self.result.set(ended);
                return;
            }
        }
        let _ = self.result.set(Ok(()));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let outcome = match self.result.take() {
            Some(Ok(())) => Outcome::Done,
            Some(Err(message)) => Outcome::Failed(fault(message)),
            None if self.progress.is_stopped.load(Ordering::Relaxed) => {
                Outcome::Stopped { leading_bytes: 0 }
            }
            None => Outcome::Failed(fault("the thread of requests has ended".into())),
        };
        let mut open = self.board.open();
        open.1.remove(&self.fence.number());
        // Under the lock, so that a thread that finds the fence settled finds its outcome at the sink.
        if let Some(sink) = self.board.sink.get() {
            sink.settle(self.fence, outcome);
        }
        drop(open);
        self.board.sleepers.wake();
    }
}
