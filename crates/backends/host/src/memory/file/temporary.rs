//! Files without a name, for [`HostFile`](super::HostFile)s that nothing else sees.

use std::fs::File;
#[cfg(windows)]
use std::fs::OpenOptions;
use std::io;
use std::path::Path;

#[cfg(not(windows))]
pub(crate) fn file_in(folder: &Path) -> io::Result<File> {
    tempfile::tempfile_in(folder)
}

/// A file that may be opened again, as [`HostFile::read_directly`](super::HostFile::read_directly) does.
#[cfg(windows)]
pub(crate) fn file_in(folder: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    use windows_sys::Win32::Storage::FileSystem::{
        FILE_ATTRIBUTE_TEMPORARY, FILE_FLAG_DELETE_ON_CLOSE,
    };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    options
        .attributes(FILE_ATTRIBUTE_TEMPORARY)
        .custom_flags(FILE_FLAG_DELETE_ON_CLOSE);
    let named = tempfile::Builder::new().make_in(folder, |path| options.open(path))?;
    // The system deletes it with its last handle.
    Ok(named.keep()?.0)
}
