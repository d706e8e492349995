//! Requests to another machine: the queue that threads fill.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use transload_hal::{ErrorClass, Fault, HostSpan, Name, Outcome};

use crate::board::Board;
use crate::descriptors::Token;
use crate::forward::Forward;
use crate::wire::{Message, ProtocolError};
use crate::{PublicKey, SessionError, SessionHandle};

/// How long an answer to a question may take: an allocation may have to wait for a driver or fresh pages. Heart-beats find a
/// dead peer sooner.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// What the threads of this process share with the thread of a session.
pub(crate) struct Line {
    pub(crate) node: Name,
    pub(crate) peer: PublicKey,
    /// Where this process reaches the machine, and where other machines that forward to it are told to.
    pub(crate) address: String,
    pub(crate) board: Arc<Board>,
    commands: Mutex<Commands>,
    session: OnceLock<SessionHandle>,
    /// When and why the session ended, if the other machine was silent.
    pub(crate) silent: OnceLock<(Instant, SessionError)>,
    /// The socket that gives descriptors of shared memory, where this process reaches it.
    pub(crate) descriptors: OnceLock<Token>,
    /// The number of the next request, operation or lease.
    next: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Commands {
    pub(crate) waiting: Vec<Command>,
    /// Why the session has ended.
    pub(crate) closed: Option<Fault>,
}

pub(crate) enum Command {
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

    pub(crate) fn advance(&self, bytes: u64) {
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
    /// Returns whether it moves bytes, and ends without another operation of this process.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(self, End::Source(_) | End::Destination(_) | End::There)
    }

    /// Returns whether the operation is to be stopped on its own line.
    pub(crate) fn takes_stop(&self) -> bool {
        match self {
            End::Grant(forward) => forward.handle_stop(),
            _ => true,
        }
    }

    /// Has an operation that has ended tell its other half.
    pub(crate) fn tell_other_half(&self, is_done: bool) {
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
            silent: OnceLock::new(),
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

    pub(crate) fn commands(&self) -> MutexGuard<'_, Commands> {
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

    pub(crate) fn fault(&self, reason: impl std::fmt::Display) -> Fault {
        Fault::new(ErrorClass::Failed, format!("{}: {reason}", self.node))
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
