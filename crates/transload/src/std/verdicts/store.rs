//! The file of verdicts: its place, and how it is read and written.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use transload_hal::{open_regular, read_regular};
use transload_host::partial::{Partial, folder};

use super::entry::{Entry, merge};
use super::text::{self, Unread};
use crate::engine::verdict::Verdict;

/// Reads the file. A file that is missing or damaged has no entries.
///
/// # Errors
/// When the system does not read it, or a later version wrote it.
pub(super) fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let bytes = match read_regular(path, MOST_BYTES) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::FileTooLarge) => {
            return Ok(Vec::new());
        }
        bytes => bytes?,
    };
    match str::from_utf8(&bytes).map(text::parse) {
        Ok(Ok(entries)) => Ok(entries),
        Ok(Err(Unread::Newer)) => Err(ErrorKind::Unsupported.into()),
        Ok(Err(Unread::Garbled)) | Err(_) => Ok(Vec::new()),
    }
}

/// Adds verdicts to the file, keeping those that other processes have added meanwhile.
///
/// # Errors
/// When the system does not read or write the file, or a later version wrote it. The file is unchanged then.
pub(super) fn add(path: &Path, verdicts: &[Verdict]) -> io::Result<()> {
    fs::create_dir_all(folder(path))?;
    let _locked = lock(path)?;
    let mut entries = read(path)?;
    if !merge(&mut entries, verdicts) {
        return Ok(());
    }
    let text = text::to_toml(&entries).ok_or(ErrorKind::InvalidData)?;
    // A verdict that a crash of the machine damages is found out again.
    Ok(Partial::write(path, text.as_bytes())?.place()?)
}

/// Keeps other processes from writing until the returned file is closed: between reading and renaming, what another
/// process wrote would be lost. The verdicts' file itself is replaced each time, so the lock is on a file beside it.
fn lock(path: &Path) -> io::Result<File> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(ErrorKind::InvalidInput)?);
    name.push(".lock");
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false);
    let file = open_regular(&folder(path).join(name), options)?;
    // A process that holds the lock may be stopped. The thread that waits for it here is the writer's own, for which no
    // transfer waits. Where there is only one thread, it does not wait.
    #[cfg(threads)]
    let locked = file.lock();
    #[cfg(not(threads))]
    let locked = match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => return Err(ErrorKind::WouldBlock.into()),
        Err(fs::TryLockError::Error(error)) => Err(error),
        Ok(()) => Ok(()),
    };
    // Not every file system supports locks. Without one a verdict may be lost, and its link is proven once more.
    let _ = locked;
    Ok(file)
}

/// Twice the size of the most entries that are kept, half a kilobyte each.
pub(super) const MOST_BYTES: u64 = 4 << 20;
