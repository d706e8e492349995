//! Detects that this process is a child of `fork`.

use std::sync::Once;

/// Registers a handler that marks each child that this process forks from now on. The C library calls the handler in
/// the child before `fork` returns there, so no call of the library asks the system for the process id.
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
        transload_hal::Process::handle_fork();
    }
    // SAFETY: the handler adds to one atomic number, which is allowed in a child of a process with threads. The C
    // library removes handlers of a library that is unloaded.
    let refused = unsafe { pthread_atfork(None, None, Some(in_child)) };
    // The call is refused only when there is no memory for the entry. Forks then go unnoticed, as without this call.
    let _ = refused;
}

#[cfg(not(forks))]
fn register() {}
