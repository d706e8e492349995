//! The order of work, and the one door through which it comes into a stream.
//!
//! A stream is a chain of works of the [engine](crate::engine), of which only the last one is kept. A caller that
//! adds work hands over [legs](Leg), and gets a ticket.
//!
//! Source: CUDA Driver API, Stream synchronization behavior. Work in the legacy default stream waits for all blocking
//! streams of its context, and they wait for it. A thread's default stream is a blocking one. Streams made with
//! `CU_STREAM_NON_BLOCKING` are independent.

use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use transload_cuda::raw::{CUcontext, CUresult, CUstream, CUstream_flags};

use crate::capture::Capture;
use crate::context::{self, Ruin};
use crate::engine::{Action, Ticket, Work};
use crate::faults::Fate;
use crate::registry::Registry;
use crate::state::{State, World, kind};

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

impl State {
    /// The number of a stream, which is its handle unless it is a default stream. Those are the current context's.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` without a current context, `CONTEXT_IS_DESTROYED` if it is gone, and `INVALID_HANDLE` for
    /// a stream that was destroyed or never was.
    pub(crate) fn stream_number(&mut self, handle: CUstream) -> Result<u64, CUresult> {
        let (current, _) = context::present(self)?;
        let role = match handle {
            CUstream::NULL | CUstream::LEGACY => Role::Legacy,
            CUstream::PER_THREAD => Role::OfThread(thread::current().id()),
            made => {
                let number = made.0.addr() as u64;
                self.stream(number)?;
                return Ok(number);
            }
        };
        Ok(self.streams.default_stream(current, role))
    }

    /// The stream of a number.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when there is none.
    pub(crate) fn stream(&self, number: u64) -> Result<&Stream, CUresult> {
        let stream = self.streams.open.get(number);
        stream.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// As [`State::stream`], to change it.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn stream_mut(&mut self, number: u64) -> Result<&mut Stream, CUresult> {
        let stream = self.streams.open.get_mut(number);
        stream.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Puts operations of a device into a stream: legs that start together, after all earlier work. The stream's next
    /// work waits until all of them are done. Each leg may get a fault. In a ruined context no bytes move any more.
    /// Work for a captured stream is dropped.
    ///
    /// # Errors
    /// As [`State::stream_number`] and [`State::is_captured`], and what has ruined the stream's context.
    pub(crate) fn enqueue(
        &mut self,
        world: &World,
        stream: CUstream,
        mut legs: Vec<Leg>,
    ) -> Result<Ticket, CUresult> {
        let number = self.stream_number(stream)?;
        let ruin = self.context(self.stream(number)?.context)?.ruin.clone();
        ruin.check()?;
        if self.is_captured(number)? {
            world
                .log
                .note("work of a stream that is captured is dropped: there are no graphs");
            return Ok(world.engine.submit(nothing_after(Vec::new())));
        }
        for leg in &mut legs {
            if let Some(last) = leg.last_mut() {
                befall(world.faults.on_operation(), last, &ruin);
            }
            for work in leg {
                let action = std::mem::replace(&mut work.action, Action::Nothing);
                work.action = guarded(action, &ruin);
            }
        }
        self.append(world, number, legs)
    }

    /// As [`State::enqueue`], for work of no device: events, and users' functions. No fault applies to it, and it runs
    /// in a ruined context too; functions must check the context's state themselves.
    ///
    /// # Errors
    /// As [`State::enqueue`], the stream being given by number; `NOT_SUPPORTED` where it is captured.
    pub(crate) fn append(
        &mut self,
        world: &World,
        number: u64,
        legs: Vec<Leg>,
    ) -> Result<Ticket, CUresult> {
        let stream = self.stream(number)?;
        let ruin = self.context(stream.context)?.ruin.clone();
        ruin.check()?;
        if self.is_captured(number)? {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let before = self.streams.before(stream);
        let mut ends = Vec::with_capacity(legs.len());
        for leg in legs {
            let mut end = before.clone();
            for mut work in leg {
                work.after.append(&mut end);
                end.push(world.engine.submit(work));
            }
            ends.append(&mut end);
        }
        let ticket = match <[Ticket; 1]>::try_from(ends) {
            Ok([one]) => one,
            // Without legs only the earlier work counts.
            Err(ends) if ends.is_empty() => world.engine.submit(nothing_after(before)),
            Err(ends) => world.engine.submit(nothing_after(ends)),
        };
        if let Some(stream) = self.streams.open.get_mut(number) {
            stream.last = Some(ticket.clone());
        }
        Ok(ticket)
    }

    /// The work for which a wait for a stream waits, and the context to check afterwards.
    ///
    /// # Errors
    /// As [`State::enqueue`], the stream being given by number.
    pub(crate) fn unfinished(&self, number: u64) -> Result<(Vec<Ticket>, Ruin), CUresult> {
        let stream = self.stream(number)?;
        let before = self.streams.before(stream);
        let ruin = self.context(stream.context)?.ruin.clone();
        // Asked after: work that ruins its context in between is done too.
        ruin.check()?;
        Ok((before, ruin))
    }

    /// All work in flight in a context, in destroyed streams too.
    pub(crate) fn unfinished_of(&self, context: CUcontext) -> Vec<Ticket> {
        let streams = self.streams.of_context(context);
        streams.filter_map(Stream::unfinished).collect()
    }
}

impl World {
    /// In virtual time, does the work that is due at this instant, so that work without a duration does not count as in
    /// flight; if another thread lets time pass, does not wait for it. Not to be called under a lock, nor within a
    /// user's function.
    pub(crate) fn settle(&self) {
        self.engine.settle();
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

fn befall(fate: Fate, work: &mut Work, ruin: &Ruin) {
    match fate {
        Fate::Done => {}
        Fate::Stuck => work.action = Action::Never,
        Fate::Ruins(result) => {
            let ruin = ruin.clone();
            work.action = Action::Move(Box::new(move || ruin.with(result)));
        }
    }
}

/// After a sticky error, and after the context's end, work of a device has no effect.
fn guarded(action: Action, ruin: &Ruin) -> Action {
    match action {
        Action::Move(function) => {
            let ruin = ruin.clone();
            Action::Move(Box::new(move || ruin.unless(function)))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
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
