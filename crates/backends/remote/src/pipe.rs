//! Frames over a TLS channel, without a socket and without a thread.

mod incoming;
mod outgoing;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::VecDeque;
use std::time::Instant;

use incoming::Incoming;
use outgoing::Outgoing;
use transload_hal::HostSpan;

use crate::buffer::Buffer;
use crate::key::{PrivateKey, PublicKey};
use crate::messages::{self, FIRST_TAG};
use crate::tls::{Channel, ChannelError, Received};
use crate::wire::{Message, ProtocolError, Reach};

/// One side of a session as a state machine. The transport moves bytes: [`Pipe::space`] and [`Pipe::handle_received`]
/// take what arrived, [`Pipe::poll_output`] and [`Pipe::handle_sent`] give what is to be sent, [`Pipe::poll_event`] tells
/// what happened. The user sends messages and says where bulk data are.
///
/// Memory is bounded by the transport's pace. Bulk data are encrypted when the output has room, and input is decrypted
/// one record at a time when all earlier events were polled. The server's side also stops decrypting while its own
/// messages pile up, so that a client cannot make it queue answers; the client's side never does, so that the two
/// cannot wait for each other.
///
/// Bulk data belong to an operation, a number that both sides know. Spans of host memory are read while they are
/// [sent](Pipe::send_data) and written while they are [expected](Pipe::expect), by the thread that has the pipe; the pipe
/// drops its spans when it is dropped.
pub struct Pipe {
    channel: Channel,
    input: Buffer,
    output: Buffer,
    incoming: Incoming,
    outgoing: Outgoing,
    events: VecDeque<Event>,
    end: End,
    limit: Option<Instant>,
    /// The other network, or why there is none.
    ucx: Result<messages::Channel, String>,
    /// The tag of the last message over it.
    last_tag: u32,
}

/// What happened in a [`Pipe`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The peer sent a message.
    Message(Message),
    /// All bytes of an expected span have arrived. The pipe does not touch the span again.
    Arrived {
        /// The operation.
        op: u64,
        /// The offset of the span's first byte in the operation.
        offset: u64,
        /// The length of the span in bytes.
        len: u64,
    },
    /// All bytes of a sent span are encrypted. The pipe does not touch the span again; the peer may not have the bytes.
    Sent {
        /// The operation.
        op: u64,
        /// The offset of the span's first byte in the operation.
        offset: u64,
        /// The length of the span in bytes.
        len: u64,
    },
    /// A span that was to move over UCX has not, or in part. The pipe does not touch the span again.
    Failed {
        /// The operation.
        op: u64,
        /// The offset of the span's first byte in the operation.
        offset: u64,
        /// Why.
        reason: String,
    },
}

/// Why a pipe cannot go on.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipeError {
    /// TLS failed. The output may have an alert for the peer.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The peer does not keep to the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

impl Pipe {
    /// Starts the side that connects, to the node with the public key `node`.
    ///
    /// # Errors
    /// [`ChannelError::Tls`] if TLS does not take the key.
    pub fn client(key: &PrivateKey, node: PublicKey) -> Result<Pipe, ChannelError> {
        Channel::client(key, node).map(Pipe::new)
    }

    /// Starts the side that accepts, for clients with one of the keys `allowed`.
    ///
    /// # Errors
    /// [`ChannelError::Tls`] if TLS does not take the key.
    pub fn server(key: &PrivateKey, allowed: &[PublicKey]) -> Result<Pipe, ChannelError> {
        Channel::server(key, allowed).map(Pipe::new)
    }

    fn new(channel: Channel) -> Pipe {
        Pipe {
            incoming: Incoming::new(channel.is_client()),
            channel,
            input: Buffer::new(INPUT),
            output: Buffer::new(OUTPUT),
            outgoing: Outgoing::default(),
            events: VecDeque::new(),
            end: End::Open,
            limit: None,
            ucx: Err("the session has not begun".into()),
            last_tag: 0,
        }
    }

    /// Sets when the session ends at the latest, because the peer owes an answer. `None`: it has no such end.
    pub fn set_limit(&mut self, limit: Option<Instant>) {
        self.limit = limit;
    }

    pub(crate) fn limit(&self) -> Option<Instant> {
        self.limit
    }

    /// Opens the other network, or says why there is none. Sends how the peer reaches this side.
    pub(crate) fn open_ucx(
        &mut self,
        channel: Result<messages::Channel, String>,
    ) -> Result<(), ProtocolError> {
        let reach = match &channel {
            Ok(channel) => channel.reach(),
            Err(reason) => Reach::None {
                reason: reason.clone(),
            },
        };
        self.ucx = channel;
        self.send(&Message::Ucx(reach))
    }

    /// Says why there is no other network.
    pub(crate) fn refuse_ucx(&mut self, reason: String) {
        self.ucx = Err(reason);
    }

    pub(crate) fn ucx_mut(&mut self) -> Option<&mut messages::Channel> {
        self.ucx.as_mut().ok()
    }

    /// Returns why UCX does not carry the bytes of operations; `None` if it does.
    pub fn ucx_fault(&self) -> Option<&str> {
        match &self.ucx {
            Ok(channel) => channel.fault(),
            Err(reason) => Some(reason),
        }
    }

    /// Returns the tag of the next message over UCX.
    pub fn next_tag(&mut self) -> u32 {
        // The highest bit is UCX's side of it.
        self.last_tag = ((self.last_tag + 1) & (u32::MAX >> 1)).max(FIRST_TAG);
        self.last_tag
    }

    /// Sends a span as bytes of an operation over UCX as one message, or receives one, which has exactly as many bytes.
    /// [`Event::Sent`], [`Event::Arrived`] or [`Event::Failed`] follows.
    ///
    /// # Safety
    /// Until that event, or until the pipe is dropped, the span is valid: for reads, and no thread and no device writes it,
    /// if it is sent; for writes, and no thread and no device touches it, if it is received.
    pub unsafe fn move_data(
        &mut self,
        (op, offset): (u64, u64),
        tag: u32,
        span: HostSpan,
        is_sent: bool,
    ) {
        let started = match &mut self.ucx {
            // SAFETY: as the caller says.
            Ok(channel) => unsafe { channel.start((op, offset), tag, span, is_sent) },
            Err(reason) => Err(reason.clone()),
        };
        if let Err(reason) = started {
            let reason = format!("UCX: {reason}");
            self.events.push_back(Event::Failed { op, offset, reason });
        }
    }

    /// Returns the peer's key once TLS is established.
    pub fn peer(&self) -> Option<PublicKey> {
        self.channel.peer()
    }

    /// Returns whether the peer has said that it sends nothing more, and everything before that was polled.
    pub fn is_ended(&self) -> bool {
        self.channel.is_ended()
    }

    /// Returns whether messages wait for room in the output.
    pub fn has_messages(&self) -> bool {
        self.outgoing.queued() > 0
    }

    /// Returns where received bytes go. It is empty while events have to be polled, or output to be sent, first.
    pub fn space(&mut self) -> &mut [u8] {
        self.input.has_space(INPUT / 4);
        self.input.space()
    }

    /// Takes the first `len` bytes of the space as received.
    pub fn handle_received(&mut self, len: usize) {
        self.input.fill(len);
    }

    /// Returns what happened next; `None` until further bytes are received or sent.
    ///
    /// # Errors
    /// A [`PipeError`] ends the session: nothing that the peer sends afterwards has a meaning.
    pub fn poll_event(&mut self) -> Result<Option<Event>, PipeError> {
        if let Ok(channel) = &mut self.ucx {
            channel.poll(&mut self.events);
            if let Some(word) = channel.poll_word() {
                self.outgoing.send(&Message::Ucx(word))?;
            }
        }
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let is_clogged = !self.channel.is_client() && self.outgoing.queued() > MOST_QUEUED;
            // Sealing leaves the reserve free, so that two sides with full outputs still read.
            if is_clogged || !self.output.has_space(Channel::RESERVE) {
                return Ok(None);
            }
            let (incoming, events) = (&mut self.incoming, &mut self.events);
            let accept = |plain: &[u8]| Ok(incoming.accept(plain, events)?);
            let input = &mut self.input;
            let received = self
                .channel
                .receive::<PipeError>(input, &mut self.output, accept)?;
            if received == Received::Nothing {
                return Ok(None);
            }
        }
    }

    /// Returns bytes for the peer: as much of what is to be sent as the output has room for, messages first. Reads
    /// spans that are being sent.
    ///
    /// # Errors
    /// [`PipeError::Channel`] if TLS cannot encrypt.
    pub fn poll_output(&mut self) -> Result<&[u8], PipeError> {
        if self.channel.is_open() {
            self.outgoing
                .seal(&mut self.channel, &mut self.output, &mut self.events)?;
            let is_due = self.end == End::Due && !self.has_messages();
            if is_due && self.output.has_space(Channel::RESERVE) {
                self.channel.close(&mut self.output)?;
                self.end = End::Sent;
            }
        }
        Ok(self.output.filled())
    }

    /// Takes the first `len` bytes of the output as sent.
    pub fn handle_sent(&mut self, len: usize) {
        self.output.take(len);
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`ProtocolError::TooLong`] if it has more than [`LONGEST_CONTROL`](crate::wire::LONGEST_CONTROL) bytes, or
    /// [`LONGEST_INVENTORY`](crate::wire::LONGEST_INVENTORY). Nothing is sent then.
    pub fn send(&mut self, message: &Message) -> Result<(), ProtocolError> {
        self.outgoing.send(message)
    }

    /// Sends the bytes of a span as those from `offset` on of an operation. Operations take turns, frame by frame; the
    /// spans of one operation go out in the order of the calls.
    ///
    /// # Safety
    /// The span's bytes are initialised and valid for reads, and no thread and no device writes them, until
    /// [`Event::Sent`] tells of the span, [`Pipe::cancel`] is called, or the pipe is dropped.
    pub unsafe fn send_data(&mut self, op: u64, offset: u64, span: HostSpan) {
        if span.is_empty() {
            self.events.push_back(Event::Sent { op, offset, len: 0 });
        } else {
            self.outgoing.send_data(op, offset, span);
        }
    }

    /// Drops the bytes of an operation that are not encrypted yet; their memory is not touched again, and no
    /// [`Event::Sent`] tells of their spans. Returns the offset of the first byte that the peer does not get; `None` if
    /// there was nothing to drop.
    pub fn cancel(&mut self, op: u64) -> Option<u64> {
        self.outgoing.cancel(op)
    }

    /// As [`Pipe::cancel`], of the span that begins at `offset` alone. Returns whether it was there.
    pub fn cancel_span(&mut self, op: u64, offset: u64) -> bool {
        self.outgoing.cancel_span(op, offset)
    }

    /// Says where the bytes from `offset` on of an operation go. An operation may expect several spans, which do not
    /// overlap unless they are discarded; bytes come in any order, and each once.
    ///
    /// # Safety
    /// The span is valid for writes, and no thread and no device touches it, until [`Event::Arrived`] tells of the span,
    /// [`Pipe::discard`] or [`Pipe::forget`] is called, or the pipe is dropped.
    pub unsafe fn expect(&mut self, op: u64, offset: u64, span: HostSpan) {
        if span.is_empty() {
            self.events.push_back(Event::Arrived { op, offset, len: 0 });
        } else {
            let len = span.len() as u64;
            self.incoming.expect(op, offset, len, Some(span));
        }
    }

    /// Receives the bytes that an operation still expects without storing them; the memory is not touched again, and no
    /// [`Event::Arrived`] tells of the spans. For an operation that this side has stopped, until the peer's last data.
    pub fn discard(&mut self, op: u64) {
        self.incoming.discard(op);
        self.untell(op, |_| true);
    }

    /// Receives the first `len` bytes of an operation, which come unasked, without storing them.
    pub fn ignore(&mut self, op: u64, len: u64) {
        if len > 0 {
            self.incoming.expect(op, 0, len, None);
        }
    }

    /// As [`Pipe::discard`], of the span that begins at `offset` alone.
    pub fn discard_span(&mut self, op: u64, offset: u64) {
        self.incoming.discard_span(op, offset);
        self.untell(op, |at| at == offset);
    }

    /// Expects no more bytes of an operation; the memory is not touched again. Bytes that come nevertheless are an
    /// error of the peer. For an operation that has ended.
    pub fn forget(&mut self, op: u64) {
        self.incoming.forget(op);
        self.untell(op, |_| true);
    }

    /// Drops what was not polled yet of spans that have arrived: a later operation may have the number.
    fn untell(&mut self, op: u64, is_meant: impl Fn(u64) -> bool) {
        self.events.retain(|event| match event {
            Event::Arrived { op: of, offset, .. } => *of != op || !is_meant(*offset),
            _ => true,
        });
    }

    /// Returns of how many operations bytes are expected, or still come and are discarded.
    pub fn expecting(&self) -> usize {
        self.incoming.operations()
    }

    /// Returns the offset of the first byte of an operation that has not been encrypted, or that has not arrived, in the
    /// first span that is being sent or expected; `None` if there is none.
    pub fn progress(&self, op: u64) -> Option<u64> {
        self.outgoing
            .progress(op)
            .or_else(|| self.incoming.progress(op))
    }

    /// Lets go of all spans, and ends this side's direction after what is encrypted, the messages and this last one.
    pub fn close(&mut self, last: Option<&Message>) {
        self.incoming.clear();
        self.outgoing.clear();
        self.events.clear();
        if self.end == End::Open {
            // One that is too long is left out; it has no other consequence.
            let _ = last.map(|message| self.outgoing.send(message));
            self.end = End::Due;
        }
    }
}

/// Where this side's direction is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Open,
    /// The alert that ends it is to be sent after all else.
    Due,
    Sent,
}

/// How much is read from the socket at once: seven full records. On an EPYC with 1 MiB of L2 per core, 64 KiB and 256 KiB
/// were slower over the loopback device.
const INPUT: usize = 128 << 10;

/// How much is encrypted ahead of the socket: two data frames of [`outgoing::FRAME`] in records, and the reserve.
const OUTPUT: usize = 2 * outgoing::SEALED_FRAME + Channel::RESERVE;

/// How many bytes of messages may wait for the client before the server's side stops reading: those that a node sends at
/// once, the answers to some thousand requests.
const MOST_QUEUED: usize = 256 << 10;
