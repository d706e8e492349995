//! The order of work, and the one door through which it comes into a stream.
//!
//! A stream is a chain of works of the [engine](crate::engine), of which only the last one is kept. A caller that
//! adds work hands over [legs](Leg), and gets a ticket.
//!
//! Source: CUDA Driver API, Stream synchronization behavior. Work in the legacy default stream waits for all blocking
//! streams of its context, and they wait for it. A thread's default stream is a blocking one. Streams made with
//! `CU_STREAM_NON_BLOCKING` are independent.

mod enqueue;

use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use transload_cuda::raw::{CUcontext, CUresult, CUstream_flags};

use crate::capture::Capture;
use crate::engine::{Action, Ticket, Work};
use crate::registry::{Registry, kind};

/// Works that come one after the other. A leg is one operation: it is done with its last work, which is the one
/// that a fault befalls. Legs that are put in together start together.
pub(crate) type Leg = Vec<Work>;

/// A queue of work.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: CUcontext,
    pub(crate) role: Role,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// The last work, after which all earlier work is done too.
    last: Option<Ticket>,
    /// While it is captured, its work is dropped.
    pub(crate) capture: Option<Arc<Capture>>,
    /// Of a thread's default stream: there as long as the thread is.
    thread: Weak<()>,
}

thread_local! {
    /// Ends with the thread.
    static LIFE: Arc<()> = Arc::default();
}

/// The origin of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Not made: each context has it.
    Legacy,
    /// Not made: each thread has it in each context.
    OfThread(ThreadId),
    /// Made by the client.
    Made,
}

impl Stream {
    fn is_blocking(&self) -> bool {
        let apart = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        self.role != Role::Legacy && self.flags & apart == 0
    }

    fn unfinished(&self) -> Option<Ticket> {
        self.last.clone().filter(|ticket| !ticket.is_done())
    }

    /// Whether it is the default stream of a thread that is over, and has no work in flight.
    fn is_left_over(&self) -> bool {
        let of_thread = matches!(self.role, Role::OfThread(_));
        of_thread && self.thread.strong_count() == 0 && self.unfinished().is_none()
    }
}

/// All streams. Default streams come to be when they are first used.
#[derive(Debug)]
pub(crate) struct Streams {
    open: Registry<Stream>,
    /// Destroyed streams with work in flight.
    closing: Vec<Stream>,
}

impl Streams {
    pub(crate) const fn new() -> Streams {
        Streams {
            open: Registry::new(kind::STREAM),
            closing: Vec::new(),
        }
    }

    pub(crate) fn make(
        &mut self,
        context: CUcontext,
        role: Role,
        flags: u32,
        priority: i32,
    ) -> u64 {
        let thread = match role {
            // A thread that is ending has no life left, and its stream goes as soon as it is idle.
            Role::OfThread(_) => LIFE.try_with(Arc::downgrade).unwrap_or_default(),
            Role::Legacy | Role::Made => Weak::new(),
        };
        self.open.add(Stream {
            context,
            role,
            flags,
            priority,
            last: None,
            capture: None,
            thread,
        })
    }

    /// Removes a client's stream; its work in flight goes on.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when it is none.
    pub(crate) fn destroy(&mut self, number: u64) -> Result<CUcontext, CUresult> {
        let made = self.open.get(number).filter(|of| of.role == Role::Made);
        let context = made.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.context;
        self.closing.retain(|stream| stream.unfinished().is_some());
        let gone = self.open.remove(number);
        self.closing.extend(gone.map(|of| Stream {
            capture: None,
            ..of
        }));
        Ok(context)
    }

    /// Takes all streams of a context away.
    pub(crate) fn end_context(&mut self, context: CUcontext) {
        self.take_away(|of| of.context == context);
    }

    /// Adds a line for each stream that the client made and that is still there.
    pub(crate) fn leaks(&self, lines: &mut Vec<String>) {
        let made = self.open.iter().filter(|(_, of)| of.role == Role::Made);
        lines.extend(made.map(|(number, _)| format!("stream {number:#x}")));
    }

    fn of_context(&self, context: CUcontext) -> impl Iterator<Item = &Stream> {
        let open = self.open.iter().map(|(_, stream)| stream);
        open.chain(&self.closing)
            .filter(move |of| of.context == context)
    }

    /// The captures for which work of the legacy default stream would wait.
    pub(crate) fn captured_beside(&self, legacy: &Stream) -> Vec<Arc<Capture>> {
        let beside = self
            .of_context(legacy.context)
            .filter(|of| of.is_blocking());
        beside.filter_map(|of| of.capture.clone()).collect()
    }

    /// The streams of a context that are captured.
    pub(crate) fn captured_of(&self, context: CUcontext) -> Vec<u64> {
        let all = self.open.iter();
        let captured = all.filter(|(_, of)| of.context == context && of.capture.is_some());
        captured.map(|(number, _)| number).collect()
    }

    fn default_stream(&mut self, context: CUcontext, role: Role) -> u64 {
        let found = {
            let mut all = self.open.iter();
            all.find(|(_, of)| of.context == context && of.role == role)
                .map(|(number, _)| number)
        };
        found.unwrap_or_else(|| {
            self.take_away(Stream::is_left_over);
            self.make(context, role, 0, 0)
        })
    }

    /// Removes streams; their work in flight goes on.
    fn take_away(&mut self, which: impl Fn(&Stream) -> bool) {
        let taken = self.open.iter().filter(|(_, stream)| which(stream));
        let numbers: Vec<u64> = taken.map(|(number, _)| number).collect();
        for number in numbers {
            self.closing.extend(self.open.remove(number));
        }
        self.closing.retain(|stream| stream.unfinished().is_some());
    }

    /// The work that comes before a stream's next work, for which a wait for the stream waits too.
    fn before(&self, stream: &Stream) -> Vec<Ticket> {
        let mut before = Vec::from_iter(stream.unfinished());
        for other in self.of_context(stream.context) {
            let waits = match stream.role {
                Role::Legacy => other.is_blocking(),
                _ => stream.is_blocking() && other.role == Role::Legacy,
            };
            if waits {
                before.extend(other.unfinished());
            }
        }
        before
    }
}

/// Work of this kind that takes no time.
pub(crate) fn at_once(after: Vec<Ticket>, action: Action) -> Leg {
    let work = nothing_after(after);
    vec![Work { action, ..work }]
}

fn nothing_after(after: Vec<Ticket>) -> Work {
    Work {
        after,
        channels: Vec::new(),
        duration_ns: 0,
        action: Action::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn streams_of_threads_that_are_over_do_not_pile_up() {
        let mut streams = Streams::new();
        let mut of_this_thread = || {
            let role = Role::OfThread(thread::current().id());
            streams.default_stream(CUcontext::NULL, role)
        };
        let own = of_this_thread();
        for _ in 0..20 {
            thread::scope(|scope| scope.spawn(&mut of_this_thread).join()).unwrap();
        }
        assert_eq!(of_this_thread(), own);
        assert_eq!(
            streams.open.iter().count(),
            2,
            "this one's and the last one's"
        );
        assert_eq!(streams.closing.len(), 0);
    }
}
