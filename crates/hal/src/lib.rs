//! The interface that a memory system implements to take part in Transload: [`Backend`], and the types of its
//! functions. Authors of backends need this crate and `transload-testkit`, whose conformance suite tests an
//! implementation; users of the library need only `transload`.
//!
//! The engine above owns planning, ordering, staging and lifetimes. A backend allocates, executes
//! operations and settles fences; it knows of no other backend.
#![no_std]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

mod alloc_spec;
mod backend;
mod buffer;
mod callback;
#[cfg(feature = "std")]
#[doc(hidden)]
pub mod cgroup;
mod checks;
mod clock;
mod error;
mod external;
mod external_kind;
mod fence;
mod host;
mod ipc;
mod maybe_send;
mod op;
mod process;
#[cfg(feature = "std")]
mod regular;
#[cfg(feature = "std")]
mod room;
mod span;
#[cfg(feature = "std")]
mod system;
#[cfg(feature = "std")]
mod threads;

pub use alloc_spec::AllocSpec;
pub use backend::Backend;
pub use buffer::{Buffer, Guard, Owner, StorageInfo, WeakBuffer};
pub use callback::{in_callback, is_ending, run_callback};
pub use checks::{check_ends, check_fences, link_between};
pub use clock::Clock;
pub use error::{AllocError, ConnectError, ErrorClass, Fault, ImportError, SubmitError};
pub use external::External;
#[cfg(all(feature = "std", any(unix, windows)))]
pub use external::OsHandle;
pub use external_kind::ExternalKind;
pub use fence::{CompletionSink, Fence, Outcome, Waited};
pub use host::{GUEST_KINDS, HOST, HOST_ENGINE, HOST_KINDS, HostReach, host_links, processors};
pub use ipc::{IpcHandle, IpcHandleError};
pub use maybe_send::{MaybeSend, MaybeSync};
pub use op::{Advice, Entered, Layout, Op, Part, Transform, Use, View};
#[cfg(feature = "std")]
pub use process::PerProcess;
pub use process::{Process, ProcessBound};
#[cfg(feature = "std")]
pub use regular::{NotRegular, open_regular, read_regular};
#[cfg(feature = "std")]
pub use room::{Room, Taken};
pub use span::HostSpan;
#[cfg(feature = "std")]
pub use system::{FileLimit, SystemError, longest_file};
#[cfg(feature = "std")]
pub use threads::{Sleepers, Worker, spawn};
pub use transload_core::defaults;
pub use transload_core::{
    Access, Axis, BackendId, Conversion, Cost, Curve, DeviceId, DeviceInfo, DeviceKind, Element,
    EngineId, Instant, Inventory, Lack, Link, LinkClass, LinkId, MemoryId, MemoryInfo, MemoryKind,
    Name, NoConversion, Node, Passage, PciAddress, Piece, Place, Portion, Rows, Run, Shape, Span,
    StorageId, Strided, StridedError, Topology, Uuid,
};
