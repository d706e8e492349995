//! The thread of a session.

use std::convert::Infallible;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token, Waker};

use super::error::{SessionError, Step, millis};
use super::handle::{SessionHandle, Shared};
use super::socket::{self, Socket};
use super::{Handler, Options, Peer};
use crate::messages::Channel;
use crate::misplaced;
use crate::pipe::{Event, Pipe};
use crate::tls::ChannelError;
use crate::wire::{Message, ProtocolError, Reach, VERSION, truncate};

/// Where the connection comes from.
pub(super) enum Origin {
    Connect,
    Accepted(TcpStream),
}

/// Starts the thread of a session.
pub(super) fn start(
    address: String,
    origin: Origin,
    pipe: Result<Pipe, ChannelError>,
    mut handler: Box<dyn Handler>,
    options: Options,
) -> Result<SessionHandle, SessionError> {
    let failed = |source: io::Error| SessionError::Start {
        address: address.clone(),
        source: Arc::new(source),
    };
    let pipe =
        pipe.map_err(|error| SessionError::of_pipe(error.into(), &address, Step::Handshake))?;
    let poll = Poll::new().map_err(failed)?;
    let waker = Waker::new(poll.registry(), BELL).map_err(failed)?;
    let shared = Shared::new(waker);
    let of_thread = Arc::clone(&shared);
    let name = address.clone();
    let started = shared.spawn(move || {
        let step = Step::Connect;
        let reason = match open(&name, origin, &options, &poll) {
            Err(reason) => reason,
            Ok(socket) => {
                let now = Instant::now();
                let mut run = Run {
                    address: name,
                    options,
                    shared: of_thread,
                    poll,
                    events: Events::with_capacity(4),
                    socket,
                    pipe,
                    step,
                    times: Times::new(now),
                    owes_pong: false,
                    is_cut: false,
                    opening: None,
                };
                run.run(&mut *handler)
            }
        };
        handler.closed(reason);
    });
    started.map_err(failed)?;
    Ok(SessionHandle { shared })
}

fn open(
    address: &str,
    origin: Origin,
    options: &Options,
    poll: &Poll,
) -> Result<Socket, SessionError> {
    let opened = match origin {
        Origin::Accepted(stream) => Ok(stream),
        Origin::Connect => socket::connect(address, options.connect),
    };
    let failed = |(step, source): (Step, io::Error)| match source.kind() {
        io::ErrorKind::TimedOut => SessionError::Timeout {
            address: address.to_owned(),
            step,
            limit_ms: millis(options.connect),
        },
        _ => SessionError::Io {
            address: address.to_owned(),
            step,
            source: Arc::new(source),
        },
    };
    let stream = opened.map_err(failed)?;
    let socket = Socket::new(stream, options, poll.registry());
    socket.map_err(|error| failed((Step::Connect, error)))
}

struct Run {
    address: String,
    options: Options,
    shared: Arc<Shared>,
    poll: Poll,
    events: Events,
    socket: Socket,
    pipe: Pipe,
    step: Step,
    times: Times,
    /// The peer waits for a `Pong`. One is enough for any number of pings.
    owes_pong: bool,
    /// The peer's bytes have ended.
    is_cut: bool,
    /// UCX is being opened, on a thread of its own. Meanwhile only heartbeats go, and the peer's messages wait.
    opening: Option<Opening>,
}

struct Opening {
    peer: Peer,
    channel: mpsc::Receiver<Result<Channel, String>>,
}

/// When things happened last.
struct Times {
    start: Instant,
    received: Instant,
    sent: Instant,
    ping: Instant,
}

impl Times {
    fn new(now: Instant) -> Times {
        Times {
            start: now,
            received: now,
            sent: now,
            ping: now,
        }
    }

    /// When the next `Ping` is due. A side pings also when it has sent nothing: the peer then hears it even if its own
    /// ping waits behind bulk data.
    fn next_ping(&self, options: &Options) -> Instant {
        self.received.min(self.sent).max(self.ping) + options.ping_after
    }
}

impl Run {
    fn run(&mut self, handler: &mut dyn Handler) -> SessionError {
        self.step = Step::Handshake;
        let Err(reason) = self.serve(handler);
        self.part(&reason);
        reason
    }

    /// Moves bytes until the session ends.
    fn serve(&mut self, handler: &mut dyn Handler) -> Result<Infallible, SessionError> {
        let mut is_woken = false;
        loop {
            is_woken |= self.shared.bell.answer();
            if is_woken && self.shared.is_closing() {
                let address = self.address.clone();
                return Err(SessionError::Closed { address });
            }
            if is_woken && self.step == Step::Open && self.opening.is_none() {
                is_woken = false;
                let done = handler.woken(&mut self.pipe);
                done.map_err(|error| self.misled(error))?;
            }
            let now = Instant::now();
            let mut has_moved = self.read(now)?;
            has_moved |= self.handle_events(handler)?;
            self.check_times(now)?;
            has_moved |= match self.write(now) {
                Ok(has_written) => has_written,
                Err(error) => return Err(self.last_word(handler, error)),
            };
            has_moved |= self.end_opening(handler)?;
            has_moved |= self.handle_events(handler)?;
            if self.is_cut {
                let (address, step) = (self.address.clone(), self.step);
                return Err(SessionError::Cut { address, step });
            }
            if !has_moved {
                self.wait(now)?;
            }
        }
    }

    /// Reads once. Returns whether anything came.
    fn read(&mut self, now: Instant) -> Result<bool, SessionError> {
        match self.socket.read(self.pipe.space()) {
            Ok(None) => Ok(false),
            Ok(Some(0)) => {
                self.is_cut = true;
                Ok(true)
            }
            Ok(Some(len)) => {
                self.times.received = now;
                self.pipe.handle_received(len);
                Ok(true)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Encrypts what there is room for, and writes once. Returns whether anything went.
    fn write(&mut self, now: Instant) -> Result<bool, SessionError> {
        if self.owes_pong && !self.pipe.has_messages() {
            self.owes_pong = false;
            self.send(&Message::Pong)?;
        }
        let output = self.pipe.poll_output();
        let output =
            output.map_err(|error| SessionError::of_pipe(error, &self.address, self.step))?;
        match self.socket.write(output) {
            Ok(None) => Ok(false),
            Ok(Some(len)) => {
                self.times.sent = now;
                self.pipe.handle_sent(len);
                Ok(true)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn handle_events(&mut self, handler: &mut dyn Handler) -> Result<bool, SessionError> {
        let mut has_any = false;
        loop {
            if self.opening.is_some() {
                return Ok(has_any);
            }
            let event = self.pipe.poll_event();
            if self.step == Step::Handshake && self.pipe.peer().is_some() {
                self.step = Step::Hello;
                self.send(&Message::Hello {
                    version: VERSION,
                    trusted_network: self.options.trusted_network,
                })?;
                has_any = true;
            }
            let event =
                event.map_err(|error| SessionError::of_pipe(error, &self.address, self.step))?;
            let Some(event) = event else {
                break;
            };
            has_any = true;
            self.handle(event, handler)?;
        }
        if self.pipe.is_ended() {
            let reason = "it gave no reason".into();
            let address = self.address.clone();
            return Err(SessionError::PeerClosed { address, reason });
        }
        Ok(has_any)
    }

    fn handle(&mut self, event: Event, handler: &mut dyn Handler) -> Result<(), SessionError> {
        let handled = match event {
            Event::Message(Message::Hello {
                version,
                trusted_network,
            }) if self.step == Step::Hello => match version {
                VERSION => return self.greet(trusted_network, handler),
                theirs => Err(ProtocolError::Version {
                    ours: VERSION,
                    theirs,
                }),
            },
            Event::Message(Message::Bye { mut reason }) => {
                truncate(&mut reason);
                let address = self.address.clone();
                return Err(SessionError::PeerClosed { address, reason });
            }
            Event::Message(Message::Hello { .. }) => Err(ProtocolError::Hello),
            _ if self.step != Step::Open => Err(ProtocolError::Hello),
            Event::Message(Message::Ping) => {
                self.owes_pong = true;
                Ok(())
            }
            Event::Message(Message::Pong) => Ok(()),
            Event::Message(Message::Ucx(reach)) => self.reach(reach),
            event => handler.handle(event, &mut self.pipe),
        };
        handled.map_err(|error| self.misled(error))
    }

    fn greet(
        &mut self,
        trusted_network: bool,
        handler: &mut dyn Handler,
    ) -> Result<(), SessionError> {
        let address = self
            .socket
            .peer_addr()
            .map_err(|error| self.failed(error))?;
        let Some(key) = self.pipe.peer() else {
            return Ok(());
        };
        self.step = Step::Open;
        let peer = Peer {
            key,
            address,
            trusted_network,
        };
        let reason = match (self.options.trusted_network, trusted_network) {
            (true, true) => {
                let channel = self.open_ucx();
                self.opening = Some(Opening { peer, channel });
                return Ok(());
            }
            (true, false) => "the other machine does not take the network for trusted",
            (false, _) => "this machine does not take the network for trusted",
        };
        self.pipe.refuse_ucx(reason.to_owned());
        let opened = handler.opened(peer, &mut self.pipe);
        opened.map_err(|error| self.misled(error))
    }

    /// Begins to open the other network.
    fn open_ucx(&self) -> mpsc::Receiver<Result<Channel, String>> {
        let (tell, told) = mpsc::channel();
        let session = SessionHandle {
            shared: Arc::clone(&self.shared),
        };
        let (options, address) = (self.options.clone(), self.socket.local_addr());
        let open = move || {
            let channel = match address {
                Ok(address) => Channel::open(address, session.clone(), options),
                Err(error) => Err(error.to_string()),
            };
            // The session may have ended.
            let _ = tell.send(channel);
            session.wake();
        };
        // Without a thread, the receiver finds that no answer comes.
        let _ = { thread::Builder::new().name("transload-open".into()) }.spawn(open);
        told
    }

    /// Takes in that the other network is open, or why it is not.
    fn end_opening(&mut self, handler: &mut dyn Handler) -> Result<bool, SessionError> {
        let Some(opening) = &self.opening else {
            return Ok(false);
        };
        let channel = match opening.channel.try_recv() {
            Ok(channel) => channel,
            Err(TryRecvError::Empty) => return Ok(false),
            Err(TryRecvError::Disconnected) => Err("the system gives no thread".to_owned()),
        };
        let told = self.pipe.open_ucx(channel);
        told.map_err(|error| self.misled(error))?;
        if let Some(Opening { peer, .. }) = self.opening.take() {
            let opened = handler.opened(peer, &mut self.pipe);
            opened.map_err(|error| self.misled(error))?;
        }
        Ok(true)
    }

    /// Takes in how UCX reaches the peer.
    fn reach(&mut self, reach: Reach) -> Result<(), ProtocolError> {
        match (self.pipe.ucx_mut(), reach) {
            (Some(channel), Reach::Worker { address, checksums }) => {
                match channel.connect(&address, checksums) {
                    true => Ok(()),
                    false => Err(misplaced("it says twice how UCX reaches it".into())),
                }
            }
            (Some(channel), Reach::None { mut reason }) => {
                truncate(&mut reason);
                channel.abandon(format!("at the other machine: {reason}"));
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    fn misled(&self, error: ProtocolError) -> SessionError {
        SessionError::of_pipe(error.into(), &self.address, self.step)
    }

    /// The peer's last words, which may have arrived before the connection broke, say more than the system's error.
    fn last_word(&mut self, handler: &mut dyn Handler, error: SessionError) -> SessionError {
        let now = Instant::now();
        loop {
            match self.read(now) {
                Ok(true) if !self.is_cut => {}
                _ => return error,
            }
            if let Err(reason) = self.handle_events(handler) {
                return reason;
            }
        }
    }

    /// Ends a session that took too long, and pings.
    fn check_times(&mut self, now: Instant) -> Result<(), SessionError> {
        let (address, step) = (&self.address, self.step);
        if step != Step::Open {
            if now >= self.times.start + self.options.handshake {
                return Err(SessionError::Timeout {
                    address: address.clone(),
                    step,
                    limit_ms: millis(self.options.handshake),
                });
            }
            return Ok(());
        }
        let silence = now.saturating_duration_since(self.times.received);
        if silence >= self.options.silent_after {
            return Err(SessionError::Silent {
                address: address.clone(),
                ms: millis(silence),
            });
        }
        if self.pipe.limit().is_some_and(|limit| now >= limit) {
            return Err(SessionError::Overdue {
                address: address.clone(),
            });
        }
        if let Some(channel) = self.pipe.ucx_mut() {
            channel.handle_time(now);
        }
        if now >= self.times.next_ping(&self.options) {
            self.times.ping = now;
            self.send(&Message::Ping)?;
        }
        Ok(())
    }

    /// Sleeps until the socket is ready, the bell rings or a time has come.
    fn wait(&mut self, now: Instant) -> Result<(), SessionError> {
        let until = match self.step {
            Step::Open => {
                let silent = self.times.received + self.options.silent_after;
                let ping = self.times.next_ping(&self.options);
                let ucx = self.pipe.ucx_mut().and_then(|channel| channel.next_time());
                { self.pipe.limit().into_iter().chain(ucx) }.fold(silent.min(ping), Instant::min)
            }
            _ => self.times.start + self.options.handshake,
        };
        if self.shared.bell.doze() {
            self.poll(until.saturating_duration_since(now))?;
        }
        Ok(())
    }

    fn poll(&mut self, limit: Duration) -> Result<(), SessionError> {
        match self.poll.poll(&mut self.events, Some(limit)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                return Err(self.failed(error));
            }
            _ => {}
        }
        for event in self
            .events
            .iter()
            .filter(|event| event.token() == socket::SOCKET)
        {
            self.socket.handle(event);
        }
        Ok(())
    }

    /// Lets go of all spans, tells the peer why the session ends, and waits until it has read that: closing a socket
    /// with unread bytes could destroy what is under way.
    fn part(&mut self, reason: &SessionError) {
        let last = match reason {
            SessionError::Closed { .. } => Some("it was closed".to_owned()),
            SessionError::Protocol { source, .. } => Some(source.to_string()),
            _ => None,
        };
        let last = last.map(|mut reason| {
            truncate(&mut reason);
            Message::Bye { reason }
        });
        self.pipe.close(last.as_ref());
        match reason {
            // No byte reaches the peer any more.
            SessionError::Io { .. } | SessionError::Cut { .. } => {}
            SessionError::Silent { .. } => {
                if let Some(channel) = self.pipe.ucx_mut() {
                    channel.abandon("the other side is silent".to_owned());
                }
            }
            _ => self.linger(),
        }
    }

    fn linger(&mut self) {
        let until = Instant::now() + self.options.close;
        let mut has_ended = false;
        let mut dropped = [0; 4096];
        loop {
            while !has_ended {
                let Ok(output) = self.pipe.poll_output() else {
                    return;
                };
                if output.is_empty() {
                    has_ended = true;
                    if self.socket.end().is_err() {
                        return;
                    }
                } else {
                    match self.socket.write(output) {
                        Ok(Some(len)) => self.pipe.handle_sent(len),
                        Ok(None) => break,
                        Err(_) => return,
                    }
                }
            }
            let is_quiet = match self.socket.read(&mut dropped) {
                Ok(Some(0)) | Err(_) => return,
                Ok(came) => came.is_none(),
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || (is_quiet && self.poll(left).is_err()) {
                return;
            }
        }
    }

    fn send(&mut self, message: &Message) -> Result<(), SessionError> {
        let sent = self.pipe.send(message);
        sent.map_err(|error| SessionError::of_pipe(error.into(), &self.address, self.step))
    }

    fn failed(&self, source: io::Error) -> SessionError {
        SessionError::Io {
            address: self.address.clone(),
            step: self.step,
            source: Arc::new(source),
        }
    }
}

const BELL: Token = Token(1);
