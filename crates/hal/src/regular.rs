//! Files at paths that a user names, opened so that no pipe and no device blocks the caller.

use core::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;
use std::vec::Vec;

/// Opens a regular file with the options, and refuses everything else at once. [`OpenOptions::open`] waits for the
/// other end of a pipe, and opening a device file may start something on the device.
///
/// # Errors
/// [`NotRegular`], in an [`io::Error`] of the kind [`InvalidInput`](io::ErrorKind::InvalidInput), for a folder, a pipe,
/// a socket and a device; otherwise the system's error.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = open_without_blocking(path, options)?;
    #[cfg(unix)]
    {
        // Reads through `io_uring` would fail where the page cache lacks the bytes.
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)?;
    }
    Ok(file)
}

/// The same, and the file stays non-blocking on Unix.
fn open_without_blocking(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => return Err(NotRegular.into()),
        // The options may say that it is to be created.
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = open_at_once(path, options)?;
    // A pipe may have taken its place meanwhile.
    if !file.metadata()?.is_file() {
        return Err(NotRegular.into());
    }
    Ok(file)
}

/// Reads a regular file, whole. Blocks on the disk.
///
/// # Errors
/// As [`open_regular`]; [`FileTooLarge`](io::ErrorKind::FileTooLarge) when the file has more than `most_bytes`; on Unix,
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when the end of the file never comes and a read would wait for more bytes,
/// as in `/proc/kmsg`.
pub fn read_regular(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    // A file system that generates its files may wait for their bytes. It obeys the flag; reads from a disk ignore it.
    let file = open_without_blocking(path, OpenOptions::new().read(true))?;
    let mut bytes = Vec::new();
    file.take(most_bytes.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        let told = std::format!("it is longer than {most_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, told));
    }
    Ok(bytes)
}

#[cfg(unix)]
fn open_at_once(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    match options.custom_flags(flags).open(path) {
        // Another process has a lease on the file, as file servers do. The system revokes the lease while the caller
        // waits.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            options.custom_flags(0).open(path)
        }
        opened => opened,
    }
}

#[cfg(not(unix))]
fn open_at_once(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.open(path)
}

/// The error for a path that names no regular file: a folder, a pipe, a socket, a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotRegular;

impl NotRegular {
    /// Returns whether `error` is this one.
    pub fn is(error: &io::Error) -> bool {
        error
            .get_ref()
            .is_some_and(|inner| inner.is::<NotRegular>())
    }
}

impl fmt::Display for NotRegular {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no regular file")
    }
}

impl core::error::Error for NotRegular {}

impl From<NotRegular> for io::Error {
    fn from(refusal: NotRegular) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, refusal)
    }
}
