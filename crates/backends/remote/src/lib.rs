//! Sessions between machines for Transload: the protocol by which a program uses the memory of another machine, and
//! its transport.
//!
//! A session is one TCP connection with TLS 1.3. Each side authenticates the other by its Ed25519 key alone
//! ([`PrivateKey`], [`PublicKey`]): raw public keys as in RFC 7250, without certificates and without an authority.
//! [`wire::Message`] lists what the two sides say. Bulk data go between the socket and the caller's memory in frames,
//! between which other messages pass.
//!
//! - [`Session`] runs a connection on a thread of its own and calls a [`Handler`] there.
//! - [`Pipe`] is the same without a thread and without a socket: bytes in, events out.
//!
//! The crate has no backend: it knows neither leases nor transfers, but only their messages.
#![cfg(not(target_family = "wasm"))]

mod board;
mod buffer;
mod device;
mod key;
mod listener;
mod memory;
mod pipe;
mod queue;
mod session;
mod streams;
mod tls;
pub mod wire;

pub use device::{NodeError, Remote};
pub use key::{KeyError, PrivateKey, PublicKey, fill_random};
pub use listener::Listener;
pub use pipe::{Event, Pipe, PipeError};
pub use queue::{misplaced, unknown};
pub use session::{Handler, Options, Peer, Session, SessionError, SessionHandle, Step};
pub use streams::{Feed, Payload, STREAMS, Stream, Streams};
pub use tls::{Cause, ChannelError, Rejection};
