//! Ends the process when a call never returns.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(900);

pub(super) struct Watchdog(mpsc::Sender<String>);

impl Watchdog {
    pub(super) fn new() -> Watchdog {
        let (told, steps) = mpsc::channel::<String>();
        thread::spawn(move || {
            let mut last = String::new();
            loop {
                match steps.recv_timeout(LIMIT) {
                    Ok(step) => last = step,
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        eprintln!("no end after {LIMIT:?}: {last}");
                        std::process::abort();
                    }
                }
            }
        });
        Watchdog(told)
    }

    /// Tells what is done next.
    pub(super) fn step(&self, what: String) {
        self.0.send(what).unwrap();
    }
}
