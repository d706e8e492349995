//! The session's side of requests to another machine: it carries out what threads ask for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use transload_hal::{ErrorClass, Fault, HostSpan, Outcome};

use crate::queue::{Command, End, Job, Line, Operation, misplaced, unknown};
use crate::wire::{self, EAGER_WINDOW, MOST_EAGER, Message, Network, ProtocolError};
use crate::{Event, Handler, Peer, Pipe, SessionError};

/// How long an operation may go on that the other machine was asked to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// How often a machine may ask for the same bytes: once for each way that it tries, and to compare them.
const MOST_SENDS: u64 = 64;

/// What a peer says of itself when a session has begun, and why UCX does not carry bytes, if it does not.
pub(crate) type Opened = Result<(wire::Inventory, Option<String>), SessionError>;

/// The most copies of a session that are under way at once: a quarter of what a server takes.
const MOST_COPIES: usize = 1024;

/// The side of a session that asks.
pub(crate) struct Client {
    line: Arc<Line>,
    operations: HashMap<u64, Asked>,
    questions: HashMap<u64, Sender<Result<Message, Fault>>>,
    opened: Option<Sender<Opened>>,
    /// Commands that were taken from the queue and not carried out yet.
    taken: VecDeque<Command>,
    /// Copies that begin once others have ended.
    held: VecDeque<Operation>,
    /// How many copies are under way.
    copies: usize,
    /// The bytes of writes under way that were sent at once.
    eager_bytes: u64,
}

/// An operation that the other machine was asked for.
struct Asked {
    job: Job,
    end: End,
    len_bytes: u64,
    /// Bytes that have come in.
    arrived: u64,
    /// Bytes that have gone out.
    sent: u64,
    /// Bytes that the other machine has asked for.
    gone: u64,
    /// When it must have ended, once it was asked to stop.
    limit: Option<Instant>,
    network: Network,
    /// The bytes of a write that were sent at once.
    eager_bytes: u64,
    /// Messages over UCX that this side sends or receives.
    moving: usize,
    /// How the other side ended it while some were under way.
    ended: Option<wire::Outcome>,
    /// Why one of them did not arrive.
    failed: Option<String>,
}

impl Asked {
    /// Adds how far a write had come to the reason for which its session has ended. How much of a span has come in is not known.
    fn cut(&self, mut fault: Fault) -> Fault {
        if let End::Source(_) = self.end {
            let (sent, of) = (self.sent, self.len_bytes);
            let told = format!("{}; {sent} of its {of} bytes had gone out", fault.message);
            fault.message = told.into();
        }
        fault
    }

    fn stop(&mut self, id: u64, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        self.limit
            .get_or_insert_with(|| Instant::now() + STOP_LIMIT);
        pipe.send(&Message::Stop { id })
    }
}

impl Client {
    pub(crate) fn new(line: Arc<Line>, opened: Sender<Opened>) -> Client {
        Client {
            line,
            operations: HashMap::new(),
            questions: HashMap::new(),
            opened: Some(opened),
            taken: VecDeque::new(),
            held: VecDeque::new(),
            copies: 0,
            eager_bytes: 0,
        }
    }

    /// Starts an operation, or holds it while as many copies as a session may have are under way: of a list of many pieces, or an
    /// array of many rows. What waits for others at the other machine is no copy, and is never held.
    fn admit(&mut self, operation: Operation, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        if !operation.end.is_copy() {
            return self.start(operation, pipe);
        }
        self.held.push_back(operation);
        self.start_held(pipe)
    }

    fn start_held(&mut self, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        while self.copies < MOST_COPIES
            && let Some(operation) = self.held.pop_front()
        {
            self.start(operation, pipe)?;
        }
        Ok(())
    }

    fn start(&mut self, operation: Operation, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        let Operation {
            id,
            job,
            mut message,
            end,
            len_bytes,
        } = operation;
        let network = message.network();
        let fits = len_bytes <= MOST_EAGER && self.eager_bytes + len_bytes <= EAGER_WINDOW;
        let sent = match (&mut message, &end) {
            (Message::Write { eager, .. }, End::Source(span))
                if fits && network == Network::Tls =>
            {
                *eager = true;
                Some(*span)
            }
            _ => None,
        };
        let eager_bytes = sent.map_or(0, |_| len_bytes);
        self.eager_bytes += eager_bytes;
        if let (Network::Tls, End::Destination(span)) = (network, &end) {
            let span = *span;
            // SAFETY: the submission keeps the operand valid until its fence settles, which is after the range is given
            // up or complete.
            unsafe { pipe.expect(id, 0, span) };
        }
        let asked = Asked {
            job,
            end,
            len_bytes,
            arrived: 0,
            sent: 0,
            gone: eager_bytes,
            limit: None,
            network,
            eager_bytes,
            moving: 0,
            ended: None,
            failed: None,
        };
        self.copies += usize::from(asked.end.is_copy());
        self.operations.insert(id, asked);
        pipe.send(&message)?;
        if let Some(span) = sent {
            // SAFETY: as above, until the bytes were sent or given up.
            unsafe { pipe.send_data(id, 0, span) };
        }
        Ok(())
    }

    fn answer(
        &mut self,
        id: u64,
        answer: Result<Message, Fault>,
        pipe: &mut Pipe,
    ) -> Result<(), ProtocolError> {
        match self.questions.remove(&id) {
            Some(question) => {
                let Err(unheard) = question.send(answer) else {
                    return Ok(());
                };
                // The thread that asked has given up.
                match unheard.0 {
                    Ok(Message::Allocated { .. } | Message::Opened { .. }) => {
                        pipe.send(&Message::Free { lease: id })
                    }
                    _ => Ok(()),
                }
            }
            None => Err(unknown(id)),
        }
    }

    /// Sets when the first of the operations that were asked to stop must have ended.
    fn limit(&self, pipe: &mut Pipe) {
        let limits = self.operations.values().filter_map(|asked| asked.limit);
        pipe.set_limit(limits.min());
    }

    fn end(
        &mut self,
        id: u64,
        outcome: wire::Outcome,
        pipe: &mut Pipe,
    ) -> Result<(), ProtocolError> {
        if let Some(asked) = self
            .operations
            .get_mut(&id)
            .filter(|asked| asked.moving > 0)
        {
            asked.ended.get_or_insert(outcome);
            return Ok(());
        }
        let asked = self.operations.remove(&id);
        let mut asked = asked.ok_or(unknown(id))?;
        self.eager_bytes -= asked.eager_bytes;
        self.copies -= usize::from(asked.end.is_copy());
        if asked.limit.is_some() {
            self.limit(pipe);
        }
        pipe.forget(id);
        if pipe.cancel(id).is_some() {
            // Bytes that the other side has asked for do not come.
            pipe.send(&Message::Stop { id })?;
        }
        let is_short = matches!(asked.end, End::Destination(_)) && asked.arrived < asked.len_bytes;
        let outcome = match outcome {
            wire::Outcome::Done if asked.failed.is_some() => {
                let reason = asked.failed.take().unwrap_or_default();
                Outcome::Failed(self.line.fault(reason))
            }
            wire::Outcome::Done if is_short => Outcome::Failed(self.line.fault(format_args!(
                "says that {} bytes were sent, and {} came",
                asked.len_bytes, asked.arrived
            ))),
            wire::Outcome::Done => Outcome::Done,
            wire::Outcome::Stopped { leading_bytes } => Outcome::Stopped {
                leading_bytes: leading_bytes.min(asked.len_bytes),
            },
            // A device that is lost there is not this machine's, and others there may serve.
            wire::Outcome::Failed(fault) | wire::Outcome::Lost(fault) => {
                let mut fault = Fault::from(fault);
                fault.message = format!("{}: {}", self.line.node, fault.message).into();
                if asked.network == Network::Ucx {
                    // The bytes may still go over the session.
                    fault.class = ErrorClass::Failed;
                }
                Outcome::Failed(fault)
            }
        };
        let is_done = matches!(outcome, Outcome::Done);
        asked.job.end(outcome);
        asked.end.tell_other_half(is_done);
        self.start_held(pipe)
    }

    /// Returns the range of an operation that the other machine names, and whether it is one that goes out.
    fn part(
        &mut self,
        (id, over): (u64, Network),
        offset: u64,
        len: u64,
    ) -> Result<(HostSpan, bool), ProtocolError> {
        let asked = self.operations.get_mut(&id);
        let asked = asked.filter(|asked| asked.network == over && asked.ended.is_none());
        let asked = asked.ok_or(unknown(id))?;
        let (span, is_source) = match asked.end {
            End::Source(span) => (span, true),
            End::Destination(span) => (span, false),
            _ => return Err(unknown(id)),
        };
        asked.gone = asked.gone.saturating_add(len);
        let (gone, len_bytes) = (asked.gone, asked.len_bytes);
        if len == 0 || gone / MOST_SENDS > len_bytes {
            return Err(misplaced(format!(
                "operation {id} of {len_bytes} bytes is asked for {gone} in all"
            )));
        }
        let part = span.slice(offset, len);
        let part = part.ok_or_else(|| {
            misplaced(format!(
                "operation {id} has no {len} bytes from {offset} on"
            ))
        })?;
        Ok((part, is_source))
    }

    /// Takes in that a range has moved, or why it has not.
    fn moved(
        &mut self,
        id: u64,
        moved: Result<u64, String>,
        is_in: bool,
        pipe: &mut Pipe,
    ) -> Result<(), ProtocolError> {
        let Some(asked) = self.operations.get_mut(&id) else {
            return Ok(());
        };
        match moved {
            Ok(len) => {
                asked.job.advance(len);
                let sum = if is_in {
                    &mut asked.arrived
                } else {
                    &mut asked.sent
                };
                *sum += len;
            }
            // The other machine's range fails, too, and it tries others, or ends the operation.
            Err(reason) => {
                asked.failed.get_or_insert(reason);
            }
        }
        if asked.network == Network::Ucx {
            asked.moving -= 1;
            if asked.moving == 0
                && let Some(outcome) = asked.ended.take()
            {
                return self.end(id, outcome, pipe);
            }
        }
        Ok(())
    }

    fn handle_message(&mut self, message: Message, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        match message {
            Message::Inventory(inventory) => {
                if let Some(opened) = self.opened.take() {
                    let fault = pipe.ucx_fault().map(str::to_owned);
                    let _ = opened.send(Ok((inventory, fault)));
                }
                Ok(())
            }
            Message::Go { id, offset, len } => {
                let (part, is_source) = self.part((id, Network::Tls), offset, len)?;
                if !is_source {
                    return Err(unknown(id));
                }
                // SAFETY: the submission keeps the operand valid until its fence settles, which is after the bytes were
                // sent or given up.
                unsafe { pipe.send_data(id, offset, part) };
                Ok(())
            }
            Message::Move {
                id,
                offset,
                len,
                tag,
            } => {
                let (part, is_source) = self.part((id, Network::Ucx), offset, len)?;
                if let Some(asked) = self.operations.get_mut(&id) {
                    asked.moving += 1;
                }
                // SAFETY: as above; the operation does not end before an event tells of the range.
                unsafe { pipe.move_data((id, offset), tag, part, is_source) };
                Ok(())
            }
            Message::Ended { id, outcome } => self.end(id, outcome, pipe),
            Message::Refused { id, fault } if self.operations.contains_key(&id) => {
                self.end(id, wire::Outcome::Failed(fault), pipe)
            }
            Message::Refused { id, fault } => self.answer(id, Err(fault.into()), pipe),
            Message::Allocated { id, .. }
            | Message::Shared { id, .. }
            | Message::Opened { id, .. }
            | Message::AvailableBytes { id, .. } => self.answer(id, Ok(message), pipe),
            Message::Entered { id } => match self.operations.get(&id) {
                Some(Asked { end: End::Turn, .. }) => self.end(id, wire::Outcome::Done, pipe),
                Some(_) => Err(unknown(id)),
                // It was given up meanwhile.
                None => Ok(()),
            },
            Message::Granted { id, token } => match self.operations.get(&id) {
                Some(Asked {
                    end: End::Grant(forward),
                    ..
                }) => {
                    forward.handle_granted(token);
                    Ok(())
                }
                _ => Err(unknown(id)),
            },
            other => Err(misplaced(format!("a client is not sent {}", other.name()))),
        }
    }
}

impl Handler for Client {
    fn opened(&mut self, _: Peer, _: &mut Pipe) -> Result<(), ProtocolError> {
        Ok(())
    }

    fn handle(&mut self, event: Event, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        match event {
            Event::Message(message) => self.handle_message(message, pipe),
            Event::Arrived { op, len, .. } => self.moved(op, Ok(len), true, pipe),
            Event::Sent { op, len, .. } => self.moved(op, Ok(len), false, pipe),
            Event::Failed { op, reason, .. } => self.moved(op, Err(reason), false, pipe),
        }
    }

    fn woken(&mut self, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        self.taken.extend(self.line.commands().waiting.drain(..));
        while let Some(command) = self.taken.pop_front() {
            match command {
                Command::Tell(message) => pipe.send(&message)?,
                Command::Ask {
                    id,
                    message,
                    answer,
                } => {
                    self.questions.insert(id, answer);
                    pipe.send(&message)?;
                }
                Command::Start(operation) => self.admit(operation, pipe)?,
                Command::Leave(reservation) => {
                    // The turn may not have come yet.
                    if let Some(asked) = self.operations.remove(&reservation) {
                        asked.job.end(Outcome::Stopped { leading_bytes: 0 });
                    }
                    pipe.send(&Message::Leave { reservation })?;
                }
                Command::Halt(id) => {
                    if let Some(asked) = self.operations.get_mut(&id) {
                        asked.stop(id, pipe)?;
                        self.limit(pipe);
                    }
                }
                Command::Stop(job) => {
                    self.held.retain(|held| {
                        let is_its = held.job == job;
                        if is_its {
                            held.job.end(Outcome::Stopped { leading_bytes: 0 });
                        }
                        !is_its
                    });
                    for (id, asked) in &mut self.operations {
                        if asked.job == job && asked.end.takes_stop() {
                            asked.stop(*id, pipe)?;
                        }
                    }
                    self.limit(pipe);
                }
            }
        }
        Ok(())
    }

    fn closed(&mut self, reason: SessionError) {
        let mut fault = self.line.fault(format_args!(
            "{reason}; what was allocated there is lost with the session: allocate it again"
        ));
        fault.class = ErrorClass::Lost;
        if matches!(reason, SessionError::Silent { .. }) {
            let _ = self.line.silent.set((Instant::now(), reason.clone()));
        }
        let waiting = {
            let mut commands = self.line.commands();
            commands.closed = Some(fault.clone());
            std::mem::take(&mut commands.waiting)
        };
        for (_, asked) in self.operations.drain() {
            asked.job.end(Outcome::Failed(asked.cut(fault.clone())));
            asked.end.tell_other_half(false);
        }
        for (_, question) in self.questions.drain() {
            let _ = question.send(Err(fault.clone()));
        }
        let held = self.held.drain(..).map(Command::Start);
        for command in held.chain(self.taken.drain(..)).chain(waiting) {
            match command {
                Command::Start(operation) => {
                    operation.job.end(Outcome::Failed(fault.clone()));
                    operation.end.tell_other_half(false);
                }
                Command::Ask { answer, .. } => {
                    let _ = answer.send(Err(fault.clone()));
                }
                Command::Tell(_) | Command::Stop(_) | Command::Halt(_) | Command::Leave(_) => {}
            }
        }
        if let Some(opened) = self.opened.take() {
            let _ = opened.send(Err(reason));
        }
    }
}
