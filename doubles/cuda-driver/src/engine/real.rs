//! Real time: a thread that sleeps until the next end, and one that calls users' functions.

use std::num::NonZeroU64;
use std::sync::PoisonError;
use std::time::Duration;

use super::graph::Function;
use super::{Shared, Ticket, run};

impl Shared {
    pub(super) fn wait_real(&self, ticket: &Ticket) {
        let mut state = self.lock();
        while !ticket.is_done() {
            state = self.block(&self.changed, state);
        }
    }

    /// The mover's loop. It handles one end at a time: work after a short copy does not wait for a long copy that ended
    /// at the same nanosecond.
    pub(super) fn move_bytes(&self) {
        // Linux wakes a thread up to 50 µs late otherwise (prctl(2), PR_SET_TIMERSLACK), five times the time of a short
        // copy. Where it will not, works end late, as on any busy machine.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut state = self.lock();
        while !state.closing {
            let now_ns = self.now_ns(&state);
            let Some(end_ns) = state.graph.next_end() else {
                state = self.block(&self.due, state);
                continue;
            };
            if end_ns > now_ns {
                let nap = Duration::from_nanos(end_ns - now_ns);
                let woken = self.due.wait_timeout(state, nap);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            for ended in state.graph.end_due(now_ns, 1) {
                match ended.function {
                    Function::Host(function) => {
                        state.calls.push_back((ended.number, function));
                        self.called.notify_one();
                        continue;
                    }
                    Function::Move(function) => {
                        drop(state);
                        run(function);
                        state = self.lock();
                    }
                    Function::None => {}
                }
                // The end counts, and not the present: hardware has moved the bytes by then. Otherwise every piece of a
                // stream would take the processor's time to move it, in addition to the link's time.
                state.graph.finish(ended.end_ns, [ended.number]);
                self.changed.notify_all();
            }
        }
    }

    /// The loop of the thread that calls users' functions, each to its end before the next. The other threads of the
    /// engine do not wait for them.
    pub(super) fn call_functions(&self) {
        let mut state = self.lock();
        while !state.closing {
            let Some((number, function)) = state.calls.pop_front() else {
                state = self.block(&self.called, state);
                continue;
            };
            drop(state);
            run(function);
            state = self.lock();
            let now_ns = self.now_ns(&state);
            state.graph.finish(now_ns, [number]);
            self.tell();
        }
    }
}
