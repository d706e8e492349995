//! Threads that sleep until the engine has news for them, and the choice of the thread that listens for all.
//!
//! A thread sleeps in its own [`Parker`]. The end of a transfer unparks the one thread that waits for that transfer.
//! News of a backend unparks one thread, the *listener*: it turns the engine for all others. A thread that waits takes
//! the place of the listener from the manager's own thread, which has it whenever no other thread has it and a transfer
//! needs one.

#[cfg(threads)]
use alloc::sync::Arc;
use core::task::Waker;
use core::time::Duration;

#[cfg(not(threads))]
pub(crate) use alone::{Parker, Signal};
#[cfg(threads)]
pub(crate) use shared::{Parker, Signal};

/// A manager, as its own threads see it.
#[cfg(threads)]
pub(crate) trait Driven: Send + Sync {
    /// Does the work of the thread that listens. Returns how long the thread may sleep, `None` until it is woken.
    fn drive(self: Arc<Self>) -> Option<Duration>;

    /// Executes one command that takes long. Returns false when there is none.
    fn execute_slow(self: Arc<Self>) -> bool;
}

/// How the thread that listens keeps its manager alive.
#[cfg(threads)]
pub(crate) type Charge = Arc<dyn Driven>;
#[cfg(not(threads))]
pub(crate) enum Charge {}

/// How a thread that waits holds its parker.
#[cfg(threads)]
pub(crate) type OwnParker = Arc<Parker>;
#[cfg(not(threads))]
pub(crate) type OwnParker = Parker;

/// The answer to a thread that wants to listen.
pub(crate) enum Listening {
    /// The thread listens. The caller must drop the manager, which its own thread held until then, without a lock.
    Mine(#[allow(dead_code, reason = "dropped by the caller")] Option<Charge>),
    /// Another thread listens.
    #[cfg(threads)]
    Other,
    /// There is news that this thread has not seen.
    News,
}

#[cfg(threads)]
mod shared {
    #[cfg(loom)]
    use loom::sync::atomic::{AtomicBool, AtomicU64};
    #[cfg(loom)]
    use loom::sync::{Condvar, Mutex, MutexGuard};
    use std::sync::PoisonError;
    #[cfg(not(loom))]
    use std::sync::atomic::{AtomicBool, AtomicU64};
    #[cfg(not(loom))]
    use std::sync::{Condvar, Mutex, MutexGuard};

    use core::sync::atomic::Ordering;

    use super::{Arc, Charge, Duration, Listening, Waker};

    /// The place where one thread sleeps. It keeps one call, so that no call is lost between the last look and the
    /// sleep.
    #[derive(Debug, Default)]
    pub(crate) struct Parker {
        called: Mutex<bool>,
        changed: Condvar,
    }

    impl Parker {
        /// Returns the parker of this thread.
        #[cfg(not(loom))]
        pub(crate) fn current() -> Arc<Parker> {
            use crate::std::PerProcess;
            std::thread_local! {
                // At a fork another thread may be waking the parent's parker.
                static OWN: PerProcess<Arc<Parker>> = const { PerProcess::new() };
            }
            // A destructor of another thread-local value may wait when this one is destroyed already.
            OWN.try_with(|own| Arc::clone(own.get_or_init(Arc::default)))
                .unwrap_or_default()
        }

        #[cfg(loom)]
        pub(crate) fn current() -> Arc<Parker> {
            Arc::default()
        }

        // Not inlined, so that there is one table of functions, which `Signal::is_parker` compares.
        #[inline(never)]
        pub(crate) fn waker(self: &Arc<Parker>) -> Waker {
            Waker::from(Arc::clone(self))
        }

        pub(crate) fn unpark(&self) {
            *self.called.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.changed.notify_one();
        }

        /// Sleeps until the parker is called, or was called since the last time, or the limit passes. Loom has no time:
        /// there a limit that is not 0 never passes.
        pub(crate) fn park(&self, limit: Option<Duration>) {
            let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
            #[cfg(not(loom))]
            if let Some(limit) = limit {
                let sleeps = |called: &mut bool| !*called;
                let woken = self.changed.wait_timeout_while(called, limit, sleeps);
                *woken.unwrap_or_else(PoisonError::into_inner).0 = false;
                return;
            }
            #[cfg(loom)]
            if limit == Some(Duration::ZERO) {
                *called = false;
                drop(called);
                return loom::thread::yield_now();
            }
            let _ = limit;
            while !*called {
                called = self
                    .changed
                    .wait(called)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            *called = false;
        }
    }

    impl std::task::Wake for Parker {
        fn wake(self: Arc<Self>) {
            self.unpark();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            self.unpark();
        }
    }

    /// Counts events, and knows the listener. A leaf lock: it calls only the listener's parker.
    pub(crate) struct Signal {
        listener: Mutex<Listener>,
        /// The number of events so far. Changed under the lock.
        events: AtomicU64,
        /// Whether there is a listener.
        is_heard: AtomicBool,
        /// The parker of the manager's own thread.
        own: Arc<Parker>,
        /// Whether that thread holds its manager.
        is_serving: AtomicBool,
    }

    #[derive(Default)]
    enum Listener {
        #[default]
        None,
        /// A thread that waits.
        Waiting(Arc<Parker>),
        /// The manager's own, which keeps the manager alive meanwhile.
        Own(Charge),
    }

    impl Default for Signal {
        fn default() -> Signal {
            Signal {
                listener: Mutex::default(),
                events: AtomicU64::new(0),
                is_heard: AtomicBool::new(false),
                own: Arc::default(),
                is_serving: AtomicBool::new(false),
            }
        }
    }

    impl Signal {
        /// Returns the number of events so far.
        pub(crate) fn seen(&self) -> u64 {
            self.events.load(Ordering::SeqCst)
        }

        /// Counts an event, and wakes the listener.
        pub(crate) fn notify(&self) {
            let listener = self.lock();
            self.events.fetch_add(1, Ordering::SeqCst);
            self.call(&listener);
        }

        fn call(&self, listener: &Listener) {
            match listener {
                Listener::None => {}
                Listener::Waiting(parker) => parker.unpark(),
                Listener::Own(_) => self.own.unpark(),
            }
        }

        /// Returns whether a thread listens. A listener asks the backends for outcomes after it has become the
        /// listener. So a thread that submits first and then finds no listener need not ask for them.
        pub(crate) fn is_heard(&self) -> bool {
            self.is_heard.load(Ordering::SeqCst)
        }

        /// Makes this thread the listener, unless another thread that waits is, or there was an event after `seen`.
        pub(crate) fn listen(&self, parker: &Arc<Parker>, seen: u64) -> Listening {
            let mut listener = self.lock();
            if self.seen() != seen {
                return Listening::News;
            }
            if matches!(*listener, Listener::Waiting(_)) {
                return Listening::Other;
            }
            Listening::Mine(self.replace(&mut listener, Listener::Waiting(Arc::clone(parker))))
        }

        /// Ends the listening that [`Signal::listen`] began.
        pub(crate) fn leave(&self, parker: &Arc<Parker>) {
            let mut listener = self.lock();
            if matches!(&*listener, Listener::Waiting(waiting) if Arc::ptr_eq(waiting, parker)) {
                self.replace(&mut listener, Listener::None);
            }
        }

        /// Makes the manager's own thread the listener if no other thread is. Returns true when it has just become the
        /// listener; it is then woken if there was an event after `seen`. With `must_look` the listener, whichever
        /// thread it is, is woken.
        pub(crate) fn appoint(
            &self,
            manager: impl FnOnce() -> Charge,
            seen: u64,
            must_look: bool,
        ) -> bool {
            let mut listener = self.lock();
            let is_new = matches!(*listener, Listener::None);
            if is_new {
                self.replace(&mut listener, Listener::Own(manager()));
            }
            // A thread that listens already was notified of each event.
            if must_look || is_new && self.seen() != seen {
                self.call(&listener);
            }
            is_new
        }

        /// Ends the listening of the manager's own thread. The caller must drop the returned manager without a lock.
        pub(crate) fn dismiss(&self) -> Option<Charge> {
            if !self.is_heard() {
                return None;
            }
            let mut listener = self.lock();
            match *listener {
                Listener::Own(_) => self.replace(&mut listener, Listener::None),
                _ => None,
            }
        }

        /// Lets the manager's own thread drive its manager with `drive`, if it listens. The thread has dropped its
        /// handle of the manager when this returns.
        pub(crate) fn serve<R>(&self, drive: impl FnOnce(&Charge) -> R) -> Option<R> {
            let shared = match &*self.lock() {
                Listener::Own(shared) => {
                    self.is_serving.store(true, Ordering::SeqCst);
                    Arc::clone(shared)
                }
                _ => return None,
            };
            let driven = drive(&shared);
            drop(shared);
            self.is_serving.store(false, Ordering::SeqCst);
            Some(driven)
        }

        /// Returns whether the manager's own thread holds its manager.
        pub(crate) fn is_serving(&self) -> bool {
            self.is_serving.load(Ordering::SeqCst)
        }

        /// Returns whether the manager's own thread listens.
        pub(crate) fn is_own(&self) -> bool {
            matches!(*self.lock(), Listener::Own(_))
        }

        /// Returns whether the waker wakes a thread that waits, and no task.
        pub(crate) fn is_parker(&self, waker: &Waker) -> bool {
            core::ptr::eq(waker.vtable(), self.own.waker().vtable())
        }

        /// Returns the parker of the manager's own thread.
        pub(crate) fn own(&self) -> &Arc<Parker> {
            &self.own
        }

        fn replace(&self, current: &mut Listener, listener: Listener) -> Option<Charge> {
            let is_heard = !matches!(listener, Listener::None);
            self.is_heard.store(is_heard, Ordering::SeqCst);
            match core::mem::replace(current, listener) {
                Listener::Own(shared) => Some(shared),
                _ => None,
            }
        }

        fn lock(&self) -> MutexGuard<'_, Listener> {
            self.listener.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

/// Where there is one thread, or no operating system, no thread sleeps: the thread that waits looks again at once, and
/// the completion itself wakes futures, since no other thread turns the engine for them.
#[cfg(not(threads))]
mod alone {
    use super::{Charge, Duration, Listening, Waker};
    use crate::engine::sync::Lock;

    #[derive(Default)]
    pub(crate) struct Parker;

    impl Parker {
        pub(crate) fn current() -> Parker {
            Parker
        }

        pub(crate) fn waker(&self) -> Waker {
            Waker::noop().clone()
        }

        pub(crate) fn park(&self, _limit: Option<Duration>) {
            core::hint::spin_loop();
        }
    }

    #[derive(Default)]
    pub(crate) struct Signal {
        inner: Lock<Woken>,
    }

    #[derive(Default)]
    struct Woken {
        events: u64,
        wakers: alloc::vec::Vec<Waker>,
    }

    impl Signal {
        pub(crate) fn seen(&self) -> u64 {
            self.inner.with(|inner| inner.events)
        }

        pub(crate) fn notify(&self) {
            let wakers = self.inner.with(|inner| {
                inner.events += 1;
                core::mem::take(&mut inner.wakers)
            });
            wakers.into_iter().for_each(Waker::wake);
        }

        /// Has the task polled again after the next event.
        pub(crate) fn watch(&self, waker: &Waker) {
            self.inner.with(|inner| {
                if !inner.wakers.iter().any(|known| known.will_wake(waker)) {
                    inner.wakers.push(waker.clone());
                }
            });
        }

        pub(crate) fn is_parker(&self, waker: &Waker) -> bool {
            waker.will_wake(Waker::noop())
        }

        pub(crate) fn is_heard(&self) -> bool {
            false
        }

        pub(crate) fn listen(&self, _parker: &Parker, seen: u64) -> Listening {
            match self.seen() == seen {
                true => Listening::Mine(None),
                false => Listening::News,
            }
        }

        pub(crate) fn leave(&self, _parker: &Parker) {}

        pub(crate) fn dismiss(&self) -> Option<Charge> {
            None
        }
    }
}
