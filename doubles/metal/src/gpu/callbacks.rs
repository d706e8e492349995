//! The thread that calls handlers, as a queue of the system's does.

use std::cell::Cell;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use super::WORLD;
use crate::runtime::Pool;

type Call = Box<dyn FnOnce() + Send>;

thread_local! {
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// Makes `call` on that thread, in a pool of its own, after earlier calls.
pub(crate) fn call_back(call: impl FnOnce() + Send + 'static) {
    WORLD.expect_call();
    let calls = CALLS.get_or_init(|| Mutex::new(start()));
    let calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    calls
        .send(Box::new(call))
        .expect("the thread ends with the process");
}

/// Whether this is that thread.
pub(crate) fn here() -> bool {
    HERE.get()
}

static CALLS: OnceLock<Mutex<Sender<Call>>> = OnceLock::new();

fn start() -> Sender<Call> {
    let (sender, receiver) = channel::<Call>();
    let run = move || {
        HERE.set(true);
        for call in receiver {
            Pool::around(call);
            WORLD.called();
        }
    };
    let thread = thread::Builder::new().name("handlers".into());
    thread.spawn(run).expect("the system has threads");
    sender
}
