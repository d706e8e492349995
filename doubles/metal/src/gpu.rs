//! The GPUs: a thread each, which carries out committed command buffers.
//!
//! Queues of a device take turns, one command at a time; the command buffers of a queue go one after the other. One
//! lock and one condition are enough for all of it: a double need not be fast.

mod callbacks;
mod command;
mod worker;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) use self::callbacks::{call_back, here as is_callback_thread};
pub(crate) use self::command::{Command, Place, Rows};
use crate::classes::command_buffer::CommandBuffer;
use crate::runtime::Ref;

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
    buffers: VecDeque<Ref<CommandBuffer>>,
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
    if callbacks::here() {
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
    pub(crate) fn enqueue(&self, buffer: Ref<CommandBuffer>) {
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
            worker::start(device);
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
                .is_some_and(|buffer| self.may_go_on(buffer))
        })
    }

    /// Whether a worker may do something about `buffer`, the first of its line.
    fn may_go_on(&self, buffer: &CommandBuffer) -> bool {
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
