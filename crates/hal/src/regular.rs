//! Files at paths that a user names, opened so that no pipe and no device blocks the caller.

use core::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;
use std::vec::Vec;

/// Opens a regular file with the options, and refuses everything else at once. [`OpenOptions::open`] waits for the
/// other end of a pipe, and opening a device file may start something on the device.
///
/// # Errors
/// [`NotRegular`], in an [`io::Error`] of the kind [`InvalidInput`](io::ErrorKind::InvalidInput), for a directory, a
/// pipe, a socket and a device; otherwise the system's error.
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
        Ok(found) => NotRegular::check(&found)?,
        // The options may say that it is to be created.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = open_at_once(path, options)?;
    // A pipe may have taken its place meanwhile.
    NotRegular::check(&file.metadata()?)?;
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
        let told = std::format!("it is longer than the limit of {most_bytes} bytes");
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

/// The error for a path that names something other than a regular file, which has positions and a length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NotRegular {
    /// A directory.
    Directory,
    /// A pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A block device or a character device, a terminal among them.
    Device,
    /// The system does not tell what.
    Other,
}

impl NotRegular {
    /// Checks that the system describes a regular file.
    ///
    /// # Errors
    /// What the system describes otherwise.
    pub fn check(found: &Metadata) -> Result<(), NotRegular> {
        let sort = found.file_type();
        if sort.is_file() {
            return Ok(());
        }
        if sort.is_dir() {
            return Err(NotRegular::Directory);
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileTypeExt;
            if sort.is_fifo() {
                return Err(NotRegular::Pipe);
            }
            if sort.is_socket() {
                return Err(NotRegular::Socket);
            }
            if sort.is_block_device() || sort.is_char_device() {
                return Err(NotRegular::Device);
            }
        }
        Err(NotRegular::Other)
    }

    /// Returns the refusal that `error` holds, if it holds one.
    pub fn find(error: &io::Error) -> Option<NotRegular> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for NotRegular {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = match self {
            NotRegular::Directory => "it is a directory",
            NotRegular::Pipe => "it is a pipe",
            NotRegular::Socket => "it is a socket",
            NotRegular::Device => "it is a device",
            NotRegular::Other => return f.write_str("it is not a regular file"),
        };
        write!(f, "{found}, not a regular file")
    }
}

impl core::error::Error for NotRegular {}

impl From<NotRegular> for io::Error {
    fn from(refusal: NotRegular) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, refusal)
    }
}
