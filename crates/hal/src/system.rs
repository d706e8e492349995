//! Errors of the operating system: their category, and what to do about them.

use std::fmt;
use std::io::{self, ErrorKind};
use std::string::ToString;

use crate::{ErrorClass, Fault};

impl ErrorClass {
    /// Returns the category of an error of the operating system. Limits that the system enforces are
    /// [`Exhausted`](ErrorClass::Exhausted): memory, open files, threads, locks, space and quota on a disk. So are calls that a signal
    /// interrupted or that would have had to wait. A path or an argument that cannot work is [`Caller`](ErrorClass::Caller).
    pub fn of_io(error: &io::Error) -> ErrorClass {
        match error.kind() {
            ErrorKind::OutOfMemory
            | ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::ResourceBusy
            | ErrorKind::WouldBlock
            | ErrorKind::Interrupted => ErrorClass::Exhausted,
            ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidData
            | ErrorKind::AddrInUse
            | ErrorKind::AddrNotAvailable => ErrorClass::Caller,
            ErrorKind::Unsupported => ErrorClass::Unsupported,
            // The system's limit may be the process's or the file system's. Without a code the limit is one of this library's.
            ErrorKind::FileTooLarge if error.raw_os_error().is_none() => ErrorClass::Caller,
            ErrorKind::FileTooLarge => ErrorClass::Exhausted,
            _ => match error.raw_os_error() {
                Some(code) if codes::RAN_OUT.contains(&code) => ErrorClass::Exhausted,
                Some(code) if codes::LOOPS.contains(&code) => ErrorClass::Caller,
                _ => ErrorClass::Failed,
            },
        }
    }
}

impl Fault {
    /// Converts an error of the operating system. `what` names the action that failed.
    pub fn of_io(what: &str, error: &io::Error) -> Fault {
        let fault = Fault::new(
            ErrorClass::of_io(error),
            std::format!("{what}: {}", Told { error, code: false }),
        );
        match error.raw_os_error() {
            Some(code) => fault.with_code(code.into()),
            None => fault,
        }
    }
}

/// Displays an error of the operating system, and what to do about it where the system's own text does not say that.
#[derive(Clone, Copy, Debug)]
pub struct SystemError<'a>(pub &'a io::Error);

impl fmt::Display for SystemError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SystemError(error) = *self;
        Told { error, code: true }.fmt(f)
    }
}

/// A fault's text has the code of itself.
struct Told<'a> {
    error: &'a io::Error,
    code: bool,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self.error.to_string();
        let Some(code) = self.error.raw_os_error() else {
            return f.write_str(&told);
        };
        let bare = told.strip_suffix(&std::format!(" (os error {code})"));
        f.write_str(bare.filter(|_| !self.code).unwrap_or(&told))?;
        match code {
            codes::OPEN_FILES => match codes::most_files() {
                Some(most) => write!(
                    f,
                    "; this process may have {most} open: close some, or raise the limit, as `ulimit -n` does"
                ),
                None => f.write_str("; close some"),
            },
            codes::FILE_TOO_LARGE => match longest_file() {
                Some(limit) => write!(f, "; {limit}"),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// How long the files are that this process may write, in bytes. Displays the limit, and what to do about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLimit(pub u64);

impl fmt::Display for FileLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileLimit(bytes) = self;
        write!(
            f,
            "this process may write files of at most {bytes} bytes (RLIMIT_FSIZE): raise the limit, as `ulimit -f` does"
        )
    }
}

impl From<FileLimit> for io::Error {
    /// The system's error for a write beyond the limit.
    fn from(_: FileLimit) -> io::Error {
        io::Error::from_raw_os_error(codes::FILE_TOO_LARGE)
    }
}

/// Returns the limit of this process (`RLIMIT_FSIZE`); `None` where it has none. The system answers a write beyond the
/// limit with a signal, which ends the process unless it is ignored.
pub fn longest_file() -> Option<FileLimit> {
    codes::longest_file().map(FileLimit)
}

#[cfg(unix)]
mod codes {
    use rustix::io::Errno;
    use rustix::process::{Resource, getrlimit};

    pub(super) const OPEN_FILES: i32 = Errno::MFILE.raw_os_error();
    /// The standard library has no kind for these.
    pub(super) const RAN_OUT: [i32; 4] = [
        OPEN_FILES,
        Errno::NFILE.raw_os_error(),
        Errno::NOBUFS.raw_os_error(),
        Errno::NOLCK.raw_os_error(),
    ];
    pub(super) const LOOPS: [i32; 1] = [Errno::LOOP.raw_os_error()];

    pub(super) const FILE_TOO_LARGE: i32 = Errno::FBIG.raw_os_error();

    pub(super) fn most_files() -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }

    pub(super) fn longest_file() -> Option<u64> {
        getrlimit(Resource::Fsize).current
    }
}

/// "System Error Codes" and "Windows Sockets Error Codes" of the Windows documentation.
#[cfg(windows)]
mod codes {
    /// `ERROR_TOO_MANY_OPEN_FILES`.
    pub(super) const OPEN_FILES: i32 = 4;
    /// And `ERROR_NO_SYSTEM_RESOURCES`, `ERROR_WORKING_SET_QUOTA`, `ERROR_COMMITMENT_LIMIT`, `ERROR_NOT_ENOUGH_QUOTA`,
    /// `WSAEMFILE`, `WSAENOBUFS`.
    pub(super) const RAN_OUT: [i32; 7] = [OPEN_FILES, 1450, 1453, 1455, 1816, 10024, 10055];
    /// `ERROR_CANT_RESOLVE_FILENAME`.
    pub(super) const LOOPS: [i32; 1] = [1921];
    /// `ERROR_FILE_TOO_LARGE`, of file systems alone.
    pub(super) const FILE_TOO_LARGE: i32 = 223;

    pub(super) fn most_files() -> Option<u64> {
        None
    }

    pub(super) fn longest_file() -> Option<u64> {
        None
    }
}

#[cfg(not(any(unix, windows)))]
mod codes {
    pub(super) const OPEN_FILES: i32 = i32::MIN;
    pub(super) const RAN_OUT: [i32; 0] = [];
    pub(super) const LOOPS: [i32; 0] = [];
    pub(super) const FILE_TOO_LARGE: i32 = i32::MIN + 1;

    pub(super) fn most_files() -> Option<u64> {
        None
    }

    pub(super) fn longest_file() -> Option<u64> {
        None
    }
}

#[cfg(all(test, unix))]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn each_limit_of_the_system_is_exhausted_and_each_wrong_path_the_callers() {
        let classes: [(ErrorClass, &[Errno]); 4] = [
            (
                ErrorClass::Exhausted,
                &[
                    Errno::MFILE,
                    Errno::NFILE,
                    Errno::NOMEM,
                    Errno::NOSPC,
                    Errno::DQUOT,
                    Errno::NOBUFS,
                    Errno::NOLCK,
                    Errno::INTR,
                    Errno::AGAIN,
                    Errno::BUSY,
                    Errno::FBIG,
                ],
            ),
            (
                ErrorClass::Caller,
                &[
                    Errno::NOENT,
                    Errno::ACCESS,
                    Errno::PERM,
                    Errno::NOTDIR,
                    Errno::ISDIR,
                    Errno::ROFS,
                    Errno::INVAL,
                    Errno::EXIST,
                    Errno::NAMETOOLONG,
                    Errno::LOOP,
                    Errno::ADDRINUSE,
                ],
            ),
            (ErrorClass::Unsupported, &[Errno::NOSYS, Errno::OPNOTSUPP]),
            (ErrorClass::Failed, &[Errno::IO, Errno::PIPE, Errno::STALE]),
        ];
        for (class, codes) in classes {
            for code in codes {
                let error = io::Error::from_raw_os_error(code.raw_os_error());
                assert_eq!(ErrorClass::of_io(&error), class, "{error}");
            }
        }
        // As the standard library says it where the system refuses no call.
        let no_memory = io::ErrorKind::OutOfMemory.into();
        assert_eq!(ErrorClass::of_io(&no_memory), ErrorClass::Exhausted);
    }

    #[test]
    fn too_many_open_files_come_with_their_limit_and_the_remedy_and_other_errors_as_they_are() {
        let full = io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
        let limit = getrlimit_text();
        let told = SystemError(&full).to_string();
        assert!(told.starts_with(&full.to_string()), "{told}");
        assert!(
            told.contains(&limit) && told.contains("ulimit -n"),
            "{told}"
        );
        let fault = Fault::of_io("opening it", &full).to_string();
        assert!(
            fault.contains(&limit) && fault.ends_with("(code 24)"),
            "{fault}"
        );
        assert_eq!(fault.matches("24").count(), 1, "{fault}");
        let made_up = Fault::of_io("writing", &io::Error::other("no"));
        assert_eq!(made_up.to_string(), "writing: no");
        let other = io::Error::from_raw_os_error(Errno::IO.raw_os_error());
        assert_eq!(SystemError(&other).to_string(), other.to_string());
    }

    fn getrlimit_text() -> std::string::String {
        std::format!("may have {} open", codes::most_files().unwrap())
    }
}
