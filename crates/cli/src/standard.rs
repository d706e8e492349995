//! Standard input and standard output as the ends of a copy.
//!
//! Both go by a file without a name in the system's folder for temporary files. A copy needs to know how long its bytes are,
//! and standard output gets nothing of a copy that fails: its reader could not tell.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Seek, Write};

use transload::host::HostFile;

use crate::failure::Failure;

/// Reads standard input to its end. Of a regular file it takes what is left of it in place, so that its holes are known.
///
/// # Errors
/// If it cannot be read, or the folder for temporary files has no room for it.
pub(crate) fn read() -> Result<HostFile, Failure> {
    if let Some(file) = redirected() {
        return Ok(file);
    }
    let read = tempfile::tempfile().and_then(|mut file| {
        io::copy(&mut io::stdin().lock(), &mut file)?;
        Ok(file)
    });
    let file = read.map_err(|source| Failure::StandardInput {
        folder: std::env::temp_dir(),
        source,
    })?;
    let file = HostFile::from_file(file, "-", false);
    file.map_err(|error| Failure::Open(error.into()))
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
    /// If standard output is a terminal, or no file can be created.
    pub(crate) fn new() -> Result<StandardOutput, Failure> {
        if io::stdout().is_terminal() {
            return Err(Failure::Terminal);
        }
        let file = tempfile::tempfile().map_err(temporary)?;
        Ok(StandardOutput { file })
    }

    /// Makes room for that many bytes.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn resize(&self, len_bytes: u64) -> Result<(), Failure> {
        self.file.set_len(len_bytes).map_err(temporary)
    }

    /// The bytes, for the library to write.
    ///
    /// # Errors
    /// When the process has no handle left.
    pub(crate) fn host_file(&self) -> Result<HostFile, Failure> {
        let file = self.file.try_clone().map_err(temporary)?;
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

fn temporary(source: io::Error) -> Failure {
    Failure::Temporary {
        folder: std::env::temp_dir(),
        source,
    }
}
