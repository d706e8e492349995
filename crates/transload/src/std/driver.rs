//! The manager's own threads. One listens while no thread that waits does: it takes in outcomes and submits the
//! operations that follow. One carries out work that takes long, such as allocating a slot: neither the caller of
//! `submit` nor the outcomes of other transfers wait for that.
//!
//! Each starts when it is first needed. While a thread has nothing to do, it is parked without a timer and keeps
//! nothing of the manager alive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
#[cfg(not(loom))]
use std::thread;

#[cfg(loom)]
use loom::thread;

use crate::engine::signal::{Charge, Parker, Signal};
use crate::engine::unwind::guarded;

pub(crate) struct Driver {
    signal: Arc<Signal>,
    listener: Start,
    slow: Start,
    post: Arc<Post>,
}

/// The place where the thread for work that takes long finds its manager.
#[derive(Default)]
struct Post {
    /// Keeps the manager until the thread has looked.
    handed: Mutex<Option<Charge>>,
    /// Whether the thread holds the manager.
    is_busy: AtomicBool,
    parker: Arc<Parker>,
}

/// Whether a thread was started, and whether it must end.
#[derive(Default)]
struct Start {
    is_running: AtomicBool,
    /// Held while a thread is started: another caller that needs the thread waits to learn whether there is one.
    starting: Mutex<()>,
    closed: Arc<AtomicBool>,
}

impl Driver {
    pub(crate) fn new(signal: Arc<Signal>) -> Driver {
        Driver {
            signal,
            listener: Start::default(),
            slow: Start::default(),
            post: Arc::default(),
        }
    }

    /// Ensures that the thread that listens runs. Returns false when the system refuses; the next call tries
    /// again.
    pub(crate) fn ensure_listener(&self) -> bool {
        let signal = Arc::clone(&self.signal);
        self.listener.ensure("transload", move |closed| {
            loop {
                let drive =
                    |manager: &Charge| guarded(|| Arc::clone(manager).drive()).unwrap_or(None);
                let limit = match signal.serve(drive) {
                    Some(limit) => limit,
                    None if closed.load(Ordering::Acquire) => return,
                    None => None,
                };
                signal.own().park(limit);
            }
        })
    }

    /// Passes the manager to the thread for work that takes long. Returns false when there is none and the system
    /// refuses one.
    pub(crate) fn execute_slow(&self, manager: Charge) -> bool {
        let post = Arc::clone(&self.post);
        let can_execute = self.slow.ensure("transload-slow", move |closed| {
            transload_host::raw::stay_in_the_background();
            loop {
                match post.take() {
                    Some(manager) => {
                        while guarded(|| Arc::clone(&manager).execute_slow()).unwrap_or(false) {}
                        drop(manager);
                        post.is_busy.store(false, Ordering::SeqCst);
                    }
                    None if closed.load(Ordering::Acquire) => return,
                    None => {}
                }
                post.parker.park(None);
            }
        });
        if can_execute {
            *self.post.handed() = Some(manager);
            self.post.parker.unpark();
        }
        can_execute
    }

    /// Gives the manager's own threads a moment to drop their handles of it, if they are about to. The thread that
    /// drops the last handle then closes the devices, and not a thread that the end of the program cuts short.
    pub(crate) fn let_go(&self) {
        let is_busy = || {
            self.signal.is_serving()
                || self.post.is_busy.load(Ordering::SeqCst)
                || self.post.handed().is_some()
        };
        let mut moments = 0..10_000;
        while is_busy() && moments.next().is_some() {
            thread::yield_now();
        }
    }
}

impl Start {
    fn ensure(&self, name: &str, run: impl FnOnce(&AtomicBool) + Send + 'static) -> bool {
        if self.is_running.load(Ordering::Acquire) {
            return true;
        }
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_running.load(Ordering::Acquire) {
            return true;
        }
        let closed = Arc::clone(&self.closed);
        let thread = thread::Builder::new().name(name.into());
        #[cfg(loom)]
        let thread = thread.stack_size(crate::engine::sync::LOOM_STACK_WORDS);
        let started = thread.spawn(move || run(&closed)).is_ok();
        self.is_running.store(started, Ordering::Release);
        started
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.listener.closed.store(true, Ordering::Release);
        self.slow.closed.store(true, Ordering::Release);
        self.signal.own().unpark();
        self.post.parker.unpark();
    }
}

impl Post {
    fn handed(&self) -> MutexGuard<'_, Option<Charge>> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Charge> {
        let mut handed = self.handed();
        self.is_busy.store(handed.is_some(), Ordering::SeqCst);
        handed.take()
    }
}
