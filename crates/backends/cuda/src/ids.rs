//! The names of this backend, of the host memory that its devices share, and of their addresses.

use transload_hal::{BackendId, DeviceId, MemoryId, MemoryKind, Name, StorageId};

/// The name of this backend.
pub const BACKEND: BackendId = BackendId(Name::constant("cuda"));

/// The host memory that all devices reach.
pub(crate) const PINNED: MemoryId = DeviceId::CPU0.memory(MemoryKind::Pinned);

/// The storage of all addresses of the process, as its devices see them.
pub(crate) const DEVICES: StorageId = StorageId::Native {
    backend: BACKEND.0,
    handle: 0,
};
