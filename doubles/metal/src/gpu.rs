//! The GPUs: a thread each, which carries out committed command buffers.
//!
//! Queues of a device take turns, one command at a time; the command buffers of a queue go one after the other. One
//! lock and one condition are enough for all of it: a double need not be fast.

mod command;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

pub(crate) use self::command::{Command, Place, Rows};
use crate::runtime::Pool;

/// The work of the GPUs, and the permits of tests.
pub(crate) struct World {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    /// Queues that have command buffers.
    lines: Vec<Line>,
    /// The devices that have a thread already.
    started: Vec<usize>,
    /// The number of commands in execution, and of calls that run or are due.
    busy: usize,
    held: bool,
    /// Commands that go ahead although all is held.
    permits: usize,
    /// Lines have their turn from here.
    turn: usize,
}

/// The command buffers of one queue, in the order in which they go.
struct Line {
    device: usize,
    queue: usize,
    buffers: VecDeque<Arc<dyn Job>>,
}

pub(crate) static WORLD: World = World {
    state: Mutex::new(State {
        lines: Vec::new(),
        started: Vec::new(),
        busy: 0,
        held: false,
        permits: 0,
        turn: 0,
    }),
    changed: Condvar::new(),
};

/// Stops all GPUs between two commands, until [`release`]. Returns when none is working.
pub fn hold() {
    let mut state = WORLD.state();
    state.held = true;
    state.permits = 0;
    WORLD.wait_until(state, |state| {
        state.lines.iter().all(|line| !line.at_work())
    });
}

/// Lets the GPUs go on after [`hold`].
pub fn release() {
    WORLD.state().held = false;
    WORLD.changed.notify_all();
}

/// While the GPUs are held: lets them carry out `commands` more, and answers when they have, or when nothing that is
/// committed can go on.
pub fn step(commands: usize) {
    let mut state = WORLD.state();
    state.permits = commands;
    WORLD.changed.notify_all();
    WORLD.wait_until(state, |state| {
        state.busy == 0 && (state.permits == 0 || !state.can_go_on())
    });
    // Unused permits do not apply to later command buffers.
    WORLD.state().permits = 0;
}

/// Waits until nothing goes on: no command that could be carried out is left, and no handler is to be called. On a
/// thread that calls handlers it answers at once.
pub fn settle() {
    if is_callback_thread() {
        return;
    }
    let state = WORLD.state();
    WORLD.wait_until(state, |state| state.busy == 0 && !state.can_go_on());
}

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, state: MutexGuard<'_, State>, done: impl Fn(&State) -> bool) {
        let waited = self.changed.wait_while(state, |state| !done(state));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Something has changed that a queue may wait for.
    pub(crate) fn poke(&self) {
        drop(self.state());
        self.changed.notify_all();
    }

    /// Gives `buffer` the last place in its queue's line.
    pub(crate) fn enqueue(&self, buffer: Arc<dyn Job>) {
        let (device, queue) = (buffer.device(), buffer.queue_number());
        let mut state = self.state();
        let line = state.lines.iter_mut().find(|line| line.queue == queue);
        match line {
            Some(line) => line.buffers.push_back(buffer),
            None => state.lines.push(Line {
                device,
                queue,
                buffers: VecDeque::from([buffer]),
            }),
        }
        if !state.started.contains(&device) {
            state.started.push(device);
            start_gpu(device);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// One more call is to come.
    fn expect_call(&self) {
        self.state().busy += 1;
    }

    fn called(&self) {
        self.state().busy -= 1;
        self.changed.notify_all();
    }
}

impl State {
    fn can_go_on(&self) -> bool {
        let mut lines = self.lines.iter();
        lines.any(|line| {
            line.buffers
                .front()
                .is_some_and(|buffer| self.may_go_on(&**buffer))
        })
    }

    /// Whether a worker may do something about `buffer`, the first of its line.
    fn may_go_on(&self, buffer: &dyn Job) -> bool {
        match buffer.next() {
            Next::Nothing => false,
            Next::Command => !self.held || self.permits > 0,
            Next::End { begun } => !self.held || begun,
        }
    }
}

impl Line {
    fn at_work(&self) -> bool {
        self.buffers.front().is_some_and(|buffer| buffer.at_work())
    }
}

/// The next step of a command buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is not committed, waits for an event, or is being worked at.
    Nothing,
    /// A command can be carried out.
    Command,
    /// All are, or it has failed.
    End {
        /// Whether any was carried out.
        begun: bool,
    },
}

/// A command buffer, as the GPUs see it.
pub(crate) trait Job: Send + Sync {
    fn device(&self) -> usize;
    fn queue_number(&self) -> usize;
    /// The GPU's next step for it.
    fn next(&self) -> Next;
    fn at_work(&self) -> bool;
    /// The GPU has turned to it.
    fn schedule(&self);
    /// Has the handlers for that called, once.
    fn tell_scheduled(&self);
    /// The GPU is about to carry out the next command.
    fn begin_command(&self);
    /// Carries out the next command, on the thread that is the GPU.
    fn carry_out(&self);
    /// The GPU is done with it: its status tells, and its handlers are called.
    fn complete(&self);
}

/// The work that the thread has found.
enum Work {
    Command(Arc<dyn Job>),
    End(Arc<dyn Job>),
}

/// Starts the thread of `device`. It lives as long as the process.
fn start_gpu(device: usize) {
    let name = format!("GPU {device}");
    let thread = thread::Builder::new().name(name);
    thread
        .spawn(move || run(device))
        .expect("the system has threads");
}

fn run(device: usize) {
    loop {
        match next(device) {
            Work::Command(buffer) => {
                buffer.tell_scheduled();
                buffer.carry_out();
                // Dropped before other threads may see that no work is in flight.
                drop(buffer);
                WORLD.called();
            }
            Work::End(buffer) => {
                buffer.tell_scheduled();
                call_back(move || buffer.complete());
                WORLD.called();
            }
        }
    }
}

/// Waits for work of `device`. It counts as busy from here on.
fn next(device: usize) -> Work {
    let mut state = WORLD.state();
    loop {
        if let Some(work) = find(&mut state, device) {
            state.busy += 1;
            return work;
        }
        state = WORLD
            .changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

fn find(state: &mut State, device: usize) -> Option<Work> {
    let count = state.lines.len();
    for step in 0..count {
        let index = (state.turn + step) % count;
        let line = &state.lines[index];
        let Some(buffer) = line.buffers.front().filter(|_| line.device == device) else {
            continue;
        };
        if !state.may_go_on(&**buffer) {
            continue;
        }
        let buffer = Arc::clone(buffer);
        let next = buffer.next();
        // The next command comes from another queue, if there is one.
        state.turn = index + 1;
        buffer.schedule();
        if next == Next::Command {
            state.permits = state.permits.saturating_sub(1);
            buffer.begin_command();
            return Some(Work::Command(buffer));
        }
        state.lines[index].buffers.pop_front();
        if state.lines[index].buffers.is_empty() {
            state.lines.remove(index);
        }
        return Some(Work::End(buffer));
    }
    None
}

type Call = Box<dyn FnOnce() + Send>;

thread_local! {
    static IS_CALLBACK_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Makes `call` on the thread that calls handlers, as a queue of the system's does, in a pool of its own, after earlier calls.
pub(crate) fn call_back(call: impl FnOnce() + Send + 'static) {
    WORLD.expect_call();
    let calls = CALLS.get_or_init(|| Mutex::new(start_callbacks()));
    let calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    calls
        .send(Box::new(call))
        .expect("the thread ends with the process");
}

/// Whether this is the thread that calls handlers.
pub(crate) fn is_callback_thread() -> bool {
    IS_CALLBACK_THREAD.get()
}

static CALLS: OnceLock<Mutex<Sender<Call>>> = OnceLock::new();

fn start_callbacks() -> Sender<Call> {
    let (sender, receiver) = channel::<Call>();
    let run = move || {
        IS_CALLBACK_THREAD.set(true);
        for call in receiver {
            Pool::around(call);
            WORLD.called();
        }
    };
    let thread = thread::Builder::new().name("handlers".into());
    thread.spawn(run).expect("the system has threads");
    sender
}
