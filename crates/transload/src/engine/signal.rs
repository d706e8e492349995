//! How a thread that waits for the engine is told to look again.

use core::time::Duration;

/// Counts events, so that a waiter that has seen number `n` sleeps only until there is an `n + 1`:
/// no wake-up is lost between looking and sleeping.
#[cfg(all(threads, not(loom)))]
#[derive(Debug, Default)]
pub(crate) struct Signal {
    events: std::sync::Mutex<u64>,
    changed: std::sync::Condvar,
}

#[cfg(all(threads, not(loom)))]
impl Signal {
    /// The number of events so far.
    pub(crate) fn seen(&self) -> u64 {
        *self.events()
    }

    /// Something happened.
    pub(crate) fn notify(&self) {
        *self.events() += 1;
        self.changed.notify_all();
    }

    /// Sleeps until something happens after event `seen`, or the limit passes; `None` is no limit.
    pub(crate) fn park(&self, seen: u64, limit: Option<Duration>) {
        let events = self.events();
        let unchanged = |events: &mut u64| *events == seen;
        // Either way the caller looks for itself at what has changed.
        match limit {
            None => drop(self.changed.wait_while(events, unchanged)),
            Some(limit) => drop(self.changed.wait_timeout_while(events, limit, unchanged)),
        }
    }

    fn events(&self) -> std::sync::MutexGuard<'_, u64> {
        self.events
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// As above, on loom's primitives. Loom has no time: a limit never passes.
#[cfg(all(threads, loom))]
#[derive(Debug)]
pub(crate) struct Signal {
    events: loom::sync::Mutex<u64>,
    changed: loom::sync::Condvar,
}

#[cfg(all(threads, loom))]
impl Default for Signal {
    fn default() -> Signal {
        Signal {
            events: loom::sync::Mutex::new(0),
            changed: loom::sync::Condvar::new(),
        }
    }
}

#[cfg(all(threads, loom))]
impl Signal {
    pub(crate) fn seen(&self) -> u64 {
        *self.events.lock().unwrap()
    }

    pub(crate) fn notify(&self) {
        *self.events.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    pub(crate) fn park(&self, seen: u64, _limit: Option<Duration>) {
        let mut events = self.events.lock().unwrap();
        while *events == seen {
            events = self.changed.wait(events).unwrap();
        }
    }
}

/// Where there is one thread, or no operating system, nobody sleeps: whoever waits looks again at
/// once, and futures are woken by the completion itself, in the place of a thread that would turn the
/// engine for them.
#[cfg(not(threads))]
#[derive(Default)]
pub(crate) struct Signal {
    inner: super::sync::Lock<Woken>,
}

#[cfg(not(threads))]
#[derive(Default)]
struct Woken {
    events: u64,
    wakers: alloc::vec::Vec<core::task::Waker>,
}

#[cfg(not(threads))]
impl Signal {
    pub(crate) fn seen(&self) -> u64 {
        self.inner.with(|inner| inner.events)
    }

    pub(crate) fn notify(&self) {
        let wakers = self.inner.with(|inner| {
            inner.events += 1;
            core::mem::take(&mut inner.wakers)
        });
        wakers.into_iter().for_each(core::task::Waker::wake);
    }

    pub(crate) fn park(&self, _seen: u64, _limit: Option<Duration>) {
        core::hint::spin_loop();
    }

    /// Has the task polled again when something happens.
    pub(crate) fn watch(&self, waker: &core::task::Waker) {
        self.inner.with(|inner| {
            if !inner.wakers.iter().any(|known| known.will_wake(waker)) {
                inner.wakers.push(waker.clone());
            }
        });
    }
}
