//! The host memory backend of Transload: the heap, huge pages, files and shared memory of one machine,
//! and the threads that copy between them.
//!
//! [`Host`] is the backend. Programs that use Transload register it and need nothing else of this crate.
//! The crate also offers what only the host has: [`HostFile`] makes a file a memory,
//! `memory::shared::seal` (Linux) makes shared memory shareable without copies, and [`tuning`] shows and
//! replaces how copies of each size are done.
//!
//! ```
//! use transload_hal::{AllocSpec, Backend, Op, Part};
//! use transload_host::{Host, memory::PAGEABLE};
//!
//! let host = Host::new();
//! let src = host.allocate(PAGEABLE, &AllocSpec::bytes(4096))?;
//! let dst = host.allocate(PAGEABLE, &AllocSpec::bytes(4096))?;
//! let part = |buffer| Part { buffer, offset: 0, len_bytes: 4096 };
//! // SAFETY: both buffers outlive the fence, and no other code touches them.
//! let fence = unsafe { host.submit(None, &[Op::Copy { src: part(&src), dst: part(&dst) }], &[]) }?;
//! assert!(fence.is_immediate(), "small copies are done when `submit` returns");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod caches;
mod device;
pub mod memory;
#[doc(hidden)]
pub mod partial;
pub mod pool;
mod queue;
pub mod raw;
#[cfg(unix)]
#[doc(hidden)]
pub mod signals;
pub mod tuning;
mod unwind;

pub use device::{BACKEND, ENGINE, Host, HostOptions};
pub use memory::file::{FileError, HostFile};
