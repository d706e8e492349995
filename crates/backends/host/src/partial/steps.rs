//! The calls by which files reach the disk and their places. Each is made at one place, so that a test can let any of them
//! fail, or end the process there.

use std::cell::RefCell;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A call that changes what a folder has, or what survives a crash of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// `fsync` of a file.
    Sync,
    /// `fsync` of a folder, which has the names.
    SyncFolder,
    /// `rename`.
    Rename,
    /// `link`: a second name for a file.
    Link,
    /// `unlink`.
    Remove,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Sync => "sync",
            Step::SyncFolder => "sync the directory",
            Step::Rename => "rename a file to",
            Step::Link => "link a file to",
            Step::Remove => "remove",
        })
    }
}

/// A step that the system refused.
#[derive(Debug)]
pub struct StepError {
    /// The call.
    pub step: Step,
    /// The file or folder.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

impl From<StepError> for io::Error {
    fn from(error: StepError) -> io::Error {
        error.source
    }
}

/// Syncs a file, which errors name by `path`.
pub(super) fn sync(file: &File, path: &Path) -> Result<(), StepError> {
    take(Step::Sync, path, || file.sync_all())
}

/// Syncs a folder: the names in it are on the disk then. Not every system, and not every file system, has that.
///
/// # Errors
/// When the disk fails, or the folder cannot be opened for another reason than the user's rights.
pub fn sync_folder(folder: &Path) -> Result<(), StepError> {
    take(Step::SyncFolder, folder, || {
        let folder = match File::open(folder) {
            // Windows answers this for every folder.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(()),
            opened => opened,
        };
        match folder.and_then(|folder| folder.sync_all()) {
            Err(error) if lacks(&error) => Ok(()),
            done => done,
        }
    })
}

/// Renames a file, and replaces what has the name.
///
/// # Errors
/// When the system refuses.
pub fn rename(from: &Path, to: &Path) -> Result<(), StepError> {
    take(Step::Rename, to, || fs::rename(from, to))
}

/// Renames a file to a name that nothing has. Returns false if something has it. Where the system has no such call, `links`
/// says whether the file may have both names for a moment; without, the name of another one who is as fast is lost.
pub(super) fn rename_to_free(from: &Path, to: &Path, links: bool) -> Result<bool, StepError> {
    let done = take(Step::Rename, to, || {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            let done = renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE);
            match done.map_err(io::Error::from) {
                Err(error) if lacks(&error) => {}
                done => return done,
            }
        }
        // On Windows the first name would stay while the file is open.
        if links && cfg!(unix) {
            match fs::hard_link(from, to) {
                Err(error) if has_no_links(&error) => {}
                linked => {
                    linked?;
                    // It is that of a partial file, which a later write removes.
                    let _ = fs::remove_file(from);
                    return Ok(());
                }
            }
        }
        match fs::symlink_metadata(to) {
            Err(error) if error.kind() == ErrorKind::NotFound => fs::rename(from, to),
            Err(error) => Err(error),
            Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        }
    });
    match done {
        Ok(()) => Ok(true),
        Err(error) if error.source.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives a file a second name, which nothing has. Returns false where the file system has no such names, or the user may
/// not make one.
///
/// # Errors
/// When the system refuses for another reason.
pub fn link(from: &Path, to: &Path) -> Result<bool, StepError> {
    match take(Step::Link, to, || fs::hard_link(from, to)) {
        Ok(()) => Ok(true),
        Err(error) if has_no_links(&error.source) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the error says that the file gets no second name here.
fn has_no_links(error: &io::Error) -> bool {
    use ErrorKind::{CrossesDevices, PermissionDenied, TooManyLinks};
    matches!(
        error.kind(),
        PermissionDenied | TooManyLinks | CrossesDevices
    ) || lacks(error)
}

/// Removes a file, or a link.
///
/// # Errors
/// When the system refuses.
pub fn remove(path: &Path) -> Result<(), StepError> {
    take(Step::Remove, path, || fs::remove_file(path))
}

/// Whether the error says that the file system does not have the call, and nothing of this file.
pub(super) fn lacks(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::InvalidInput
    )
}

type Watcher = Box<dyn FnMut(Step, &Path) -> io::Result<()>>;

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// Has `watcher` asked before each step that `act` takes on this thread. The step fails with the watcher's error.
pub fn watched<T>(
    watcher: impl FnMut(Step, &Path) -> io::Result<()> + 'static,
    act: impl FnOnce() -> T,
) -> T {
    WATCHER.set(Some(Box::new(watcher)));
    let done = act();
    WATCHER.take();
    done
}

fn take(step: Step, path: &Path, act: impl FnOnce() -> io::Result<()>) -> Result<(), StepError> {
    let asked = WATCHER.with_borrow_mut(|watcher| match watcher {
        Some(watcher) => watcher(step, path),
        None => Ok(()),
    });
    asked.and_then(|()| act()).map_err(|source| StepError {
        step,
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_opened_is_not_synced() {
        let base = tempfile::tempdir().unwrap();
        sync_folder(base.path()).unwrap();
        let error = sync_folder(&base.path().join("missing")).unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::NotFound);
    }
}
