//! Writes verdicts down, so that no thread that moves bytes waits for a disk.

use std::path::{Path, PathBuf};

use super::entry::Entry;
use super::store;
use crate::engine::unwind::guarded;
use crate::engine::verdict::Verdict;

#[cfg(threads)]
pub(crate) use threaded::VerdictWriter;

/// Without threads, the thread that turns the engine writes.
#[cfg(not(threads))]
pub(crate) struct VerdictWriter {
    path: PathBuf,
}

#[cfg(not(threads))]
impl VerdictWriter {
    pub(crate) fn new(path: PathBuf) -> VerdictWriter {
        VerdictWriter { path }
    }

    pub(super) fn read(&self) -> Vec<Entry> {
        store::read(&self.path).unwrap_or_default()
    }

    pub(crate) fn keep(&self, verdicts: Vec<Verdict>) {
        write(&self.path, &verdicts);
    }
}

/// Writes verdicts down. A verdict that cannot be written is found out again by the next process.
fn write(path: &Path, verdicts: &[Verdict]) {
    if verdicts.is_empty() {
        return;
    }
    let written = guarded(|| store::add(path, verdicts));
    #[cfg(feature = "tracing")]
    if let Ok(Err(error)) = &written {
        let path = path.display();
        let told = || tracing::debug!(target: "transload", %path, %error, "verdicts not kept");
        let _ = guarded(told);
    }
    drop(written);
}

#[cfg(threads)]
mod threaded {
    use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
    use std::thread;
    use std::time::Duration;

    use super::{Entry, PathBuf, Verdict, store, write};

    /// Has a thread write verdicts. The thread runs only while there are verdicts to write.
    pub(crate) struct VerdictWriter {
        desk: Arc<Desk>,
    }

    struct Desk {
        path: PathBuf,
        inbox: Mutex<Inbox>,
        /// Notified when the thread ends.
        done: Condvar,
    }

    #[derive(Default)]
    struct Inbox {
        verdicts: Vec<Verdict>,
        writing: bool,
    }

    impl VerdictWriter {
        pub(crate) fn new(path: PathBuf) -> VerdictWriter {
            VerdictWriter {
                desk: Arc::new(Desk {
                    path,
                    inbox: Mutex::default(),
                    done: Condvar::new(),
                }),
            }
        }

        pub(in crate::std::verdicts) fn read(&self) -> Vec<Entry> {
            store::read(&self.desk.path).unwrap_or_default()
        }

        /// Returns at once.
        pub(crate) fn keep(&self, verdicts: Vec<Verdict>) {
            if verdicts.is_empty() {
                return;
            }
            let mut inbox = self.desk.inbox();
            inbox.verdicts.extend(verdicts);
            if inbox.writing {
                return;
            }
            let desk = Arc::clone(&self.desk);
            let thread = thread::Builder::new().name("transload-verdicts".into());
            match thread.spawn(move || desk.write()) {
                Ok(_) => inbox.writing = true,
                // The next process proves once more.
                Err(_) => inbox.verdicts.clear(),
            }
        }
    }

    /// Waits for the thread, so that a process that ends right after its first transfer has written its verdicts.
    impl Drop for VerdictWriter {
        fn drop(&mut self) {
            let busy = |inbox: &mut Inbox| inbox.writing;
            let inbox = self.desk.inbox();
            let waited = self.desk.done.wait_timeout_while(inbox, PATIENCE, busy);
            drop(waited);
        }
    }

    impl Desk {
        fn inbox(&self) -> MutexGuard<'_, Inbox> {
            self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn write(&self) {
            loop {
                let mut inbox = self.inbox();
                let verdicts = std::mem::take(&mut inbox.verdicts);
                if verdicts.is_empty() {
                    inbox.writing = false;
                    self.done.notify_all();
                    return;
                }
                drop(inbox);
                write(&self.path, &verdicts);
            }
        }
    }

    /// Much longer than writing takes; but another process may hold the lock for ever.
    const PATIENCE: Duration = Duration::from_secs(5);
}
