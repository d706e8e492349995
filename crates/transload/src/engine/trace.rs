//! Records what transfers and threads do, for [`Trace`](crate::Trace).
//!
//! The recorder is a list under a lock of its own, beneath the engine's. A span of time is recorded at its end, as one
//! event, and so threads need not be told apart while it lasts. What belongs together is found out when the trace is
//! written.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use transload_core::flight::{SlotId, Task};
use transload_core::{BackendId, DeviceId, Instant, LinkId, MemoryId};
use transload_hal::{Clock, Fence, Outcome};

use super::sync::Lock;
use super::types::TransferId;

/// What happened, and when.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
    /// The position of the thread in the list of threads.
    pub(crate) thread: u32,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A thread turned the engine, and called backends.
    Turn,
    /// A thread called a backend, about so many operations.
    Call {
        name: &'static str,
        backend: BackendId,
        ops: usize,
    },
    /// A thread blocked in a backend.
    Wait(BackendId),
    /// A thread slept until it was woken.
    Park,
    /// A backend took an operation. It was done at once if the fence says so.
    Op {
        id: TransferId,
        task: Task,
        via: Via,
        fence: Fence,
    },
    /// A backend told that an operation has ended.
    Settled { fence: Fence, is_done: bool },
    /// A transfer ended, which began to move its bytes at `begun`.
    Transfer {
        id: TransferId,
        memories: Option<(MemoryId, MemoryId)>,
        bytes: u64,
        submitted: Instant,
        begun: Instant,
        is_done: bool,
        is_proof: bool,
    },
    /// A transfer asked for its first slots.
    Asked(TransferId),
    /// A transfer got a slot.
    Leased {
        id: TransferId,
        slot: SlotId,
        memory: MemoryId,
        bytes: u64,
    },
    /// A transfer gave a slot back.
    Returned { id: TransferId, slot: SlotId },
}

impl What {
    pub(crate) fn settled(fence: Fence, outcome: &Outcome) -> What {
        What::Settled {
            fence,
            is_done: matches!(outcome, Outcome::Done),
        }
    }
}

/// What carries an operation out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Via {
    Link(LinkId),
    /// No link; the bytes that the operation looks at are in a memory of that device.
    Device(DeviceId),
}

/// What was recorded.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) events: Vec<Event>,
    /// The names of the threads; empty for a thread without one.
    pub(crate) threads: Vec<String>,
    /// The events for which there was no room.
    pub(crate) left_out: u64,
}

// As `Builder::trace` says.
const _: () = assert!(Recorder::ROOM * size_of::<Event>() <= 16 << 20);

/// Collects events of one manager.
pub(crate) struct Recorder {
    clock: Arc<dyn Clock>,
    list: Lock<List>,
}

#[derive(Default)]
struct List {
    recorded: Recorded,
    threads: Vec<this::Id>,
}

impl Recorder {
    /// How many events a trace has room for. There is room from the start, so that the list never moves.
    const ROOM: usize = 1 << 16;

    pub(crate) fn new(clock: Arc<dyn Clock>) -> Recorder {
        let list = Lock::new(List::default());
        let recorder = Recorder { clock, list };
        recorder.take();
        recorder
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Records what this thread did since `begin`.
    pub(crate) fn add(&self, begin: Instant, what: What) {
        self.push(begin, self.now(), what);
    }

    /// Records what happened at that time.
    pub(crate) fn add_at(&self, at: Instant, what: What) {
        self.push(at, at, what);
    }

    /// Runs `f`, and records it.
    pub(crate) fn around<R>(recorder: Option<&Recorder>, what: What, f: impl FnOnce() -> R) -> R {
        let begin = recorder.map(Recorder::now);
        let result = f();
        if let (Some(recorder), Some(begin)) = (recorder, begin) {
            recorder.add(begin, what);
        }
        result
    }

    fn push(&self, begin: Instant, end: Instant, what: What) {
        let (id, name) = this::thread();
        self.list.with(|List { recorded, threads }| {
            if recorded.events.len() == Recorder::ROOM {
                recorded.left_out += 1;
                return;
            }
            let known = threads.iter().position(|known| *known == id);
            let thread = known.unwrap_or_else(|| {
                threads.push(id);
                recorded.threads.push(name());
                threads.len() - 1
            });
            recorded.events.push(Event {
                begin,
                end: end.max(begin),
                thread: thread as u32,
                what,
            });
        });
    }

    /// Takes what was recorded, and begins anew.
    pub(crate) fn take(&self) -> Recorded {
        let mut next = Recorded {
            events: Vec::with_capacity(Recorder::ROOM),
            ..Recorded::default()
        };
        self.list.with(|list| {
            list.threads.clear();
            core::mem::swap(&mut list.recorded, &mut next);
        });
        next
    }
}

/// The thread that runs.
#[cfg(feature = "std")]
mod this {
    use std::string::String;
    use std::thread;

    pub(super) type Id = thread::ThreadId;

    /// Returns the thread, and what tells its name.
    pub(super) fn thread() -> (Id, impl FnOnce() -> String) {
        let thread = thread::current();
        (thread.id(), move || thread.name().unwrap_or("").into())
    }
}

/// Without an operating system threads cannot be told apart.
#[cfg(not(feature = "std"))]
mod this {
    use alloc::string::String;

    #[derive(PartialEq)]
    pub(super) struct Id;

    pub(super) fn thread() -> (Id, impl FnOnce() -> String) {
        (Id, String::new)
    }
}
