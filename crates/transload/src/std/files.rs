//! Files as memory: `cpu:0/file` with positioned reads and writes, `cpu:0/shared` with a mapping.

use std::path::Path;

use transload_hal::{External, ExternalKind, MemoryId, StorageId};
use transload_host::HostFile;
use transload_host::memory::{FILE, SHARED};

use super::claims::{Claim, Taken, Use};
use crate::{Buffer, OpenError, TransferManager};

impl TransferManager {
    /// Opens a whole file as a read-only buffer in `cpu:0/file`. The buffer has the length of the file at the time of
    /// the call: if the file is shortened later, transfers that need the lost bytes fail and name it. To write a file
    /// that exists, open it with [`HostFile::open_writable`] and call [`TransferManager::adopt_file`].
    ///
    /// # Errors
    /// When the file is missing, unreadable or no regular file, when it has content and no fixed length, as the files
    /// of `/proc` do ([`FileError::NoFixedLength`](crate::host::FileError::NoFixedLength)), when another manager may write it ([`Claimed`](crate::hal::ImportError::Claimed)), or when
    /// no backend takes files.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<Buffer, OpenError> {
        let path = path.as_ref();
        let (file, _claim) = HostFile::open_claimed(path, self.claims(path, FILE, Use::Copy))?;
        self.adopt_file(file)
    }

    /// Creates a file of `len_bytes` zero bytes as a buffer in `cpu:0/file`. Replaces an existing file at once:
    /// transfers of the old content that are under way may find zeros. Transfers write the file in place. A program
    /// that needs all bytes or none creates it under another name and renames it in the end. The end of the process
    /// cuts short a transfer into the file: call [`Transfer::wait`](crate::Transfer::wait), or
    /// [`wait_idle`](TransferManager::wait_idle), before.
    ///
    /// # Errors
    /// When the file cannot be created or made that long, may not be both read and written, belongs to another manager
    /// ([`Claimed`](crate::hal::ImportError::Claimed)) or is mapped by this one ([`OpenError::Mapped`]; it is unchanged in both cases), or when no
    /// backend takes files. A length that no file can have
    /// ([`FileError::TooLong`](crate::host::FileError::TooLong)) is of the class `Caller`, a disk without room and a length beyond
    /// the process's limit ([`FileError::ProcessLimit`](crate::host::FileError::ProcessLimit)) of the class `Exhausted`.
    pub fn create_file(&self, path: impl AsRef<Path>, len_bytes: u64) -> Result<Buffer, OpenError> {
        let path = path.as_ref();
        // The claim must last until the buffer has its own. Otherwise another manager could take the file in meanwhile,
        // and this manager would be refused only after it has truncated the file.
        let claim = self.claims(path, FILE, Use::Cut);
        let (file, _claim) = HostFile::create_claimed(path, len_bytes, claim)?;
        self.adopt_file(file)
    }

    /// Claims the bytes of the file at `path` for this manager, or returns why it cannot have them.
    fn claims(
        &self,
        path: &Path,
        memory: MemoryId,
        how: Use,
    ) -> impl FnOnce(StorageId) -> Result<Claim, OpenError> {
        move |id| {
            let claim = super::claim_file(id, how, self.shared.serial);
            let path = || path.display().to_string();
            claim.map_err(|taken| match taken {
                Taken::Mapped => OpenError::Mapped { path: path() },
                Taken::Cut => OpenError::Created { path: path() },
                Taken::ByOther => OpenError::Manager {
                    path: path(),
                    source: Box::new(taken.refused(memory, ExternalKind::Object).into()),
                },
            })
        }
    }

    /// Takes in an open file, or a range of one, as a buffer in [its memory](HostFile::memory). [`Buffer::into_inner`] gives the
    /// [`HostFile`] back.
    ///
    /// # Errors
    /// When no backend takes files, or another manager has the file ([`Claimed`](crate::hal::ImportError::Claimed)).
    pub fn adopt_file(&self, file: HostFile) -> Result<Buffer, OpenError> {
        let path = file.path().display().to_string();
        // SAFETY: a file that is read and written by position asks nothing of the caller: accesses by other code show
        // as other bytes or as an error.
        let buffer = unsafe { self.import(file.memory().into(), External::Object(Box::new(file))) };
        buffer.map_err(|source| OpenError::Manager {
            path,
            source: Box::new(source),
        })
    }

    /// Maps a whole file read-only as a buffer in `cpu:0/shared`: the host loads its bytes out of the page cache,
    /// without a copy. Linux only.
    ///
    /// # Errors
    /// When the file is missing, unreadable or no regular file, when another manager may write it
    /// ([`Claimed`](crate::hal::ImportError::Claimed)), another thread creates it anew at that moment ([`OpenError::Created`]), or the system
    /// does not map it.
    ///
    /// # Safety
    /// As long as the buffer or any view of it lives, no program shortens the file, which would raise SIGBUS, and none
    /// changes its bytes, which guards show as `&[u8]`. Where the caller cannot promise that, use
    /// [`TransferManager::open_file`], which is safe.
    pub unsafe fn map_file(&self, path: impl AsRef<Path>) -> Result<Buffer, OpenError> {
        let path = path.as_ref();
        let (file, _claim) = HostFile::open_claimed(path, self.claims(path, SHARED, Use::Map))?;
        let path = file.path().display().to_string();
        // SAFETY: the caller's promise is the one that the backend asks for.
        let buffer = unsafe { self.import(SHARED.into(), External::Object(Box::new(file))) };
        buffer.map_err(|source| OpenError::Manager {
            path,
            source: Box::new(source),
        })
    }
}

#[cfg(all(test, target_os = "linux", not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_not_mapped_between_its_claim_and_its_truncation() {
        let path = std::env::temp_dir().join(std::format!(
            "transload-cut-and-mapped-{}",
            std::process::id()
        ));
        std::fs::write(&path, [7; 64]).unwrap();
        let manager = TransferManager::builder().host().build().unwrap();
        // SAFETY: nothing shortens the file while it is mapped, which the test shows.
        let map = || unsafe { manager.map_file(&path) };
        let claim = manager.claims(&path, FILE, Use::Cut);
        let created = HostFile::create_claimed(&path, 64, |id| {
            let claim = claim(id)?;
            let error = map().err();
            assert!(
                matches!(error, Some(OpenError::Created { .. })),
                "{error:?}"
            );
            let file = External::object(HostFile::open(&path).unwrap());
            // SAFETY: as above.
            let error = unsafe { manager.import(SHARED.into(), file) }.unwrap_err();
            assert!(
                error.to_string().contains("creating the file anew"),
                "{error}"
            );
            Ok::<_, OpenError>(claim)
        });
        drop(created.unwrap());
        let mapped = map().unwrap();
        assert_eq!(*mapped.read().unwrap(), [0; 64]);
        let error = manager.create_file(&path, 64).unwrap_err();
        assert!(matches!(error, OpenError::Mapped { .. }), "{error}");
        drop(mapped);
        manager.create_file(&path, 8).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
