//! Files that are there whole or not at all.
//!
//! Such a file is written as `.transload-RANDOM.partial` in the folder of its place. Whoever writes one holds a lock on
//! it, which the system takes back when the process is gone. The next such file in the folder removes those that
//! nobody locks: they were left by processes that were killed.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use transload_hal::{NotRegular, open_regular};

/// A file beside its place, which it takes when it is whole. Dropped before that, it is removed.
#[derive(Debug)]
pub struct Partial {
    /// Where it goes: the file behind a link is replaced, and the link stays.
    target: PathBuf,
    file: NamedTempFile,
    /// Those of the file that it replaces. Until it is placed, only its owner reads it.
    permissions: Option<Permissions>,
}

impl Partial {
    /// Makes an empty file in the folder of `path`.
    ///
    /// # Errors
    /// When `path` leads to what is no regular file ([`NotRegular`]), or the system refuses.
    pub fn beside(path: &Path) -> io::Result<Partial> {
        let target = match fs::canonicalize(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => path.into(),
            target => target?,
        };
        let permissions = match fs::metadata(&target) {
            Ok(found) if !found.is_file() => return Err(NotRegular.into()),
            Ok(found) => Some(found.permissions()),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        remove_stale(folder(&target));
        Ok(Partial {
            file: create_in(folder(&target), permissions.is_some())?,
            target,
            permissions,
        })
    }

    /// Makes a file of these bytes, and the folders that lead to it.
    ///
    /// # Errors
    /// As [`Partial::beside`].
    pub fn write(path: &Path, bytes: &[u8]) -> io::Result<Partial> {
        fs::create_dir_all(folder(path))?;
        let mut partial = Partial::beside(path)?;
        partial.file.write_all(bytes)?;
        Ok(partial)
    }

    /// Gives the file to write.
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Tells where it lies until it is placed.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Gives it its place. After a crash of the machine, half of it may be there.
    ///
    /// # Errors
    /// When the system refuses. The place is as it was, and the file is removed.
    pub fn place(self) -> io::Result<()> {
        if let Some(permissions) = self.permissions {
            self.file.as_file().set_permissions(permissions)?;
        }
        let (file, path) = self.file.keep()?;
        // `NamedTempFile::persist` replaces no file that somebody reads on Windows.
        fs::rename(&path, &self.target).inspect_err(|_| drop(fs::remove_file(&path)))?;
        // From here on it is the user's file like any other.
        let _ = file.unlock();
        Ok(())
    }

    /// Gives it its place when the disk has it. Whatever happens, all of it is there or what was there before.
    ///
    /// # Errors
    /// As [`Partial::place`].
    pub fn place_for_good(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        let target = self.target.clone();
        self.place()?;
        // The name is on the disk when its folder is. Not every system lets a folder be opened.
        if let Ok(folder) = File::open(folder(&target)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

/// Tells the folder that a path leads to a file in.
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg_attr(
    not(unix),
    expect(unused_variables, reason = "only there files have modes")
)]
fn create_in(folder: &Path, replaces: bool) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(BEGIN).suffix(END);
    #[cfg(unix)]
    if !replaces {
        use std::os::unix::fs::PermissionsExt;
        // As every new file, less what the process masks.
        builder.permissions(Permissions::from_mode(0o666));
    }
    loop {
        let file = builder.tempfile_in(folder)?;
        // Before the lock is held, another process may take the file for one left behind.
        let taken = matches!(file.as_file().try_lock(), Err(TryLockError::WouldBlock));
        if !taken && file.path().exists() {
            return Ok(file);
        }
    }
}

/// Removes what killed processes left in a folder. What cannot be looked at stays: it takes room and does no other harm.
fn remove_stale(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let is_file = entry.file_type().is_ok_and(|sort| sort.is_file());
        if !is_file || !is_partial(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        // Removed under the lock: a file that is being made under this name just now is given up by its maker, who
        // finds it locked or gone.
        if let Ok(file) = open_regular(&path, OpenOptions::new().write(true))
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(&path);
        }
    }
}

fn is_partial(name: &OsStr) -> bool {
    let middle = (name.as_encoded_bytes().strip_prefix(BEGIN.as_bytes()))
        .and_then(|rest| rest.strip_suffix(END.as_bytes()));
    middle.is_some_and(|random| random.len() == 6 && random.iter().all(u8::is_ascii_alphanumeric))
}

const BEGIN: &str = ".transload-";
const END: &str = ".partial";

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_only_when_it_is_placed_and_what_is_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/on/the/way/file");
        Partial::write(&path, b"before").unwrap().place().unwrap();
        let partial = Partial::write(&path, b"after").unwrap();
        assert_eq!(fs::read(partial.path()).unwrap(), b"after");
        drop(Partial::write(&path, b"half of").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"before");
        partial.place_for_good().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(names(path.parent().unwrap()), ["file"]);
    }

    #[test]
    fn what_dead_processes_left_is_removed_and_what_is_being_written_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let live = Partial::write(&path, b"live").unwrap();
        let others = [
            ".transload-.partial",
            ".transload-abcde-.partial",
            ".transload-abcdef",
            "transload-abcdef.partial",
        ];
        for name in others.into_iter().chain([".transload-abcdef.partial"]) {
            fs::write(folder.path().join(name), b"half of").unwrap();
        }
        Partial::write(&path, b"whole").unwrap().place().unwrap();
        live.place().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"live");
        let mut left = others.to_vec();
        left.push("file");
        left.sort_unstable();
        assert_eq!(names(folder.path()), left);
    }

    #[test]
    fn a_name_may_be_as_long_as_a_name_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(255));
        Partial::write(&path, b"long").unwrap().place().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"long");
    }

    #[test]
    fn what_is_no_regular_file_keeps_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let error = Partial::write(folder.path(), b"a folder's").unwrap_err();
        assert!(NotRegular::is(&error), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn the_file_behind_a_link_is_replaced_and_its_mode_holds_at_every_moment() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, b"secret").unwrap();
        let usual = mode(&file);
        symlink(&file, &link).unwrap();
        for private in [0o600, 0o640, 0o400] {
            fs::set_permissions(&file, Permissions::from_mode(private)).unwrap();
            let partial = Partial::write(&link, b"another").unwrap();
            assert_eq!(mode(partial.path()), 0o600);
            partial.place().unwrap();
            assert_eq!(mode(&file), private);
        }
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"another");
        // A new one has the mode of every new file.
        let new = folder.path().join("new");
        Partial::write(&new, b"new").unwrap().place().unwrap();
        assert_eq!(mode(&new), usual);
    }
}
