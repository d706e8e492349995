//! Memory that a backend imports from, or exports to, code outside of it.

use alloc::boxed::Box;
use core::fmt;
#[cfg(all(feature = "std", unix))]
use std::os::fd::OwnedFd as Owned;
#[cfg(all(feature = "std", windows))]
use std::os::windows::io::OwnedHandle as Owned;

#[cfg(all(feature = "std", any(unix, windows)))]
use transload_core::{Span, StorageId};

use crate::{ExternalKind, HostSpan, IpcHandle, Owner};

/// A handle of the operating system: a file descriptor, on Windows an NT handle. Closes when dropped.
///
/// Safe code cannot get the handle out: it could write memory with the handle that a guard shows as a slice.
#[cfg(all(feature = "std", any(unix, windows)))]
#[derive(Debug)]
pub struct OsHandle(Owned);

#[cfg(all(feature = "std", any(unix, windows)))]
impl OsHandle {
    /// Returns the handle as the standard library's type, to send it to another process or to map it.
    ///
    /// # Safety
    /// As long as buffers of the memory live, no code outside the library writes its bytes while a guard or a transfer
    /// uses them, and none makes it shorter.
    pub unsafe fn into_owned(self) -> Owned {
        self.0
    }
}

#[cfg(all(feature = "std", any(unix, windows)))]
impl From<Owned> for OsHandle {
    fn from(handle: Owned) -> OsHandle {
        OsHandle(handle)
    }
}

/// Memory that is being imported or exported.
#[non_exhaustive]
pub enum External {
    /// Host memory that an owner keeps in place.
    Host {
        /// The bytes.
        span: HostSpan,
        /// Whether they may be written.
        writable: bool,
        /// Keeps the bytes in place; [`crate::Buffer::into_owner`] returns it.
        owner: Box<dyn Owner>,
    },
    /// Memory that a device driver knows by its address, and that an owner keeps alive.
    Device {
        /// The address of the first byte.
        address: u64,
        /// How many bytes.
        len_bytes: u64,
        /// Whether they may be written.
        writable: bool,
        /// Keeps the memory alive; [`crate::Buffer::into_owner`] returns it.
        owner: Box<dyn Owner>,
    },
    /// Memory of a device, named for other processes.
    Ipc(IpcHandle),
    /// A handle that the operating system or a driver gave out. Dropping this value closes it, unless it was taken out.
    #[cfg(all(feature = "std", any(unix, windows)))]
    Handle {
        /// What sort of handle.
        kind: ExternalKind,
        /// The handle itself.
        handle: OsHandle,
        /// Which bytes behind it.
        span: Span,
        /// Whether they may be written.
        writable: bool,
        /// The identity of the bytes, so that views on both sides are known to be one memory.
        id: StorageId,
    },
    /// An object that the backend knows: a `std::fs::File`, a `wgpu::Buffer`.
    Object(Box<dyn Owner>),
}

impl External {
    /// Makes an external of an object that the backend knows.
    pub fn object(object: impl Owner) -> External {
        External::Object(Box::new(object))
    }

    /// What sort of thing it is.
    pub fn kind(&self) -> ExternalKind {
        match self {
            External::Host { .. } => ExternalKind::Host,
            External::Device { .. } => ExternalKind::DevicePointer,
            External::Ipc(handle) => handle.kind(),
            #[cfg(all(feature = "std", any(unix, windows)))]
            External::Handle { kind, .. } => *kind,
            External::Object(_) => ExternalKind::Object,
        }
    }
}

impl fmt::Debug for External {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "External({})", self.kind())
    }
}
