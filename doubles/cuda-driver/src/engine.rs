//! Modelled time: work that waits for other work, for hardware that serialises, and for its own end.
//!
//! The engine is independent of drivers. [`Engine::submit`] takes [`Work`] and returns a [`Ticket`]. Work is *ready*
//! when all works that it comes after are done. It then joins the queue of each of its channels in one step, so that no
//! two queues disagree about the order and no cycle of waits arises. It starts when it is at the head of all of them,
//! and holds them for its duration. At its end its action runs, and then it is done. Bytes that an action moves
//! therefore stay in place until the modelled time has passed.
//!
//! Queues are first in, first out in the order of readiness. Works that become ready at one instant join in the order
//! of submission. The engine processes an instant in rounds: all works that end, then all that this made ready, then
//! those of them that end at once.
//!
//! In [real time](Clock::Real) two threads serve an engine, started when they are first needed. Neither polls: one
//! sleeps until the next end, or without a limit when no work runs. In [virtual time](Clock::Virtual) there is no
//! thread, and the clock stands still until a thread steps it, advances it or waits.

mod graph;
mod real;
mod stepped;
mod ticket;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Instant;

use graph::Graph;
pub use graph::{Action, ChannelId, Work};
use ticket::Bar;
pub use ticket::Ticket;

/// The clock of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// The machine's clock: works end by themselves.
    Real,
    /// One that starts at 0 and moves only when it is stepped, advanced or waited on.
    Virtual,
}

/// Keeps time and executes submitted work. Clones are handles to one engine. The engine ends with the last clone; work
/// that is not done by then is never done. An action that holds a clone keeps the engine alive until it has run.
#[derive(Clone)]
pub struct Engine {
    owner: Arc<Owner>,
}

impl Engine {
    /// An engine at time 0 without channels.
    pub fn new(clock: Clock) -> Engine {
        let epoch = match clock {
            Clock::Real => Some(Instant::now()),
            Clock::Virtual => None,
        };
        let state = State {
            graph: Graph::default(),
            virtual_ns: 0,
            stepper: None,
            calls: VecDeque::new(),
            threads: Threads::default(),
            closing: false,
        };
        let shared = Shared {
            epoch,
            state: Mutex::new(state),
            changed: Condvar::new(),
            due: Condvar::new(),
            called: Condvar::new(),
        };
        Engine {
            owner: Arc::new(Owner {
                shared: Arc::new(shared),
            }),
        }
    }

    /// The engine's clock.
    pub fn clock(&self) -> Clock {
        match self.shared().epoch {
            Some(_) => Clock::Real,
            None => Clock::Virtual,
        }
    }

    /// Nanoseconds since the engine was made.
    pub fn now_ns(&self) -> u64 {
        let shared = self.shared();
        shared.now_ns(&shared.lock())
    }

    /// A new channel. The name is for debugging a machine that hangs.
    pub fn channel(&self, name: impl Into<String>) -> ChannelId {
        self.shared().lock().graph.channel(name.into())
    }

    /// A new gate, closed.
    pub fn gate(&self) -> Gate {
        Gate {
            engine: Arc::downgrade(&self.owner.shared),
            bar: Bar::default(),
        }
    }

    /// Accepts work. Never blocks on work.
    ///
    /// # Panics
    /// When it comes after a ticket of another engine, and when the system has no thread left for an
    /// engine's first work.
    pub fn submit(&self, work: Work) -> Ticket {
        let shared = self.shared();
        let mut state = shared.lock();
        let calls = matches!(work.action, Action::Host(_));
        let now = shared.now_ns(&state);
        let ticket = state.graph.add(now, work);
        if shared.epoch.is_some() {
            self.start_threads(&mut state, calls);
        }
        drop(state);
        shared.tell();
        ticket
    }

    /// The number of works that are not done.
    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.shared().lock().graph.len()
    }

    /// Blocks until the work is done. In virtual time this thread, or another waiting thread, moves the clock from
    /// event to event meanwhile; when there is no event left, the call blocks until work is submitted.
    ///
    /// # Panics
    /// In virtual time within an action, which would wait for its own end.
    pub fn wait(&self, ticket: &Ticket) {
        let shared = self.shared();
        match shared.epoch {
            Some(_) => shared.wait_real(ticket),
            None => shared.wait_stepping(ticket),
        }
    }

    /// Blocks until all of them are done, as [`Engine::wait`].
    ///
    /// # Panics
    /// As [`Engine::wait`].
    pub fn wait_all(&self, tickets: &[Ticket]) {
        for ticket in tickets {
            self.wait(ticket);
        }
    }

    /// Goes to the next event and does all work that is due then. Returns false when there is none.
    ///
    /// # Panics
    /// In real time, and within an action.
    pub fn step(&self) -> bool {
        self.virtual_only("step").step()
    }

    /// Lets exactly that much time pass, and does all work that is due on the way and at its end. With 0 it does the
    /// work that is due now.
    ///
    /// # Panics
    /// In real time, and within an action.
    pub fn advance(&self, ns: u64) {
        self.virtual_only("advance").advance(ns);
    }

    /// In virtual time, does the work that is due now, as `advance(0)` does, but never blocks: it leaves work to
    /// another thread that is already at it. In real time it does nothing.
    ///
    /// # Panics
    /// Within an action.
    pub fn settle(&self) {
        if self.clock() == Clock::Virtual {
            self.shared().settle();
        }
    }

    fn shared(&self) -> &Shared {
        &self.owner.shared
    }

    fn virtual_only(&self, what: &str) -> &Shared {
        assert!(
            self.clock() == Clock::Virtual,
            "{what}: real time passes by itself"
        );
        self.shared()
    }

    fn start_threads(&self, state: &mut State, calls: bool) {
        let threads = &mut state.threads;
        if threads.mover.is_none() && state.graph.next_end().is_some() {
            let shared = Arc::clone(&self.owner.shared);
            threads.mover = Some(thread::spawn(move || shared.move_bytes()));
        }
        if threads.caller.is_none() && calls {
            let shared = Arc::clone(&self.owner.shared);
            threads.caller = Some(thread::spawn(move || shared.call_functions()));
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared().lock();
        f.debug_struct("Engine")
            .field("clock", &self.clock())
            .field("now_ns", &self.shared().now_ns(&state))
            .field("pending", &state.graph.len())
            .field("queues", &state.graph.queues())
            .finish()
    }
}

/// A condition that work waits for and that is not submitted work, such as a semaphore that another process signals.
/// Opens once.
#[derive(Clone)]
pub struct Gate {
    engine: Weak<Shared>,
    bar: Bar,
}

impl Gate {
    /// Where work waits for this gate.
    pub fn bar(&self) -> Bar {
        self.bar.clone()
    }

    /// Lets all work pass that waits here or ever will. The waiting work is done when this returns.
    pub fn open(&self) {
        let Some(shared) = self.engine.upgrade() else {
            return;
        };
        let mut state = shared.lock();
        let waiting = self.bar.open();
        let now = shared.now_ns(&state);
        state.graph.finish(now, waiting);
        drop(state);
        shared.tell();
    }
}

/// The shared part of the clones of an engine: its drop ends the threads.
struct Owner {
    shared: Arc<Shared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closing = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.tell();
        self.shared.called.notify_all();
        for handle in [threads.mover, threads.caller].into_iter().flatten() {
            // The last clone may have been an action's, and so be dropped on one of these threads.
            if handle.thread().id() != thread::current().id() {
                // They panic only by ending the process.
                let _ = handle.join();
            }
        }
    }
}

/// The shared state of an engine and its threads.
struct Shared {
    /// The start of real time.
    epoch: Option<Instant>,
    state: Mutex<State>,
    /// Work is done; in virtual time also: work was submitted, or the stepping thread stopped.
    changed: Condvar,
    /// There may be an earlier end than the one for which the mover sleeps.
    due: Condvar,
    /// There is a user's function to call.
    called: Condvar,
}

struct State {
    graph: Graph,
    virtual_ns: u64,
    /// The thread that steps virtual time.
    stepper: Option<ThreadId>,
    /// Users' functions that are due, with the numbers of their works.
    calls: VecDeque<(u64, Box<dyn FnOnce() + Send>)>,
    threads: Threads,
    closing: bool,
}

#[derive(Default)]
struct Threads {
    mover: Option<JoinHandle<()>>,
    caller: Option<JoinHandle<()>>,
}

impl Shared {
    /// A poisoned lock is used like a sound one: code under it panics only on a caller's mistake, and leaves the state
    /// consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn block<'a>(&self, on: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        on.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self, state: &State) -> u64 {
        match self.epoch {
            Some(epoch) => u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX),
            None => state.virtual_ns,
        }
    }

    /// Wakes the threads that wait for a ticket and the thread that sleeps until an end.
    fn tell(&self) {
        self.changed.notify_all();
        self.due.notify_all();
    }
}

/// Runs an action to its end, or ends the process.
fn run(action: Box<dyn FnOnce() + Send>) {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::process::abort();
        }
    }
    let bomb = Bomb;
    action();
    std::mem::forget(bomb);
}
