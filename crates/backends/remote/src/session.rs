//! Sessions: a pipe and a socket on a thread.

mod error;
mod handle;
mod run;
mod socket;

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub use error::{SessionError, Step};
pub use handle::SessionHandle;

use crate::key::{PrivateKey, PublicKey};
use crate::pipe::{Event, Pipe};
use crate::wire::ProtocolError;

/// Starts sessions. Each has a thread of its own, which connects, moves the bytes, calls the handler, and ends with the
/// session.
#[derive(Debug)]
pub struct Session;

impl Session {
    /// Connects to a node, `host:port`, that has the public key `node`. Does not block: the handler learns whether the
    /// session opened.
    ///
    /// # Errors
    /// [`SessionError::Address`] if `address` is none, [`SessionError::Start`] if the system gives no thread or no handle, and
    /// [`SessionError::Tls`] if TLS does not take the key; the handler is dropped without a call then.
    pub fn connect(
        address: impl Into<String>,
        key: &PrivateKey,
        node: PublicKey,
        handler: impl Handler + 'static,
        options: Options,
    ) -> Result<SessionHandle, SessionError> {
        let address = address.into();
        SessionError::check_address(&address)?;
        let pipe = Pipe::client(key, node);
        let origin = run::Origin::Connect;
        run::start(address, origin, pipe, Box::new(handler), options)
    }

    /// Serves a client that has connected, if its public key is one of `allowed`. Does not block: the handler learns
    /// whether the session opened, and with which key. A session takes a thread and 300 KiB before it knows the client's
    /// key; the caller limits how many it lets begin.
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn accept(
        stream: TcpStream,
        key: &PrivateKey,
        allowed: &[PublicKey],
        handler: impl Handler + 'static,
        options: Options,
    ) -> Result<SessionHandle, SessionError> {
        // A client that is gone already has no address.
        let address = stream
            .peer_addr()
            .map_or_else(|_| "a client".to_owned(), |address| address.to_string());
        let pipe = Pipe::server(key, allowed);
        let origin = run::Origin::Accepted(stream);
        run::start(address, origin, pipe, Box::new(handler), options)
    }
}

/// The other side of an open session.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Peer {
    /// The key that it has proven to have.
    pub key: PublicKey,
    /// Its address.
    pub address: SocketAddr,
    /// Whether it takes the network between the two for trusted.
    pub trusted_network: bool,
}

/// What a session does for its user. The session's thread calls the functions, one at a time. None may block: heartbeats
/// and all data wait meanwhile. None may panic: the session would end without a call of [`Handler::closed`].
pub trait Handler: Send {
    /// The session is open: both sides accepted the other's key and speak the same version. Called at most once, first.
    ///
    /// # Errors
    /// As [`Handler::handle`].
    fn opened(&mut self, peer: Peer, pipe: &mut Pipe) -> Result<(), ProtocolError>;

    /// Something happened. The session itself handles `Hello`, `Ping`, `Pong` and `Bye`.
    ///
    /// # Errors
    /// The session tells the peer of the error and ends with it.
    fn handle(&mut self, event: Event, pipe: &mut Pipe) -> Result<(), ProtocolError>;

    /// [`SessionHandle::wake`] was called since the last time, once or more often. Called while the session is open.
    ///
    /// # Errors
    /// As [`Handler::handle`].
    fn woken(&mut self, pipe: &mut Pipe) -> Result<(), ProtocolError>;

    /// The session has ended, and touches no span. Called exactly once, last.
    fn closed(&mut self, reason: SessionError);
}

/// The time limits of a session, what it says of itself, and what it does.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How long each address of a name may take to connect. 5 s.
    pub connect: Duration,
    /// How long TLS and the first messages may take together. 5 s.
    pub handshake: Duration,
    /// A side that has sent or received nothing for as long sends a `Ping`. 1 s.
    pub ping_after: Duration,
    /// A session without a byte from the peer for as long is dead. 4 s.
    pub silent_after: Duration,
    /// How long the end of a session may take: telling the peer, and waiting until it has read that. 1 s.
    pub close: Duration,
    /// Whether this side takes the network between the two for trusted. If the other side does, too, and both have UCX, then
    /// UCX may carry bulk data, **unencrypted**, and every program that reaches its ports, and the peer itself, can write
    /// any memory of this process. `false`.
    pub trusted_network: bool,
    /// Whether each message over UCX is followed by a checksum (xxh3-64), which finds accidents and no attacks. Both sides
    /// send and check them if either one says so. `false`.
    pub checksums: bool,
    /// Whether a client maps the shared memory of a server on its machine. `true`.
    pub maps_memory: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connect: Duration::from_secs(5),
            handshake: Duration::from_secs(5),
            ping_after: Duration::from_secs(1),
            silent_after: Duration::from_secs(4),
            close: Duration::from_secs(1),
            trusted_network: false,
            checksums: false,
            maps_memory: true,
        }
    }
}
