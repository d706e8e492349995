//! What one session moves over UCX.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use transload_hal::HostSpan;

use super::{EndpointId, Event, Options, Ucx, Worker};
use crate::pipe;
use crate::session::SessionHandle;
use crate::wire::Reach;

/// The tags of messages without bytes, by which a side asks whether the other one still hears it, and answers. Those of
/// ranges follow.
const ASK: u32 = 0;
const ANSWER: u32 = 1;
pub(crate) const FIRST_TAG: u32 = 2;

/// Set in the tag of the message with the checksum of a range.
const OF_SUM: u32 = 1 << 31;

/// The messages of one session over UCX. A message once begun is sent and received, whatever becomes of its operation,
/// because UCX takes no message back.
///
/// Before version 1.22, UCX does not see that a peer is gone while data for it is under way. So a side with messages under way
/// asks the other one over UCX itself, and gives UCX up after [`crate::Options::silent_after`] without any sign.
///
/// Dropping the channel blocks until UCX touches no memory of its messages any more, at most some 2 s.
pub(crate) struct Channel {
    /// Its own, because only the end of a worker ends all receives: UCX 1.22 leaves some that a peer has begun and died in.
    /// Dropped before the memory of the messages.
    worker: Worker,
    inbox: Arc<Inbox>,
    endpoint: Option<EndpointId>,
    messages: HashMap<u32, Kind>,
    last: u32,
    /// The ranges whose messages are under way, by the number of the first.
    ranges: HashMap<u32, Range>,
    /// Each range is followed by its checksum.
    checks: bool,
    limits: crate::Options,
    /// Of the messages under way: the last sign of the other side, and when it was asked last.
    heard: Instant,
    asked: Instant,
    lost: Option<String>,
    /// The other side does not know that it is lost.
    owes_word: bool,
}

/// A message under way.
#[derive(Clone, Copy)]
enum Kind {
    /// The bytes of a range, or its checksum: the range, and how many bytes the message has.
    Of(u32, usize),
    /// A receive for [`ASK`] or [`ANSWER`].
    Listening(u32),
    /// A send of one.
    Saying,
}

/// Some bytes of an operation.
struct Range {
    op: u64,
    offset: u64,
    span: HostSpan,
    is_sent: bool,
    /// Messages that are under way.
    left: usize,
    sum: Box<[u8; 8]>,
    fault: Option<String>,
}

/// What the worker tells the session.
struct Inbox {
    session: SessionHandle,
    events: Mutex<Vec<Event>>,
}

impl Inbox {
    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        // Each change is whole when it may panic.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the name of the interface that has the address.
fn interface(address: IpAddr) -> Result<String, String> {
    let address = address.to_canonical();
    let all = if_addrs::get_if_addrs().map_err(|error| error.to_string())?;
    let found = all.into_iter().find(|interface| interface.ip() == address);
    let found = found.ok_or_else(|| format!("no interface has the address {address}"))?;
    Ok(found.name)
}

/// How many descriptors a process must be able to open before UCX opens a worker. One over TCP takes 17 at most; UCX aborts the
/// process if it gets no more.
const SPARE: usize = 64;

/// Held while a worker opens, so that two do not count on the same descriptors.
static OPENING: Mutex<()> = Mutex::new(());

fn check_spare() -> Result<(), String> {
    let all = (0..SPARE).map(|_| eventfd(0, EventfdFlags::CLOEXEC));
    let all: Result<Vec<_>, _> = all.collect();
    all.map(drop)
        .map_err(|error| format!("it needs {SPARE} descriptors to spare: {error}"))
}

pub(crate) fn version() -> Result<String, String> {
    let ucx = Ucx::load(None).map_err(|error| error.to_string())?;
    Ok(ucx.version().to_string())
}

impl Channel {
    /// Opens the channel of a session that has `address` on this side. Blocks until UCX has opened its transports.
    pub(crate) fn open(
        address: SocketAddr,
        session: SessionHandle,
        limits: crate::Options,
    ) -> Result<Channel, String> {
        let ucx = Ucx::load(None).map_err(|error| error.to_string())?;
        let interface = interface(address.ip())?;
        // The user's choice may be the same network by a better way, as `mlx5_0:1` is for `ib0`.
        let is_chosen = std::env::var_os("UCX_NET_DEVICES").is_some_and(|names| !names.is_empty());
        let options = Options {
            net_devices: (!is_chosen).then(|| interface.clone()),
            ..Options::default()
        };
        let inbox = Arc::new(Inbox {
            session,
            events: Mutex::default(),
        });
        let told = Arc::clone(&inbox);
        let tell = move |event| {
            told.events().push(event);
            told.session.wake();
        };
        let _one = { OPENING.lock() }.unwrap_or_else(PoisonError::into_inner);
        check_spare()?;
        let worker = Worker::start(ucx, options, Box::new(tell));
        let now = Instant::now();
        Ok(Channel {
            worker: worker.map_err(|error| format!("{interface}: {error}"))?,
            inbox,
            endpoint: None,
            messages: HashMap::new(),
            last: 0,
            ranges: HashMap::new(),
            checks: limits.checksums,
            limits,
            heard: now,
            asked: now,
            lost: None,
            owes_word: false,
        })
    }

    /// Returns what the other side needs to reach this one.
    pub(crate) fn reach(&self) -> Reach {
        Reach::Worker {
            address: self.worker.address().to_vec(),
            checksums: self.checks,
        }
    }

    /// Takes in how the other side is reached. Returns false if it has said so before.
    pub(crate) fn connect(&mut self, address: &[u8], checks: bool) -> bool {
        if self.endpoint.is_some() {
            return false;
        }
        if self.lost.is_some() {
            return true;
        }
        self.checks |= checks;
        // SAFETY: the other side, which has proven its key and takes the network for trusted like this one, says that its
        // worker has the address.
        self.endpoint = Some(unsafe { self.worker.connect(address) });
        self.listen(ASK);
        self.listen(ANSWER);
        true
    }

    /// Returns why nothing moves over it.
    pub(crate) fn fault(&self) -> Option<&str> {
        match &self.endpoint {
            None if self.lost.is_none() => Some("the other side has not said how UCX reaches it"),
            _ => self.lost.as_deref(),
        }
    }

    fn begin(&mut self, kind: Kind) -> u64 {
        while self.messages.contains_key(&self.last) {
            self.last = self.last.wrapping_add(1);
        }
        self.messages.insert(self.last, kind);
        self.last.into()
    }

    /// Receives a message.
    ///
    /// # Safety
    /// As for [`Worker::receive`].
    unsafe fn receive(&mut self, kind: Kind, tag: u32, span: HostSpan) {
        let id = self.begin(kind);
        // SAFETY: as the caller says.
        unsafe { self.worker.receive(id, tag.into(), u64::MAX, span) };
    }

    /// Sends a message.
    ///
    /// # Safety
    /// As for [`Worker::send`].
    unsafe fn send(&mut self, kind: Kind, tag: u32, span: HostSpan) {
        if let Some(endpoint) = self.endpoint {
            let id = self.begin(kind);
            // SAFETY: as the caller says.
            unsafe { self.worker.send(id, endpoint, tag.into(), span) };
        }
    }

    fn listen(&mut self, tag: u32) {
        // SAFETY: there is no byte.
        unsafe { self.receive(Kind::Listening(tag), tag, HostSpan::of_mut(&mut [])) };
    }

    fn say(&mut self, tag: u32) {
        // SAFETY: there is no byte.
        unsafe { self.send(Kind::Saying, tag, HostSpan::of(&[])) };
    }

    /// Sends a range, or receives it.
    ///
    /// # Safety
    /// Until an event tells of the range, the span is valid: for reads, and no code writes it, if it is sent; for
    /// writes, and no other code touches it, if it is received.
    pub(crate) unsafe fn start(
        &mut self,
        range: (u64, u64),
        tag: u32,
        span: HostSpan,
        is_sent: bool,
    ) -> Result<(), String> {
        let sum = match self.checks && is_sent {
            // SAFETY: as the caller says.
            true => unsafe { sum(span) },
            false => 0,
        };
        // SAFETY: as the caller says.
        unsafe { self.start_with(range, tag, span, is_sent, sum) }
    }

    /// # Safety
    /// As for [`Channel::start`].
    unsafe fn start_with(
        &mut self,
        (op, offset): (u64, u64),
        tag: u32,
        span: HostSpan,
        is_sent: bool,
        sum: u64,
    ) -> Result<(), String> {
        if let Some(fault) = self.fault() {
            return Err(fault.to_owned());
        }
        if !self.is_busy() {
            let now = Instant::now();
            (self.heard, self.asked) = (now, now);
        }
        let mut range = Range {
            op,
            offset,
            span,
            is_sent,
            left: if self.checks { 2 } else { 1 },
            sum: Box::new(sum.to_le_bytes()),
            fault: None,
        };
        let sum = HostSpan::of_mut(&mut *range.sum);
        let mut number = self.last;
        while self.messages.contains_key(&number) || self.ranges.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        self.last = number;
        self.ranges.insert(number, range);
        let parts = [(tag, span), (tag | OF_SUM, sum)];
        for (tag, span) in parts.into_iter().take(if self.checks { 2 } else { 1 }) {
            let kind = Kind::Of(number, span.len());
            match is_sent {
                // SAFETY: as the caller says; the checksum is in the range, which stays until both messages are over.
                true => unsafe { self.send(kind, tag, span) },
                // SAFETY: as above.
                false => unsafe { self.receive(kind, tag, span) },
            }
        }
        Ok(())
    }

    /// Takes in what the worker has told, and adds what follows.
    pub(crate) fn poll(&mut self, events: &mut VecDeque<pipe::Event>) {
        let told = mem::take(&mut *self.inbox.events());
        for event in told {
            self.handle(event, events);
        }
    }

    fn handle(&mut self, event: Event, events: &mut VecDeque<pipe::Event>) {
        let (id, done) = match event {
            Event::Done { id, len } => (id, Ok(len)),
            Event::Failed { id, status } => (id, Err(status)),
            Event::EndpointLost { status, .. } => {
                // A side that gave UCX up before may still owe it.
                self.owes_word |= self.lost.is_none();
                return self.abandon(status.to_string());
            }
            Event::EndpointClosed { .. } => return,
        };
        let kind = self.messages.remove(&(id as u32));
        // A send may be over when UCX has a copy.
        let is_sign = match kind {
            Some(Kind::Of(number, _)) => self.ranges.get(&number).is_some_and(|of| !of.is_sent),
            Some(Kind::Listening(_)) => true,
            Some(Kind::Saying) | None => false,
        };
        if is_sign && done.is_ok() {
            self.heard = Instant::now();
        }
        match kind {
            Some(Kind::Of(number, wanted)) => {
                let fault = match (done, &self.lost) {
                    (Ok(len), _) if len == wanted => None,
                    (Ok(len), _) => Some(format!("a message has {len} bytes, and not {wanted}")),
                    (Err(_), Some(reason)) => Some(reason.clone()),
                    (Err(status), None) => Some(status.to_string()),
                };
                self.take_in(number, fault, events);
            }
            Some(Kind::Listening(tag)) if done.is_ok() && self.lost.is_none() => {
                self.listen(tag);
                if tag == ASK {
                    self.say(ANSWER);
                }
            }
            _ => {}
        }
    }

    /// Takes in that a message of a range is over.
    fn take_in(&mut self, number: u32, fault: Option<String>, events: &mut VecDeque<pipe::Event>) {
        let Some(range) = self.ranges.get_mut(&number) else {
            return;
        };
        range.left -= 1;
        range.fault = range.fault.take().or(fault);
        if range.left > 0 {
            return;
        }
        let Some(range) = self.ranges.remove(&number) else {
            return;
        };
        let Range {
            op, offset, span, ..
        } = range;
        let len = span.len() as u64;
        let is_whole = || {
            // SAFETY: the range has been received, and its memory is still this channel's.
            !self.checks || unsafe { sum(span) } == u64::from_le_bytes(*range.sum)
        };
        let reason = match range.fault {
            None if range.is_sent => {
                return events.push_back(pipe::Event::Sent { op, offset, len });
            }
            None if is_whole() => {
                return events.push_back(pipe::Event::Arrived { op, offset, len });
            }
            None => "the checksum of what came is not that of what was sent".to_owned(),
            Some(reason) => reason,
        };
        let reason = format!("UCX: {reason}");
        events.push_back(pipe::Event::Failed { op, offset, reason });
    }

    /// Returns what the other side must learn: why UCX is lost here.
    pub(crate) fn poll_word(&mut self) -> Option<Reach> {
        let reason = self
            .lost
            .clone()
            .filter(|_| mem::take(&mut self.owes_word))?;
        Some(Reach::None { reason })
    }

    /// Gives UCX up for this session: all that is under way fails.
    pub(crate) fn abandon(&mut self, reason: String) {
        if self.lost.is_none() {
            self.lost = Some(reason);
            self.worker.end();
        }
    }

    fn is_busy(&self) -> bool {
        self.lost.is_none() && !self.ranges.is_empty()
    }

    /// Returns when [`Channel::handle_time`] has something to do next.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        let ask = self.heard.max(self.asked) + self.limits.ping_after;
        let silent = self.heard + self.limits.silent_after;
        self.is_busy().then(|| ask.min(silent))
    }

    /// Asks a silent other side, and gives UCX up if it does not answer.
    pub(crate) fn handle_time(&mut self, now: Instant) {
        if self.next_time().is_none_or(|next| now < next) {
            return;
        }
        let silence = now.saturating_duration_since(self.heard);
        if silence < self.limits.silent_after {
            self.asked = now;
            return self.say(ASK);
        }
        self.owes_word = true;
        self.abandon(format!(
            "no sign of the other side for {} ms",
            silence.as_millis()
        ));
    }
}

/// Returns the checksum of bytes.
///
/// # Safety
/// The span is valid for reads, and no code writes it meanwhile.
unsafe fn sum(span: HostSpan) -> u64 {
    // SAFETY: as the caller says.
    xxhash_rust::xxh3::xxh3_64(unsafe { span.as_slice() })
}

#[cfg(test)]
mod tests;
