//! Requests to another machine: the queue that threads fill, and the session's side that carries them out.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use transload_hal::{ErrorClass, Fault, HostSpan, Name, Outcome};

use crate::board::Board;
use crate::descriptors::Token;
use crate::forward::Forward;
use crate::wire::{self, Message, ProtocolError};
use crate::{Event, Handler, Peer, Pipe, PublicKey, SessionError, SessionHandle};

/// How long an answer to a question may take: an allocation may have to wait for a driver or fresh pages. Heart-beats find a
/// dead peer sooner.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How long an operation may go on that the other machine was asked to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// How often a machine may ask for the same bytes: once for each way that it tries, and to compare them.
const MOST_SENDS: u64 = 64;

/// What the threads of this process share with the thread of a session.
pub(crate) struct Line {
    pub(crate) node: Name,
    pub(crate) peer: PublicKey,
    /// Where this process reaches the machine, and where other machines that forward to it are told to.
    pub(crate) address: String,
    pub(crate) board: Arc<Board>,
    commands: Mutex<Commands>,
    session: OnceLock<SessionHandle>,
    /// The socket that gives descriptors of shared memory, where this process reaches it.
    pub(crate) descriptors: OnceLock<Token>,
    /// The number of the next request, operation or lease.
    next: AtomicU64,
}

#[derive(Default)]
struct Commands {
    waiting: Vec<Command>,
    /// Why the session has ended.
    closed: Option<Fault>,
}

enum Command {
    Tell(Message),
    Ask {
        id: u64,
        message: Message,
        answer: Sender<Result<Message, Fault>>,
    },
    Start(Operation),
    /// The operations of a submission.
    Stop(Job),
    /// One operation.
    Halt(u64),
    Leave(u64),
}

/// A submission, to which an operation belongs.
#[derive(Clone)]
pub(crate) struct Job {
    /// That of the backend which took the submission: operations between two machines are on the lines of both.
    pub(crate) board: Arc<Board>,
    /// The number of its fence.
    pub(crate) number: u64,
}

impl Job {
    /// As [`Board::end`].
    pub(crate) fn end(&self, outcome: Outcome) {
        self.board.end(self.number, outcome);
    }

    fn advance(&self, bytes: u64) {
        self.board.advance(self.number, bytes);
    }
}

impl PartialEq for Job {
    fn eq(&self, other: &Job) -> bool {
        Arc::ptr_eq(&self.board, &other.board) && self.number == other.number
    }
}

/// An operation that the other machine is asked for.
pub(crate) struct Operation {
    pub(crate) id: u64,
    pub(crate) job: Job,
    pub(crate) message: Message,
    pub(crate) end: End,
    pub(crate) len_bytes: u64,
}

impl Operation {
    /// Returns how many operations of the board it is.
    pub(crate) fn count(&self) -> usize {
        match self.end {
            End::Grant(_) => 2,
            _ => 1,
        }
    }
}

/// The end of an operation that lies in this process.
#[derive(Clone)]
pub(crate) enum End {
    /// Its bytes go out.
    Source(HostSpan),
    /// Bytes come in.
    Destination(HostSpan),
    /// Both ends are at the other machine.
    There,
    /// No bytes move: it is a place in the order of the other machine.
    Turn,
    /// The destination is at the other machine, and the source at a third one.
    Grant(Arc<Forward>),
    /// The source is at the other machine, and the destination at a third one, which has granted it.
    Granted(Arc<Forward>),
}

impl End {
    /// Returns whether the operation is to be stopped on its own line.
    fn takes_stop(&self) -> bool {
        match self {
            End::Grant(forward) => forward.handle_stop(),
            _ => true,
        }
    }

    /// Has an operation that has ended tell its other half.
    fn tell_other_half(&self, is_done: bool) {
        match self {
            End::Grant(forward) => forward.handle_grant_ended(is_done),
            End::Granted(forward) => forward.handle_copy_ended(),
            End::Source(_) | End::Destination(_) | End::There | End::Turn => {}
        }
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Line({}, {:?})", self.node, self.board)
    }
}

impl Line {
    pub(crate) fn new(node: Name, peer: PublicKey, address: &str, board: Arc<Board>) -> Line {
        Line {
            node,
            peer,
            address: address.into(),
            board,
            commands: Mutex::default(),
            session: OnceLock::new(),
            descriptors: OnceLock::new(),
            next: AtomicU64::new(1),
        }
    }

    /// Returns what tells the other machine from all others.
    pub(crate) fn owner(&self) -> [u8; 16] {
        let mut owner = [0; 16];
        owner.copy_from_slice(&self.peer.0[..16]);
        owner
    }

    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes in the session, before the first command.
    pub(crate) fn begin(&self, session: SessionHandle) {
        let _ = self.session.set(session);
    }

    fn commands(&self) -> MutexGuard<'_, Commands> {
        // Each change is whole when it may panic.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, command: Command) -> Result<(), Fault> {
        {
            let mut commands = self.commands();
            if let Some(fault) = &commands.closed {
                return Err(fault.clone());
            }
            commands.waiting.push(command);
        }
        if let Some(session) = self.session.get() {
            session.wake();
        }
        Ok(())
    }

    /// Tells the other machine something, unless the session has ended.
    pub(crate) fn tell(&self, message: Message) {
        // What a session's end makes of it is the same.
        let _ = self.push(Command::Tell(message));
    }

    /// Asks the other machine, and blocks until it has answered, at most 30 s.
    pub(crate) fn ask(&self, make: impl FnOnce(u64) -> Message) -> Result<(u64, Message), Fault> {
        let id = self.number();
        let (answer, answered) = mpsc::channel();
        let message = make(id);
        self.push(Command::Ask {
            id,
            message,
            answer,
        })?;
        let silent = || {
            let message = format!("{}: no answer within {ANSWER_LIMIT:?}", self.node);
            Fault::new(ErrorClass::Failed, message)
        };
        let answer = answered.recv_timeout(ANSWER_LIMIT);
        Ok((id, answer.map_err(|_| silent())??))
    }

    /// Starts the operations of a submission. Fails if the session has ended; then none was started.
    pub(crate) fn start(&self, operations: Vec<Operation>) -> Result<(), Fault> {
        {
            let mut commands = self.commands();
            if let Some(fault) = &commands.closed {
                return Err(fault.clone());
            }
            let starts = operations.into_iter().map(Command::Start);
            commands.waiting.extend(starts);
        }
        if let Some(session) = self.session.get() {
            session.wake();
        }
        Ok(())
    }

    /// Gives up a place in the order.
    pub(crate) fn leave(&self, reservation: u64) {
        let _ = self.push(Command::Leave(reservation));
    }

    pub(crate) fn stop(&self, job: Job) {
        let _ = self.push(Command::Stop(job));
    }

    /// Stops one operation, if it is under way.
    pub(crate) fn halt(&self, id: u64) {
        let _ = self.push(Command::Halt(id));
    }

    /// Returns whether the session has not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.commands().closed.is_none()
    }

    pub(crate) fn session(&self) -> Option<&SessionHandle> {
        self.session.get()
    }

    fn fault(&self, reason: impl std::fmt::Display) -> Fault {
        Fault::new(ErrorClass::Failed, format!("{}: {reason}", self.node))
    }
}

/// What a peer says of itself when a session has begun.
pub(crate) type Opened = Result<wire::Inventory, SessionError>;

/// The side of a session that asks.
pub(crate) struct Client {
    line: Arc<Line>,
    operations: HashMap<u64, Asked>,
    questions: HashMap<u64, Sender<Result<Message, Fault>>>,
    opened: Option<Sender<Opened>>,
    /// Commands that were taken from the queue and not carried out yet.
    taken: VecDeque<Command>,
}

/// An operation that the other machine was asked for.
struct Asked {
    job: Job,
    end: End,
    len_bytes: u64,
    /// Bytes that have come in.
    arrived: u64,
    /// Bytes that the other machine has asked for.
    gone: u64,
    /// When it must have ended, once it was asked to stop.
    limit: Option<Instant>,
}

impl Asked {
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
        }
    }

    fn start(&mut self, operation: Operation, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        let Operation {
            id,
            job,
            message,
            end,
            len_bytes,
        } = operation;
        if let End::Destination(span) = end {
            // SAFETY: the submission keeps the operand valid until its fence settles, which is after the range is given
            // up or complete.
            unsafe { pipe.expect(id, 0, span) };
        }
        let asked = Asked {
            job,
            end,
            len_bytes,
            arrived: 0,
            gone: 0,
            limit: None,
        };
        self.operations.insert(id, asked);
        pipe.send(&message)
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
        let asked = self.operations.remove(&id);
        let asked = asked.ok_or(unknown(id))?;
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
                Outcome::Failed(fault)
            }
        };
        let is_done = matches!(outcome, Outcome::Done);
        asked.job.end(outcome);
        asked.end.tell_other_half(is_done);
        Ok(())
    }

    fn handle_message(&mut self, message: Message, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        match message {
            Message::Inventory(inventory) => {
                if let Some(opened) = self.opened.take() {
                    let _ = opened.send(Ok(inventory));
                }
                Ok(())
            }
            Message::Go { id, offset, len } => {
                let asked = self.operations.get_mut(&id);
                let Some(Asked {
                    end: End::Source(span),
                    gone,
                    len_bytes,
                    ..
                }) = asked
                else {
                    return Err(unknown(id));
                };
                *gone = gone.saturating_add(len);
                if len == 0 || *gone / MOST_SENDS > *len_bytes {
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
                // SAFETY: the submission keeps the operand valid until its fence settles, which is after the bytes were
                // sent or given up.
                unsafe { pipe.send_data(id, offset, part) };
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
            Event::Arrived { op, len, .. } => {
                if let Some(asked) = self.operations.get_mut(&op) {
                    asked.arrived += len;
                    asked.job.advance(len);
                }
                Ok(())
            }
            Event::Sent { op, len, .. } => {
                if let Some(asked) = self.operations.get(&op) {
                    asked.job.advance(len);
                }
                Ok(())
            }
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
                Command::Start(operation) => self.start(operation, pipe)?,
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
        let mut fault = self.line.fault(&reason);
        fault.class = ErrorClass::Lost;
        let waiting = {
            let mut commands = self.line.commands();
            commands.closed = Some(fault.clone());
            std::mem::take(&mut commands.waiting)
        };
        for (_, asked) in self.operations.drain() {
            asked.job.end(Outcome::Failed(fault.clone()));
            asked.end.tell_other_half(false);
        }
        for (_, question) in self.questions.drain() {
            let _ = question.send(Err(fault.clone()));
        }
        for command in self.taken.drain(..).chain(waiting) {
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

/// The error of a peer that names something that is not under way.
pub fn unknown(id: u64) -> ProtocolError {
    misplaced(format!("nothing with the number {id} is under way"))
}

/// The error of a peer that says what makes no sense here.
pub fn misplaced(what: String) -> ProtocolError {
    ProtocolError::Misplaced(what.into())
}
