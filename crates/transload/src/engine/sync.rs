//! The one lock of the engine, on whatever the build has.
//!
//! With `std` it is a mutex that is handed over at times: a thread that takes it again and again, as for a batch, would
//! keep others out for as long as it goes on. Under loom it is a modelled one, and without an operating system a critical
//! section: the embedding program says what that means on its machine (disabled interrupts on a
//! single core). It is held only while the state machine moves, never over a copy, a driver call or
//! a waker.

#[cfg(not(all(feature = "std", loom)))]
pub(crate) use core::sync::atomic::AtomicUsize;
#[cfg(all(feature = "std", loom))]
pub(crate) use loom::sync::atomic::AtomicUsize;
#[cfg(all(feature = "std", loom))]
use loom::sync::{Mutex, MutexGuard};
// "Eventual fairness": it forces a hand-over every 0.5 ms on average (parking_lot 0.12, `Mutex`).
#[cfg(all(feature = "std", not(loom)))]
use parking_lot::{Mutex, MutexGuard};

/// The stack of a thread in a model that turns the engine: those that loom gives by default hold no list of orders.
#[cfg(all(feature = "std", loom))]
pub(crate) const LOOM_STACK_WORDS: usize = 1 << 14;

/// A value that one thread at a time may touch.
#[cfg(feature = "std")]
#[derive(Debug)]
pub(crate) struct Lock<T>(Mutex<T>);

#[cfg(feature = "std")]
impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }

    /// Runs `f` on the value.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.guard())
    }

    // Nothing that runs under the lock unwinds half-way through a change that others rely on:
    // backends and wakers are called outside it. So a lock whose holder has panicked is entered all the same.
    #[cfg(not(loom))]
    fn guard(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    #[cfg(loom)]
    fn guard(&self) -> MutexGuard<'_, T> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// A value that one thread at a time may touch.
#[cfg(not(feature = "std"))]
pub(crate) struct Lock<T>(critical_section::Mutex<core::cell::RefCell<T>>);

#[cfg(not(feature = "std"))]
impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock(critical_section::Mutex::new(core::cell::RefCell::new(
            value,
        )))
    }

    /// Runs `f` on the value.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        critical_section::with(|token| f(&mut self.0.borrow(token).borrow_mut()))
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Lock<T> {
        Lock::new(T::default())
    }
}
