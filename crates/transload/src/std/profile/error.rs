//! Errors of profiles.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use transload_hal::{ErrorClass, SystemError};

use crate::error::{FORKED, Forked};

/// The version of the format that this library writes. It reads this version and ignores fields that it does not know.
pub const FORMAT: u32 = 1;

/// Why a profile was refused, or could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The system did not read the file.
    #[error("cannot read the profile in {path}: {}", SystemError(source), path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        r#source: io::Error,
    },
    /// The system did not write the file. An existing file is unchanged.
    #[error("cannot save the profile in {path}: {}", SystemError(source), path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        r#source: io::Error,
    },
    /// The file is no profile, or a damaged one.
    #[error("{} is damaged, or is not a profile: {reason}", Named(path))]
    Garbled {
        /// The file.
        path: Option<PathBuf>,
        /// What is wrong with it, and where.
        reason: String,
    },
    /// A later version of this library wrote it.
    #[error(
        "{} has format {format}, and this version reads formats up to {FORMAT}",
        Named(path)
    )]
    Newer {
        /// The file.
        path: Option<PathBuf>,
        /// Its format.
        format: u64,
    },
    /// The profile was measured on another machine.
    #[error("{} is of another machine: {}", Named(path), Told(differences))]
    Foreign {
        /// The file.
        path: Option<PathBuf>,
        /// What differs, a clause each.
        differences: Vec<String>,
    },
    /// The profile was measured on this machine, which has changed.
    #[error("{} is out of date: {}", Named(path), Told(differences))]
    Stale {
        /// The file.
        path: Option<PathBuf>,
        /// What differs, a clause each.
        differences: Vec<String>,
    },
    /// As [`TransferError::Forked`](crate::TransferError::Forked).
    #[error("{FORKED}")]
    Forked,
}

impl From<Forked> for ProfileError {
    fn from(_: Forked) -> ProfileError {
        ProfileError::Forked
    }
}

impl ProfileError {
    /// Returns the category of the error. Use it to decide whether to retry.
    pub fn class(&self) -> ErrorClass {
        match self {
            ProfileError::Read { source, .. } | ProfileError::Write { source, .. } => {
                ErrorClass::of_io(source)
            }
            _ => ErrorClass::Caller,
        }
    }
}

/// Two errors are equal when their texts are: the system's errors cannot be compared.
impl PartialEq for ProfileError {
    fn eq(&self, other: &ProfileError) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for ProfileError {}

/// Displays the profile as the first words of a sentence.
struct Named<'a>(&'a Option<PathBuf>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_deref().map(Path::display) {
            Some(path) => write!(f, "the profile in {path}"),
            None => f.write_str("the profile"),
        }
    }
}

/// Displays the first differences, and how many more there are: one is enough to refuse a profile.
struct Told<'a>(&'a [String]);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, more) = self.0.split_at(self.0.len().min(2));
        f.write_str(&first.join("; "))?;
        match more.len() {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}
