//! `MTLCommandBuffer`: from its making to its end.

pub(crate) mod methods;

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::buffer::Buffer;
use super::error::{Code, Error};
use super::event::Event;
use super::label::Label;
use super::queue::CommandQueue;
use super::texture::Texture;
use crate::faults::{self, Fate};
use crate::gpu::{Command, Job, Next, WORLD, call_back, is_callback_thread};
use crate::ledger::{COUNTS, Misuse, report};
use crate::machine::made;
use crate::runtime::{Block, BlockArgument, Id, Ref};

/// Commands on their way to the GPU.
#[derive(Debug)]
pub(crate) struct CommandBuffer {
    queue: Ref<CommandQueue>,
    /// Whether it retains the objects that its commands use.
    retains: bool,
    state: Mutex<State>,
    changed: Condvar,
    label: Label,
}

#[derive(Debug)]
struct State {
    status: Status,
    commands: Vec<Command>,
    /// How many are done.
    done: usize,
    /// The GPU is at the next.
    working: bool,
    /// An encoder has not ended.
    encoding: bool,
    failure: Option<Failure>,
    scheduled_handlers: Vec<Block>,
    completed_handlers: Vec<Block>,
    retained: Vec<RetainedResource>,
    error: Option<Ref<Error>>,
    /// Nothing of it is used any more.
    let_go: bool,
    /// The completed handlers have returned.
    finished: bool,
}

/// `MTLCommandBufferStatus`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
enum Status {
    NotEnqueued = 0,
    Enqueued = 1,
    Committed = 2,
    Scheduled = 3,
    Completed = 4,
    Error = 5,
}

/// Why it ends in an error.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) told: String,
}

impl Failure {
    /// As a test ordered it.
    fn ordered(code: Code) -> Self {
        let told = "ordered of the double".into();
        Self { code, told }
    }

    fn removed() -> Self {
        let told = "the device was removed".into();
        Self {
            code: Code::DEVICE_REMOVED,
            told,
        }
    }
}

/// Objects that stay alive until the commands are done; only their drop matters.
#[derive(Debug)]
pub(crate) enum RetainedResource {
    Buffer(#[expect(dead_code, reason = "it is held")] Ref<Buffer>),
    Texture(#[expect(dead_code, reason = "it is held")] Ref<Texture>),
}

impl CommandBuffer {
    pub(crate) fn new(queue: Ref<CommandQueue>, retains: bool) -> Ref<Self> {
        queue.take_slot();
        COUNTS.command_buffers.one();
        Ref::new(Self {
            queue,
            retains,
            state: Mutex::new(State {
                status: Status::NotEnqueued,
                commands: Vec::new(),
                done: 0,
                working: false,
                encoding: false,
                failure: None,
                scheduled_handlers: Vec::new(),
                completed_handlers: Vec::new(),
                retained: Vec::new(),
                error: None,
                let_go: false,
                finished: false,
            }),
            changed: Condvar::new(),
            label: Label::default(),
        })
    }

    pub(crate) fn device(&self) -> usize {
        self.queue.device
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a command, and retains its objects if this buffer does so.
    pub(crate) fn encode(
        &self,
        command: Command,
        kept: impl IntoIterator<Item = RetainedResource>,
    ) {
        let mut state = self.state();
        if state.status >= Status::Committed {
            drop(state);
            let told = "a command was given to a command buffer after commit";
            self.spoil(Misuse::Committed, told.into());
            return;
        }
        for storage in command.storages() {
            storage.use_later();
        }
        state.commands.push(command);
        if self.retains {
            state.retained.extend(kept);
        }
    }

    /// A client made a forbidden call: the misuse is reported, and the whole buffer fails when it is committed.
    pub(crate) fn spoil(&self, misuse: Misuse, told: String) {
        let mut state = self.state();
        if state.status < Status::Committed {
            state.failure.get_or_insert(Failure {
                code: Code::INTERNAL,
                told: told.clone(),
            });
        }
        drop(state);
        report(misuse, told);
    }

    /// Begins an encoder. Returns whether it may.
    fn begin_encoding(&self) -> bool {
        let mut state = self.state();
        let (committed, encoding) = (state.status >= Status::Committed, state.encoding);
        if !committed && !encoding {
            state.encoding = true;
            return true;
        }
        drop(state);
        if committed {
            self.spoil(
                Misuse::Committed,
                "an encoder was asked of a committed command buffer".into(),
            );
        } else {
            self.spoil(
                Misuse::EncoderOpen,
                "an encoder was asked for before the one before had ended".into(),
            );
        }
        false
    }

    pub(crate) fn end_encoding(&self) {
        self.state().encoding = false;
    }

    /// A command between encoders.
    fn encode_event(&self, event: Id, command: impl FnOnce(Ref<Event>) -> Command) {
        let encoding = self.state().encoding;
        let Some(event) = event.retained::<Event>() else {
            self.spoil(Misuse::BadArgument, "what was given is no event".into());
            return;
        };
        if encoding {
            let told = "an event was encoded before the encoder had ended";
            self.spoil(Misuse::EncoderOpen, told.into());
        } else if self.state().status >= Status::Committed {
            self.spoil(
                Misuse::Committed,
                "an event was encoded after commit".into(),
            );
        } else if event.device.is_some_and(|device| device != self.device()) {
            self.spoil(
                Misuse::OtherDevice,
                "an event that is not shared belongs to one device".into(),
            );
        } else {
            self.encode(command(event), []);
        }
    }

    fn add_handler(&self, block: BlockArgument, list: impl FnOnce(&mut State) -> &mut Vec<Block>) {
        let Some(block) = block.copy() else {
            self.spoil(Misuse::BadArgument, "a handler was null".into());
            return;
        };
        let mut state = self.state();
        if state.status < Status::Committed {
            list(&mut state).push(block);
        } else {
            drop(state);
            self.spoil(Misuse::Committed, "a handler was added after commit".into());
        }
    }

    fn enqueue(this: &Ref<Self>) {
        let mut state = this.state();
        if state.status != Status::NotEnqueued {
            return;
        }
        state.status = Status::Enqueued;
        drop(state);
        WORLD.enqueue(Arc::new(this.clone()));
    }

    fn commit(this: &Ref<Self>) {
        let mut state = this.state();
        if state.status >= Status::Committed {
            drop(state);
            report(
                Misuse::Committed,
                "a command buffer was committed twice".into(),
            );
            return;
        }
        if state.encoding {
            drop(state);
            let told = "a command buffer was committed before its encoder had ended";
            this.spoil(Misuse::EncoderOpen, told.into());
            state = this.state();
        }
        if let Some(code) = faults::fate_of_commit() {
            state.failure.get_or_insert(Failure::ordered(code));
        }
        let enqueued = state.status == Status::Enqueued;
        state.status = Status::Committed;
        drop(state);
        COUNTS.commits.one();
        if enqueued {
            WORLD.poke();
        } else {
            WORLD.enqueue(Arc::new(this.clone()));
        }
    }

    fn call(&self, handlers: Vec<Block>, id: Id) {
        for handler in handlers {
            // SAFETY: `MTLCommandBufferHandler` is a block of a command buffer that answers nothing.
            unsafe { handler.call_object(id) };
            COUNTS.handlers.one();
        }
    }

    fn outcome(&self, command: &Command) -> Result<(), Failure> {
        let fate = if command.is_blit() {
            faults::fate_of_blit()
        } else {
            None
        };
        match fate {
            Some(Fate::Fails(code)) => return Err(Failure::ordered(code)),
            Some(Fate::Removed) => {
                faults::remove(self.device());
                return Err(Failure::removed());
            }
            None => {}
        }
        command.carry_out().map_err(|_| Failure {
            code: Code::INVALID_RESOURCE,
            told: "a resource has ended before the command that uses it".into(),
        })
    }

    /// Frees its place in the queue, and returns the used objects for release.
    fn let_go(&self) -> Used {
        let mut state = self.state();
        let had_slot = !mem::replace(&mut state.let_go, true);
        let commands = mem::take(&mut state.commands);
        let retained = mem::take(&mut state.retained);
        drop(state);
        if had_slot {
            self.queue.give_slot();
        }
        Used {
            commands,
            _retained: retained,
        }
    }

    fn wait(&self, done: impl Fn(&State) -> bool) {
        let state = self.state();
        if state.status < Status::Committed {
            drop(state);
            report(
                Misuse::WaitForever,
                "a thread waited for a command buffer that was never committed".into(),
            );
            return;
        }
        if is_callback_thread() && !done(&state) {
            drop(state);
            report(
                Misuse::WaitForever,
                "a handler waited, which holds up all handlers".into(),
            );
            return;
        }
        let waited = self.changed.wait_while(state, |state| !done(state));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Job for Ref<CommandBuffer> {
    fn device(&self) -> usize {
        CommandBuffer::device(self)
    }

    fn queue_number(&self) -> usize {
        self.queue.number
    }

    fn next(&self) -> Next {
        let state = self.state();
        if state.status < Status::Committed || state.working {
            return Next::Nothing;
        }
        let is_removed = made().devices[self.device()].is_removed();
        if state.failure.is_some() || is_removed {
            return Next::End { begun: true };
        }
        match state.commands.get(state.done) {
            None => Next::End {
                begun: state.done > 0,
            },
            Some(Command::Wait(event, value)) if event.value() < *value => Next::Nothing,
            Some(_) => Next::Command,
        }
    }

    fn at_work(&self) -> bool {
        self.state().working
    }

    fn schedule(&self) {
        let mut state = self.state();
        if state.status == Status::Committed {
            state.status = Status::Scheduled;
            self.changed.notify_all();
        }
    }

    fn tell_scheduled(&self) {
        let handlers = mem::take(&mut self.state().scheduled_handlers);
        if !handlers.is_empty() {
            let buffer = self.clone();
            call_back(move || buffer.call(handlers, buffer.id()));
        }
    }

    fn begin_command(&self) {
        self.state().working = true;
    }

    fn carry_out(&self) {
        let mut state = self.state();
        let index = state.done;
        // No code changes the commands of a committed buffer, and the GPU needs its lock for nothing meanwhile.
        let commands = mem::take(&mut state.commands);
        drop(state);
        let outcome = self.outcome(&commands[index]);
        let mut state = self.state();
        state.commands = commands;
        state.working = false;
        match outcome {
            Ok(()) => state.done += 1,
            Err(failure) => state.failure = Some(failure),
        }
    }

    fn complete(&self) {
        let mut state = self.state();
        if state.done < state.commands.len() {
            // Commands stay undone without an error only if the device is gone.
            state.failure.get_or_insert(Failure::removed());
        }
        drop(state);
        // Metal does not document when it releases retained objects: before the handlers, after them, or after waiting
        // threads have returned. The double takes each in turn.
        let mut used = Some(self.let_go());
        let turn = ENDS.fetch_add(1, Ordering::Relaxed) % 3;
        used.take_if(|_| turn == 0);
        let mut state = self.state();
        let failure = state.failure.clone();
        state.status = if failure.is_some() {
            Status::Error
        } else {
            Status::Completed
        };
        state.error = failure.map(|failure| Error::new(failure.code, &failure.told));
        let handlers = mem::take(&mut state.completed_handlers);
        drop(state);
        self.call(handlers, self.id());
        used.take_if(|_| turn == 1);
        self.state().finished = true;
        self.changed.notify_all();
        drop(used);
    }
}

impl Drop for CommandBuffer {
    fn drop(&mut self) {
        drop(self.let_go());
    }
}

/// The objects that commands used. Releasing retained ones may call blocks of the client.
struct Used {
    commands: Vec<Command>,
    _retained: Vec<RetainedResource>,
}

impl Drop for Used {
    fn drop(&mut self) {
        for storage in self.commands.iter().flat_map(Command::storages) {
            storage.used();
        }
    }
}

/// How many command buffers are over.
static ENDS: AtomicUsize = AtomicUsize::new(0);
