//! The backend of another machine's memory.

use std::any::Any;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use transload_hal::{
    Access, AllocError, AllocSpec, Axis, Backend, BackendId, Buffer, CompletionSink, ConnectError,
    Entered, ErrorClass, External, ExternalKind, Fault, Fence, ImportError, Inventory, Layout,
    LinkId, MemoryId, MemoryInfo, Name, Op, Part, Strided, SubmitError, Use, View, Waited,
    check_ends, check_fences, link_between,
};

use crate::board::Board;
use crate::client::Client;
use crate::descriptors;
use crate::forward::{Forward, Granted, GrantedBytes};
use crate::inventory::{UCX_ACCESS, Ways, inventory, links_between_nodes};
use crate::memory::{Lease, allocate, enter, local, open, share};
use crate::queue::{End, Job, Line, Operation};
use crate::wire::{self, Message, Network};
use crate::{Options, PrivateKey, PublicKey, Session, SessionError};

/// The memory of another machine, as that machine offers it. A backend like any other, whose devices bear the machine's
/// name: `box2/cuda:0`.
///
/// A buffer is a lease: the other machine frees it when its last view is dropped, when the session ends, and when the other
/// machine hears nothing any more. The session has a thread of its own. When it has ended, its buffers are lost; the next
/// allocation connects again.
#[derive(Debug)]
pub struct Remote {
    node: Name,
    peer: PublicKey,
    key: PrivateKey,
    options: Options,
    board: Arc<Board>,
    /// The session of now.
    line: Mutex<Arc<Line>>,
    /// Held by the thread that connects again.
    connecting: Mutex<()>,
    inventory: Inventory,
    /// It connects to other machines for its clients.
    forwards: bool,
    /// The machines to and from which it has links.
    others: Vec<Arc<Remote>>,
}

/// Why another machine cannot be used. Names the machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// No session came about, or it ended before the other machine had said what it offers.
    #[error("{node}: {error}")]
    Session {
        /// The machine's name here.
        node: Name,
        /// Why.
        error: SessionError,
    },
    /// It describes memory that cannot be.
    #[error("{node} offers {what}, which cannot be used: {reason}")]
    Offer {
        /// The machine's name here.
        node: Name,
        /// What it offers.
        what: String,
        /// Why not.
        reason: String,
    },
}

/// Errors of the system have no equality of their own: what is told decides.
impl PartialEq for NodeError {
    fn eq(&self, other: &NodeError) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for NodeError {}

impl NodeError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            NodeError::Session { error, .. } => error.class(),
            NodeError::Offer { .. } => ErrorClass::Unsupported,
        }
    }

    /// The error as that of a call that had to connect again.
    pub fn to_fault(&self) -> Fault {
        let class = match self.class() {
            ErrorClass::Exhausted => ErrorClass::Exhausted,
            _ => ErrorClass::Failed,
        };
        Fault::new(class, self.to_string())
    }
}

impl Remote {
    /// Connects to the machine that serves at `address` with the key `peer`, and calls it `node` from now on. Blocks until
    /// it has said what it offers, at most 5 s for each of connecting and asking.
    ///
    /// # Errors
    /// As [`NodeError`] lists.
    pub fn connect(
        node: Name,
        address: &str,
        key: &PrivateKey,
        peer: PublicKey,
        options: Options,
    ) -> Result<Remote, NodeError> {
        let board = Arc::new(Board::new(BackendId(node)));
        let line = Line::new(node, peer, address, Arc::clone(&board));
        let (line, inventory, forwards) = begin(line, key, options.clone())?;
        Ok(Remote {
            node,
            peer,
            key: key.clone(),
            options,
            board,
            line: Mutex::new(line),
            connecting: Mutex::default(),
            inventory,
            forwards,
            others: Vec::new(),
        })
    }

    /// Adds links between the memories of this machine and of others, both ways. The bytes go straight from one machine to
    /// the other: the one with the source connects to the other one at the address by which this process did, with its own
    /// key, which the other one must allow. A machine that does not connect to others has no links to them.
    #[must_use]
    pub fn reaching(mut self, others: Vec<Arc<Remote>>) -> Remote {
        for other in &others {
            let (one, two) = (&self.inventory, &other.inventory);
            let mut links = Vec::new();
            if self.forwards {
                links.extend(links_between_nodes(one, two, one.backend));
            }
            if other.forwards {
                links.extend(links_between_nodes(two, one, one.backend));
            }
            self.inventory.links.extend(links);
        }
        self.others.extend(others);
        self
    }

    /// Returns whether the session has not ended, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.line().is_open()
    }

    /// Connects again at `address` if the session has ended. Blocks as [`Remote::connect`] does. A machine that fell silent is
    /// not asked for as long as it was silent ([`SessionError::Resting`]): the ways of a transfer would each wait as long to
    /// find that out again.
    ///
    /// # Errors
    /// As [`NodeError`] lists, and when a memory is not offered any more.
    pub fn reconnect(&self, address: &str) -> Result<(), NodeError> {
        let _connecting = { self.connecting.lock() }.unwrap_or_else(PoisonError::into_inner);
        if self.is_connected() {
            return Ok(());
        }
        let last = self.line();
        if let Some((since, error)) = last.silent.get()
            && let Some(left) = self.options.silent_after.checked_sub(since.elapsed())
        {
            let (node, error) = (self.node, error.clone().after_rest(left));
            return Err(NodeError::Session { node, error });
        }
        let line = Line::new(self.node, self.peer, address, Arc::clone(&self.board));
        let (line, offered, _) = begin(line, &self.key, self.options.clone())?;
        let is_offered =
            |memory: &&MemoryInfo| offered.memories.iter().any(|of| of.id == memory.id);
        if let Some(gone) = self.inventory.memories.iter().find(|of| !is_offered(of)) {
            close(&line);
            return Err(NodeError::Offer {
                node: self.node,
                what: local(gone.id).to_string(),
                reason: "it is not offered any more".into(),
            });
        }
        *self.current() = line;
        Ok(())
    }

    /// Ends the session. Does not block. The next allocation connects again.
    pub fn close(&self) {
        close(&self.line());
    }

    fn current(&self) -> MutexGuard<'_, Arc<Line>> {
        // The change is whole when it may panic.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) -> Arc<Line> {
        Arc::clone(&self.current())
    }

    /// Asks over the session, and over a new one if the last one has ended: what an ended session gave is lost.
    fn ask<T, E>(
        &self,
        failed: impl FnOnce(Fault) -> E,
        ask: impl Fn(&Arc<Line>) -> Result<T, E>,
    ) -> Result<T, E> {
        let line = self.line();
        if line.is_open() {
            let answer = ask(&line);
            if answer.is_ok() || line.is_open() {
                return answer;
            }
        }
        let connected = self.reconnect(&line.address);
        connected.map_err(|error| failed(error.to_fault()))?;
        ask(&self.line())
    }

    /// Returns the public key of the other machine.
    pub fn peer(&self) -> PublicKey {
        self.peer
    }

    /// Makes an operation, and returns the line that it begins on.
    fn operation(
        &self,
        index: usize,
        Apart { src, dst, elements }: Apart<'_>,
        job: Job,
        network: Network,
    ) -> Result<(Arc<Line>, Operation), SubmitError> {
        let (src, dst) = (&src, &dst);
        if let Some(granted) = self.own::<Granted>(dst) {
            let id = granted.line.number();
            let operation = Operation {
                id,
                job,
                message: Message::WriteGranted {
                    id,
                    token: granted.token,
                    offset: at(dst),
                    len: dst.len_bytes,
                    network,
                },
                end: End::Source(host(index, src)?),
                len_bytes: dst.len_bytes,
            };
            return Ok((Arc::clone(&granted.line), operation));
        }
        let [from, to] = [src, dst].map(|part| self.own::<Lease>(part));
        let Some(lease) = to.or(from) else {
            return Err(SubmitError::Unsupported {
                index,
                reason: format!("no end of it lies at {}", self.node).into(),
            });
        };
        let [from, to] = [(from, src), (to, dst)].map(|(own, part)| own.or(part.buffer.native()));
        let line = lease.line();
        let id = line.number();
        let (message, end) = match (from, to) {
            (None, Some(lease)) => {
                let message = Message::Write {
                    id,
                    reservation: lease.reservation(),
                    lease: lease.id(),
                    offset: at(dst),
                    apart: elements,
                    len: dst.len_bytes,
                    network,
                    eager: false,
                };
                (message, End::Source(host(index, src)?))
            }
            (Some(lease), None) => {
                let message = Message::Read {
                    id,
                    reservation: lease.reservation(),
                    lease: lease.id(),
                    offset: at(src),
                    apart: elements,
                    len: src.len_bytes,
                    network,
                };
                (message, End::Destination(host(index, dst)?))
            }
            (Some(_), Some(_)) if elements.is_some() => {
                let reason = "the other machine copies ranges alone among its memories".into();
                return Err(SubmitError::Unsupported { index, reason });
            }
            (Some(from), Some(to)) if !Arc::ptr_eq(from.line(), to.line()) => {
                let ends = ((from, at(src)), (to, at(dst)));
                let operation = Forward::operation(job, ends.0, ends.1, dst.len_bytes);
                return Ok((Arc::clone(to.line()), operation));
            }
            (Some(from), Some(to)) => {
                let message = Message::Copy {
                    id,
                    reservation: from.reservation().max(to.reservation()),
                    src: wire::Place {
                        lease: from.id(),
                        offset: at(src),
                    },
                    dst: wire::Destination::Lease(wire::Place {
                        lease: to.id(),
                        offset: at(dst),
                    }),
                    len: dst.len_bytes,
                };
                (message, End::There)
            }
            (None, None) => {
                return Err(SubmitError::Unsupported {
                    index,
                    reason: format!("no end of it lies at {}", self.node).into(),
                });
            }
        };
        let operation = Operation {
            id,
            job,
            message,
            end,
            len_bytes: dst.len_bytes,
        };
        Ok((Arc::clone(line), operation))
    }

    /// Cuts an operation into those that the other machine has: of bytes without a gap here, and elements at strides there.
    fn parts<'a>(&self, index: usize, op: &Op<'a>) -> Result<Vec<Apart<'a>>, SubmitError> {
        let (src, dst, span, arrays) = match *op {
            Op::Copy { src, dst } => {
                let elements = None;
                return Ok(vec![Apart { src, dst, elements }]);
            }
            Op::Pitched { src, dst, span } => {
                let part = |layout: Layout<'a>| Part {
                    buffer: layout.buffer,
                    offset: match layout.shape.is_contiguous() {
                        true => layout.offset + span.offset,
                        false => layout.offset,
                    },
                    len_bytes: span.len,
                };
                let array = |layout: Layout<'a>| Strided::of_shape(&layout.shape);
                let arrays = [src, dst].map(|of| array(of).filter(|array| !array.is_contiguous()));
                (part(src), part(dst), span, arrays)
            }
            Op::Strided {
                src,
                dst,
                span,
                conversion: None,
            } => {
                let part = |view: View<'a>| Part {
                    buffer: view.buffer,
                    offset: view.offset,
                    len_bytes: span.len,
                };
                let arrays = [src, dst].map(|view| view.array.copied());
                (part(src), part(dst), span, arrays)
            }
            _ => {
                let reason = format!("another machine copies bytes, and has no {op:?}").into();
                return Err(SubmitError::Unsupported { index, reason });
            }
        };
        let (array, is_src) = match arrays {
            arrays if span.len == 0 || arrays == [None, None] => {
                let elements = None;
                return Ok(vec![Apart { src, dst, elements }]);
            }
            [Some(array), None] if self.own::<Lease>(&src).is_some() => (array, true),
            [None, Some(array)] if self.own::<Lease>(&dst).is_some() => (array, false),
            _ => {
                let reason = "bytes lie apart at the other machine alone".into();
                return Err(SubmitError::Unsupported { index, reason });
            }
        };
        let portions = array.portions(1, span).map(|portion| {
            let len_bytes = portion.numbers();
            let (begin, strides) = array.strides_of(&portion, 1);
            let axes = portion.counts().iter().zip(strides);
            let axes: Vec<Axis> = axes
                .map(|(count, stride)| Axis::new(*count, stride))
                .collect();
            // A part of an array that fits.
            let part = Strided::new(1, &axes).map_err(|error| {
                SubmitError::mistake(format!("a part of an array is none: {error}"))
            })?;
            let apart = |of: Part<'a>| Part {
                offset: of.offset + begin - part.first(),
                len_bytes,
                ..of
            };
            let packed = |of: Part<'a>| Part {
                offset: of.offset + (portion.position - span.offset),
                len_bytes,
                ..of
            };
            Ok(Apart {
                src: if is_src { apart(src) } else { packed(src) },
                dst: if is_src { packed(dst) } else { apart(dst) },
                elements: (!part.is_contiguous()).then(|| wire::Elements {
                    element_bytes: part.element_bytes(),
                    axes: { part.axes().iter() }
                        .map(|axis| (axis.count, axis.stride_bytes))
                        .collect(),
                }),
            })
        });
        portions.collect()
    }

    /// Starts the operations of a submission, or none of them.
    fn start(&self, via: Option<LinkId>, ops: &[Op<'_>], fence: Fence) -> Result<(), SubmitError> {
        let is_ucx = via.is_some_and(|link| link.access == UCX_ACCESS);
        let network = if is_ucx { Network::Ucx } else { Network::Tls };
        let mut line = None;
        let mut operations = Vec::with_capacity(ops.len());
        for (index, op) in ops.iter().enumerate() {
            check_ends(via, index, op)?;
            for part in self.parts(index, op)? {
                let (its, operation) = self.operation(index, part, self.job(fence), network)?;
                if !Arc::ptr_eq(line.get_or_insert_with(|| Arc::clone(&its)), &its) {
                    return Err(SubmitError::mistake(
                        "the operations are of several sessions".into(),
                    ));
                }
                operations.push(operation);
            }
        }
        let Some(line) = line else { return Ok(()) };
        let count = operations.iter().map(Operation::count).sum();
        self.board.expect(fence, count);
        line.start(operations).map_err(SubmitError::Refused)
    }

    /// Lets the host look at mapped bytes, which it has in its own memory. Guards have no place in the other machine's order.
    fn make_visible(&self, part: &Part<'_>) -> Result<Fence, SubmitError> {
        match self.own::<Lease>(part) {
            Some(lease) if !lease.is_shared() => Ok(Fence::immediate(BackendId(self.node))),
            _ => Err(SubmitError::Unsupported {
                index: 0,
                reason: "other programs may use it, and wait for transfers alone: copy it".into(),
            }),
        }
    }

    fn job(&self, fence: Fence) -> Job {
        Job {
            board: Arc::clone(&self.board),
            number: fence.number(),
        }
    }

    fn own<'a, T: 'static>(&self, part: &Part<'a>) -> Option<&'a T> {
        let is_own = part.buffer.backend() == BackendId(self.node);
        part.buffer.native().filter(|_| is_own)
    }
}

/// Bytes that go from one range to another, of which that at the other machine may be elements at strides: its part begins with
/// the lowest byte then, and has as many bytes as the elements.
struct Apart<'a> {
    src: Part<'a>,
    dst: Part<'a>,
    elements: Option<wire::Elements>,
}

/// Begins a session. Blocks until the other machine has said what it offers.
fn begin(
    line: Line,
    key: &PrivateKey,
    options: Options,
) -> Result<(Arc<Line>, Inventory, bool), NodeError> {
    let (node, line) = (line.node, Arc::new(line));
    let address = line.address.as_str();
    let failed = |error| NodeError::Session { node, error };
    let wants_ucx = options.trusted_network;
    let (told, opened) = mpsc::channel();
    let maps_memory = options.maps_memory;
    let client = Client::new(Arc::clone(&line), told);
    let session = Session::connect(address, key, line.peer, client, options).map_err(failed)?;
    line.begin(session);
    let silent = || SessionError::Silent {
        address: address.into(),
        ms: 30_000,
    };
    // The limits of the session end the wait sooner, unless the peer says everything but what it offers.
    let opened = opened.recv_timeout(Duration::from_secs(30));
    let offered = opened.unwrap_or_else(|_| Err(silent())).map_err(failed);
    let described = offered.and_then(|offered| {
        let (offered, ucx_fault) = offered;
        let forwards = offered.forwards;
        let ucx_fault = wants_ucx.then_some(ucx_fault);
        let mapped = offered.descriptors.filter(|_| maps_memory).map(|name| {
            descriptors::check(&name)?;
            let _ = line.descriptors.set(name);
            Ok(())
        });
        let ways = Ways { mapped, ucx_fault };
        let described = inventory(node, line.owner(), address, offered, &ways)?;
        Ok((described, forwards))
    });
    match described {
        Ok((inventory, forwards)) => Ok((line, inventory, forwards)),
        Err(error) => {
            close(&line);
            Err(error)
        }
    }
}

fn close(line: &Line) {
    if let Some(session) = line.session() {
        session.close();
    }
}

/// Returns where a part begins in its lease.
fn at(part: &Part<'_>) -> u64 {
    part.buffer.span().offset + part.offset
}

fn host(index: usize, part: &Part<'_>) -> Result<transload_hal::HostSpan, SubmitError> {
    part.buffer
        .host(part.offset, part.len_bytes)
        .ok_or_else(|| SubmitError::Unsupported {
            index,
            reason: format!("the processors do not reach {}", part.buffer.memory()).into(),
        })
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.close();
    }
}

// SAFETY: `submit` checks all operations before it queues them; the session's thread reads and writes within the operands
// alone, and each fence settles once: with the last answer, or when the session has ended and touches nothing any more.
unsafe impl Backend for Remote {
    fn inventory(&self) -> Inventory {
        self.inventory.clone()
    }

    fn allocate(&self, memory: MemoryId, spec: &AllocSpec) -> Result<Buffer, AllocError> {
        match self.inventory.memories.iter().any(|of| of.id == memory) {
            true => self.ask(
                |fault| AllocError::Failed { memory, fault },
                |line| allocate(line, memory, spec),
            ),
            false => Err(AllocError::UnknownMemory { memory }),
        }
    }

    fn available_bytes(&self, memory: MemoryId) -> Option<u64> {
        let memory = local(memory).to_string();
        match self.line().ask(|id| Message::Available { id, memory }) {
            Ok((_, Message::AvailableBytes { bytes, .. })) => bytes,
            _ => None,
        }
    }

    /// Opens memory that another program shares, or takes in [`GrantedBytes`].
    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        match external {
            External::Ipc(handle) if handle.kind() == ExternalKind::Remote => {
                let kind = handle.kind();
                let failed = |fault| ImportError::Failed {
                    memory,
                    kind,
                    fault,
                };
                self.ask(failed, |line| open(line, memory, &handle))
            }
            External::Object(object) => {
                let granted = (object as Box<dyn Any>).downcast::<GrantedBytes>();
                let granted = granted.map_err(|_| ImportError::Unsupported {
                    memory,
                    kind: ExternalKind::Object,
                    reason: "it takes GrantedBytes".into(),
                })?;
                Ok(Granted::buffer(self.line(), memory, &granted))
            }
            other => Err(ImportError::Unsupported {
                memory,
                kind: other.kind(),
                reason: "memory of another machine is allocated by it, or shared".into(),
            }),
        }
    }

    unsafe fn export(&self, buffer: &Buffer, kind: ExternalKind) -> Result<External, ImportError> {
        if kind == ExternalKind::Remote {
            return share(buffer);
        }
        Err(ImportError::Unsupported {
            memory: buffer.memory(),
            kind,
            reason: "memory of another machine has no handle of this one".into(),
        })
    }

    fn connect(&self, src: MemoryId, dst: MemoryId) -> Result<Access, ConnectError> {
        link_between(&self.inventory, src, dst).map(|link| link.id.access)
    }

    fn enter(&self, uses: &[Use<'_>]) -> Result<Option<Entered>, Fault> {
        enter(&self.line(), uses)
    }

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        let board = &self.board;
        check_fences(BackendId(self.node), after)?;
        if let [Op::MakeVisible { part }] = ops {
            return self.make_visible(part);
        }
        if let Some(open) = after.iter().find(|fence| board.is_open(fence)) {
            return Err(SubmitError::unawaited(open));
        }
        let fence = board.begin(ops.len(), 0)?;
        let started = self.start(via, ops, fence);
        if started.is_err() {
            board.forget(fence);
        }
        started.map(|()| fence)
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

    /// Asks the other machine to stop. No leading bytes are known until it has answered.
    fn stop(&self, fence: Fence) -> u64 {
        let job = self.job(fence);
        // Of a copy between two machines, the line of the destination may be either's.
        for other in &self.others {
            other.line().stop(job.clone());
        }
        self.line().stop(job);
        0
    }
}
