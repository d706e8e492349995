//! A limit for tests that would otherwise hang.

use std::panic::resume_unwind;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The limit, by the clock: long, because a busy machine is no hang. `cargo xtask test` ends a test that uses no processor far
/// sooner.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs a test on a thread of its own, and panics when that thread has not ended within the limit.
///
/// `about` names the case. The thread of a test that hangs is abandoned: it ends with the process.
pub(crate) fn within_limit(about: &str, test: impl FnOnce() + Send + 'static) {
    let (ended, has_ended) = mpsc::channel::<()>();
    // The name of the test, which tests print when they report that they were skipped.
    let name = thread::current().name().unwrap_or("test").to_owned();
    let thread = thread::Builder::new().name(name).spawn(move || {
        let _ended = ended;
        test();
    });
    let thread = thread.unwrap();
    if has_ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
        panic!("{about}: it hangs");
    }
    if let Err(panic) = thread.join() {
        eprintln!("{about}: it failed");
        resume_unwind(panic);
    }
}
