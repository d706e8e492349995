//! Why sessions end.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use transload_hal::{ErrorClass, SystemError};

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
    /// The text is no address.
    #[error(
        "{address:?} is no address of a machine: {reason}; write ADDRESS:PORT, as in 10.0.0.2:7171, box2.local:7171 or \
         [fd00::2]:7171"
    )]
    Address {
        /// The text.
        address: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The system gives no thread, or no handle for events.
    #[error("cannot start a session with {address}: {}", SystemError(source))]
    Start {
        /// The peer's address.
        address: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The system reports an error of the name or of the connection.
    #[error("the session with {address} failed in {step}: {}", SystemError(source))]
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
    /// The peer fell silent a short time ago, and is not asked for as long as it was silent.
    #[error("{error}; it is asked again in {left_ms} ms: try again then")]
    Resting {
        /// Why the last session ended.
        error: Box<SessionError>,
        /// When the peer is asked again, in milliseconds from now on.
        left_ms: u64,
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
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            SessionError::Address { .. } => ErrorClass::Caller,
            SessionError::Resting { .. } => ErrorClass::Exhausted,
            SessionError::Start { source, .. } | SessionError::Io { source, .. }
                if ErrorClass::of_io(source) == ErrorClass::Exhausted =>
            {
                ErrorClass::Exhausted
            }
            // There may be another way to what the user wants than over this machine.
            _ => ErrorClass::Unsupported,
        }
    }

    /// Checks that a text is a name or address, and a port.
    pub(super) fn check_address(address: &str) -> Result<(), SessionError> {
        let wrong = |reason| {
            let address = address.to_owned();
            Err(SessionError::Address { address, reason })
        };
        if address.contains('/') {
            return wrong("it has a /, as links have");
        }
        let parts = address.rsplit_once(':');
        let Some((host, port)) = parts.filter(|_| !address.ends_with(']')) else {
            return wrong("it has no port");
        };
        let is_bare = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        match port.parse() {
            _ if is_bare => wrong("the colons of an IPv6 address stand in brackets"),
            _ if host.is_empty() => wrong("it has a port alone"),
            Ok::<u16, _>(1..) => Ok(()),
            _ => wrong("its port is none of 1 to 65535"),
        }
    }

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

impl SessionError {
    /// The error of a peer that is not asked again before this time has passed.
    pub(crate) fn after_rest(self, left: Duration) -> SessionError {
        SessionError::Resting {
            error: Box::new(self),
            left_ms: millis(left).saturating_add(1),
        }
    }
}

/// Returns whole milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_no_address_is_refused_with_what_is_wrong_and_what_to_write() {
        let wrong = [
            ("", "no port"),
            ("10.0.0.2", "no port"),
            ("box2.local", "no port"),
            ("http://box2:7171", "links"),
            ("box2:7171/", "links"),
            (":7171", "port alone"),
            ("box2:", "1 to 65535"),
            ("box2:0", "1 to 65535"),
            ("box2:65536", "1 to 65535"),
            ("box2:http", "1 to 65535"),
            ("fd00::2:7171", "brackets"),
            ("fd00::2", "brackets"),
            ("[fd00::2]", "no port"),
        ];
        for (text, expected) in wrong {
            let error = SessionError::check_address(text).unwrap_err();
            let told = error.to_string();
            let parts = [&format!("{text:?}"), expected, "ADDRESS:PORT"];
            assert!(parts.iter().all(|part| told.contains(part)), "{told}");
            assert_eq!(error.class(), ErrorClass::Caller, "{told}");
        }
        for text in ["10.0.0.2:7171", "box2.local:1", "[fd00::2]:65535"] {
            SessionError::check_address(text).unwrap();
        }
    }

    #[test]
    fn a_machine_that_rests_says_why_and_for_how_long() {
        let silent = SessionError::Silent {
            address: "10.0.0.2:7171".into(),
            ms: 4000,
        };
        let resting = silent.clone().after_rest(Duration::from_micros(2_500_001));
        assert_eq!(
            resting.to_string(),
            format!("{silent}; it is asked again in 2501 ms: try again then")
        );
        assert_eq!(resting.class(), ErrorClass::Exhausted);
    }

    #[test]
    fn a_process_without_threads_or_descriptors_is_exhausted_and_a_machine_that_refuses_is_not() {
        let address = String::from("10.0.0.2:7171");
        let of = |kind: io::ErrorKind| {
            let (source, address) = (Arc::new(kind.into()), address.clone());
            SessionError::Start { address, source }
        };
        assert_eq!(of(io::ErrorKind::WouldBlock).class(), ErrorClass::Exhausted);
        let refused = SessionError::Io {
            address,
            step: Step::Connect,
            source: Arc::new(io::ErrorKind::ConnectionRefused.into()),
        };
        assert_eq!(refused.class(), ErrorClass::Unsupported);
    }
}
