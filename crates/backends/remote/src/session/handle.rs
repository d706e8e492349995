//! What other threads have of a session.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use mio::Waker;
use transload_hal::Worker;

/// A session, as other threads have it. Dropping it does not end the session.
#[derive(Clone)]
pub struct SessionHandle {
    pub(super) shared: Arc<Shared>,
}

/// What the session's thread and the handles share.
pub(super) struct Shared {
    pub(super) bell: Bell,
    is_closing: AtomicBool,
    worker: Mutex<Worker>,
    /// The session's thread, which sets it first of all.
    thread: OnceLock<ThreadId>,
}

impl SessionHandle {
    /// Makes a handle without a session.
    #[cfg(test)]
    pub(crate) fn for_tests() -> SessionHandle {
        let poll = mio::Poll::new().expect("the system has one");
        let waker = Waker::new(poll.registry(), mio::Token(0)).expect("the system has one");
        let shared = Shared::new(waker);
        SessionHandle { shared }
    }

    /// Has the session's thread call [`Handler::woken`](super::Handler::woken) soon. Never blocks. Costs one atomic
    /// operation, and a system call only if the thread sleeps and was not woken yet. What the caller wrote before is
    /// visible to the handler.
    pub fn wake(&self) {
        self.shared.bell.ring();
    }

    /// Ends the session: lets go of all spans, tells the peer and calls [`Handler::closed`](super::Handler::closed). Does
    /// not block; [`SessionHandle::join`] waits. The end takes up to [`Options::close`](super::Options::close), and
    /// while the session still connects, up to [`Options::connect`](super::Options::connect) for each address.
    pub fn close(&self) {
        self.shared.is_closing.store(true, Ordering::Release);
        self.shared.bell.ring();
    }

    /// Waits until the session has ended and its thread with it. Returns at once on that thread itself.
    pub fn join(&self) {
        if self.shared.thread.get() == Some(&thread::current().id()) {
            return;
        }
        self.shared.worker().join();
    }
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHandle")
            .field("is_closing", &self.shared.is_closing())
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(waker: Waker) -> Arc<Shared> {
        Arc::new(Shared {
            bell: Bell {
                state: AtomicU8::new(AWAKE),
                waker,
            },
            is_closing: AtomicBool::new(false),
            worker: Mutex::default(),
            thread: OnceLock::new(),
        })
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Starts the session's thread.
    pub(super) fn spawn(
        self: &Arc<Shared>,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let of_thread = Arc::clone(self);
        self.worker().start(|| {
            let work = move || {
                let _ = of_thread.thread.set(thread::current().id());
                drop(of_thread);
                work();
            };
            ("transload-link".into(), work)
        })
    }

    fn worker(&self) -> std::sync::MutexGuard<'_, Worker> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the session's thread.
pub(super) struct Bell {
    state: AtomicU8,
    waker: Waker,
}

impl Bell {
    fn ring(&self) {
        // The exchange orders what the caller wrote before it, also if the bell has been rung already.
        if self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP {
            // It fails if the system has no memory; the thread then wakes for its next heartbeat.
            let _: io::Result<()> = self.waker.wake();
        }
    }

    /// Returns whether the bell was rung since the last call. The thread is awake afterwards.
    pub(super) fn answer(&self) -> bool {
        self.state.swap(AWAKE, Ordering::AcqRel) == RUNG
    }

    /// Returns whether the thread may sleep: whether the bell was not rung.
    pub(super) fn doze(&self) -> bool {
        let dozed = (AWAKE, ASLEEP);
        self.state
            .compare_exchange(dozed.0, dozed.1, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// The thread runs, and will look at the bell before it sleeps.
const AWAKE: u8 = 0;

/// The thread sleeps, or is about to.
const ASLEEP: u8 = 1;

/// The thread will call `woken`.
const RUNG: u8 = 2;
