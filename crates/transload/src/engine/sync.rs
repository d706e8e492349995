//! The lock of the engine, by the primitives of the build.
//!
//! With `std` it is a mutex, under loom a modelled one, and without an operating system a critical section, which the
//! embedding program implements for its machine (disabled interrupts on a single core). The engine holds its own only
//! while the state machine moves, never over a copy, a driver call or a waker.
//!
//! We use the standard library's mutex. The alternative, one that is handed over in turn (parking_lot's), keeps a table
//! for the whole process, which a child of `fork` may inherit locked.

#[cfg(feature = "std")]
use core::sync::atomic::Ordering;

#[cfg(not(all(feature = "std", loom)))]
pub(crate) use core::sync::atomic::AtomicUsize;
#[cfg(all(feature = "std", loom))]
pub(crate) use loom::sync::atomic::AtomicUsize;
#[cfg(all(feature = "std", loom))]
use loom::sync::{Mutex, MutexGuard};
#[cfg(all(feature = "std", loom))]
use loom::thread::yield_now;
#[cfg(all(feature = "std", not(loom)))]
use std::sync::{Mutex, MutexGuard};
#[cfg(all(feature = "std", not(loom)))]
use std::thread::yield_now;

/// The stack size of a modelled thread that turns the engine: loom's default has no room for a list of commands.
#[cfg(all(feature = "std", loom))]
pub(crate) const LOOM_STACK_WORDS: usize = 1 << 14;

/// A value that one thread at a time may touch.
#[cfg(feature = "std")]
#[derive(Debug)]
pub(crate) struct Lock<T> {
    value: Mutex<T>,
    /// How many threads sleep until they have the lock.
    waiting: AtomicUsize,
}

#[cfg(feature = "std")]
impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock {
            value: Mutex::new(value),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Runs `f` on the value.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.guard())
    }

    /// Returns how many threads sleep until they have the lock.
    #[cfg(all(test, threads, not(loom)))]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Lets threads that sleep here go first, for a thread that takes the lock again and again: the mutex would let
    /// that thread pass them. Yields a limited number of times, since threads keep coming.
    pub(crate) fn give_way(&self) {
        let mut moments = 0..100;
        while self.waiting.load(Ordering::Relaxed) > 0 && moments.next().is_some() {
            yield_now();
        }
    }

    // No panic leaves a change under the lock half-made: backends and wakers are called outside it. So a poisoned lock
    // is entered all the same.
    #[cfg(not(loom))]
    fn guard(&self) -> MutexGuard<'_, T> {
        use std::sync::TryLockError;
        match self.value.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait(),
        }
    }

    #[cfg(not(loom))]
    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let locked = self.value.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        locked.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[cfg(loom)]
    fn guard(&self) -> MutexGuard<'_, T> {
        match self.value.lock() {
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

    pub(crate) fn give_way(&self) {}
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Lock<T> {
        Lock::new(T::default())
    }
}
