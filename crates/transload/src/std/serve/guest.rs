//! One session of another machine: its leases, and its operations under way.

mod operations;

use std::collections::HashMap;
use std::string::ToString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use transload_core::{Axis, MemoryId, Shape, Strided};
use transload_hal::{AllocSpec, ErrorClass, Fault};
use transload_remote::wire::{self, Message, Outcome, ProtocolError};
use transload_remote::{
    Event, GrantedBytes, Handler, Payload, Peer, Pipe, PublicKey, SessionError, misplaced, unknown,
};

use super::descriptors::Listed;
use super::grant::Grant;
use super::order::{Place, Reserved};
use super::ready::{Link, News, Ready};
use super::{Charge, Serving};
use crate::{Buffer, Error, Region};
use operations::{Held, Running, Work};

/// The most operations of a session that may be under way, and the most leases.
const MOST_OPERATIONS: usize = 4096;
const MOST_LEASES: usize = 1 << 16;
/// The uses of all places in the order of a session.
const MOST_USES: usize = 4 * MOST_OPERATIONS;

/// One session, on its thread.
pub(super) struct Guest {
    serving: Arc<Serving>,
    number: u64,
    payload: Payload,
    leases: HashMap<u64, Arc<Leased>>,
    reservations: HashMap<u64, Reservation>,
    operations: HashMap<u64, Running>,
    grants: HashMap<u64, Arc<Grant>>,
    /// The bytes of operations whose bytes came at once.
    eager_bytes: u64,
    ready: Arc<Ready>,
}

/// Memory that peers have allocated.
pub(super) struct Leased {
    pub(super) buffer: Buffer,
    number: u64,
    /// Other sessions may use it, too, so each transfer has a place in the order.
    is_shared: AtomicBool,
    /// By which they open it.
    token: OnceLock<[u8; 16]>,
    /// By which processes of this machine get its descriptor.
    listed: Option<Listed>,
    /// Its part of the limit.
    _charge: Charge,
}

impl Leased {
    fn descriptor(&self) -> Option<[u8; 16]> {
        self.listed.as_ref().map(|listed| listed.token)
    }
}

/// A transfer's place in the order.
struct Reservation {
    /// Operations that are under way hold it, too.
    place: Arc<Place>,
    uses: Vec<Reserved>,
    has_turn: bool,
}

/// Bytes of a lease, and the place in the order of the transfer that touches them.
type Part = (Arc<Leased>, Option<Arc<Place>>, Region);

impl Guest {
    pub(super) fn new(serving: Arc<Serving>, number: u64) -> Guest {
        Guest {
            payload: serving.streams.payload(),
            serving,
            number,
            leases: HashMap::new(),
            reservations: HashMap::new(),
            operations: HashMap::new(),
            grants: HashMap::new(),
            eager_bytes: 0,
            ready: Arc::default(),
        }
    }

    pub(super) fn link(&self) -> Link {
        Link {
            ready: Arc::clone(&self.ready),
            feed: Arc::clone(self.payload.feed()),
        }
    }

    fn allocate(
        &mut self,
        id: u64,
        name: &str,
        (len, align): (u64, u64),
        mapped: bool,
    ) -> Result<Message, Fault> {
        let memory: Option<MemoryId> = name.parse().ok();
        let memory = memory.filter(|memory| self.serving.offered.contains(memory));
        let memory = memory.ok_or_else(|| mistake(format!("{name:?} is not offered")))?;
        self.check_new(id)?;
        let charge = self.serving.charge(len.max(align))?;
        // What this process wrote in the host's memory before is not for others.
        let mut spec = AllocSpec::bytes(len).aligned(align).zeroed();
        let files = self.serving.files.as_ref();
        let files = files.filter(|files| mapped && files.have(memory));
        let listing = { files.map(|files| Ok::<_, Fault>((files, token()?))) }.transpose()?;
        if listing.is_some() {
            spec = spec.for_sharing();
        }
        let buffer = self.serving.manager.allocate(memory.into(), spec);
        let buffer = buffer.map_err(|error| Fault::new(class(&error), error.to_string()))?;
        let number = self.serving.leases.fetch_add(1, Ordering::Relaxed);
        let leased = Arc::new_cyclic(|lease| Leased {
            buffer,
            number,
            is_shared: AtomicBool::new(false),
            token: OnceLock::new(),
            listed: listing.map(|(files, token)| files.list(token, lease)),
            _charge: charge,
        });
        let descriptor = leased.descriptor();
        self.leases.insert(id, leased);
        Ok(Message::Allocated {
            id,
            number,
            descriptor,
        })
    }

    fn check_new(&self, id: u64) -> Result<(), Fault> {
        match self.leases.contains_key(&id) || self.leases.len() >= MOST_LEASES {
            true => Err(mistake(format!("lease {id} exists, or {MOST_LEASES} do"))),
            false => Ok(()),
        }
    }

    /// Lets other sessions use a lease. Returns the token by which they open it.
    fn share(&self, lease: u64) -> Result<[u8; 16], Fault> {
        let (lease, fresh) = (self.lease(lease)?, token()?);
        if let Some(token) = lease.token.get() {
            return Ok(*token);
        }
        let token = *lease.token.get_or_init(|| fresh);
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
            descriptor: lease.descriptor(),
        };
        self.leases.insert(id, lease);
        Ok(opened)
    }

    /// Gives a transfer a place in the order. Returns whether its turn has come.
    fn enter(&mut self, id: u64, uses: &[wire::Use]) -> Result<bool, Fault> {
        if self.is_used(id) || self.reservations.len() >= MOST_OPERATIONS {
            return Err(mistake(format!(
                "place {id} exists, or {MOST_OPERATIONS} do"
            )));
        }
        let known = self.reservations.values();
        let known: usize = known.map(|known| known.uses.len()).sum();
        if known + uses.len() > MOST_USES {
            let reason = format!("the places of a session have more than {MOST_USES} uses");
            return Err(mistake(reason));
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
            place: Arc::new(Place {
                serving: Arc::clone(&self.serving),
                ticket,
            }),
            uses,
            has_turn,
        };
        self.reservations.insert(id, reservation);
        Ok(has_turn)
    }

    /// Returns whether an operation, a grant or a reservation has the number.
    fn is_used(&self, id: u64) -> bool {
        self.operations.contains_key(&id)
            || self.grants.contains_key(&id)
            || self.reservations.contains_key(&id)
    }

    /// Checks that an operation keeps to its transfer's place in the order, where it needs one. Returns the place.
    fn check_turn(
        &self,
        lease: &Leased,
        reservation: u64,
        of: Reserved,
    ) -> Result<Option<Arc<Place>>, Fault> {
        let known = self.reservations.get(&reservation);
        let place = known.map(|known| Arc::clone(&known.place));
        if !lease.is_shared.load(Ordering::Acquire) {
            return Ok(place);
        }
        let known = known.filter(|known| known.has_turn);
        match known.is_some_and(|known| known.uses.iter().any(|held| held.covers(&of))) {
            true => Ok(place),
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

    /// Returns one end of an operation whose bytes may lie apart.
    fn end_apart(
        &self,
        at: wire::Place,
        (apart, len): (Option<&wire::Elements>, u64),
        reservation: u64,
        writes: bool,
    ) -> Result<(Held, Region), Fault> {
        let Some(elements) = apart else {
            return self.end(at, len, reservation, writes);
        };
        let axes = elements.axes.iter();
        let axes: Vec<Axis> = axes
            .map(|(count, stride)| Axis::new(*count, *stride))
            .collect();
        let array = Strided::new(elements.element_bytes, &axes);
        let array = array.map_err(|error| mistake(error.to_string()))?;
        if array.payload_bytes() != len {
            let found = array.payload_bytes();
            return Err(mistake(format!(
                "elements of {found} bytes are not {len} bytes"
            )));
        }
        let (held, _) = self.end(at, array.extent_bytes(), reservation, writes)?;
        let first = at.offset.saturating_add(array.first());
        let region = Region::strided(&self.lease(at.lease)?.buffer, first, &array);
        Ok((held, region.map_err(|error| mistake(error.to_string()))?))
    }

    /// Returns one end of an operation, which may touch it.
    fn end(
        &self,
        at: wire::Place,
        len: u64,
        reservation: u64,
        writes: bool,
    ) -> Result<(Held, Region), Fault> {
        let (lease, place, region) = self.part(at, len, reservation, writes)?;
        let held = Held::Lease {
            _lease: lease,
            _place: place,
        };
        Ok((held, region))
    }

    /// Returns bytes of a lease, which an operation may touch.
    fn part(
        &self,
        at: wire::Place,
        len: u64,
        reservation: u64,
        writes: bool,
    ) -> Result<Part, Fault> {
        let (lease, region) = self.region(at.lease, at.offset, len)?;
        let of = Reserved {
            number: lease.number,
            offset: at.offset,
            len,
            writes,
        };
        let place = self.check_turn(lease, reservation, of)?;
        Ok((Arc::clone(lease), place, region))
    }

    /// Lets other sessions write bytes of a lease. Returns the token.
    fn grant(
        &mut self,
        id: u64,
        reservation: u64,
        at: wire::Place,
        len: u64,
    ) -> Result<[u8; 16], Fault> {
        if self.grants.len() >= MOST_OPERATIONS {
            return Err(mistake(format!("{MOST_OPERATIONS} grants exist")));
        }
        let (lease, place, _) = self.part(at, len, reservation, true)?;
        let place = place.as_ref().map(Arc::downgrade);
        let granter = (Arc::clone(&self.ready), id);
        let grant = Grant::new(token()?, (lease, at.offset, len), place, granter);
        let grant = Arc::new(grant);
        self.serving.order().grant(&grant);
        let token = grant.token;
        self.grants.insert(id, grant);
        Ok(token)
    }

    /// Looks whether a grant is over, and tells the peer.
    fn look_at_grant(&mut self, id: u64, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        let outcome = self.grants.get(&id).and_then(|grant| grant.outcome());
        let (Some(outcome), Some(grant)) = (outcome, self.grants.get(&id)) else {
            return Ok(());
        };
        self.serving.order().revoke(&grant.token);
        self.grants.remove(&id);
        pipe.send(&Message::Ended { id, outcome })
    }

    fn handle_message(&mut self, message: Message, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        let is_eager = matches!(message, Message::Write { eager: true, .. });
        match message {
            Message::Allocate {
                id,
                memory,
                len,
                align,
                mapped,
            } => {
                let answer = self.allocate(id, &memory, (len, align), mapped);
                pipe.send(&answer.unwrap_or_else(|fault| refused(id, fault)))
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
                self.reservations.remove(&reservation);
                Ok(())
            }
            Message::Available { id, memory } => {
                let memory: Option<MemoryId> = memory.parse().ok();
                let memory = memory.filter(|memory| self.serving.offered.contains(memory));
                let bytes = memory.and_then(|memory| self.serving.available_bytes(memory));
                pipe.send(&Message::AvailableBytes { id, bytes })
            }
            Message::Write { id, .. }
            | Message::Read { id, .. }
            | Message::Copy { id, .. }
            | Message::Grant { id, .. }
            | Message::WriteGranted { id, .. }
                if self.is_used(id) || pipe.progress(id).is_some() =>
            {
                Err(unknown(id))
            }
            Message::Write { id, .. }
            | Message::Read { id, .. }
            | Message::Copy { id, .. }
            | Message::WriteGranted { id, .. }
                if self.operations.len() >= MOST_OPERATIONS && !is_eager =>
            {
                let message = format!("{MOST_OPERATIONS} operations of the session are under way");
                pipe.send(&refused(id, Fault::new(ErrorClass::Exhausted, message)))
            }
            Message::Write {
                id,
                reservation,
                lease,
                offset,
                apart,
                len,
                network,
                eager,
            } => {
                let (at, apart) = (wire::Place { lease, offset }, apart.as_ref());
                if eager {
                    return self.start_eager(id, (at, apart), (len, network), reservation, pipe);
                }
                let stream = self.stream(id, (len, network), false, pipe);
                let ends = stream.and_then(|stream| {
                    let (lease, dst) = self.end_apart(at, (apart, len), reservation, true)?;
                    Ok((stream, dst, vec![lease]))
                });
                self.start(id, ends, 0, pipe)
            }
            Message::Read {
                id,
                reservation,
                lease,
                offset,
                apart,
                len,
                network,
            } => {
                let (at, apart) = (wire::Place { lease, offset }, apart.as_ref());
                let stream = self.stream(id, (len, network), true, pipe);
                let ends = stream.and_then(|stream| {
                    let (lease, src) = self.end_apart(at, (apart, len), reservation, false)?;
                    Ok((src, stream, vec![lease]))
                });
                self.start(id, ends, 0, pipe)
            }
            Message::Copy {
                id,
                reservation,
                src,
                dst,
                len,
            } => {
                let to = match dst {
                    wire::Destination::Lease(to) => to,
                    wire::Destination::Node {
                        address,
                        key,
                        token,
                    } => {
                        let len_bytes = len;
                        let bytes = GrantedBytes { token, len_bytes };
                        let node = (address, PublicKey(key));
                        let running = self.forward((id, reservation), src, bytes, node);
                        return self.run(id, running, pipe);
                    }
                };
                let ends = self
                    .end(src, len, reservation, false)
                    .and_then(|(from, src)| {
                        let (to, dst) = self.end(to, len, reservation, true)?;
                        Ok((src, dst, vec![from, to]))
                    });
                self.start(id, ends, 0, pipe)
            }
            Message::Grant {
                id,
                reservation,
                lease,
                offset,
                len,
            } => {
                let at = wire::Place { lease, offset };
                match self.grant(id, reservation, at, len) {
                    Ok(token) => {
                        pipe.send(&Message::Granted { id, token })?;
                        self.look_at_grant(id, pipe)
                    }
                    Err(fault) => pipe.send(&refused(id, fault)),
                }
            }
            Message::WriteGranted {
                id,
                token,
                offset,
                len,
                network,
            } => {
                let stream = self.stream(id, (len, network), false, pipe);
                let ends =
                    stream.and_then(|stream| self.write_granted(stream, &token, (offset, len)));
                self.start(id, ends, 0, pipe)
            }
            Message::Stop { id } => {
                if let Some(grant) = self.grants.get(&id) {
                    grant.stop();
                    return self.look_at_grant(id, pipe);
                }
                let running = self.operations.get_mut(&id);
                let work = running.map(|running| {
                    running.is_stopped = true;
                    &running.work
                });
                match work {
                    Some(Work::Moving(transfer)) => {
                        transfer.canceller().cancel();
                        self.look(id, pipe)
                    }
                    Some(Work::Connecting { .. }) => {
                        self.end_operation(id, Outcome::Stopped { leading_bytes: 0 }, pipe)
                    }
                    None => {
                        pipe.forget(id);
                        Ok(())
                    }
                }
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
        if let Some(op) = self.payload.handle(&event) {
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
        while let Some(news) = self.ready.pop() {
            match news {
                News::Operation(id) => self.look(id, pipe)?,
                News::Grant(id) => self.look_at_grant(id, pipe)?,
                News::Turn(id, ticket) => {
                    let known = self.reservations.get_mut(&id);
                    if let Some(known) = known.filter(|known| known.place.ticket == ticket) {
                        known.has_turn = true;
                        pipe.send(&Message::Entered { id })?;
                    }
                }
            }
        }
        Ok(())
    }

    fn closed(&mut self, reason: SessionError) {
        let fault = Fault::new(ErrorClass::Caller, reason.to_string());
        self.payload.close(&fault);
        // No write begins any more before one that is under way is told.
        for grant in self.grants.values() {
            self.serving.order().revoke(&grant.token);
        }
        self.grants.drain().for_each(|(_, grant)| grant.stop());
        let all: Vec<Running> = self
            .operations
            .drain()
            .map(|(_, running)| running)
            .collect();
        for running in &all {
            if let Work::Moving(transfer) = &running.work {
                transfer.canceller().cancel();
            }
        }
        // Others must not touch the bytes before these are quiet. What waited for the peer has failed already.
        for running in all {
            if let Work::Moving(transfer) = running.work {
                transfer.cancel();
            }
        }
        self.reservations.clear();
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

/// Returns a new token.
fn token() -> Result<[u8; 16], Fault> {
    let mut token = [0; 16];
    transload_remote::fill_random(&mut token)
        .map_err(|reason| Fault::new(ErrorClass::Failed, reason.to_string()))?;
    Ok(token)
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
