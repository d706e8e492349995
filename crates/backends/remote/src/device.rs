//! The backend of another machine's memory.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use transload_hal::{
    Access, AllocError, AllocSpec, Backend, BackendId, Buffer, CompletionSink, ConnectError, Cost,
    Curve, DeviceId, DeviceInfo, DeviceKind, EngineId, Entered, ErrorClass, External, ExternalKind,
    Fault, Fence, GUEST_KINDS, ImportError, Inventory, Link, LinkClass, LinkId, MemoryId,
    MemoryInfo, Name, Node, Op, Part, Piece, SubmitError, Use, Uuid, Waited, check_ends,
    check_fences, link_between,
};

use crate::memory::{Lease, allocate, enter, local, open, share};
use crate::queue::{Client, End, Line, Operation};
use crate::wire::{self, Message};
use crate::{Options, PrivateKey, PublicKey, Session, SessionError};

/// The kind of the devices that stand for networks.
pub(crate) const NETWORK: DeviceKind = DeviceKind(Name::constant("net"));

/// Operations of one transfer that keep a session busy: one waits for its answer while others move.
pub(crate) const DEPTH: u16 = 4;

/// The memory of another machine, as that machine offers it. A backend like any other, whose devices bear the machine's
/// name: `box2/cuda:0`.
///
/// A buffer is a lease: the other machine frees it when its last view is dropped, when the session ends, and when the other
/// machine hears nothing any more. The session has a thread of its own.
#[derive(Debug)]
pub struct Remote {
    line: Arc<Line>,
    inventory: Inventory,
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
        ErrorClass::Unsupported
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
        let failed = |error| NodeError::Session { node, error };
        let line = Arc::new(Line::new(node, peer));
        let (told, opened) = mpsc::channel();
        let client = Client::new(Arc::clone(&line), told);
        let session = Session::connect(address, key, peer, client, options).map_err(failed)?;
        line.begin(session);
        let silent = || SessionError::Silent {
            address: address.into(),
            ms: 30_000,
        };
        // The limits of the session end the wait sooner, unless the peer says everything but what it offers.
        let opened = opened.recv_timeout(Duration::from_secs(30));
        let offered = opened.unwrap_or_else(|_| Err(silent())).map_err(failed)?;
        let inventory = inventory(node, line.owner(), address, offered)?;
        Ok(Remote { line, inventory })
    }

    /// Returns the public key of the other machine.
    pub fn peer(&self) -> PublicKey {
        self.line.peer
    }

    fn operation(&self, index: usize, op: &Op<'_>, job: u64) -> Result<Operation, SubmitError> {
        let Op::Copy { src, dst } = op else {
            return Err(SubmitError::Unsupported {
                index,
                reason: format!("another machine copies ranges of bytes, and has no {op:?}").into(),
            });
        };
        let id = self.line.number();
        let (message, end) = match (self.lease(src), self.lease(dst)) {
            (None, Some(lease)) => {
                let message = Message::Write {
                    id,
                    reservation: lease.reservation(),
                    lease: lease.id(),
                    offset: at(dst),
                    len: dst.len_bytes,
                };
                (message, End::Source(host(index, src)?))
            }
            (Some(lease), None) => {
                let message = Message::Read {
                    id,
                    reservation: lease.reservation(),
                    lease: lease.id(),
                    offset: at(src),
                    len: src.len_bytes,
                };
                (message, End::Destination(host(index, dst)?))
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
                    reason: format!("no end of it lies at {}", self.line.node).into(),
                });
            }
        };
        Ok(Operation {
            id,
            job,
            message,
            end,
            len_bytes: dst.len_bytes,
        })
    }

    fn lease<'a>(&self, part: &Part<'a>) -> Option<&'a Lease> {
        let is_own = part.buffer.backend() == BackendId(self.line.node);
        part.buffer.native().filter(|_| is_own)
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
        if let Some(session) = self.line.session() {
            session.close();
        }
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
            true => allocate(&self.line, memory, spec),
            false => Err(AllocError::UnknownMemory { memory }),
        }
    }

    fn available_bytes(&self, memory: MemoryId) -> Option<u64> {
        let memory = local(memory).to_string();
        match self.line.ask(|id| Message::Available { id, memory }) {
            Ok((_, Message::AvailableBytes { bytes, .. })) => bytes,
            _ => None,
        }
    }

    /// Opens memory that another program shares.
    unsafe fn import(&self, memory: MemoryId, external: External) -> Result<Buffer, ImportError> {
        match external {
            External::Ipc(handle) if handle.kind() == ExternalKind::Remote => {
                open(&self.line, memory, &handle)
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
            return share(&self.line, buffer);
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
        enter(&self.line, uses)
    }

    unsafe fn submit(
        &self,
        via: Option<LinkId>,
        ops: &[Op<'_>],
        after: &[Fence],
    ) -> Result<Fence, SubmitError> {
        let board = &self.line.board;
        check_fences(BackendId(self.line.node), after)?;
        if let Some(open) = after.iter().find(|fence| board.is_open(fence)) {
            return Err(SubmitError::unawaited(open));
        }
        let check = |(index, op)| {
            check_ends(via, index, op)?;
            self.operation(index, op, 0)
        };
        let operations: Result<Vec<_>, _> = ops.iter().enumerate().map(check).collect();
        let mut operations = operations?;
        let fence = board.begin(operations.len(), 0)?;
        for operation in &mut operations {
            operation.job = fence.number();
        }
        match self.line.start(operations) {
            Ok(()) => Ok(fence),
            Err(fault) => {
                board.forget(fence);
                Err(SubmitError::Refused(fault))
            }
        }
    }

    fn attach(&self, sink: Arc<dyn CompletionSink>) -> bool {
        self.line.board.attach(sink)
    }

    fn completes_unattended(&self) -> bool {
        true
    }

    fn pump(&self) {}

    fn wait(&self, fence: Fence, limit: Duration) -> Waited {
        self.line.board.wait(&[fence], limit)
    }

    fn wait_any(&self, fences: &[Fence], limit: Duration) -> Waited {
        self.line.board.wait(fences, limit)
    }

    fn progress(&self, fence: Fence) -> u64 {
        self.line.board.progress(fence)
    }

    /// Asks the other machine to stop. No leading bytes are known until it has answered.
    fn stop(&self, fence: Fence) -> u64 {
        self.line.stop(fence.number());
        0
    }
}

/// Checks what the other machine offers, and describes it under the name that the machine has here.
fn inventory(
    node: Name,
    owner: [u8; 16],
    address: &str,
    offered: wire::Inventory,
) -> Result<Inventory, NodeError> {
    let refused = |what: &str, reason: &dyn std::fmt::Display| NodeError::Offer {
        node,
        what: what.into(),
        reason: reason.to_string(),
    };
    let (at, backend) = (Node::named(node), BackendId(node));
    let network = DeviceId::new(NETWORK, 0).at(at);
    let mut all = Inventory {
        backend,
        devices: vec![DeviceInfo {
            id: network,
            backend,
            name: format!("TLS 1.3 to {address}"),
            // Processors encrypt.
            software: true,
            simulated: false,
            memory_bytes: None,
            driver: None,
            uuid: Some(Uuid(owner)),
            pci: None,
            numa_node: None,
        }],
        memories: Vec::new(),
        links: Vec::new(),
        lacks: Vec::new(),
        transform: None,
    };
    for device in offered.devices {
        let id: DeviceId = (device.id.parse()).map_err(|error| refused(&device.id, &error))?;
        if !id.node.is_here() {
            return Err(refused(&device.id, &"it belongs to a third machine"));
        }
        all.devices.push(DeviceInfo {
            id: id.at(at),
            backend,
            name: device.name,
            software: device.software,
            simulated: device.simulated,
            memory_bytes: device.memory_bytes,
            driver: device.driver,
            // Devices are named by UUIDs here, and this machine may be that one.
            uuid: None,
            pci: None,
            numa_node: None,
        });
    }
    let engine = |index| EngineId {
        device: network,
        index,
    };
    for memory in offered.memories {
        let id: MemoryId = (memory.id.parse()).map_err(|error| refused(&memory.id, &error))?;
        let id = id.device.at(at).memory(id.kind);
        if !all.devices.iter().any(|device| device.id == id.device) {
            return Err(refused(&memory.id, &"its device was not listed"));
        }
        all.memories.push(MemoryInfo {
            id,
            backend,
            total_bytes: memory.total_bytes,
            max_alloc_bytes: memory.max_alloc_bytes,
            alignment: memory.alignment,
            host_addressable: false,
            staging: false,
        });
        let [into, out_of] = [&memory.into, &memory.out_of].map(|pieces| curve(pieces));
        let into = into.map_err(|error| refused(&memory.id, &error))?;
        let out_of = out_of.map_err(|error| refused(&memory.id, &error))?;
        for kind in GUEST_KINDS {
            let here = DeviceId::CPU0.memory(kind);
            for (src, dst, index, there) in [(here, id, 0, &into), (id, here, 1, &out_of)] {
                all.links.push(Link {
                    id: LinkId {
                        src,
                        dst,
                        engine: engine(index),
                        access: Access::Native,
                    },
                    backend,
                    class: LinkClass::Network,
                    cost: there.clone(),
                    pitched: false,
                    depth: DEPTH,
                });
            }
        }
    }
    // The other machine copies among its own memories.
    let memories: Vec<MemoryId> = all.memories.iter().map(|memory| memory.id).collect();
    for src in &memories {
        for dst in &memories {
            all.links.push(Link {
                id: LinkId {
                    src: *src,
                    dst: *dst,
                    engine: EngineId {
                        device: dst.device,
                        index: 0,
                    },
                    access: Access::Native,
                },
                backend,
                class: LinkClass::Network,
                cost: Curve::from(Cost::from_rate(50_000, 10_000_000_000)),
                pitched: false,
                depth: DEPTH,
            });
        }
    }
    Ok(all)
}

fn curve(pieces: &[wire::Piece]) -> Result<Curve, String> {
    let pieces = pieces.iter().map(|piece| Piece {
        from_bytes: piece.from_bytes,
        cost: Cost::from_rate(piece.fixed_ns, piece.bytes_per_second.max(1)),
    });
    Curve::new(pieces.collect()).map_err(|error| error.to_string())
}
