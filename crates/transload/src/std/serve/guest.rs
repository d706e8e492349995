//! One session of another machine: its leases, and its operations under way.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::string::ToString;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use transload_core::{MemoryId, Shape};
use transload_hal::{AllocSpec, ErrorClass, Fault};
use transload_remote::wire::{self, Message, Outcome, ProtocolError};
use transload_remote::{
    Event, Handler, Payload, Peer, Pipe, STREAMS, SessionError, SessionHandle, misplaced, unknown,
};

use super::{Charge, Serving};
use crate::{Buffer, Error, Region, Request, Transfer, TransferError};

/// The most operations of a session that may be under way, and the most leases.
const MOST_OPERATIONS: usize = 4096;
const MOST_LEASES: usize = 1 << 20;

/// One session, on its thread.
pub(super) struct Guest {
    serving: Arc<Serving>,
    number: u64,
    payload: Payload,
    leases: HashMap<u64, Lease>,
    operations: HashMap<u64, Running>,
    ready: Arc<Ready>,
}

/// Memory that the peer has allocated.
#[derive(Clone)]
struct Lease {
    buffer: Buffer,
    /// Its part of the limit.
    _charge: Arc<Charge>,
}

/// An operation under way. Holds what it touches.
struct Running {
    transfer: Transfer,
    waker: Waker,
    _leases: [Option<Lease>; 2],
}

/// The operations whose transfers may be over.
#[derive(Default)]
struct Ready {
    ids: Mutex<VecDeque<u64>>,
    session: OnceLock<SessionHandle>,
}

/// Wakes the session for one of its operations.
struct Woken {
    ready: Arc<Ready>,
    id: u64,
}

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.ready.push(self.id);
        if let Some(session) = self.ready.session.get() {
            session.wake();
        }
    }
}

impl Ready {
    fn push(&self, id: u64) {
        let ids = self.ids.lock();
        ids.unwrap_or_else(PoisonError::into_inner).push_back(id);
    }

    fn pop(&self) -> Option<u64> {
        let ids = self.ids.lock();
        ids.unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// What must know the session's handle.
pub(super) struct Link {
    ready: Arc<Ready>,
    feed: Arc<transload_remote::Feed>,
}

impl Link {
    pub(super) fn begin(&self, session: SessionHandle) {
        let _ = self.ready.session.set(session.clone());
        self.feed.begin(session);
    }
}

impl Guest {
    pub(super) fn new(serving: Arc<Serving>, number: u64) -> Guest {
        Guest {
            payload: serving.streams.payload(),
            serving,
            number,
            leases: HashMap::new(),
            operations: HashMap::new(),
            ready: Arc::default(),
        }
    }

    pub(super) fn link(&self) -> Link {
        Link {
            ready: Arc::clone(&self.ready),
            feed: Arc::clone(self.payload.feed()),
        }
    }

    fn allocate(&mut self, id: u64, name: &str, len: u64, align: u64) -> Result<u64, Fault> {
        let memory: Option<MemoryId> = name.parse().ok();
        let memory = memory.filter(|memory| self.serving.offered.contains(memory));
        let memory = memory.ok_or_else(|| mistake(format!("{name:?} is not offered")))?;
        if self.leases.contains_key(&id) || self.leases.len() >= MOST_LEASES {
            return Err(mistake(format!("lease {id} exists, or {MOST_LEASES} do")));
        }
        let charge = self.serving.charge(len)?;
        let spec = AllocSpec::bytes(len).aligned(align);
        let buffer = self.serving.manager.allocate(memory.into(), spec);
        let buffer = buffer.map_err(|error| Fault::new(class(&error), error.to_string()))?;
        let _charge = Arc::new(charge);
        self.leases.insert(id, Lease { buffer, _charge });
        Ok(self.serving.leases.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a lease, and the range of it as a region.
    fn region(&self, lease: u64, offset: u64, len: u64) -> Result<(Lease, Region), Fault> {
        let known = self.leases.get(&lease);
        let known = known.ok_or_else(|| mistake(format!("there is no lease {lease}")))?;
        let region = Region::new(&known.buffer, offset, Shape::contiguous(len));
        let region = region.map_err(|error| mistake(error.to_string()))?;
        Ok((known.clone(), region))
    }

    fn stream(&self, op: u64, len: u64, is_taken: bool) -> Result<Region, Fault> {
        let stream = self.payload.stream(op, len, is_taken);
        // SAFETY: a stream is no memory: nothing else can touch it.
        let buffer = unsafe { self.serving.manager.adopt_native(STREAMS.into(), stream) };
        let buffer = buffer.map_err(|error| Fault::new(class(&error), error.to_string()))?;
        Ok((&buffer).into())
    }

    /// Starts an operation of the peer's.
    fn start(
        &mut self,
        id: u64,
        ends: Result<(Region, Region, [Option<Lease>; 2]), Fault>,
        pipe: &mut Pipe,
    ) -> Result<(), ProtocolError> {
        let (src, dst, leases) = match ends {
            Ok(ends) => ends,
            Err(fault) => return pipe.send(&refused(id, fault)),
        };
        if self.operations.len() >= MOST_OPERATIONS {
            let message = format!("{MOST_OPERATIONS} operations of the session are under way");
            return pipe.send(&refused(id, Fault::new(ErrorClass::Exhausted, message)));
        }
        let transfer = self.serving.manager.submit(&Request::new(src, dst));
        let woken = Woken {
            ready: Arc::clone(&self.ready),
            id,
        };
        let running = Running {
            transfer,
            waker: Arc::new(woken).into(),
            _leases: leases,
        };
        self.operations.insert(id, running);
        self.look(id, pipe)
    }

    /// Looks whether an operation is over, and tells the peer.
    fn look(&mut self, id: u64, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        let Some(running) = self.operations.get_mut(&id) else {
            return Ok(());
        };
        let mut context = Context::from_waker(&running.waker);
        let Poll::Ready(result) = Pin::new(&mut running.transfer).poll(&mut context) else {
            return Ok(());
        };
        self.operations.remove(&id);
        pipe.cancel(id);
        // What was asked for and has not come. The peer sends it, or tells that it does not.
        pipe.discard(id);
        let outcome = match result {
            Ok(_) => Outcome::Done,
            Err(
                TransferError::Cancelled { leading_bytes }
                | TransferError::Deadline { leading_bytes },
            ) => Outcome::Stopped { leading_bytes },
            Err(error) => Outcome::Failed(Fault::new(error.class(), error.to_string()).into()),
        };
        pipe.send(&Message::Ended { id, outcome })
    }

    fn handle_message(&mut self, message: Message, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        match message {
            Message::Allocate {
                id,
                memory,
                len,
                align,
            } => {
                let answer = match self.allocate(id, &memory, len, align) {
                    Ok(number) => Message::Allocated { id, number },
                    Err(fault) => refused(id, fault),
                };
                pipe.send(&answer)
            }
            Message::Free { lease } => match self.leases.remove(&lease) {
                Some(_) => Ok(()),
                None => Err(unknown(lease)),
            },
            Message::Available { id, memory } => {
                let memory: Option<MemoryId> = memory.parse().ok();
                let memory = memory.filter(|memory| self.serving.offered.contains(memory));
                let bytes = memory.and_then(|memory| self.serving.available_bytes(memory));
                pipe.send(&Message::AvailableBytes { id, bytes })
            }
            Message::Write { id, .. } | Message::Read { id, .. } | Message::Copy { id, .. }
                if self.operations.contains_key(&id) =>
            {
                Err(unknown(id))
            }
            Message::Write {
                id,
                lease,
                offset,
                len,
                ..
            } => {
                let ends = self.region(lease, offset, len).and_then(|(lease, dst)| {
                    Ok((self.stream(id, len, false)?, dst, [Some(lease), None]))
                });
                self.start(id, ends, pipe)
            }
            Message::Read {
                id,
                lease,
                offset,
                len,
                ..
            } => {
                let ends = self.region(lease, offset, len).and_then(|(lease, src)| {
                    Ok((src, self.stream(id, len, true)?, [Some(lease), None]))
                });
                self.start(id, ends, pipe)
            }
            Message::Copy {
                id, src, dst, len, ..
            } => {
                let wire::Destination::Lease(to) = dst else {
                    let fault = Fault::new(ErrorClass::Unsupported, "it copies to its own leases");
                    return pipe.send(&refused(id, fault));
                };
                let ends = self
                    .region(src.lease, src.offset, len)
                    .and_then(|(from, src)| {
                        let (to, dst) = self.region(to.lease, to.offset, len)?;
                        Ok((src, dst, [Some(from), Some(to)]))
                    });
                self.start(id, ends, pipe)
            }
            Message::Stop { id } => {
                let Some(running) = self.operations.get(&id) else {
                    pipe.forget(id);
                    return Ok(());
                };
                running.transfer.canceller().cancel();
                self.look(id, pipe)
            }
            other => Err(misplaced(format!("a node is not sent {}", other.name()))),
        }
    }
}

impl Handler for Guest {
    fn opened(&mut self, _: Peer, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        pipe.send(&Message::Inventory(self.serving.inventory()))
    }

    fn handle(&mut self, event: Event, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        if self.payload.handle(&event) {
            let (Event::Arrived { op, .. } | Event::Sent { op, .. }) = event else {
                return Ok(());
            };
            return self.look(op, pipe);
        }
        match event {
            Event::Message(message) => self.handle_message(message, pipe)?,
            _ => {}
        }
        // What the engine has asked for on this thread.
        self.payload.woken(pipe)
    }

    fn woken(&mut self, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        self.payload.woken(pipe)?;
        while let Some(id) = self.ready.pop() {
            self.look(id, pipe)?;
        }
        Ok(())
    }

    fn closed(&mut self, reason: SessionError) {
        let fault = Fault::new(ErrorClass::Caller, reason.to_string());
        self.payload.close(&fault);
        for (_, running) in self.operations.drain() {
            running.transfer.canceller().cancel();
        }
        self.leases.clear();
        self.serving.sessions().open.remove(&self.number);
    }
}

impl Serving {
    fn available_bytes(&self, memory: MemoryId) -> Option<u64> {
        let used = self.used_bytes.load(Ordering::Relaxed);
        let left = self.limit_bytes.saturating_sub(used);
        Some(self.manager.available_bytes(memory)?.min(left))
    }
}

fn class(error: &Error) -> ErrorClass {
    error.class()
}

fn mistake(message: String) -> Fault {
    Fault::new(ErrorClass::Caller, message)
}

fn refused(id: u64, fault: Fault) -> Message {
    Message::Refused {
        id,
        fault: fault.into(),
    }
}
