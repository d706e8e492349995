//! Files that took over the bytes of an allocation, and the identity that these bytes have since before (Linux).

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use transload_hal::{HOST, StorageId};

/// Another identity of a file's bytes than its device and inode. Every view of the file in this process holds it, the
/// allocation that was exported and whatever the descriptor was imported as, so that all of them have one identity.
/// When the last view goes, the file has the identity of its inode again.
#[derive(Debug)]
pub(super) struct Alias {
    file: Inode,
    id: StorageId,
}

impl Alias {
    /// Gives a new file the identity `id`.
    pub(super) fn new(file: &Metadata, id: StorageId) -> Arc<Self> {
        let file = inode(file);
        let alias = Arc::new(Self { file, id });
        lock().insert(file, Arc::downgrade(&alias));
        alias
    }

    /// The other identity of a file, where it has one.
    pub(super) fn of(file: &Metadata) -> Option<Arc<Self>> {
        lock().get(&inode(file))?.upgrade()
    }

    pub(super) fn id(&self) -> StorageId {
        self.id
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        let mut aliases = lock();
        // The system may have used the number again.
        if aliases
            .get(&self.file)
            .is_some_and(|alias| alias.strong_count() == 0)
        {
            aliases.remove(&self.file);
        }
    }
}

/// An identity of bytes that no file has.
pub(super) fn fresh() -> StorageId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    StorageId::Native {
        backend: HOST.0,
        // Relaxed: only uniqueness counts.
        handle: NEXT.fetch_add(1, Ordering::Relaxed),
    }
}

/// Device and inode.
type Inode = (u64, u64);

fn inode(file: &Metadata) -> Inode {
    (file.dev(), file.ino())
}

/// The aliases of this process.
static ALIASES: Mutex<BTreeMap<Inode, Weak<Alias>>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<Inode, Weak<Alias>>> {
    ALIASES.lock().unwrap_or_else(PoisonError::into_inner)
}
