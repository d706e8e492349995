//! A file that appears whole or not at all.
//!
//! It is written as `.NAME.PROCESS-NUMBER.partial` beside its place. Whoever writes one holds a lock
//! on it, which the system takes back when the process is gone, so that a later copy to the same
//! place can tell what was left behind from what is being written.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

use transload::host::HostFile;

use crate::failure::Failure;
use crate::interrupt::unfinished;

/// A file beside its final place, which it takes when everything has arrived. Dropped before that,
/// it leaves nothing behind, and whatever was in the place before stays.
#[derive(Debug)]
pub(crate) struct Landing {
    /// What the user calls it.
    shown: PathBuf,
    target: PathBuf,
    partial: PathBuf,
    file: File,
    placed: bool,
}

impl Landing {
    /// Makes an empty file of that length, under a name that nothing else has.
    ///
    /// # Errors
    /// When the place is taken by what is no writable file, or no file can be created in its folder.
    pub(crate) fn new(path: &Path, len_bytes: u64) -> Result<Landing, Failure> {
        let failed = |source| Failure::Create {
            path: path.into(),
            source,
        };
        // The file behind a link is replaced, and the link stays.
        let target = match fs::canonicalize(path) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::NotFound => path.into(),
            Err(error) => return Err(failed(error)),
        };
        let before = replaceable(path, &target)?;
        let folder = folder(&target);
        if !folder.exists() {
            return Err(Failure::NoFolder {
                path: path.into(),
                folder: folder.into(),
            });
        }
        remove_stale(&target);
        let (partial, file) = {
            let mut unfinished = unfinished();
            let (partial, file) = create_beside(&target).map_err(|source| Failure::Folder {
                path: path.into(),
                folder: folder.into(),
                source,
            })?;
            unfinished.add(path, &partial);
            (partial, file)
        };
        let landing = Landing {
            shown: path.into(),
            target,
            partial,
            file,
            placed: false,
        };
        if let Some(before) = before {
            landing
                .file
                .set_permissions(before.permissions())
                .map_err(failed)?;
        }
        landing.file.set_len(len_bytes).map_err(failed)?;
        Ok(landing)
    }

    /// The file, for the library to write.
    ///
    /// # Errors
    /// When the process has no handle left.
    pub(crate) fn host_file(&self) -> Result<HostFile, Failure> {
        let file = self.file.try_clone().map_err(|source| Failure::Create {
            path: self.shown.clone(),
            source,
        })?;
        let file = HostFile::from_file(file, &self.shown, true);
        file.map_err(|error| Failure::Open(error.into()))
    }

    /// Puts the file in its place. Its bytes are on the disk by then, so that not even a crash
    /// leaves half a file there.
    ///
    /// # Errors
    /// When the system refuses; the place is as it was.
    pub(crate) fn place(mut self) -> Result<(), Failure> {
        let failed = |source| Failure::Place {
            path: self.shown.clone(),
            source,
        };
        self.file.sync_all().map_err(failed)?;
        let mut unfinished = unfinished();
        fs::rename(&self.partial, &self.target).map_err(failed)?;
        unfinished.forget(&self.partial);
        self.placed = true;
        // From here on it is the user's file like any other.
        let _ = self.file.unlock();
        Ok(())
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if !self.placed {
            let mut unfinished = unfinished();
            // Nothing is left to tell when even this fails.
            let _ = fs::remove_file(&self.partial);
            unfinished.forget(&self.partial);
        }
    }
}

/// What is in the place now, if it may be replaced: renaming a file over a device or a pipe would
/// take that away.
fn replaceable(path: &Path, target: &Path) -> Result<Option<fs::Metadata>, Failure> {
    let occupied = |reason| Failure::Occupied {
        path: path.into(),
        reason,
    };
    if names_a_folder(path) {
        return Err(occupied("it names a folder"));
    }
    match fs::metadata(target) {
        Ok(before) if before.is_dir() => Err(occupied("it is a folder")),
        Ok(before) if !before.is_file() => Err(occupied("it is no regular file")),
        Ok(before) if before.permissions().readonly() => Err(occupied("it is read-only")),
        Ok(before) => Ok(Some(before)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Failure::Create {
            path: path.into(),
            source,
        }),
    }
}

fn create_beside(target: &Path) -> io::Result<(PathBuf, File)> {
    let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
    for number in 0.. {
        let mut partial = OsString::from(".");
        partial.push(name);
        partial.push(format!(".{}-{number}{PARTIAL}", std::process::id()));
        let partial = target.with_file_name(partial);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true);
        let file = match options.open(&partial) {
            // Another file of this process, or of one of its number in another container.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            other => other?,
        };
        // Before the lock is held, another process may take the file for one left behind.
        let taken = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
        if !taken && partial.exists() {
            return Ok((partial, file));
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Removes what processes that were killed left of earlier files for the same place. What cannot be
/// looked at stays: it takes room and does no other harm.
fn remove_stale(target: &Path) {
    let Some(name) = target.file_name() else {
        return;
    };
    let Ok(entries) = fs::read_dir(folder(target)) else {
        return;
    };
    for entry in entries.flatten() {
        let is_file = entry.file_type().is_ok_and(|sort| sort.is_file());
        if !is_file || !is_partial(&entry.file_name(), name) {
            continue;
        }
        let path = entry.path();
        let Ok(file) = OpenOptions::new().write(true).open(&path) else {
            continue;
        };
        // Removed under the lock: a file that is being made under this name just now is given up by
        // its maker, who finds it locked or gone.
        if file.try_lock().is_ok() {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether `found` is the name under which some process writes a file that is to be called `name`.
fn is_partial(found: &OsStr, name: &OsStr) -> bool {
    let number = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
    let middle = (found.as_encoded_bytes().strip_prefix(b"."))
        .and_then(|rest| rest.strip_prefix(name.as_encoded_bytes()))
        .and_then(|rest| rest.strip_prefix(b"."))
        .and_then(|rest| rest.strip_suffix(PARTIAL.as_bytes()));
    let mut parts = middle.unwrap_or_default().split(|byte| *byte == b'-');
    let parts = [parts.next(), parts.next(), parts.next()];
    matches!(parts, [Some(process), Some(count), None] if number(process) && number(count))
}

/// Whether a path ends as no file's does.
fn names_a_folder(path: &Path) -> bool {
    let ends_so = |last: char| path.to_string_lossy().ends_with(last);
    path.file_name().is_none() || ends_so('/') || ends_so(MAIN_SEPARATOR)
}

/// The folder that a path leads to a file in.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// How the names of unfinished files end.
const PARTIAL: &str = ".partial";

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = format!("transload-landing-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(path);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_appears_only_when_it_is_placed() {
        let folder = Folder::new("placed");
        let path = folder.0.join("file");
        fs::write(&path, b"before").unwrap();
        let landing = Landing::new(&path, 5).unwrap();
        (&landing.file).write_all(b"after").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        landing.place().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(folder.files(), 1);
    }

    #[test]
    fn what_is_given_up_leaves_nothing() {
        let folder = Folder::new("dropped");
        let path = folder.0.join("file");
        drop(Landing::new(&path, 1 << 20).unwrap());
        assert_eq!(folder.files(), 0);
    }

    #[test]
    fn what_dead_processes_left_is_removed_and_what_is_being_written_stays() {
        let folder = Folder::new("stale");
        let path = folder.0.join("file");
        let live = Landing::new(&path, 1).unwrap();
        let stale = folder.0.join(".file.1-0.partial");
        fs::write(&stale, b"half of").unwrap();
        for other in [
            ".file.1.partial",
            ".file.x-0.partial",
            ".other.1-0.partial",
            "file.1-0.partial",
        ] {
            fs::write(folder.0.join(other), b"not ours").unwrap();
        }
        let landing = Landing::new(&path, 1).unwrap();
        assert!(!stale.exists() && live.partial.exists());
        assert_eq!(folder.files(), 6);
        landing.place().unwrap();
        live.place().unwrap();
        assert_eq!(folder.files(), 5);
    }

    #[test]
    fn a_folder_and_a_missing_folder_are_refused_by_name() {
        let folder = Folder::new("refused");
        let error = Landing::new(&folder.0, 0).unwrap_err();
        assert!(error.to_string().contains(folder.0.to_str().unwrap()));
        let error = Landing::new(&folder.0.join("no/file"), 0).unwrap_err();
        assert!(error.to_string().contains("no/file"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn the_file_behind_a_link_is_replaced_and_keeps_its_mode() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = Folder::new("link");
        let (file, link) = (folder.0.join("file"), folder.0.join("link"));
        fs::write(&file, b"before").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&file, &link).unwrap();
        Landing::new(&link, 3).unwrap().place().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), [0; 3]);
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o640
        );
    }

    #[cfg(unix)]
    #[test]
    fn devices_and_read_only_files_are_never_replaced() {
        let error = Landing::new(Path::new("/dev/null"), 0).unwrap_err();
        assert!(error.to_string().contains("/dev/null"), "{error}");
        let folder = Folder::new("read-only");
        let path = folder.0.join("file");
        fs::write(&path, b"kept").unwrap();
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions).unwrap();
        let error = Landing::new(&path, 0).unwrap_err();
        assert!(error.to_string().contains("read-only"), "{error}");
    }
}
