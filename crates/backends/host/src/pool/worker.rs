//! The threads: how one starts, finds work, and parks.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};

use super::schedule::Claim;
use super::{Crew, Rouse, Work};

/// Starts one worker, unless the limit was reached meanwhile. False when the system refuses.
pub(super) fn start<W: Work>(crew: &Arc<Crew<W>>) -> bool {
    // Held over the spawn: the pool's drop must see either no thread or its handle.
    let mut threads = crew.lock_threads();
    let number = {
        let mut state = crew.lock();
        if state.closing || state.workers >= crew.limits.threads {
            return true;
        }
        state.workers += 1;
        state.starting += 1;
        state.workers
    };
    let shared = Arc::clone(crew);
    match spawn(number, move || run(&shared)) {
        Ok(handle) => {
            threads.push(handle);
            true
        }
        Err(_) => {
            let mut state = crew.lock();
            state.workers -= 1;
            state.starting -= 1;
            false
        }
    }
}

fn spawn(number: u32, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    #[cfg(test)]
    super::tests::refusal()?;
    thread::Builder::new()
        .name(format!("transload-host-{number}"))
        .spawn(body)
}

fn run<W: Work>(crew: &Arc<Crew<W>>) {
    crate::raw::stay_in_the_background();
    crew.lock().starting -= 1;
    let mut last = None;
    while let Some((claim, more)) = next(crew, last) {
        // A worker is there, so that nothing is left to this thread in particular.
        let _ = crew.rouse(more);
        let _ = crew.run(claim);
        last = Some(claim.job);
    }
    crew.lock().workers -= 1;
}

/// Waits for the next piece. Returns it and the worker to wake for the rest, or `None` when the pool
/// closes.
fn next<W: Work>(crew: &Crew<W>, last: Option<u32>) -> Option<(Claim, Rouse)> {
    let mut lingered = last.is_none();
    loop {
        let mut state = crew.lock();
        if let Some(claim) = state.schedule.claim(last) {
            let more = state.next_rouse(crew.limits);
            return Some((claim, more));
        }
        if state.closing {
            return None;
        }
        if !lingered && !crew.limits.linger.is_zero() {
            lingered = true;
            // Read under the lock: a start after this one changes the number, an earlier one has been
            // looked at just now.
            let seen = crew.starts.load(Ordering::Relaxed);
            state.lingering += 1;
            drop(state);
            crew.linger(|| crew.starts.load(Ordering::Relaxed) != seen);
            crew.lock().lingering -= 1;
            continue;
        }
        state.parked += 1;
        while state.tickets == 0 && !state.closing {
            state = crew
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.tickets > 0 {
            state.tickets -= 1;
            // A worker that came too late for the piece that it was woken for lingers before it parks:
            // small copies come one after the other, and a worker that parked at once would be late
            // for the next one, too.
            lingered = false;
        } else {
            state.parked -= 1;
        }
    }
}
