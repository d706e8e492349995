//! How threads sleep until the engine has news for them, and which of them listens for all.
//!
//! A thread sleeps in its own [`Parker`]. The end of a transfer unparks the one thread that waits for that transfer. News
//! of a backend unparks one thread, the *listener*: it turns the engine for all others. Threads that wait take
//! the place from the manager's own thread, which has it whenever no other thread does and a transfer needs one.

use alloc::sync::Arc;
use core::task::Waker;
use core::time::Duration;

#[cfg(not(threads))]
pub(crate) use alone::{Parker, Signal};
#[cfg(threads)]
pub(crate) use shared::{Parker, Signal};

use super::shared::Shared;

/// How a thread that waits holds its parker.
#[cfg(threads)]
pub(crate) type OwnParker = Arc<Parker>;
#[cfg(not(threads))]
pub(crate) type OwnParker = Parker;

/// What became of a thread's wish to listen.
pub(crate) enum Listening {
    /// The thread listens. The manager that its own thread looked after until then is to be dropped without a lock.
    Mine(#[allow(dead_code, reason = "dropped by the caller")] Option<Arc<Shared>>),
    /// Another thread does.
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

    use super::{Arc, Duration, Listening, Shared, Waker};

    /// Where one thread sleeps. It remembers one call, so none is lost between looking and sleeping.
    #[derive(Debug, Default)]
    pub(crate) struct Parker {
        called: Mutex<bool>,
        changed: Condvar,
    }

    impl Parker {
        /// The one of this thread.
        #[cfg(not(loom))]
        pub(crate) fn current() -> Arc<Parker> {
            use crate::std::PerProcess;
            std::thread_local! {
                // At a fork another thread may be waking the parent's.
                static OWN: PerProcess<Arc<Parker>> = const { PerProcess::new() };
            }
            // A destructor of another thread-local value may wait when this one is gone already.
            OWN.try_with(|own| Arc::clone(own.get_or_init(Arc::default)))
                .unwrap_or_default()
        }

        #[cfg(loom)]
        pub(crate) fn current() -> Arc<Parker> {
            Arc::default()
        }

        // In one place of the program, and so with one table of functions: `Signal::is_parker` goes by that.
        #[inline(never)]
        pub(crate) fn waker(self: &Arc<Parker>) -> Waker {
            Waker::from(Arc::clone(self))
        }

        pub(crate) fn unpark(&self) {
            *self.called.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.changed.notify_one();
        }

        /// Sleeps until it is called, or was since the last time, or the limit passes. Loom has no time: there a limit
        /// that is not 0 never passes.
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

    /// Counts events, and knows the listener. A leaf lock: it calls nothing but the listener's parker.
    pub(crate) struct Signal {
        listener: Mutex<Listener>,
        /// Events so far. Counted under the lock.
        events: AtomicU64,
        /// Whether there is a listener.
        is_heard: AtomicBool,
        /// Where the manager's own thread sleeps.
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
        Own(Arc<Shared>),
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
        /// The number of events so far.
        pub(crate) fn seen(&self) -> u64 {
            self.events.load(Ordering::SeqCst)
        }

        /// Something happened: the listener looks.
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

        /// Whether a thread listens. It asks the backends for news after it has begun to, so a thread that submits first
        /// and then finds none here need not ask for it.
        pub(crate) fn is_heard(&self) -> bool {
            self.is_heard.load(Ordering::SeqCst)
        }

        /// Has this thread listen, unless another thread that waits does, or there was an event after `seen`.
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

        /// Ends what [`Signal::listen`] began.
        pub(crate) fn leave(&self, parker: &Arc<Parker>) {
            let mut listener = self.lock();
            if matches!(&*listener, Listener::Waiting(waiting) if Arc::ptr_eq(waiting, parker)) {
                self.replace(&mut listener, Listener::None);
            }
        }

        /// Has the manager's own thread listen if no other does; true when it has just begun to, and then it is woken if
        /// there was an event after `seen`. The listener, whichever it is, is woken if it `must_look`.
        pub(crate) fn appoint(&self, shared: &Arc<Shared>, seen: u64, must_look: bool) -> bool {
            let mut listener = self.lock();
            let is_new = matches!(*listener, Listener::None);
            if is_new {
                self.replace(&mut listener, Listener::Own(Arc::clone(shared)));
            }
            // A thread that listens already was told of each event.
            if must_look || is_new && self.seen() != seen {
                self.call(&listener);
            }
            is_new
        }

        /// Has the manager's own thread listen no longer. What it looked after is to be dropped without a lock.
        pub(crate) fn dismiss(&self) -> Option<Arc<Shared>> {
            if !self.is_heard() {
                return None;
            }
            let mut listener = self.lock();
            match *listener {
                Listener::Own(_) => self.replace(&mut listener, Listener::None),
                _ => None,
            }
        }

        /// Has the manager's own thread look after its manager with `drive`, if it listens. The thread has let go of the
        /// manager when this returns.
        pub(crate) fn serve<R>(&self, drive: impl FnOnce(&Arc<Shared>) -> R) -> Option<R> {
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

        /// Whether the manager's own thread holds its manager.
        pub(crate) fn is_serving(&self) -> bool {
            self.is_serving.load(Ordering::SeqCst)
        }

        /// Whether the manager's own thread listens.
        pub(crate) fn is_own(&self) -> bool {
            matches!(*self.lock(), Listener::Own(_))
        }

        /// Whether it wakes a thread that waits, and no task.
        pub(crate) fn is_parker(&self, waker: &Waker) -> bool {
            core::ptr::eq(waker.vtable(), self.own.waker().vtable())
        }

        /// Where the manager's own thread sleeps.
        pub(crate) fn own(&self) -> &Arc<Parker> {
            &self.own
        }

        fn replace(&self, current: &mut Listener, listener: Listener) -> Option<Arc<Shared>> {
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

/// Where there is one thread, or no operating system, no thread sleeps: the one that waits looks again at once, and
/// futures are woken by the completion itself, in the place of a thread that would turn the engine for them.
#[cfg(not(threads))]
mod alone {
    use super::{Arc, Duration, Listening, Shared, Waker};
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

        /// Has the task polled again when something happens.
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

        pub(crate) fn dismiss(&self) -> Option<Arc<Shared>> {
            None
        }
    }
}
