//! The identity of the memory behind a view.

use crate::Name;

/// Names the bytes behind a buffer, so that two views of one memory are seen to be one.
///
/// The id is the identity itself, not an entry in a table: every allocation, adoption, import and
/// share that shows the same bytes derives the same id, with nothing to look up, lock or clean up.
/// An id only has to be unique among views that are alive at the same time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum StorageId {
    /// This process's address space. Positions are addresses, so two adopted ranges that overlap
    /// conflict just where they overlap.
    Host,
    /// A file or a shared-memory object, wherever and however often it is mapped. Positions are
    /// file offsets.
    File {
        /// The device number of the file system.
        device: u64,
        /// The inode number on it.
        inode: u64,
    },
    /// Memory of another machine, the same for all that use it. Positions count from its start.
    Remote {
        /// The first bytes of the machine's public key.
        owner: [u8; 16],
        /// The machine's number of the allocation, which it uses once.
        number: u64,
    },
    /// An allocation that only its driver can address. Positions count from its start.
    Native {
        /// The backend that made it.
        backend: Name,
        /// The driver's handle or address, unique while the allocation lives.
        handle: u64,
    },
}
