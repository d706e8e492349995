//! What a process was told about signals when it was started.

use core::mem::MaybeUninit;

/// Whether the process ignores a signal, as `nohup` and shells ask of what they start.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only writes the present one.
    let told = unsafe { libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeros are an action, and so is what the call wrote.
    let action = unsafe { action.assume_init() };
    told == 0 && action.sa_sigaction == libc::SIG_IGN
}
