//! Errors of UCX and of looking for it.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::path::PathBuf;

use super::library::{OLDEST, Version};
use super::raw::{Functions, UCS_OK, ucs_status_t};

/// A status of UCX that is not success.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// UCX's number, which is negative.
    pub code: i8,
    /// UCX's text for it.
    pub reason: Cow<'static, str>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.reason, self.code)
    }
}

impl Status {
    pub(super) fn of(functions: &Functions, code: ucs_status_t) -> Status {
        // SAFETY: the function takes any number.
        let text = unsafe { (functions.ucs_status_string)(code) };
        if text.is_null() {
            return Status::new(code, "unknown");
        }
        // SAFETY: the function returns a string that ends with a zero.
        let text = unsafe { CStr::from_ptr(text) };
        // A copy: for a number that UCX does not know, the text lies in a buffer that the next call overwrites.
        Status::new(code, text.to_string_lossy().into_owned())
    }

    pub(super) fn new(code: ucs_status_t, reason: impl Into<Cow<'static, str>>) -> Status {
        let reason = reason.into();
        Status { code, reason }
    }
}

/// Why UCX cannot be used, or could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UcxError {
    /// No library could be opened.
    #[error("no UCX: {}", Tried(tried))]
    NotFound {
        /// Each name or path with the loader's message.
        tried: Vec<(PathBuf, String)>,
    },
    /// The library lacks a function.
    #[error("{} is no UCX of version {OLDEST} or newer: it has no {symbol}", library.display())]
    Missing {
        /// The name or path.
        library: PathBuf,
        /// The function or variable.
        symbol: &'static str,
    },
    /// The library is too old.
    #[error("{} is UCX {version}; the oldest that works is {OLDEST}", library.display())]
    TooOld {
        /// The name or path.
        library: PathBuf,
        /// Its version.
        version: Version,
    },
    /// Another UCX is in the process. Two of them would share parts of each other.
    #[error("cannot load UCX from {}: the process has {} already", wanted.display(), present.display())]
    Second {
        /// The one in the process.
        present: PathBuf,
        /// The requested one.
        wanted: PathBuf,
    },
    /// The library's memory hooks could not be turned off, so it was not loaded.
    #[error("cannot turn off the memory hooks of {}: {reason}", library.display())]
    Hooks {
        /// The library.
        library: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// UCX refused an option.
    #[error("UCX refuses the option {name}={value}: {status}")]
    Option {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
        /// UCX's answer.
        status: Status,
    },
    /// A function of UCX failed.
    #[error("{function}: {status}")]
    Failed {
        /// The function.
        function: &'static str,
        /// UCX's answer.
        status: Status,
    },
    /// The operating system gave no thread or no descriptor.
    #[error("cannot start a worker of UCX: {0}")]
    System(#[from] io::Error),
}

impl UcxError {
    pub(super) fn check(
        functions: &Functions,
        function: &'static str,
        status: ucs_status_t,
    ) -> Result<(), UcxError> {
        if status == UCS_OK {
            return Ok(());
        }
        let status = Status::of(functions, status);
        Err(UcxError::Failed { function, status })
    }
}

struct Tried<'a>(&'a [(PathBuf, String)]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (library, reason)) in self.0.iter().enumerate() {
            let semicolon = if at == 0 { "" } else { "; " };
            write!(f, "{semicolon}{}: {reason}", library.display())?;
        }
        Ok(())
    }
}
