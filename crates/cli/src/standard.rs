//! Standard input and standard output as the ends of a copy.
//!
//! Both go by a file without a name in the system's folder for temporary files. A copy needs to know how long its bytes are,
//! and standard output gets nothing of a copy that fails: its reader could not tell.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Seek, Write};

use transload::host::HostFile;

use crate::failure::Failure;

/// Reads standard input to its end. Of a regular file it takes what is left of it in place, so that its holes are known.
///
/// # Errors
/// If it is closed or cannot be read, or the folder for temporary files has no room for it.
pub(crate) fn read() -> Result<HostFile, Failure> {
    #[cfg(unix)]
    if is_closed(io::stdin(), rustix::fs::OFlags::RDONLY) {
        let closed = "it is closed, open for writing alone, or /dev/null that is open for both";
        let source = io::Error::new(ErrorKind::InvalidInput, closed);
        return Err(Failure::StandardInput { source });
    }
    if let Some(file) = redirected() {
        return Ok(file);
    }
    let kept = |source| temporary("input", source);
    let mut file = tempfile::tempfile().map_err(kept)?;
    let mut input = io::stdin().lock();
    let mut bytes = vec![0; READ_BYTES];
    loop {
        match input.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => file.write_all(&bytes[..count]).map_err(kept)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(source) => return Err(Failure::StandardInput { source }),
        }
    }
    let file = HostFile::from_file(file, "-", false);
    file.map_err(|error| Failure::Open(error.into()))
}

/// What a pipe of Linux holds at most, unless root allows more (pipe(7)).
const READ_BYTES: usize = 1 << 20;

/// Whether the program was started without that stream, or with one that does not go the way. The standard library opens
/// /dev/null for both ways in the place of a closed one, and takes errors of one that goes the other way for an end or a success.
#[cfg(unix)]
fn is_closed(stream: impl std::os::fd::AsFd, way: rustix::fs::OFlags) -> bool {
    use rustix::fs::{OFlags, fcntl_getfl, fstat, stat};
    let ways = fcntl_getfl(&stream).map(|flags| flags & OFlags::RWMODE);
    let is_null = || match (fstat(&stream), stat("/dev/null")) {
        (Ok(this), Ok(null)) => (this.st_dev, this.st_ino) == (null.st_dev, null.st_ino),
        _ => false,
    };
    ways != Ok(way) && (ways != Ok(OFlags::RDWR) || is_null())
}

/// The rest of the regular file that standard input is, if it is one with a length.
fn redirected() -> Option<HostFile> {
    #[cfg(unix)]
    let input = std::os::fd::AsFd::as_fd(&io::stdin()).try_clone_to_owned();
    #[cfg(windows)]
    let input = std::os::windows::io::AsHandle::as_handle(&io::stdin()).try_clone_to_owned();
    #[cfg(any(unix, windows))]
    {
        let mut input = File::from(input.ok()?);
        let begin = input.stream_position().ok()?;
        let file = HostFile::from_file(input.try_clone().ok()?, "-", false).ok()?;
        let rest = file.span().len.checked_sub(begin)?;
        // As a reader leaves it.
        input.seek(io::SeekFrom::End(0)).ok()?;
        file.slice(transload::hal::Span::new(begin, rest)).ok()
    }
    #[cfg(not(any(unix, windows)))]
    None
}

/// The bytes for standard output.
#[derive(Debug)]
pub(crate) struct StandardOutput {
    file: File,
}

impl StandardOutput {
    /// # Errors
    /// If standard output is closed or a terminal, or no file can be created.
    pub(crate) fn new() -> Result<StandardOutput, Failure> {
        #[cfg(unix)]
        if is_closed(io::stdout(), rustix::fs::OFlags::WRONLY) {
            let because = "is closed, open for reading alone, or /dev/null that is open for both";
            return Err(Failure::NotRedirected { because });
        }
        if io::stdout().is_terminal() {
            let because = "is a terminal, and a file may contain orders to it";
            return Err(Failure::NotRedirected { because });
        }
        let file = tempfile::tempfile().map_err(StandardOutput::failed)?;
        Ok(StandardOutput { file })
    }

    fn failed(source: io::Error) -> Failure {
        temporary("output", source)
    }

    /// Makes room for that many bytes.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn resize(&self, len_bytes: u64) -> Result<(), Failure> {
        self.file.set_len(len_bytes).map_err(StandardOutput::failed)
    }

    /// The bytes, for the library to write.
    ///
    /// # Errors
    /// When the process has no handle left.
    pub(crate) fn host_file(&self) -> Result<HostFile, Failure> {
        let file = self.file.try_clone().map_err(StandardOutput::failed)?;
        let file = HostFile::from_file(file, "-", true);
        file.map_err(|error| Failure::Open(error.into()))
    }

    /// Writes them to standard output.
    ///
    /// # Errors
    /// If they cannot be written, [`Failure::Closed`] if its reader wants no more.
    pub(crate) fn place(mut self) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        let written = { self.file.rewind() }
            .and_then(|()| io::copy(&mut self.file, &mut stdout))
            .and_then(|_| stdout.flush());
        written.map_err(|source| match source.kind() {
            ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Output(source),
        })
    }
}

fn temporary(stream: &'static str, source: io::Error) -> Failure {
    Failure::Temporary {
        stream,
        folder: std::env::temp_dir(),
        source,
    }
}
