//! The end of the process.
//!
//! A process that returns from `main` or calls `exit` runs exit handlers and destructors of libraries on one thread. All
//! other threads run on meanwhile. A driver destroys its own state there, and one of its threads that still carries out
//! commands may crash: SwiftShader deletes the thread-local keys of its scheduler, and a dispatch on its queue thread, or the
//! end of a device, then reads a null pointer.
//!
//! So this backend registers an exit handler, too. It refuses new work and waits until the work under way has ended. Exit
//! handlers run in the opposite order of their registration, so it runs before those of drivers that were loaded earlier.
//!
//! A child of `fork` inherits the drivers' handlers, and not their threads. Mesa's handler joins its threads, and glibc
//! gives their stacks, by which it knows them, to threads that the child starts: the handler then waits for one of those,
//! which never ends. So in a child of a process that has loaded drivers this handler ends the process. Handlers that were
//! registered later, as by the child, have run by then; glibc gives no way to leave out those of the drivers alone.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;

use transload_hal::{Guard, Owner, PerProcess, is_ending};

/// Counts the work in drivers, for which the exit handler of a process waits.
#[derive(Default)]
struct Door {
    /// The number of [`Inside`] values, and [`CLOSED`] once the process ends.
    inside: AtomicUsize,
    /// Notifies the handler that the last one was dropped. Nothing else happens under the lock.
    last: (Mutex<()>, Condvar),
}

const CLOSED: usize = 1 << (usize::BITS - 1);

/// A child of `fork` has a door of its own: it has no threads that would lower its parent's number.
static DOORS: PerProcess<Door> = PerProcess::new();

/// Work of this backend in a driver: a call, or a submission that has not settled. The exit handler waits for it.
pub(crate) struct Inside(&'static Door);

impl Inside {
    /// Begins work; `None` once the process ends, and on a thread that ends ([`has_locals`]).
    pub(crate) fn enter() -> Option<Inside> {
        if !has_locals() {
            return None;
        }
        let inside = Inside(DOORS.get_or_init(Door::default));
        // Relaxed here and below: one number orders itself, and guards no other memory.
        let before = inside.0.inside.fetch_add(1, Ordering::Relaxed);
        (before & CLOSED == 0).then_some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Release: the handler sees the driver's state as this work left it.
        if self.0.inside.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            let _waits = self.0.last.0.lock();
            self.0.last.1.notify_all();
        }
    }
}

/// Whether wgpu finds the thread-local values that it needs. wgpu-core keeps some in debug builds.
fn has_locals() -> bool {
    !(cfg!(debug_assertions) && is_ending())
}

/// An object of the driver. Dropping it counts as work of this backend. It is leaked once the process ends, because a driver
/// that shuts down destroys it itself.
pub(crate) struct DriverObject<T: Send + 'static>(ManuallyDrop<T>);

/// Keeps a device.
pub(crate) type Lease = DriverObject<(wgpu::Device, wgpu::Queue)>;

impl<T: Send> DriverObject<T> {
    pub(crate) fn new(value: T) -> DriverObject<T> {
        DriverObject(ManuallyDrop::new(value))
    }

    pub(crate) fn into_inner(self) -> T {
        let mut kept = ManuallyDrop::new(self);
        // SAFETY: it is neither used nor dropped afterwards.
        unsafe { ManuallyDrop::take(&mut kept.0) }
    }
}

impl Lease {
    pub(crate) fn of(device: &wgpu::Device, queue: &wgpu::Queue) -> Lease {
        DriverObject::new((device.clone(), queue.clone()))
    }
}

impl<T: Send> Deref for DriverObject<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send> Drop for DriverObject<T> {
    fn drop(&mut self) {
        // SAFETY: it is taken here alone, and nothing uses what is left.
        let mut value = ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.0) });
        if !has_locals() {
            // Leaked where the system refuses a thread.
            let elsewhere = move || drop(DriverObject(value));
            let _ = thread::Builder::new().spawn(elsewhere);
        } else if let Some(_inside) = Inside::enter() {
            // SAFETY: nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut value) };
        }
    }
}

impl<T: Owner> Guard for DriverObject<T> {
    fn release(self: Box<Self>, owner: Box<dyn Owner>) {
        drop(DriverObject::new(owner));
    }
}

/// Registers the exit handler. The backend calls this for each set of devices, since their drivers may have been loaded
/// after the last call. The handler then runs once per registration, and waits only the first time. `has_driver`: a driver
/// was loaded.
#[cfg(unix)]
pub(crate) fn watch(has_driver: bool) {
    use std::ffi::c_int;
    use std::sync::{OnceLock, PoisonError};
    use std::time::{Duration, Instant};
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    use std::{ffi::c_void, ptr::null_mut};

    use transload_hal::Process;

    /// How long a driver that hangs delays the end of the process.
    const LIMIT: Duration = Duration::from_secs(2);

    /// The process that loaded drivers first.
    static LOADED: OnceLock<Process> = OnceLock::new();

    /// The first handler that runs sets it.
    static DEADLINE: OnceLock<Instant> = OnceLock::new();

    /// Takes no other lock than its own: the thread that ends the process may hold any.
    extern "C" fn at_exit() {
        let Some(door) = DOORS.get() else {
            return;
        };
        door.inside.fetch_or(CLOSED, Ordering::Relaxed);
        let deadline = DEADLINE.get_or_init(|| Instant::now() + LIMIT);
        let mut waits = door.last.0.lock().unwrap_or_else(PoisonError::into_inner);
        while door.inside.load(Ordering::Acquire) != CLOSED {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = door.last.1.wait_timeout(waits, left);
            waits = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    // Now, since the handler must not allocate it.
    DOORS.get_or_init(Door::default);
    if has_driver {
        LOADED.get_or_init(Process::current);
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe extern "C" {
        /// `on_exit(3)`: as `atexit`, with the status and an argument.
        fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        /// `fcloseall(3)`: writes what streams hold, as `exit` does.
        fn fcloseall() -> c_int;
        /// POSIX.1-2008, System Interfaces, `_exit`.
        fn _exit(status: c_int) -> !;
    }
    /// Keeps the library with `code` loaded to the end of the process: handlers of `on_exit` outlive the library that has
    /// them.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn stay_loaded(code: *const c_void) {
        use std::ffi::c_char;
        use std::ptr::null;
        /// `Dl_info` of `<dlfcn.h>`.
        #[repr(C)]
        struct Found {
            path: *const c_char,
            base: *mut c_void,
            symbol: *const c_char,
            address: *mut c_void,
        }
        /// `RTLD_LAZY`, `RTLD_NOLOAD` and `RTLD_NODELETE` of `<dlfcn.h>`.
        const STAYS: c_int = 0x1 | 0x4 | 0x1000;
        unsafe extern "C" {
            /// `dladdr(3)`.
            fn dladdr(address: *const c_void, found: *mut Found) -> c_int;
            /// POSIX.1-2008, System Interfaces, `dlopen`.
            fn dlopen(path: *const c_char, mode: c_int) -> *mut c_void;
        }
        let mut library = Found {
            path: null(),
            base: null_mut(),
            symbol: null(),
            address: null_mut(),
        };
        // SAFETY: the call only writes to the record, and reads nothing at the address.
        if unsafe { dladdr(code, &raw mut library) } != 0 {
            // SAFETY: the path is the loader's own. The loader does not find a program by its path, and programs stay.
            let _ = unsafe { dlopen(library.path, STAYS) };
        }
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    extern "C" fn with_status(status: c_int, may_end: *mut c_void) {
        at_exit();
        let has_others = LOADED.get().is_some_and(|process| !process.is_current());
        if has_others && !may_end.is_null() {
            // SAFETY: the process ends, as in `exit`, which makes the same call.
            let _ = unsafe { fcloseall() };
            // SAFETY: it ends the process, and no more.
            unsafe { _exit(status) }
        }
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    let handler: extern "C" fn(c_int, *mut c_void) = with_status;
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    stay_loaded(handler as *const c_void);
    // A child that opens drivers itself has the handler of its parent, too, behind the handlers of its own.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    let may_end = std::ptr::without_provenance_mut(usize::from(
        LOADED.get().is_none_or(|process| process.is_current()),
    ));
    // SAFETY: the handler does not unwind, and is there when the process ends.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    let refused = unsafe { on_exit(handler, may_end) };

    // Elsewhere no handler is told the status.
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    unsafe extern "C" {
        /// C23, 7.24.4.2.
        fn atexit(handler: extern "C" fn()) -> c_int;
    }
    // SAFETY: the handler does not unwind. A library that is unloaded has its handlers run before that.
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let refused = unsafe { atexit(at_exit) };
    // Registration fails only if there is no memory for the entry. The process then ends as it would without the handler.
    let _ = refused;
}

/// Windows ends all other threads before it runs destructors of libraries.
#[cfg(not(unix))]
pub(crate) fn watch(_: bool) {}

#[cfg(all(test, unix))]
mod tests {
    use std::env;
    use std::ffi::c_int;
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    use std::ffi::{CString, c_char, c_void};
    use std::mem;
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    use std::os::unix::ffi::OsStrExt;
    use std::process::{self, Command};
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    use std::ptr::null_mut;
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    use std::sync::atomic::AtomicPtr;

    use transload_hal::Process;

    use super::*;

    const CHILD: &str = "TRANSLOAD_TEST_CHILD";

    unsafe extern "C" {
        /// POSIX.1-2008, System Interfaces, `_exit`.
        fn _exit(status: c_int) -> !;
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        fn atexit(handler: extern "C" fn()) -> c_int;
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        fn fork() -> c_int;
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        fn fopen(path: *const c_char, mode: *const c_char) -> *mut c_void;
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        fn fputs_unlocked(text: *const c_char, stream: *mut c_void) -> c_int;
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
    }

    /// Runs a test again, in a process of its own, and gives that one's exit code.
    fn code_of(test: &str) -> Option<i32> {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", &format!("exit::tests::{test}"), "--nocapture"]);
        child
            .env(CHILD, process::id().to_string())
            .status()
            .unwrap()
            .code()
    }

    #[test]
    fn work_that_never_ends_does_not_keep_the_process() {
        if env::var_os(CHILD).is_some() {
            watch(true);
            mem::forget(Inside::enter());
            process::exit(3);
        }
        let code = code_of("work_that_never_ends_does_not_keep_the_process");
        assert_eq!(code, Some(3));
    }

    #[test]
    fn a_child_of_fork_waits_for_its_own_work_alone() {
        if env::var_os(CHILD).is_some() {
            watch(true);
            mem::forget(Inside::enter());
            // As in a child from here on.
            Process::handle_fork();
            watch(true);
            let inside = Inside::enter().unwrap();
            assert_eq!(inside.0.inside.load(Ordering::Relaxed), 1);
            thread::spawn(move || {
                while Inside::enter().is_some() {
                    thread::yield_now();
                }
                let _waits = &inside;
                // SAFETY: it ends the process, and no more.
                unsafe { _exit(4) };
            });
            process::exit(3);
        }
        let code = code_of("a_child_of_fork_waits_for_its_own_work_alone");
        assert_eq!(code, Some(4));
    }

    /// Returns the exit code of a child of `fork` that calls `exit(5)` after `before`.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn code_of_fork(before: impl FnOnce()) -> c_int {
        // SAFETY: the child only does what `before` does, and ends.
        let child = unsafe { fork() };
        if child == 0 {
            Process::handle_fork();
            before();
            process::exit(5);
        }
        let mut status = 0;
        // SAFETY: the status is written while the call lasts.
        assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
        status >> 8
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn a_child_of_fork_ends_before_the_handlers_of_its_parents_drivers_and_after_its_own() {
        /// As Mesa's, which joins a thread that never ends.
        extern "C" fn hang() {
            loop {
                thread::park();
            }
        }
        static STREAM: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
        extern "C" fn write() {
            // SAFETY: the stream is open. Only the thread that ends the process writes to it.
            unsafe { fputs_unlocked(c"told".as_ptr(), STREAM.load(Ordering::Relaxed)) };
        }
        let of = env::var(CHILD).unwrap_or(process::id().to_string());
        let file = env::temp_dir().join(format!("transload-exit-{of}"));
        if env::var_os(CHILD).is_some() {
            // SAFETY: the handler does not unwind.
            assert_eq!(unsafe { atexit(hang) }, 0);
            watch(true);
            let code = code_of_fork(|| {
                let path = CString::new(file.as_os_str().as_bytes()).unwrap();
                // SAFETY: both are strings that end with a zero.
                let stream = unsafe { fopen(path.as_ptr(), c"w".as_ptr()) };
                STREAM.store(stream, Ordering::Relaxed);
                // SAFETY: the handler does not unwind.
                assert_eq!(unsafe { atexit(write) }, 0);
                // It opens a driver of its own.
                watch(true);
            });
            // SAFETY: it ends the process, and no more.
            unsafe { _exit(code) };
        }
        let code = code_of(
            "a_child_of_fork_ends_before_the_handlers_of_its_parents_drivers_and_after_its_own",
        );
        assert_eq!(code, Some(5));
        assert_eq!(std::fs::read(&file).unwrap(), b"told");
        std::fs::remove_file(file).unwrap();
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn a_child_of_a_process_without_drivers_runs_all_handlers() {
        extern "C" fn end() {
            // SAFETY: it ends the process, and no more.
            unsafe { _exit(6) };
        }
        if env::var_os(CHILD).is_some() {
            // SAFETY: the handler does not unwind.
            assert_eq!(unsafe { atexit(end) }, 0);
            watch(false);
            let code = code_of_fork(|| ());
            // SAFETY: it ends the process, and no more.
            unsafe { _exit(code) };
        }
        let code = code_of("a_child_of_a_process_without_drivers_runs_all_handlers");
        assert_eq!(code, Some(6));
    }
}
