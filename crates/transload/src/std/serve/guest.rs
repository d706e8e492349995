//! One session of another machine: its leases, and its operations under way.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::string::ToString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use transload_core::{MemoryId, Shape, Ticket};
use transload_hal::{AllocSpec, ErrorClass, Fault};
use transload_remote::wire::{self, Message, Outcome, ProtocolError};
use transload_remote::{
    Event, Handler, Payload, Peer, Pipe, STREAMS, SessionError, SessionHandle, misplaced, unknown,
};

use super::order::Reserved;
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
    leases: HashMap<u64, Arc<Leased>>,
    reservations: HashMap<u64, Reservation>,
    operations: HashMap<u64, Running>,
    ready: Arc<Ready>,
}

/// Memory that peers have allocated.
pub(super) struct Leased {
    buffer: Buffer,
    number: u64,
    /// Other sessions may use it, too, so each transfer has a place in the order.
    is_shared: AtomicBool,
    /// Its part of the limit.
    _charge: Charge,
}

/// A transfer's place in the order.
struct Reservation {
    ticket: Ticket,
    uses: Vec<Reserved>,
    has_turn: bool,
    /// Operations of the transfer that are under way.
    operations: usize,
    /// The peer has given it up.
    is_left: bool,
}

/// An operation under way. Holds what it touches.
struct Running {
    transfer: Transfer,
    waker: Waker,
    reservation: u64,
    /// Held while it is under way.
    _leases: Vec<Arc<Leased>>,
}

/// The operations whose transfers may be over, and the places in the order whose turn has come.
#[derive(Default)]
pub(super) struct Ready {
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
        self.ready.tell(self.id);
    }
}

impl Ready {
    /// Has the session look at an operation or a place in the order.
    pub(super) fn tell(&self, id: u64) {
        let ids = self.ids.lock();
        ids.unwrap_or_else(PoisonError::into_inner).push_back(id);
        if let Some(session) = self.session.get() {
            session.wake();
        }
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
            reservations: HashMap::new(),
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
        self.check_new(id)?;
        let charge = self.serving.charge(len)?;
        let spec = AllocSpec::bytes(len).aligned(align);
        let buffer = self.serving.manager.allocate(memory.into(), spec);
        let buffer = buffer.map_err(|error| Fault::new(class(&error), error.to_string()))?;
        let number = self.serving.leases.fetch_add(1, Ordering::Relaxed);
        let leased = Leased {
            buffer,
            number,
            is_shared: AtomicBool::new(false),
            _charge: charge,
        };
        self.leases.insert(id, Arc::new(leased));
        Ok(number)
    }

    fn check_new(&self, id: u64) -> Result<(), Fault> {
        match self.leases.contains_key(&id) || self.leases.len() >= MOST_LEASES {
            true => Err(mistake(format!("lease {id} exists, or {MOST_LEASES} do"))),
            false => Ok(()),
        }
    }

    /// Lets other sessions use a lease. Returns the token by which they open it.
    fn share(&self, lease: u64) -> Result<[u8; 16], Fault> {
        let lease = self.lease(lease)?;
        let mut token = [0; 16];
        transload_remote::fill_random(&mut token)
            .map_err(|reason| Fault::new(ErrorClass::Failed, reason.to_string()))?;
        lease.is_shared.store(true, Ordering::Release);
        self.serving.order().share(token, lease);
        Ok(token)
    }

    fn open(&mut self, id: u64, token: &[u8; 16]) -> Result<Message, Fault> {
        self.check_new(id)?;
        let lease = self.serving.order().open(token);
        let lease =
            lease.ok_or_else(|| mistake("there is no shared memory of that name".into()))?;
        let opened = Message::Opened {
            id,
            number: lease.number,
            memory: lease.buffer.memory().to_string(),
            len: lease.buffer.len(),
        };
        self.leases.insert(id, lease);
        Ok(opened)
    }

    /// Gives a transfer a place in the order. Returns whether its turn has come.
    fn enter(&mut self, id: u64, uses: &[wire::Use]) -> Result<bool, Fault> {
        if self.reservations.contains_key(&id) || self.reservations.len() >= MOST_OPERATIONS {
            return Err(mistake(format!(
                "place {id} exists, or {MOST_OPERATIONS} do"
            )));
        }
        let reserved = |of: &wire::Use| {
            let (lease, _) = self.region(of.lease, of.offset, of.len)?;
            Ok(Reserved {
                number: lease.number,
                offset: of.offset,
                len: of.len,
                writes: of.writes,
            })
        };
        let uses: Vec<Reserved> = uses.iter().map(reserved).collect::<Result<_, Fault>>()?;
        let (ticket, has_turn) = self.serving.order().enter(&uses, &self.ready, id)?;
        let reservation = Reservation {
            ticket,
            uses,
            has_turn,
            operations: 0,
            is_left: false,
        };
        self.reservations.insert(id, reservation);
        Ok(has_turn)
    }

    /// Gives a place in the order up, unless operations of it are under way: they give it up with the last of them.
    fn leave(&mut self, id: u64) {
        if let Some(reservation) = self.reservations.get_mut(&id) {
            reservation.is_left = true;
            if reservation.operations == 0 {
                let ticket = reservation.ticket;
                self.reservations.remove(&id);
                self.serving.order().leave(ticket);
            }
        }
    }

    /// Checks that an operation keeps to its transfer's place in the order, where it needs one.
    fn check_turn(&self, lease: &Leased, reservation: u64, of: Reserved) -> Result<(), Fault> {
        if !lease.is_shared.load(Ordering::Acquire) {
            return Ok(());
        }
        let known = self.reservations.get(&reservation);
        let known = known.filter(|known| known.has_turn && !known.is_left);
        match known.is_some_and(|known| known.uses.iter().any(|held| held.covers(&of))) {
            true => Ok(()),
            false => Err(mistake(format!(
                "place {reservation} in the order does not cover {of:?}"
            ))),
        }
    }

    fn lease(&self, lease: u64) -> Result<&Arc<Leased>, Fault> {
        let known = self.leases.get(&lease);
        known.ok_or_else(|| mistake(format!("there is no lease {lease}")))
    }

    /// Returns a lease, and the range of it as a region.
    fn region(&self, lease: u64, offset: u64, len: u64) -> Result<(&Arc<Leased>, Region), Fault> {
        let lease = self.lease(lease)?;
        let region = Region::new(&lease.buffer, offset, Shape::contiguous(len));
        let region = region.map_err(|error| mistake(error.to_string()))?;
        Ok((lease, region))
    }

    /// Returns one end of an operation, which may touch it.
    fn end(
        &self,
        at: wire::Place,
        len: u64,
        reservation: u64,
        writes: bool,
    ) -> Result<(Arc<Leased>, Region), Fault> {
        let (lease, region) = self.region(at.lease, at.offset, len)?;
        let of = Reserved {
            number: lease.number,
            offset: at.offset,
            len,
            writes,
        };
        self.check_turn(lease, reservation, of)?;
        Ok((Arc::clone(lease), region))
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
        (id, reservation): (u64, u64),
        ends: Result<(Region, Region, Vec<Arc<Leased>>), Fault>,
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
            reservation,
            _leases: leases,
        };
        self.operations.insert(id, running);
        if let Some(reservation) = self.reservations.get_mut(&reservation) {
            reservation.operations += 1;
        }
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
        let reservation = running.reservation;
        self.operations.remove(&id);
        if let Some(known) = self.reservations.get_mut(&reservation) {
            known.operations -= 1;
            if known.is_left {
                self.leave(reservation);
            }
        }
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
            Message::Share { id, lease } => {
                let answer = match self.share(lease) {
                    Ok(token) => Message::Shared { id, token },
                    Err(fault) => refused(id, fault),
                };
                pipe.send(&answer)
            }
            Message::Open { id, token } => {
                let answer = self.open(id, &token);
                pipe.send(&answer.unwrap_or_else(|fault| refused(id, fault)))
            }
            Message::Enter { id, uses } => match self.enter(id, &uses) {
                Ok(true) => pipe.send(&Message::Entered { id }),
                Ok(false) => Ok(()),
                Err(fault) => pipe.send(&refused(id, fault)),
            },
            Message::Leave { reservation } => {
                self.leave(reservation);
                Ok(())
            }
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
                reservation,
                lease,
                offset,
                len,
            } => {
                let at = wire::Place { lease, offset };
                let ends = self
                    .end(at, len, reservation, true)
                    .and_then(|(lease, dst)| Ok((self.stream(id, len, false)?, dst, vec![lease])));
                self.start((id, reservation), ends, pipe)
            }
            Message::Read {
                id,
                reservation,
                lease,
                offset,
                len,
            } => {
                let at = wire::Place { lease, offset };
                let ends = self
                    .end(at, len, reservation, false)
                    .and_then(|(lease, src)| Ok((src, self.stream(id, len, true)?, vec![lease])));
                self.start((id, reservation), ends, pipe)
            }
            Message::Copy {
                id,
                reservation,
                src,
                dst,
                len,
            } => {
                let wire::Destination::Lease(to) = dst else {
                    let fault = Fault::new(ErrorClass::Unsupported, "it copies to its own leases");
                    return pipe.send(&refused(id, fault));
                };
                let ends = self
                    .end(src, len, reservation, false)
                    .and_then(|(from, src)| {
                        let (to, dst) = self.end(to, len, reservation, true)?;
                        Ok((src, dst, vec![from, to]))
                    });
                self.start((id, reservation), ends, pipe)
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
        if let Event::Message(message) = event {
            self.handle_message(message, pipe)?;
        }
        // What the engine has asked for on this thread.
        self.payload.woken(pipe)
    }

    fn woken(&mut self, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        self.payload.woken(pipe)?;
        while let Some(id) = self.ready.pop() {
            if let Some(reservation) = self.reservations.get_mut(&id) {
                reservation.has_turn = true;
                pipe.send(&Message::Entered { id })?;
            }
            self.look(id, pipe)?;
        }
        Ok(())
    }

    fn closed(&mut self, reason: SessionError) {
        let fault = Fault::new(ErrorClass::Caller, reason.to_string());
        self.payload.close(&fault);
        let all = self.operations.drain().map(|(_, running)| running);
        let all: Vec<Running> = all.inspect(|of| of.transfer.canceller().cancel()).collect();
        // Others must not touch the bytes before these are quiet. What waited for the peer has failed already.
        for running in all {
            running.transfer.cancel();
        }
        for (_, reservation) in self.reservations.drain() {
            self.serving.order().leave(reservation.ticket);
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

pub(super) fn mistake(message: String) -> Fault {
    Fault::new(ErrorClass::Caller, message)
}

fn refused(id: u64, fault: Fault) -> Message {
    Message::Refused {
        id,
        fault: fault.into(),
    }
}
