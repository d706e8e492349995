//! Modelled time: work that waits for other work, for hardware that serialises, and for its own end.
//!
//! It knows nothing of drivers. [`Engine::submit`] takes [`Work`] and gives a [`Ticket`]. Work is *ready* when
//! all that it comes after is done. It then joins the queue of each of its channels in one step, so that no
//! two queues disagree about the order and no cycle of waits arises; it starts when it is at the head of all
//! of them, holds them for its duration, and at its end its action runs. Then it is done. Bytes that an action
//! moves are therefore where they were until the modelled time has passed.
//!
//! Queues are first in, first out in the order of readiness. What becomes ready at one instant joins in
//! the order of submission, instants being worked through in rounds: all that ends, then all that this
//! made ready, then what of it ends at once.
//!
//! In [real time](Clock::Real) two threads serve an engine, started when they are first needed. Neither has a
//! tick: one sleeps until the next end, for good when nothing runs. In [virtual time](Clock::Virtual) there is
//! no thread, and the clock stands still until a thread steps it, advances it or waits.

mod graph;
mod real;
mod stepped;
mod ticket;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Instant;

use graph::Graph;
use real::HostQueue;
pub use ticket::{Gate, Ticket};

/// The clock of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// The machine's: ends come by themselves.
    Real,
    /// One that starts at 0 and moves only when it is stepped, advanced or waited on.
    Virtual,
}

/// Hardware that does one thing at a time: a copy engine, or one direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelId(usize);

/// One thing to do.
pub struct Work {
    /// What it waits for. Tickets of the same engine.
    pub after: Vec<Ticket>,
    /// What it occupies from its start to its end; nothing where it is empty.
    pub channels: Vec<ChannelId>,
    /// How long it takes, from its start to its end.
    pub duration_ns: u64,
    /// What happens at its end.
    pub action: Action,
}

/// What happens at the end of work, with no lock held. A panic in it ends the process: whatever it was
/// to finish would otherwise be waited for in vain.
pub enum Action {
    /// Nothing more.
    Nothing,
    /// Bytes move. In real time all moves of an engine run on one thread.
    Move(Box<dyn FnOnce() + Send>),
    /// A user's function. In real time it runs on a thread of its own, one after the other, and holds
    /// up only what comes after it. In virtual time it runs on the thread that steps.
    Host(Box<dyn FnOnce() + Send>),
    /// The work is never done. Its channels are free after its duration.
    Never,
    /// The work is done when the gate is open, and not before its end. Its channels are free at its end.
    Until(Gate),
}

/// Keeps time and works through what is submitted. Clones are one engine; it ends with the last clone, and
/// what is not done by then never is. An action that holds a clone keeps the engine alive until it has run.
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
            host: HostQueue::default(),
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
        Gate::new(&self.owner.shared)
    }

    /// Takes in work. Never blocks on work.
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

    /// How many works are not done.
    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.shared().lock().graph.len()
    }

    /// Blocks until the work is done. In virtual time the clock goes from event to event meanwhile, by the
    /// hand of this thread or of another that waits; when there is no event left, until one is submitted.
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

    /// Goes to the next event and does all that is due then. False when there is none.
    ///
    /// # Panics
    /// In real time, and within an action.
    pub fn step(&self) -> bool {
        self.virtual_only("step").step()
    }

    /// Lets exactly that much time pass, and does all that is due on the way and at its end. With 0 it
    /// does what is due now.
    ///
    /// # Panics
    /// In real time, and within an action.
    pub fn advance(&self, ns: u64) {
        self.virtual_only("advance").advance(ns);
    }

    /// In virtual time, does what is due now, as `advance(0)`; but never blocks: what another thread is at, it
    /// leaves to that one. In real time nothing.
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

/// What the clones of an engine share: when it goes, the threads do.
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
            // The last clone may have been an action's, and so go on one of these threads.
            if handle.thread().id() != thread::current().id() {
                // They panic only by ending the process.
                let _ = handle.join();
            }
        }
    }
}

/// What the threads of an engine share with it.
struct Shared {
    /// When real time began.
    epoch: Option<Instant>,
    state: Mutex<State>,
    /// Something is done; in virtual time also: something was submitted, or the stepping thread stopped.
    changed: Condvar,
    /// There may be an earlier end than the one that the mover sleeps for.
    due: Condvar,
    /// There is a user's function to call.
    called: Condvar,
}

struct State {
    graph: Graph,
    virtual_ns: u64,
    /// The thread that steps virtual time.
    stepper: Option<ThreadId>,
    host: HostQueue,
    threads: Threads,
    closing: bool,
}

#[derive(Default)]
struct Threads {
    mover: Option<JoinHandle<()>>,
    caller: Option<JoinHandle<()>>,
}

impl Shared {
    /// A lock that was poisoned is taken all the same: what runs under it leaves no half-made state when
    /// it panics, which it does on a caller's mistake only.
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
