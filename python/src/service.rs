//! The one thread that takes the interpreter's lock for the engine's threads: it gives other libraries' memory back, and tells
//! of transfers that are awaited.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use pyo3::prelude::*;

type Job = Box<dyn FnOnce(Python<'_>) + Send>;

enum Service {
    /// No job so far.
    Idle,
    Running {
        jobs: Sender<Option<Job>>,
        thread: JoinHandle<()>,
        /// A child of `fork` has no such thread.
        process: u32,
    },
    /// The interpreter ends.
    Stopped,
}

static SERVICE: Mutex<Service> = Mutex::new(Service::Idle);

/// Has the thread run a job, soon. Does not block, and may be called with or without the interpreter's lock. When the
/// interpreter ends, jobs are forgotten: what they own is leaked.
pub(crate) fn later(job: impl FnOnce(Python<'_>) + Send + 'static) {
    let job: Job = Box::new(job);
    let mut service = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let is_of_parent = matches!(
        &*service,
        Service::Running { process, .. } if *process != std::process::id()
    );
    if is_of_parent {
        // The thread is not in this process, and its jobs are the parent's to do.
        std::mem::forget(std::mem::replace(&mut *service, Service::Idle));
    }
    if let Service::Idle = *service {
        let (jobs, queue) = channel::<Option<Job>>();
        let work = move || {
            while let Ok(Some(job)) = queue.recv() {
                if run(job, &queue).is_break() {
                    return;
                }
            }
        };
        let named = std::thread::Builder::new().name("transload-python".into());
        if let Ok(thread) = named.spawn(work) {
            *service = Service::Running {
                jobs,
                thread,
                process: std::process::id(),
            };
        }
    }
    match &*service {
        Service::Running { jobs, .. } => {
            if let Err(refused) = jobs.send(Some(job)) {
                std::mem::forget(refused);
            }
        }
        _ => std::mem::forget(job),
    }
}

/// Runs a job, and those that have come meanwhile: a thread that computes gives the interpreter's lock away every 5 ms only, and
/// the queue would grow if that were for one job each. `Break`: the interpreter ends.
fn run(job: Job, queue: &Receiver<Option<Job>>) -> ControlFlow<()> {
    let mut first = Some(job);
    // Where the interpreter is on its way out, nothing may touch it.
    let ran = Python::try_attach(|py| {
        if let Some(job) = first.take() {
            job(py);
        }
        while let Ok(next) = queue.try_recv() {
            match next {
                Some(job) => job(py),
                None => return ControlFlow::Break(()),
            }
        }
        ControlFlow::Continue(())
    });
    ran.unwrap_or_else(|| {
        std::mem::forget(first);
        ControlFlow::Continue(())
    })
}

/// Ends the thread, before the interpreter does.
#[pyfunction]
#[pyo3(name = "_stop")]
pub(crate) fn stop(py: Python<'_>) {
    py.detach(|| {
        let stopped = {
            let mut service = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *service, Service::Stopped)
        };
        if let Service::Running {
            jobs,
            thread,
            process,
        } = stopped
            && process == std::process::id()
        {
            let _ = jobs.send(None);
            // It panics for no reason of its own.
            let _ = thread.join();
        }
    });
}
