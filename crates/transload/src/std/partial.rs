//! Files that are there whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A file beside its place, which it takes when it is whole. Dropped before that, it is removed.
pub(super) struct Partial {
    /// Where it goes: the file behind a link is replaced, and the link stays.
    target: PathBuf,
    path: PathBuf,
    file: File,
    placed: bool,
}

impl Partial {
    /// Writes the file beside its place, and makes the folders that lead there.
    pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<Partial> {
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        if target.is_dir() {
            return Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder"));
        }
        let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
        let folder = folder(&target);
        fs::create_dir_all(folder)?;
        let mut beside = std::ffi::OsString::from(".");
        beside.push(name);
        beside.push(format!(".{}.partial", std::process::id()));
        let path = folder.join(beside);
        // One that a killed process of this number left is written over.
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true);
        let mut partial = Partial {
            target,
            file: options.open(&path)?,
            path,
            placed: false,
        };
        partial.file.write_all(bytes)?;
        Ok(partial)
    }

    /// Where it lies until then.
    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its place. After a crash of the machine, half of it may be there.
    pub(super) fn place(mut self) -> io::Result<()> {
        fs::rename(&self.path, &self.target)?;
        self.placed = true;
        Ok(())
    }

    /// Gives it its place when the disk has it. Whatever happens, all of it is there or what was there
    /// before.
    pub(super) fn place_for_good(self) -> io::Result<()> {
        self.file.sync_all()?;
        let target = self.target.clone();
        self.place()?;
        // The name is on the disk when its folder is. Not every system lets a folder be opened.
        if let Ok(folder) = File::open(folder(&target)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.placed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The folder that a path leads to a file in.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
