//! Which thread reports how the program ended: the one that did its work, or the one that a signal woke.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// Makes this thread the one that reports how the program ended. If another thread is about to report that, waits
/// for the end of the process.
pub(crate) fn have_the_last_word() {
    while !has_the_last_word() {
        thread::park();
    }
}

/// Returns whether this thread is the one that reports, which it is if it asks first.
pub(crate) fn has_the_last_word() -> bool {
    static SPEAKER: Mutex<Option<ThreadId>> = Mutex::new(None);
    let mut speaker = SPEAKER.lock().unwrap_or_else(PoisonError::into_inner);
    let this = thread::current().id();
    *speaker.get_or_insert(this) == this
}
