//! Where verdicts lie, and how they get there.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use transload_hal::{open_regular, read_regular};
use transload_host::partial::{Partial, folder};

use super::text::{self, Unread};
use super::{Entry, merge};
use crate::engine::kept::Verdict;

/// What the file says. One that is missing or damaged says nothing.
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

/// Adds verdicts to what the file says by now, whatever other processes have added meanwhile.
///
/// # Errors
/// When the system does not read or write it, or a later version wrote it. It is as it was then.
pub(super) fn add(path: &Path, verdicts: &[Verdict]) -> io::Result<()> {
    fs::create_dir_all(folder(path))?;
    let _locked = lock(path)?;
    let mut entries = read(path)?;
    if !merge(&mut entries, verdicts) {
        return Ok(());
    }
    let text = text::to_toml(&entries).ok_or(ErrorKind::InvalidData)?;
    // What a crash of the machine damages is proven once more.
    Partial::write(path, text.as_bytes())?.place()
}

/// Keeps other processes from writing until the file that comes back is closed: between reading and
/// renaming, what another one wrote would be lost. The file itself is replaced each time, so that what is
/// locked lies beside it.
fn lock(path: &Path) -> io::Result<File> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(ErrorKind::InvalidInput)?);
    name.push(".lock");
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false);
    let file = open_regular(&folder(path).join(name), options)?;
    // Whoever waits for a process that was stopped is a thread that nobody waits for; where there is but
    // one thread, it does not wait.
    #[cfg(threads)]
    let locked = file.lock();
    #[cfg(not(threads))]
    let locked = match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => return Err(ErrorKind::WouldBlock.into()),
        Err(fs::TryLockError::Error(error)) => Err(error),
        Ok(()) => Ok(()),
    };
    // Not every file system locks. Then a verdict may be lost, and its link is proven once more.
    let _ = locked;
    Ok(file)
}

/// Twice what as many entries take as are kept, half a kilobyte each.
pub(super) const MOST_BYTES: u64 = 4 << 20;
