//! Files as memory: opened, created, and reached by positioned reads and writes.

mod temporary;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

#[cfg(not(any(unix, windows)))]
use transload_hal::HOST;
use transload_hal::{
    ErrorClass, Fault, FileLimit, MemoryId, NotRegular, Span, StorageId, SystemError, longest_file,
    open_regular,
};

use super::direct::{Direct, cached_share};
use super::{DISK, FILE};

pub(crate) use temporary::file_in as unnamed_file;

/// A range of a regular file that serves as memory; the owner of a buffer in `cpu:0/file` or `cpu:0/disk`.
///
/// The backend reaches the bytes by positioned reads and writes, never through a mapping: when another process
/// truncates the file, a transfer fails with an error and no signal is raised. The range is fixed when the file is
/// opened.
#[derive(Debug)]
pub struct HostFile {
    file: File,
    path: PathBuf,
    span: Span,
    writable: bool,
    id: StorageId,
    /// Set if the file's bytes are shared memory whose identity is older than the file.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    _alias: Option<std::sync::Arc<super::alias::Alias>>,
    /// Whether it was made of a handle, of which other views may exist.
    is_memory: bool,
    /// Reads it past the system's cache.
    direct: Option<Direct>,
}

/// Why a file cannot serve as memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system failed to open, create, extend or describe the file.
    #[error("{path}: {}", SystemError(source), path = path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The system's error.
        r#source: io::Error,
    },
    /// A directory, a pipe, a socket or a device, which has no positions and no length.
    #[error("{path}: {found}", path = path.display())]
    NotRegular {
        /// Its path.
        path: PathBuf,
        /// What it is.
        found: NotRegular,
    },
    /// The length is more than a file can have here.
    #[error(
        "{path} cannot be made {len_bytes} bytes long: {}",
        Longest(*.limit_bytes),
        path = path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The length that was asked for.
        len_bytes: u64,
        /// The largest length that a file can have; `None` where the file system refused the length without telling
        /// its limit.
        limit_bytes: Option<u64>,
    },
    /// The length is more than this process may write to a file.
    #[error("{path} cannot be made {len_bytes} bytes long: {}", FileLimit(*.limit_bytes), path = path.display())]
    ProcessLimit {
        /// The file.
        path: PathBuf,
        /// The length that was asked for.
        len_bytes: u64,
        /// The process's limit (`RLIMIT_FSIZE`).
        limit_bytes: u64,
    },
    /// A file whose bytes the system generates at each read, such as `/proc/cpuinfo`: it reports a length of 0.
    #[error(
        "{path} has no fixed length: the system reports 0 bytes, and yet it has content; read it to the end, and adopt \
         the bytes",
        path = path.display()
    )]
    NoFixedLength {
        /// The file.
        path: PathBuf,
    },
    /// A range that does not lie within the file.
    #[error("{span} are not all within {path}, which has {len_bytes} bytes", path = path.display())]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// The range that was asked for.
        span: Span,
        /// The length of the file.
        len_bytes: u64,
    },
}

/// Formats why a length is too long.
struct Longest(Option<u64>);

impl fmt::Display for Longest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(limit_bytes) => write!(f, "a file has at most {limit_bytes}"),
            None => f.write_str("its file system has no files of that length"),
        }
    }
}

/// The largest length of a file: the systems count positions in a signed number.
pub(crate) const MAX_LEN_BYTES: u64 = i64::MAX as u64;

impl HostFile {
    /// Opens a whole file for reading.
    ///
    /// # Errors
    /// If the file is missing, unreadable, no regular file, or has no fixed length. A pipe is refused without
    /// blocking.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let (file, ()) = Self::open_claimed(path, |_| Ok::<_, FileError>(()))?;
        Ok(file)
    }

    /// Opens as [`HostFile::open`] does, and claims the bytes before it looks at the length.
    ///
    /// # Errors
    /// As [`HostFile::open`], and the errors of `claim`.
    #[doc(hidden)]
    pub fn open_claimed<C, E: From<FileError>>(
        path: impl AsRef<Path>,
        claim: impl FnOnce(StorageId) -> Result<C, E>,
    ) -> Result<(Self, C), E> {
        let path = path.as_ref();
        let file = open(path, OpenOptions::new().read(true))?;
        let known = Self::identified(file, path.to_owned(), false)?;
        let claim = claim(known.id)?;
        Ok((known.measured()?, claim))
    }

    /// Opens a whole file for reading and writing.
    ///
    /// # Errors
    /// If the file is missing, not writable, no regular file, or has no fixed length.
    pub fn open_writable(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let file = open(path, OpenOptions::new().read(true).write(true))?;
        Self::new(file, path.to_owned(), true)
    }

    /// Creates a file of `len_bytes` zero bytes, replacing an existing file.
    ///
    /// # Errors
    /// If the file cannot be created or extended to that length, or if the path is no regular file. A length that no
    /// file can have is refused before anything is replaced.
    pub fn create(path: impl AsRef<Path>, len_bytes: u64) -> Result<Self, FileError> {
        let (file, ()) = Self::create_claimed(path, len_bytes, |_| Ok::<_, FileError>(()))?;
        Ok(file)
    }

    /// Creates as [`HostFile::create`] does, and claims the bytes before it truncates an existing file.
    ///
    /// # Errors
    /// As [`HostFile::create`], and the errors of `claim`. If `claim` fails, an existing file is unchanged.
    #[doc(hidden)]
    pub fn create_claimed<C, E: From<FileError>>(
        path: impl AsRef<Path>,
        len_bytes: u64,
        claim: impl FnOnce(StorageId) -> Result<C, E>,
    ) -> Result<(Self, C), E> {
        let path = path.as_ref();
        check_len(path, len_bytes)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = open(path, options)?;
        let known = Self::identified(file, path.to_owned(), true)?;
        let claim = claim(known.id)?;
        set_len(&known.file, path, 0)?;
        set_len(&known.file, path, len_bytes)?;
        Ok((known.measured()?, claim))
    }

    /// Takes a whole file that is already open. Errors name it by `path`; `writable` says whether it was opened for
    /// writing too.
    ///
    /// # Errors
    /// If it is no regular file, or has no fixed length.
    pub fn from_file(
        file: File,
        path: impl Into<PathBuf>,
        writable: bool,
    ) -> Result<Self, FileError> {
        Self::new(file, path.into(), writable)
    }

    /// Narrows the file to the bytes `span` of it.
    ///
    /// # Errors
    /// If the bytes do not all lie within the file's current range.
    pub fn slice(mut self, span: Span) -> Result<Self, FileError> {
        if !span.fits(self.span.len) {
            return Err(FileError::OutOfRange {
                path: self.path,
                span,
                len_bytes: self.span.len,
            });
        }
        self.span = Span::new(self.span.offset + span.offset, span.len);
        Ok(self)
    }

    /// The path that errors name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of the file that it covers.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The memory that its bytes are of: [`DISK`] if they are read past the system's cache, else [`FILE`].
    pub fn memory(&self) -> MemoryId {
        match self.direct {
            Some(_) => DISK,
            None => FILE,
        }
    }

    /// The identity of the file's bytes.
    pub fn storage_id(&self) -> StorageId {
        self.id
    }

    /// The file itself, for reads and writes outside the order of transfers. `None` if it is shared memory seen as a
    /// file: other code may hold its bytes as slices, which nothing may change.
    pub fn file(&self) -> Option<&File> {
        (!self.is_memory).then_some(&self.file)
    }

    /// Returns the file.
    ///
    /// # Errors
    /// Returns the `HostFile` unchanged if [`HostFile::file`] gives `None`.
    pub fn into_file(self) -> Result<File, Self> {
        if self.is_memory {
            return Err(self);
        }
        Ok(self.file)
    }

    /// Returns which part of its bytes the system's cache has, 0 to 1, by a look at up to 64 of its pages; `None` where the system
    /// does not tell. Takes some microseconds for each page, and does not wait for the disk. Only Linux tells.
    pub fn cached_share(&self) -> Option<f64> {
        cached_share(&self.file, self.span)
    }

    /// Shorter pieces are never read past the cache, which reads ahead.
    pub const DIRECT_BYTES: u64 = 128 << 10;

    /// Makes it memory of `cpu:0/disk`: reads pieces of 128 KiB and more past the system's cache from now on, for bytes that the
    /// cache does not have: at the rate of the disk, with little work, and without driving out what others have in the cache.
    /// Reads that fail so are done through the cache.
    ///
    /// Linux has it with `O_DIRECT`, through io_uring where the system allows that, else one read of a thread after the other;
    /// Windows with overlapped reads that are not buffered; Apple's systems with `F_NOCACHE`, for all descriptors of this
    /// opening of the file.
    ///
    /// # Errors
    /// When the system or the file system has no such reads. Pieces are read through the cache then.
    pub fn read_directly(&mut self) -> io::Result<()> {
        if self.direct.is_none() {
            self.direct = Some(Direct::open(&self.file)?);
        }
        Ok(())
    }

    /// Reads through the system's cache again.
    pub(crate) fn read_through_cache(&mut self) {
        self.direct = None;
    }

    /// Whether pieces of so many bytes are read past the cache.
    pub(crate) fn direct(&self, len_bytes: u64) -> Option<&Direct> {
        let is_long = len_bytes >= Self::DIRECT_BYTES;
        self.direct.as_ref().filter(|_| is_long)
    }

    /// How many bytes of a file are read for rows of it: the rows themselves, and up to 4 KiB between two of up to 8 KiB, in
    /// the order of the file, as such are read together.
    pub fn read_bytes(rows: impl Iterator<Item = Span> + Clone) -> u64 {
        let windows = crate::queue::windows(rows);
        windows.fold(0, |sum, (window, _)| sum.saturating_add(window.len))
    }

    /// The file, for this backend's own reading and writing.
    pub(crate) fn raw(&self) -> &File {
        &self.file
    }

    /// Marks the file as the bytes of another memory.
    #[cfg(any(unix, windows))]
    pub(crate) fn of_memory(mut self) -> Self {
        self.is_memory = true;
        self
    }

    /// A nameless file of `len_bytes` zero bytes in the folder for temporary files; it vanishes with the
    /// last handle.
    pub(crate) fn temporary(len_bytes: u64) -> Result<Self, FileError> {
        let path = std::env::temp_dir();
        check_len(&path, len_bytes)?;
        let file = temporary::file_in(&path).map_err(system(&path))?;
        set_len(&file, &path, len_bytes)?;
        Self::new(file, path, true)
    }

    fn new(file: File, path: PathBuf, writable: bool) -> Result<Self, FileError> {
        Self::identified(file, path, writable)?.measured()
    }

    /// Determines the identity of the file's bytes. Its length is not known yet.
    fn identified(file: File, path: PathBuf, writable: bool) -> Result<Self, FileError> {
        let metadata = file.metadata().map_err(system(&path))?;
        if let Err(found) = NotRegular::check(&metadata) {
            return Err(FileError::NotRegular { path, found });
        }
        let id = identity(&file, &metadata).map_err(system(&path))?;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let alias = super::alias::Alias::of(&metadata);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = alias.as_ref().map_or(id, |alias| alias.id());
        Ok(Self {
            file,
            path,
            span: Span::new(0, 0),
            writable,
            id,
            #[cfg(any(target_os = "linux", target_os = "android"))]
            _alias: alias,
            is_memory: false,
            direct: None,
        })
    }

    /// Reads the length, and covers the whole file.
    fn measured(mut self) -> Result<Self, FileError> {
        let look = |file: &File| file.metadata().map(|found| found.len());
        let mut len_bytes = look(&self.file).map_err(system(&self.path))?;
        if len_bytes == 0 && has_content(&self.file) {
            // Another program may have written the first bytes meanwhile. Only a file that still reports 0 bytes is
            // refused.
            len_bytes = look(&self.file).map_err(system(&self.path))?;
            if len_bytes == 0 {
                return Err(FileError::NoFixedLength { path: self.path });
            }
        }
        self.span = Span::new(0, len_bytes);
        Ok(self)
    }
}

impl FileError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::System { source, .. } => ErrorClass::of_io(source),
            Self::ProcessLimit { .. } => ErrorClass::Exhausted,
            _ => ErrorClass::Caller,
        }
    }

    /// The system's error, where it was the system.
    pub fn source_io(&self) -> Option<&io::Error> {
        match self {
            Self::System { source, .. } => Some(source),
            Self::NotRegular { .. }
            | Self::TooLong { .. }
            | Self::ProcessLimit { .. }
            | Self::NoFixedLength { .. }
            | Self::OutOfRange { .. } => None,
        }
    }

    /// The error as a fault of the host.
    pub(super) fn to_fault(&self) -> Fault {
        match self {
            Self::System { path, source } => Fault::of_io(&path.display().to_string(), source),
            other => Fault::new(other.class(), other.to_string()),
        }
    }
}

fn open(path: &Path, options: &mut OpenOptions) -> Result<File, FileError> {
    open_regular(path, options).map_err(|error| match NotRegular::find(&error) {
        Some(found) => FileError::NotRegular {
            path: path.into(),
            found,
        },
        None => system(path)(error),
    })
}

fn system(path: &Path) -> impl FnOnce(io::Error) -> FileError {
    |source| FileError::System {
        path: path.to_owned(),
        source,
    }
}

fn check_len(path: &Path, len_bytes: u64) -> Result<(), FileError> {
    if len_bytes <= MAX_LEN_BYTES {
        return match longest_file().filter(|limit| len_bytes > limit.0) {
            Some(FileLimit(limit_bytes)) => Err(FileError::ProcessLimit {
                path: path.to_owned(),
                len_bytes,
                limit_bytes,
            }),
            None => Ok(()),
        };
    }
    Err(FileError::TooLong {
        path: path.to_owned(),
        len_bytes,
        limit_bytes: Some(MAX_LEN_BYTES),
    })
}

fn set_len(file: &File, path: &Path, len_bytes: u64) -> Result<(), FileError> {
    file.set_len(len_bytes)
        .map_err(|source| match source.kind() {
            io::ErrorKind::FileTooLarge => FileError::TooLong {
                path: path.to_owned(),
                len_bytes,
                limit_bytes: None,
            },
            _ => system(path)(source),
        })
}

/// Reads at a position, up to as many bytes as there is room for.
#[cfg(unix)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, offset)
}

#[cfg(windows)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, bytes, offset)
}

#[cfg(not(any(unix, windows)))]
pub(crate) fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Writes at a position, up to all of the bytes.
#[cfg(unix)]
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::write_at(file, bytes, offset)
}

#[cfg(windows)]
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_write(file, bytes, offset)
}

#[cfg(not(any(unix, windows)))]
pub(crate) fn write_at(_: &File, _: &[u8], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether a first byte can be read from the file, whatever length the system reports.
#[cfg(unix)]
fn has_content(file: &File) -> bool {
    use std::os::unix::fs::FileExt;
    // A file whose reads wait for content, such as `/proc/kmsg`, blocks here as it would in a copy.
    matches!(file.read_at(&mut [0], 0), Ok(1))
}

/// Other systems have no files of this sort, and their positioned reads move the file's own position.
#[cfg(not(unix))]
fn has_content(_: &File) -> bool {
    false
}

#[cfg(unix)]
fn identity(_: &File, metadata: &std::fs::Metadata) -> io::Result<StorageId> {
    use std::os::unix::fs::MetadataExt;
    Ok(StorageId::File {
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

/// The volume's number and the file's on it ("BY_HANDLE_FILE_INFORMATION" of the Windows documentation). If a file
/// system uses more than 64 bits (ReFS), two files may seem to be one: then their transfers wait for each other, with
/// no other effect.
#[cfg(windows)]
fn identity(file: &File, _: &std::fs::Metadata) -> io::Result<StorageId> {
    use std::os::windows::io::AsRawHandle;
    use windows_sys::Win32::Storage::FileSystem::{
        BY_HANDLE_FILE_INFORMATION, GetFileInformationByHandle,
    };
    let mut told = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open, and the place is ours.
    let done = unsafe { GetFileInformationByHandle(file.as_raw_handle(), &mut told) };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(StorageId::File {
        device: told.dwVolumeSerialNumber.into(),
        inode: u64::from(told.nFileIndexHigh) << 32 | u64::from(told.nFileIndexLow),
    })
}

/// The standard library has no stable identity of files here, so each opening counts as a storage of its own: two
/// openings of one file are not ordered against each other.
#[cfg(not(any(unix, windows)))]
fn identity(_: &File, _: &std::fs::Metadata) -> io::Result<StorageId> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only uniqueness counts.
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(StorageId::Native {
        backend: HOST.0,
        handle,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_a_file_is_checked_against_its_length() {
        let file = HostFile::temporary(100).unwrap();
        assert_eq!(file.span(), Span::new(0, 100));
        let file = file
            .slice(Span::new(10, 50))
            .unwrap()
            .slice(Span::new(10, 40))
            .unwrap();
        assert_eq!(file.span(), Span::new(20, 40));
        let error = file.slice(Span::new(1, 40)).unwrap_err();
        assert!(
            matches!(error, FileError::OutOfRange { len_bytes: 40, .. }),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_regular_file_is_refused_by_name() {
        let error = HostFile::open(std::env::temp_dir()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(std::env::temp_dir().to_str().unwrap()),
            "{error}"
        );
        let error = HostFile::open("/nonexistent/transload").unwrap_err();
        assert!(
            error.to_string().contains("/nonexistent/transload"),
            "{error}"
        );
        assert_eq!(
            error.source_io().map(io::Error::kind),
            Some(io::ErrorKind::NotFound)
        );
    }

    #[test]
    fn a_length_that_no_file_has_is_refused_before_the_file_is_touched() {
        let path = std::env::temp_dir().join(format!("transload-too-long-{}", std::process::id()));
        std::fs::write(&path, b"kept").unwrap();
        for len_bytes in [MAX_LEN_BYTES + 1, u64::MAX] {
            let error = HostFile::create(&path, len_bytes).unwrap_err();
            let said = error.to_string();
            let path = path.display().to_string();
            for part in [path, len_bytes.to_string(), MAX_LEN_BYTES.to_string()] {
                assert!(said.contains(&part), "{said}");
            }
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
        std::fs::remove_file(&path).unwrap();
        assert!(HostFile::temporary(u64::MAX).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_length_beyond_the_limit_of_the_process_is_refused_before_the_file_is_touched() {
        const PLACE: &str = "TRANSLOAD_TEST_LIMITED_FILE";
        if let Some(path) = std::env::var_os(PLACE) {
            let error = HostFile::create(path, 1 << 20).unwrap_err();
            assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
            assert_eq!(error.class(), ErrorClass::Exhausted);
            return;
        }
        let path = std::env::temp_dir().join(format!("transload-limited-{}", std::process::id()));
        std::fs::write(&path, b"kept").unwrap();
        let mut child = std::process::Command::new("sh");
        child.args(["-c", "ulimit -f 1; exec \"$@\"", "sh"]);
        child.arg(std::env::current_exe().unwrap());
        let name = "a_length_beyond_the_limit_of_the_process_is_refused_before_the_file_is_touched";
        child.args([&format!("memory::file::tests::{name}"), "--exact"]);
        let run = child.env(PLACE, &path).output().unwrap();
        assert!(run.status.success(), "{run:?}");
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
        std::fs::remove_file(&path).unwrap();
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn a_file_that_is_made_up_as_it_is_read_has_no_length() {
        let error = HostFile::open("/proc/self/status").unwrap_err();
        assert!(matches!(error, FileError::NoFixedLength { .. }), "{error}");
        assert!(error.to_string().contains("/proc/self/status"), "{error}");
        let empty = HostFile::temporary(0).unwrap();
        assert!(!has_content(empty.raw()));
    }

    #[cfg(unix)]
    #[test]
    fn two_openings_of_one_file_are_one_storage() {
        let path = std::env::temp_dir().join(format!("transload-host-file-{}", std::process::id()));
        let created = HostFile::create(&path, 10).unwrap();
        let opened = HostFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(created.storage_id(), opened.storage_id());
        assert!(created.is_writable() && !opened.is_writable());
        assert_eq!(opened.span().len, 10);
    }
}
