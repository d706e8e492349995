//! A thread of this backend's.

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

    /// Waits for its end. Not if it is this very thread, nor in a child that was forked, where it does not run.
    pub(crate) fn join(self) {
        let is_itself = self.handle.thread().id() == std::thread::current().id();
        if !is_itself && self.process == std::process::id() {
            // Workers panic nowhere; if one did, what it looked after is lost, and that is all.
            let _ = self.handle.join();
        }
    }
}
