//! A thread of this backend.

use std::io;
use std::thread::JoinHandle;

/// A thread, and the process that it runs in.
pub(crate) struct Worker {
    handle: JoinHandle<()>,
    process: u32,
}

impl Worker {
    pub(crate) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<Worker> {
        let handle = std::thread::Builder::new().name(name).spawn(work)?;
        Ok(Worker {
            handle,
            process: std::process::id(),
        })
    }

    /// Waits for the thread's end. Does not wait if it is the calling thread, or in a forked child, where the
    /// thread does not run.
    pub(crate) fn join(self) {
        let is_itself = self.handle.thread().id() == std::thread::current().id();
        if !is_itself && self.process == std::process::id() {
            // Workers never panic; if one did, only the work that it served would be lost.
            let _ = self.handle.join();
        }
    }
}
