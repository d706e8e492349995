//! Messages between processes and machines over UCX, which is loaded when the program runs.
//!
//! [`Ucx::load`] finds the library. A [`Worker`] owns one thread that makes every call of UCX, and tells the outcomes
//! to a sink. Building needs nothing of UCX; on a machine without it, loading returns an error with the reason.
//!
//! # Trust
//!
//! UCX has no authentication and no encryption. **Use it only between programs that may read and write each other's
//! memory, on a network that no other program can send to.** In particular:
//!
//! - UCX's TCP transport copies incoming data to any address of this process that the sender names. Every program that can
//!   reach the TCP port of a worker can do so, without a handshake, whichever features the worker asks for, and also
//!   with the option `TCP_PUT_ENABLE=n`. Seen with UCX 1.22.0: a few bytes on the port changed the memory of the process. UCX
//!   1.13.1 of Debian, which checks its assertions, aborts the process instead.
//! - UCX parses the address of a peer without knowing its length, so [`Worker::connect`] is unsafe.
//! - UCX reads a file `ucx.conf` in the current directory when it is loaded.
//!
//! Name the interface in [`Options::net_devices`]; by default UCX listens on every interface. Exchange addresses over
//! an authenticated channel. If the network is not trusted, use TLS.
//!
//! # Conduct in the process
//!
//! By default UCX replaces the handlers of signals and patches `mmap` and its relatives while it is being loaded.
//! [`Ucx::load`] prevents the patches, and restores the handlers before it returns, without changes to the environment: for
//! the milliseconds of loading, the handlers of fatal signals and of SIGHUP are UCX's. UCX starts a thread of its own for each
//! context.

pub(crate) mod channel;
mod context;
mod error;
mod exit;
mod library;
mod progress;
mod raw;
mod worker;

pub use error::{Status, UcxError};
pub use library::{LIBRARY_VARIABLE, OLDEST, Ucx, Version};
pub use worker::{EndpointId, Event, Options, Worker};
