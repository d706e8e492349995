//! Notices that this process is a child of `fork`, and keeps what each process makes for itself.

use std::sync::{Once, OnceLock};

use transload_hal::Process;

/// Has each child that this process forks from now on told from it. The C library calls the handler in the child before
/// `fork` returns there, so no call of the library asks the system which process it is in.
///
/// `vfork`, `posix_spawn` and bare system calls do not run handlers; their children have to execute another program.
pub(crate) fn watch() {
    static IS_WATCHED: Once = Once::new();
    IS_WATCHED.call_once(register);
}

#[cfg(forks)]
fn register() {
    use std::ffi::c_int;

    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        /// POSIX.1-2008, System Interfaces, `pthread_atfork`.
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }
    extern "C" fn in_child() {
        Process::handle_fork();
    }
    // SAFETY: the handler adds to one atomic number, which is allowed in a child of a process with threads. The C library
    // forgets handlers of a library that is unloaded.
    let refused = unsafe { pthread_atfork(None, None, Some(in_child)) };
    // The only refusal is that there is no memory for the entry. Then forks go unnoticed, as they would without this.
    let _ = refused;
}

#[cfg(not(forks))]
fn register() {}

/// A static value that each process has of its own: a child of `fork` does not get its parent's.
pub(crate) struct PerProcess<T> {
    first: Place<T>,
}

type Place<T> = OnceLock<Box<Made<T>>>;

/// The value of one process, and those of the children that it forked since.
struct Made<T> {
    process: Process,
    value: T,
    next: Place<T>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess {
            first: OnceLock::new(),
        }
    }

    /// The value of this process, if it is there.
    pub(crate) fn get(&self) -> Option<&T> {
        let mut made = self.first.get()?;
        while !made.process.is_current() {
            made = made.next.get()?;
        }
        Some(&made.value)
    }

    /// The value of this process. The first one that is made stays.
    pub(crate) fn get_or_init(&self, make: impl Fn() -> T) -> &T {
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
