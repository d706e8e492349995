//! The backend of other machines' memory for Transload: the protocol by which a program uses it, and its transport.
//!
//! A session is one TCP connection with TLS 1.3. Each side authenticates the other by its Ed25519 key alone
//! ([`PrivateKey`], [`PublicKey`]): raw public keys as in RFC 7250, without certificates and without an authority.
//! [`wire::Message`] lists what the two sides say. Bulk data go between the socket and the caller's memory in frames,
//! between which other messages pass.
//!
//! Where both sides take the network between them for trusted, UCX may carry bulk data instead, in the clear.
//!
//! - [`Session`] runs a connection on a thread of its own and calls a [`Handler`] there.
//! - [`Pipe`] is the same without a thread and without a socket: bytes in, events out.
//!
//! - [`Remote`] is the backend: the memory of another machine, as that machine offers it.
//! - `Descriptors` gives memory of this process to processes of this machine, which then share it (Linux).
//! - [`Streams`] is the backend of a machine that serves: what sessions carry, as memory that its engine copies.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

mod board;
mod buffer;
mod client;
#[cfg(target_os = "linux")]
mod descriptors;
#[cfg(not(target_os = "linux"))]
#[path = "descriptors/none.rs"]
mod descriptors;
mod device;
mod forward;
mod inventory;
mod key;
mod listener;
mod memory;
#[cfg(not(all(feature = "ucx", target_os = "linux", target_pointer_width = "64")))]
mod no_ucx;
#[cfg(test)]
mod numbers;
mod pipe;
mod queue;
mod session;
mod streams;
mod tls;
#[cfg(all(feature = "ucx", target_os = "linux", target_pointer_width = "64"))]
pub mod ucx;
pub mod wire;

#[cfg(not(all(feature = "ucx", target_os = "linux", target_pointer_width = "64")))]
use no_ucx as messages;
#[cfg(all(feature = "ucx", target_os = "linux", target_pointer_width = "64"))]
use ucx::channel as messages;

#[cfg(target_os = "linux")]
pub use descriptors::Descriptors;
pub use device::{NodeError, Remote};
pub use forward::GrantedBytes;
pub use key::{KeyError, PrivateKey, PublicKey, fill_random};
pub use listener::Listener;
pub use pipe::{Event, Pipe, PipeError};
pub use queue::{misplaced, unknown};
pub use session::{Handler, Options, Peer, Session, SessionError, SessionHandle, Step};
pub use streams::{Feed, Payload, STREAMS, Stream, Streams};
pub use tls::{Cause, ChannelError, Rejection};

/// Returns the version of the UCX that carries bytes where the network is trusted, or why there is none. Loads the library,
/// which stays.
///
/// # Errors
/// If there is none that can be used.
pub fn ucx_version() -> Result<String, String> {
    messages::version()
}
