//! Virtual time: the thread that steps runs the actions that are due.

use std::sync::MutexGuard;
use std::thread;

use super::graph::Function;
use super::{Shared, State, Ticket, run};

impl Shared {
    pub(super) fn wait_stepping(&self, ticket: &Ticket) {
        let mut state = self.lock();
        while !ticket.is_done() {
            state = self.await_stepper(state);
            if ticket.is_done() {
                return;
            }
            state = match state.graph.next_end() {
                Some(end_ns) => {
                    let state = self.go_to(self.take_over(state), end_ns);
                    self.hand_over(state)
                }
                None => self.block(&self.changed, state),
            };
        }
    }

    pub(super) fn step(&self) -> bool {
        let state = self.await_stepper(self.lock());
        let Some(end_ns) = state.graph.next_end() else {
            return false;
        };
        let state = self.go_to(self.take_over(state), end_ns);
        drop(self.hand_over(state));
        true
    }

    pub(super) fn settle(&self) {
        let state = self.lock();
        match state.stepper {
            Some(stepper) if stepper == thread::current().id() => self.refuse_within_action(state),
            Some(_) => {}
            None => {
                let now_ns = state.virtual_ns;
                let state = self.go_to(self.take_over(state), now_ns);
                drop(self.hand_over(state));
            }
        }
    }

    pub(super) fn advance(&self, ns: u64) {
        let state = self.await_stepper(self.lock());
        let target_ns = state.virtual_ns.saturating_add(ns);
        let mut state = self.take_over(state);
        while let Some(end_ns) = state.graph.next_end().filter(|&end| end <= target_ns) {
            state = self.go_to(state, end_ns);
        }
        state.virtual_ns = target_ns;
        drop(self.hand_over(state));
    }

    /// Blocks while another thread steps.
    fn await_stepper<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some(stepper) = state.stepper {
            if stepper == thread::current().id() {
                self.refuse_within_action(state);
            }
            state = self.block(&self.changed, state);
        }
        state
    }

    fn refuse_within_action(&self, state: MutexGuard<'_, State>) -> ! {
        drop(state);
        panic!("an action cannot let time pass: it would wait for its own end");
    }

    fn take_over<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.stepper = Some(thread::current().id());
        state
    }

    fn hand_over<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.stepper = None;
        self.changed.notify_all();
        state
    }

    /// Sets the clock and processes that instant, round by round. The clock stands still while the actions run: they
    /// run without the lock, and only this thread moves the clock.
    fn go_to<'a>(&'a self, mut state: MutexGuard<'a, State>, at_ns: u64) -> MutexGuard<'a, State> {
        state.virtual_ns = state.virtual_ns.max(at_ns);
        let now_ns = state.virtual_ns;
        while state.graph.next_end().is_some_and(|end| end <= now_ns) {
            let round = state.graph.end_due(now_ns, usize::MAX);
            drop(state);
            let mut numbers = Vec::with_capacity(round.len());
            for ended in round {
                match ended.function {
                    Function::None => {}
                    Function::Move(function) | Function::Host(function) => run(function),
                }
                numbers.push(ended.number);
            }
            state = self.lock();
            state.graph.finish(now_ns, numbers);
            self.changed.notify_all();
        }
        state
    }
}
