//! The operations of a session.

use std::future::Future;
use std::pin::Pin;
use std::string::ToString;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use transload_hal::{ErrorClass, Fault};
use transload_remote::wire::{
    self, EAGER_WINDOW, MOST_EAGER, Message, Network, Outcome, ProtocolError,
};
use transload_remote::{GrantedBytes, Pipe, PublicKey, Remote, STREAMS, misplaced};

use super::super::grant::Write;
use super::super::order::Place;
use super::super::ready::{News, Woken};
use super::{Guest, Leased, MOST_OPERATIONS, class, mistake, refused};
use crate::{Region, Request, Transfer, TransferError};

/// An operation under way. Holds what it touches.
pub(super) struct Running {
    pub(super) work: Work,
    waker: Waker,
    /// The address of the other node that its bytes go to.
    node: Option<String>,
    /// The peer has stopped it.
    pub(super) is_stopped: bool,
    len_bytes: u64,
    eager_bytes: u64,
    held: Vec<Held>,
}

impl Running {
    /// Returns whether nothing has it stopped before its bytes have moved.
    fn is_left_alone(&self) -> bool {
        let is_granted = |held: &Held| matches!(held, Held::Granted(_));
        !self.is_stopped && !self.held.iter().any(is_granted)
    }

    /// Returns whether a write by a grant, which was stopped, was stopped by the session that granted.
    fn is_cut_off(&self) -> bool {
        !self.is_stopped
            && self
                .held
                .iter()
                .any(|held| matches!(held, Held::Granted(_)))
    }
}

pub(super) enum Work {
    /// The session with another node is not known yet.
    Connecting {
        src: Region,
        bytes: GrantedBytes,
        found: Arc<OnceLock<Found>>,
    },
    Moving(Transfer),
}

/// The session with another node, or why there is none.
pub(super) type Found = Result<Arc<Remote>, Fault>;

/// What an operation holds while it is under way.
pub(super) enum Held {
    Lease {
        _lease: Arc<Leased>,
        _place: Option<Arc<Place>>,
    },
    Granted(Write),
}

impl Guest {
    /// Begins a write of bytes that another session has granted.
    pub(super) fn write_granted(
        &mut self,
        stream: Region,
        token: &[u8; 16],
        (offset, len): (u64, u64),
    ) -> Result<(Region, Region, Vec<Held>), Fault> {
        let grant = self.serving.order().granted(token);
        let grant = grant.ok_or_else(|| mistake("there is no grant of that token".into()))?;
        let (write, dst) = grant.begin(offset, len)?;
        Ok((stream, dst, vec![Held::Granted(write)]))
    }

    /// Starts a copy to bytes that another node has granted.
    pub(super) fn forward(
        &mut self,
        (id, reservation): (u64, u64),
        src: wire::Place,
        bytes: GrantedBytes,
        (address, key): (String, PublicKey),
    ) -> Result<Running, Fault> {
        let nodes = self.serving.nodes.as_ref().ok_or_else(|| {
            let message = "this node does not connect to others for its clients";
            Fault::new(ErrorClass::Unsupported, message)
        })?;
        let (held, src) = self.end(src, bytes.len_bytes, reservation, false)?;
        let found = Arc::<OnceLock<Found>>::default();
        let (told, ready) = (Arc::clone(&found), Arc::clone(&self.ready));
        let tell = move |remote| {
            let _ = told.set(remote);
            ready.tell(News::Operation(id));
        };
        nodes.reach(&address, key, Box::new(tell));
        Ok(Running {
            work: Work::Connecting { src, bytes, found },
            waker: self.waker(id),
            node: Some(address),
            is_stopped: false,
            len_bytes: bytes.len_bytes,
            eager_bytes: 0,
            held: vec![held],
        })
    }

    fn waker(&self, id: u64) -> Waker {
        let ready = Arc::clone(&self.ready);
        Arc::new(Woken { ready, id }).into()
    }

    pub(super) fn stream(
        &self,
        op: u64,
        (len, network): (u64, Network),
        is_taken: bool,
        pipe: &Pipe,
    ) -> Result<Region, Fault> {
        let fault = pipe.ucx_fault().filter(|_| network == Network::Ucx);
        if let Some(reason) = fault {
            let message = format!("UCX: {reason}");
            return Err(Fault::new(ErrorClass::Unsupported, message));
        }
        let stream = self.payload.stream(op, len, is_taken, network);
        // SAFETY: a stream is no memory: nothing else can touch it.
        let buffer = unsafe { self.serving.manager.adopt_native(STREAMS.into(), stream) };
        let buffer = buffer.map_err(|error| Fault::new(class(&error), error.to_string()))?;
        Ok((&buffer).into())
    }

    /// Starts an operation of the peer's, of whose bytes `eager_bytes` come unasked.
    pub(super) fn start(
        &mut self,
        id: u64,
        ends: Result<(Region, Region, Vec<Held>), Fault>,
        eager_bytes: u64,
        pipe: &mut Pipe,
    ) -> Result<(), ProtocolError> {
        let running = ends.map(|(src, dst, held)| {
            let len_bytes = src.shape().payload_bytes();
            let transfer = self.serving.manager.submit(&Request::new(src, dst));
            for held in &held {
                if let Held::Granted(write) = held {
                    write.started(transfer.canceller());
                }
            }
            Running {
                work: Work::Moving(transfer),
                waker: self.waker(id),
                node: None,
                is_stopped: false,
                len_bytes,
                eager_bytes,
                held,
            }
        });
        self.run(id, running, pipe)
    }

    /// Starts a write whose bytes follow at once.
    pub(super) fn start_eager(
        &mut self,
        id: u64,
        (at, apart): (wire::Place, Option<&wire::Elements>),
        (len, network): (u64, Network),
        reservation: u64,
        pipe: &mut Pipe,
    ) -> Result<(), ProtocolError> {
        let held = self.eager_bytes.saturating_add(len);
        if len > MOST_EAGER || held > EAGER_WINDOW || network != Network::Tls {
            let told = format!("{len} bytes follow a write, and {held} are held: too many");
            return Err(misplaced(told));
        }
        self.payload.announce(id, len);
        let ends = match self.operations.len() >= MOST_OPERATIONS {
            true => {
                let message = format!("{MOST_OPERATIONS} operations of the session are under way");
                Err(Fault::new(ErrorClass::Exhausted, message))
            }
            false => self
                .stream(id, (len, network), false, pipe)
                .and_then(|stream| {
                    let (held, dst) = self.end_apart(at, (apart, len), reservation, true)?;
                    Ok((stream, dst, vec![held]))
                }),
        };
        match ends {
            Ok(_) => self.eager_bytes += len,
            Err(_) => self.payload.forget(id, pipe),
        }
        self.start(id, ends, len, pipe)
    }

    pub(super) fn run(
        &mut self,
        id: u64,
        running: Result<Running, Fault>,
        pipe: &mut Pipe,
    ) -> Result<(), ProtocolError> {
        let running = match running {
            Ok(running) => running,
            Err(fault) => {
                check_owed(pipe)?;
                return pipe.send(&refused(id, fault));
            }
        };
        self.operations.insert(id, running);
        // What the engine has asked for on this thread.
        self.payload.woken(pipe)?;
        self.look(id, pipe)
    }

    /// Looks whether an operation is over, and tells the peer.
    pub(super) fn look(&mut self, id: u64, pipe: &mut Pipe) -> Result<(), ProtocolError> {
        let Some(running) = self.operations.get_mut(&id) else {
            return Ok(());
        };
        if let Work::Connecting { src, bytes, found } = &running.work {
            let Some(found) = found.get() else {
                return Ok(());
            };
            let begun = match (found, &self.serving.nodes) {
                (Ok(remote), Some(nodes)) => nodes.region(remote, *bytes),
                (Err(fault), _) => Err(fault.clone()),
                (_, None) => Err(mistake("the server connects to no other node".into())),
            };
            match begun {
                Ok(dst) => {
                    let transfer = self.serving.manager.submit(&Request::new(src.clone(), dst));
                    running.work = Work::Moving(transfer);
                }
                Err(fault) => return self.end_operation(id, Outcome::Failed(fault.into()), pipe),
            }
        }
        if running.is_left_alone() && self.payload.is_under_way(id, running.len_bytes) {
            // An event will tell. A look would have another thread listen meanwhile.
            return Ok(());
        }
        let Work::Moving(transfer) = &mut running.work else {
            return Ok(());
        };
        let mut context = Context::from_waker(&running.waker);
        let Poll::Ready(result) = Pin::new(transfer).poll(&mut context) else {
            return Ok(());
        };
        let outcome = match (result, &running.node) {
            (Ok(_), _) => Outcome::Done,
            (Err(TransferError::Cancelled { .. }), _) if running.is_cut_off() => {
                let fault = mistake("the session that granted the bytes stopped the write".into());
                Outcome::Failed(fault.into())
            }
            (Err(TransferError::Cancelled { leading_bytes }), _) => {
                Outcome::Stopped { leading_bytes }
            }
            (Err(error), None) => {
                Outcome::Failed(Fault::new(error.class(), error.to_string()).into())
            }
            (Err(error), Some(address)) => {
                let message = format!("writing to the node at {address}: {error}");
                // The other node's refusal is no mistake of the client's, which has another way.
                Outcome::Failed(Fault::new(ErrorClass::Failed, message).into())
            }
        };
        self.end_operation(id, outcome, pipe)
    }

    pub(super) fn end_operation(
        &mut self,
        id: u64,
        outcome: Outcome,
        pipe: &mut Pipe,
    ) -> Result<(), ProtocolError> {
        pipe.cancel(id);
        // What was asked for and has not come. The peer sends it, or tells that it does not.
        pipe.discard(id);
        self.payload.forget(id, pipe);
        let running = self.operations.remove(&id);
        self.eager_bytes -= running.as_ref().map_or(0, |running| running.eager_bytes);
        for held in running.into_iter().flat_map(|running| running.held) {
            if let Held::Granted(mut write) = held {
                write.ended(&outcome);
            }
        }
        check_owed(pipe)?;
        pipe.send(&Message::Ended { id, outcome })
    }
}

/// Checks that the peer does not owe the bytes of ever more operations that have ended.
fn check_owed(pipe: &Pipe) -> Result<(), ProtocolError> {
    match pipe.expecting() > 2 * MOST_OPERATIONS {
        true => {
            let told = "more operations than can be under way owe their bytes";
            Err(misplaced(told.into()))
        }
        false => Ok(()),
    }
}
