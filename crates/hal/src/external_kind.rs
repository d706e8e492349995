//! The sorts of memory that a backend imports or exports.

use core::fmt;

/// The sort of an [`External`](crate::External).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ExternalKind {
    /// Host memory at an address.
    Host,
    /// A file descriptor of shared memory or a file.
    File,
    /// A driver's opaque file descriptor.
    OpaqueFd,
    /// A Linux dma-buf.
    DmaBuf,
    /// A CUDA inter-process handle.
    CudaIpc,
    /// The name that another machine gave memory of its own.
    Remote,
    /// An address that a driver of devices gave out.
    DevicePointer,
    /// A Windows NT handle.
    Win32,
    /// An object of a type that the backend defines or knows.
    Object,
}

impl fmt::Display for ExternalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExternalKind::Host => "host memory",
            ExternalKind::File => "a file descriptor",
            ExternalKind::OpaqueFd => "an opaque file descriptor",
            ExternalKind::DmaBuf => "a dma-buf",
            ExternalKind::CudaIpc => "a CUDA IPC handle",
            ExternalKind::Remote => "a handle to memory of another machine",
            ExternalKind::DevicePointer => "a device pointer",
            ExternalKind::Win32 => "a Windows handle",
            ExternalKind::Object => "an object",
        })
    }
}
