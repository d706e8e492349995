//! Files and folders, with errors that name them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The text of a file.
///
/// # Errors
/// When it cannot be read, or is not UTF-8.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file, and makes its folder where that is missing.
///
/// # Errors
/// When either cannot be written.
pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    if let Some(folder) = path.parent() {
        make(folder)?;
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Makes a folder and those above it, where they are missing.
///
/// # Errors
/// When one cannot be made.
pub(crate) fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Moves a file or a folder to another name in the same file system.
///
/// # Errors
/// When it is not there, or the new name cannot be taken.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    let told = || format!("cannot move {} to {}", from.display(), to.display());
    fs::rename(from, to).with_context(told)
}

/// Removes a file, or a folder with all in it, if it is there.
///
/// # Errors
/// When it is there and stays.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() && !path.is_symlink() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.with_context(|| format!("cannot remove {}", path.display())),
    }
}

/// The paths of what lies directly in a folder, sorted.
///
/// # Errors
/// When the folder cannot be listed.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(folder)?
            .map(|entry| Ok(entry?.path()))
            .collect()
    };
    let mut paths = list().with_context(|| format!("cannot list {}", folder.display()))?;
    paths.sort();
    Ok(paths)
}

/// The paths of all files in a folder and in those below it, sorted in each; none if the folder is not there.
///
/// # Errors
/// When a folder cannot be listed.
pub(crate) fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if folder.is_dir() {
        for path in entries(folder)? {
            if path.is_dir() {
                files.extend(below(&path)?);
            } else {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// Whether the name of `path` ends with `.ending`.
pub(crate) fn ends_with(path: &Path, ending: &str) -> bool {
    path.extension()
        .is_some_and(|extension| extension == ending)
}
