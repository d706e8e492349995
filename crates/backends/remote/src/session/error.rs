//! Why sessions end.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::pipe::PipeError;
use crate::tls::{Cause, ChannelError, Rejection};
use crate::wire::ProtocolError;

/// How far a session had come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Step {
    /// Resolving the name.
    Resolve,
    /// Connecting by TCP.
    Connect,
    /// The handshake of TLS.
    Handshake,
    /// The first messages.
    Hello,
    /// The session was open.
    Open,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Resolve => "resolving the name",
            Step::Connect => "connecting",
            Step::Handshake => "the TLS handshake",
            Step::Hello => "the first messages",
            Step::Open => "the open session",
        })
    }
}

/// Why a session ended, or did not open.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The system gives no thread, or no handle for events.
    #[error("cannot start a session with {address}: {source}")]
    Start {
        /// The peer's address.
        address: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The system reports an error of the name or of the connection.
    #[error("the session with {address} failed in {step}: {source}")]
    Io {
        /// The peer's address.
        address: String,
        /// How far the session had come.
        step: Step,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// A step took too long.
    #[error("the session with {address} did not open: {step} took longer than {limit_ms} ms")]
    Timeout {
        /// The peer's address.
        address: String,
        /// The step.
        step: Step,
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// One side does not accept the other's key.
    #[error("no session with {address}: {rejection}")]
    WrongKey {
        /// The peer's address.
        address: String,
        /// Which key, and which side.
        rejection: Rejection,
    },
    /// The peer does not speak TLS as this crate does, or bytes were altered on the way.
    #[error("the session with {address} failed in {step}: {source}")]
    Tls {
        /// The peer's address.
        address: String,
        /// How far the session had come.
        step: Step,
        /// The TLS library's error.
        #[source]
        source: Cause,
    },
    /// The peer does not keep to the protocol.
    #[error("the session with {address} failed in {step}: {source}")]
    Protocol {
        /// The peer's address.
        address: String,
        /// How far the session had come.
        step: Step,
        /// The error.
        source: ProtocolError,
    },
    /// Nothing came from the peer, not even answers to pings: it, or the network, is gone.
    #[error("nothing came from {address} for {ms} ms")]
    Silent {
        /// The peer's address.
        address: String,
        /// For how many milliseconds.
        ms: u64,
    },
    /// The peer is there, and goes on with an operation that it was asked to stop.
    #[error("{address} did not stop an operation in time")]
    Overdue {
        /// The peer's address.
        address: String,
    },
    /// The connection ended without the peer having said so.
    #[error("the connection with {address} was cut in {step}")]
    Cut {
        /// The peer's address.
        address: String,
        /// How far the session had come.
        step: Step,
    },
    /// The peer has ended the session.
    #[error("{address} has ended the session: {reason}")]
    PeerClosed {
        /// The peer's address.
        address: String,
        /// The peer's reason, for people.
        reason: String,
    },
    /// This side has ended the session: [`SessionHandle::close`](super::SessionHandle::close) was called.
    #[error("the session with {address} was closed")]
    Closed {
        /// The peer's address.
        address: String,
    },
}

impl SessionError {
    pub(super) fn of_pipe(error: PipeError, address: &str, step: Step) -> SessionError {
        let address = address.to_owned();
        match error {
            PipeError::Channel(ChannelError::WrongKey(rejection)) => {
                SessionError::WrongKey { address, rejection }
            }
            PipeError::Channel(ChannelError::Tls(source)) => SessionError::Tls {
                address,
                step,
                source,
            },
            PipeError::Protocol(source) => SessionError::Protocol {
                address,
                step,
                source,
            },
        }
    }
}

/// Returns whole milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
