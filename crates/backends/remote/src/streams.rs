//! The serving side: what sessions carry, as memory that the engine copies from and to.

mod early;

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use transload_hal::{
    Access, AllocError, AllocSpec, Backend, BackendId, Buffer, CompletionSink, ConnectError,
    DeviceId, DeviceInfo, DeviceKind, EngineId, ErrorClass, External, ExternalKind, Fault, Fence,
    GUEST_KINDS, HostSpan, ImportError, Inventory, Link, LinkClass, LinkId, MemoryId, MemoryInfo,
    MemoryKind, Op, Outcome, Part, Passage, StorageId, StorageInfo, SubmitError, Waited,
    check_ends, check_fences, defaults, link_between,
};

use self::early::Early;
use crate::board::Board;
use crate::inventory::DEPTH;
use crate::wire::{Message, Network, ProtocolError};
use crate::{Event, Pipe, SessionHandle};

const BACKEND: BackendId = BackendId(DeviceKind::NETWORK.0);
const DEVICE: DeviceId = DeviceId::new(DeviceKind::NETWORK, 0);

/// The memory of all streams.
pub const STREAMS: MemoryId = DEVICE.memory(MemoryKind::Device);

/// The backend of a machine that serves others. Its one memory, `net:0/device`, is the bytes that operations of other
/// machines bring or take ([`Stream`]), so the engine orders, stages and bounds them like any copy: a peer is told to send a
/// range only when the range has a place to go.
#[derive(Clone, Debug)]
pub struct Streams {
    board: Arc<Board>,
    feeds: Arc<Mutex<Feeds>>,
}

/// The sessions by the lane of their fences.
#[derive(Debug, Default)]
struct Feeds {
    last: u64,
    by_lane: HashMap<u64, Arc<Feed>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is whole when it may panic.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes of one operation of a peer. Adopt it in [`STREAMS`].
#[derive(Debug)]
pub struct Stream {
    feed: Arc<Feed>,
    /// The peer's number of the operation.
    op: u64,
    len_bytes: u64,
    /// The peer takes the bytes, and does not bring them.
    is_taken: bool,
    network: Network,
}

/// What threads of the engine ask of the thread of a session.
#[derive(Default)]
pub struct Feed {
    lane: u64,
    waiting: Mutex<Waiting>,
    session: OnceLock<SessionHandle>,
}

#[derive(Default)]
struct Waiting {
    commands: VecDeque<Command>,
    is_closed: bool,
}

#[derive(Clone, Copy)]
enum Command {
    Move(Piece),
    Stop(u64),
}

/// A range of a stream that moves from or to memory of the host.
#[derive(Clone, Copy, Debug)]
struct Piece {
    job: u64,
    op: u64,
    offset: u64,
    span: HostSpan,
    is_taken: bool,
    network: Network,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct UnderWay {
    job: u64,
    len: u64,
    network: Network,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams {
            board: Arc::new(Board::new(BACKEND)),
            feeds: Arc::default(),
        }
    }
}

impl Streams {
    /// Makes the backend. Has no thread: sessions have theirs.
    pub fn new() -> Streams {
        Streams::default()
    }

    /// Makes the session's end of the streams of one session.
    ///
    /// # Panics
    /// With more than 32,768 sessions at once.
    pub fn payload(&self) -> Payload {
        let mut feeds = locked(&self.feeds);
        assert!(
            feeds.by_lane.len() < 1 << 15,
            "a lane is a number of 16 bits"
        );
        while feeds.by_lane.contains_key(&feeds.last) {
            feeds.last = (feeds.last + 1) % (1 << 16);
        }
        let lane = feeds.last;
        let feed = Arc::new(Feed {
            lane,
            ..Feed::default()
        });
        feeds.by_lane.insert(lane, Arc::clone(&feed));
        Payload {
            board: Arc::clone(&self.board),
            feeds: Arc::clone(&self.feeds),
            feed,
            under_way: HashMap::new(),
            early: HashMap::new(),
            announced: None,
        }
    }
}

impl Feed {
    /// Takes in the session, before the first operation.
    pub fn begin(&self, session: SessionHandle) {
        let _ = self.session.set(session);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        locked(&self.waiting)
    }

    /// Returns whether the session still takes commands.
    fn push(&self, commands: impl IntoIterator<Item = Command>) -> bool {
        {
            let mut waiting = self.waiting();
            if waiting.is_closed {
                return false;
            }
            waiting.commands.extend(commands);
        }
        if let Some(session) = self.session.get() {
            session.wake();
        }
        true
    }
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Feed")
    }
}

/// The session's end of its streams. Lives on the session's thread.
#[derive(Debug)]
pub struct Payload {
    board: Arc<Board>,
    feeds: Arc<Mutex<Feeds>>,
    feed: Arc<Feed>,
    /// The ranges under way, by operation and offset.
    under_way: HashMap<(u64, u64), UnderWay>,
    /// Writes whose bytes come unasked, by operation.
    early: HashMap<u64, Early>,
    /// The last one of them, until it is clear where its bytes go.
    announced: Option<u64>,
}

impl Payload {
    /// Returns what other threads reach this by.
    pub fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Makes the stream of the peer's operation `op`, which brings `len_bytes` bytes over the network, or takes them.
    pub fn stream(&self, op: u64, len_bytes: u64, is_taken: bool, network: Network) -> Stream {
        Stream {
            feed: Arc::clone(&self.feed),
            op,
            len_bytes,
            is_taken,
            network,
        }
    }

    /// Carries out what the engine has asked for.
    ///
    /// # Errors
    /// When the pipe refuses.
    pub fn woken(&mut self, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        loop {
            // One at a time: what an error leaves is still in the queue, which `close` empties.
            let command = self.feed.waiting().commands.pop_front();
            match command {
                None => {
                    self.keep(pipe);
                    return Ok(());
                }
                Some(Command::Move(piece)) => {
                    if let Some(is_asked_for) = self.want(&piece) {
                        self.start(piece, is_asked_for, pipe)?;
                    }
                }
                Some(Command::Stop(job)) => {
                    let of_it: Vec<(u64, u64)> = self
                        .under_way
                        .iter()
                        // A message over UCX that has begun is received, and then the range has moved.
                        .filter(|(_, of)| of.job == job && of.network == Network::Tls)
                        .map(|(range, _)| *range)
                        .collect();
                    for range in of_it {
                        pipe.cancel_span(range.0, range.1);
                        pipe.discard_span(range.0, range.1);
                        self.under_way.remove(&range);
                        self.board.end(job, Outcome::Stopped { leading_bytes: 0 });
                    }
                    for early in self.early.values_mut() {
                        for _ in early.wanted.extract_if(.., |piece| piece.job == job) {
                            self.board.end(job, Outcome::Stopped { leading_bytes: 0 });
                        }
                    }
                }
            }
        }
    }

    fn start(
        &mut self,
        piece: Piece,
        is_asked_for: bool,
        pipe: &mut Pipe,
    ) -> Result<(), ProtocolError> {
        let Piece {
            job,
            op,
            offset,
            span,
            is_taken,
            network,
        } = piece;
        let len = span.len() as u64;
        self.under_way
            .insert((op, offset), UnderWay { job, len, network });
        match (network, is_taken) {
            (Network::Tls, true) => {
                // SAFETY: the submission keeps the operand valid until its fence settles, which is after the bytes were
                // sent or given up.
                unsafe { pipe.send_data(op, offset, span) };
                Ok(())
            }
            (Network::Tls, false) => {
                // SAFETY: as above, until they have arrived or were given up.
                unsafe { pipe.expect(op, offset, span) };
                let go = Message::Go {
                    id: op,
                    offset,
                    len,
                };
                match is_asked_for {
                    true => pipe.send(&go),
                    false => Ok(()),
                }
            }
            (Network::Ucx, _) => {
                let tag = pipe.next_tag();
                // SAFETY: as above, until an event tells of the range.
                unsafe { pipe.move_data((op, offset), tag, span, is_taken) };
                pipe.send(&Message::Move {
                    id: op,
                    offset,
                    len,
                    tag,
                })
            }
        }
    }

    /// Returns whether all of an operation's `len_bytes` bytes are under way as one range, so that an event tells when they
    /// have moved.
    pub fn is_under_way(&self, op: u64, len_bytes: u64) -> bool {
        let range = self.under_way.get(&(op, 0));
        range.is_some_and(|range| range.len == len_bytes)
    }

    /// Takes in that a range has moved, or has not. Returns the operation; `None` for other events.
    pub fn handle(&mut self, event: &Event) -> Option<u64> {
        let (op, offset, moved) = match event {
            Event::Arrived { op, offset, len } | Event::Sent { op, offset, len } => {
                (*op, *offset, Ok(*len))
            }
            Event::Failed { op, offset, reason } => (*op, *offset, Err(reason)),
            Event::Message(_) => return None,
        };
        if self.take_in(op) {
            return Some(op);
        }
        if let Some(UnderWay { job, .. }) = self.under_way.remove(&(op, offset)) {
            let outcome = match moved {
                Ok(len) => {
                    self.board.advance(job, len);
                    Outcome::Done
                }
                // The peer's network is to blame, and no link of this machine.
                Err(reason) => Outcome::Failed(Fault::new(ErrorClass::Caller, reason.clone())),
            };
            self.board.end(job, outcome);
        }
        Some(op)
    }

    /// Ends all ranges. The pipe touches no memory any more.
    pub fn close(&mut self, reason: &Fault) {
        let waiting = {
            let mut waiting = self.feed.waiting();
            waiting.is_closed = true;
            std::mem::take(&mut waiting.commands)
        };
        let early = self.early.drain().flat_map(|(_, early)| early.wanted);
        let jobs = self.under_way.drain().map(|(_, of)| of.job);
        let jobs = jobs.chain(early.map(|piece| piece.job));
        let waiting = waiting.into_iter().filter_map(|command| match command {
            Command::Move(piece) => Some(piece.job),
            Command::Stop(_) => None,
        });
        for job in jobs.chain(waiting) {
            self.board.end(job, Outcome::Failed(reason.clone()));
        }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        locked(&self.feeds).by_lane.remove(&self.feed.lane);
    }
}

fn inventory() -> Inventory {
    let device = DeviceInfo {
        id: DEVICE,
        backend: BACKEND,
        name: "sessions of other machines".into(),
        software: true,
        simulated: false,
        memory_bytes: None,
        driver: None,
        uuid: None,
        pci: None,
        numa_node: None,
    };
    let memory = MemoryInfo {
        id: STREAMS,
        backend: BACKEND,
        total_bytes: None,
        max_alloc_bytes: i64::MAX as u64,
        alignment: 1,
        host_addressable: false,
        staging: false,
        passage: Passage::default(),
    };
    let link = |src, dst, index| Link {
        id: LinkId {
            src,
            dst,
            engine: EngineId {
                device: DEVICE,
                index,
            },
            access: Access::Native,
        },
        backend: BACKEND,
        class: LinkClass::Network,
        cost: defaults::link_cost(LinkClass::Network).into(),
        pitched: false,
        depth: DEPTH,
    };
    let both = |kind| {
        let host = DeviceId::CPU0.memory(kind);
        [link(STREAMS, host, 0), link(host, STREAMS, 1)]
    };
    Inventory {
        backend: BACKEND,
        devices: vec![device],
        memories: vec![memory],
        links: GUEST_KINDS.into_iter().flat_map(both).collect(),
        lacks: vec![],
        transform: None,
    }
}

/// Returns the range of a stream and the host's bytes of a copy.
fn piece(index: usize, op: &Op<'_>) -> Result<(Arc<Feed>, Piece), SubmitError> {
    let refused = |reason: &'static str| SubmitError::Unsupported {
        index,
        reason: reason.into(),
    };
    let Op::Copy { src, dst } = op else {
        return Err(refused("a stream is copied by ranges of bytes"));
    };
    let stream = |part: &Part<'_>| {
        part.buffer
            .native::<Stream>()
            .map(|of| (of.op, of.is_taken, of.network))
    };
    let ((of, op, is_taken, network), (at, host)) = match (stream(src), stream(dst)) {
        (Some((op, false, network)), None) => ((src, op, false, network), (src, dst)),
        (None, Some((op, true, network))) => ((dst, op, true, network), (dst, src)),
        _ => {
            return Err(refused(
                "a stream goes to memory of the host, or comes from it",
            ));
        }
    };
    let span = host.buffer.host(host.offset, host.len_bytes);
    let span = span.ok_or_else(|| refused("the processors do not reach the other end"))?;
    let feed = of.buffer.native::<Stream>().map(|of| Arc::clone(&of.feed));
    let feed = feed.ok_or_else(|| refused("it is no stream"))?;
    let offset = at.buffer.span().offset + at.offset;
    Ok((
        feed,
        Piece {
            job: 0,
            op,
            offset,
            span,
            is_taken,
            network,
        },
    ))
}

// SAFETY: `submit` checks all operations before it queues them; the thread of a session reads and writes within the operands
// alone, and each fence settles once: when a range has moved or was given up.
unsafe impl Backend for Streams {
    fn inventory(&self) -> Inventory {
        inventory()
    }

    fn allocate(&self, memory: MemoryId, _: &AllocSpec) -> Result<Buffer, AllocError> {
        match memory {
            STREAMS => Err(AllocError::Unsupported {
                memory,
                what: "streams belong to sessions".into(),
            }),
            memory => Err(AllocError::UnknownMemory { memory }),
        }
    }

    /// Takes in a [`Stream`] as an [`External::Object`].
    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        if memory != STREAMS {
            return Err(ImportError::UnknownMemory { memory });
        }
        let kind = external.kind();
        let taken = match external {
            External::Object(object) => (object as Box<dyn Any>).downcast::<Stream>().ok(),
            _ => None,
        };
        let stream = taken.ok_or_else(|| ImportError::Unsupported {
            memory,
            kind,
            reason: "it takes a Stream".into(),
        })?;
        let info = StorageInfo {
            id: StorageId::Native {
                backend: BACKEND.0,
                handle: (&raw const *stream).addr() as u64,
            },
            base: 0,
            len_bytes: stream.len_bytes,
            memory,
            backend: BACKEND,
            writable: stream.is_taken,
            host: None,
        };
        // SAFETY: the storage is the stream, whose address is its own while the buffer holds it; the host has no address of
        // its bytes.
        Ok(unsafe { Buffer::new(info, stream) })
    }

    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
        Err(ImportError::Unsupported {
            memory: buffer.memory(),
            kind,
            reason: "a stream has no handle".into(),
        })
    }

    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError> {
        link_between(&inventory(), src, dst).map(|link| link.id.access)
    }

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        check_fences(BACKEND, after)?;
        if let Some(open) = after.iter().find(|fence| self.board.is_open(fence)) {
            return Err(SubmitError::unawaited(open));
        }
        let check = |(index, op)| {
            check_ends(via, index, op)?;
            piece(index, op)
        };
        let pieces: Result<Vec<_>, _> = ops.iter().enumerate().map(check).collect();
        let pieces = pieces?;
        let lane = pieces.first().map_or(0, |(feed, _)| feed.lane);
        if pieces.iter().any(|(feed, _)| feed.lane != lane) {
            return Err(SubmitError::mistake(
                "the streams are of several sessions".into(),
            ));
        }
        let fence = self.board.begin(pieces.len(), lane)?;
        for (feed, piece) in pieces {
            let job = fence.number();
            if !feed.push([Command::Move(Piece { job, ..piece })]) {
                let gone = Fault::new(ErrorClass::Caller, "the session has ended");
                self.board.end(job, Outcome::Failed(gone));
            }
        }
        Ok(fence)
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.board.attach(sink)
    }

    fn completes_unattended(&self) -> bool {
        true
    }

    fn pump(&self) {}

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        self.board.wait(&[fence], limit)
    }

    fn wait_any(&self, fences: &[Fence], limit: Duration) -> Waited {
        self.board.wait(fences, limit)
    }

    fn progress(&self, fence: Fence) -> u64 {
        self.board.progress(fence)
    }

    /// Has the session give up the ranges that have not moved. No leading bytes are known.
    fn stop(&self, fence: Fence) -> u64 {
        let feed = locked(&self.feeds).by_lane.get(&fence.lane()).cloned();
        if let Some(feed) = feed {
            feed.push([Command::Stop(fence.number())]);
        }
        0
    }
}
