//! Telling a process from the children that it forks.
//!
//! A child of `fork` has a copy of the memory and one thread. Locks that other threads held at the fork stay locked
//! there, threads that would complete an operation are missing, and drivers refuse or crash. So the child must not
//! touch what the parent made, and must not drop it either: it leaks it.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering};
#[cfg(feature = "std")]
use std::boxed::Box;
#[cfg(feature = "std")]
use std::sync::OnceLock;

/// Identifies the process that made something.
///
/// A child of `fork` differs from its parent once the program has [`Process::handle_fork`] called in each child.
/// `transload` does so before it makes its first manager, on Unix and with its feature `std`. Where there is no `fork`,
/// all values are equal at compile time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    forks: usize,
}

const CAN_FORK: bool = cfg!(all(unix, not(target_family = "wasm")));

/// The forks between the process that loaded this library and this process.
static FORKS: AtomicUsize = AtomicUsize::new(0);

impl Process {
    /// This process. Costs one relaxed load.
    #[inline]
    pub fn current() -> Process {
        let forks = match CAN_FORK {
            true => FORKS.load(Ordering::Relaxed),
            false => 0,
        };
        Process { forks }
    }

    /// Returns whether this is the current process. Costs one relaxed load and a comparison.
    #[inline]
    pub fn is_current(self) -> bool {
        self == Process::current()
    }

    /// Makes this process differ from its parent. Call it in a child of `fork`, once and before other code of the
    /// library; it is async-signal-safe.
    pub fn handle_fork() {
        // Relaxed: the child has one thread, and threads that it starts see what happened before.
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
}

/// A value that only the process that made it drops. A child of `fork` leaks it.
#[derive(Debug)]
pub struct ProcessBound<T> {
    value: ManuallyDrop<T>,
    process: Process,
}

impl<T> ProcessBound<T> {
    /// Binds a value to this process.
    pub fn new(value: T) -> ProcessBound<T> {
        ProcessBound {
            value: ManuallyDrop::new(value),
            process: Process::current(),
        }
    }
}

impl<T> Deref for ProcessBound<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for ProcessBound<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: it is dropped here alone, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A static value of which each process has its own: a child of `fork` does not get its parent's.
#[cfg(feature = "std")]
pub struct PerProcess<T> {
    first: Place<T>,
}

#[cfg(feature = "std")]
type Place<T> = OnceLock<Box<Made<T>>>;

/// The value of one process, and those of the children that it forked since.
#[cfg(feature = "std")]
struct Made<T> {
    process: Process,
    value: T,
    next: Place<T>,
}

#[cfg(feature = "std")]
impl<T> PerProcess<T> {
    /// No value yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess {
            first: OnceLock::new(),
        }
    }

    /// Returns the value of this process, if it is there.
    pub fn get(&self) -> Option<&T> {
        let mut made = self.first.get()?;
        while !made.process.is_current() {
            made = made.next.get()?;
        }
        Some(&made.value)
    }

    /// Returns the value of this process, and makes it if there is none. The first value that is made stays.
    pub fn get_or_init(&self, make: impl Fn() -> T) -> &T {
        let mut place = &self.first;
        loop {
            let made = place.get_or_init(|| {
                Box::new(Made {
                    process: Process::current(),
                    value: make(),
                    next: OnceLock::new(),
                })
            });
            if made.process.is_current() {
                return &made.value;
            }
            place = &made.next;
        }
    }
}

#[cfg(feature = "std")]
impl<T> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}
