//! Failures and their exit codes.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use transload::hal::{AllocError, ErrorClass};
use transload::{OpenError, PlaceError, ProfileError, TransferError};
use transload_testkit::sim::BuildError;
use transload_testkit::topology::TopologyError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Arguments that cannot be read; the text is the parser's.
    #[error("{}", first_sentence(.0))]
    Arguments(String),
    /// A topology file that describes no machine.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A machine that cannot be simulated.
    #[error("{path}: {source}", path = path.display())]
    Machine {
        path: PathBuf,
        source: Box<BuildError>,
    },
    /// A file that cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file that cannot be created.
    #[error("{path}: {source}", path = path.display())]
    Create { path: PathBuf, source: io::Error },
    /// A folder that is to hold a file and is not there.
    #[error("{path}: the folder {folder} does not exist", path = path.display(), folder = folder.display())]
    NoFolder { path: PathBuf, folder: PathBuf },
    /// A folder in which no file can be created.
    #[error("{path}: no file can be created in {folder}: {source}", path = path.display(), folder = folder.display())]
    Folder {
        path: PathBuf,
        folder: PathBuf,
        source: io::Error,
    },
    /// `--out -`.
    #[error("--out - writes nothing to standard output; for a file named -, write --out ./-")]
    StandardOutput,
    /// A place where no file can be put.
    #[error("{path} cannot be replaced: {reason}", path = path.display())]
    Occupied { path: PathBuf, reason: &'static str },
    /// A file that was written and not put in its place.
    #[error("{path} was not put in place: {source}", path = path.display())]
    Place { path: PathBuf, source: io::Error },
    /// A profile that was asked for and cannot be used, or one that cannot be written.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A probe that saw wrong bytes.
    #[error("bytes differ: {}", .0.join("; "))]
    WrongBytes(Vec<String>),
    /// Anything that the library refuses before bytes move.
    #[error(transparent)]
    Library(#[from] transload::Error),
    /// A device that `--topology` would bring.
    #[error("{source}; simulated devices come with --topology FILE")]
    NotSimulated { source: PlaceError },
    /// A device of a kind of which there is none.
    #[error("{source}; {reason}")]
    NoneOfKind {
        source: PlaceError,
        reason: Cow<'static, str>,
    },
    /// A hop.
    #[error("hop {hop}, {between}: {source}")]
    Hop {
        hop: usize,
        /// Its two ends.
        between: String,
        source: Box<TransferError>,
    },
    /// The bytes at a stop changed after they had arrived there.
    #[error(
        "bytes changed at {stop}: xxh3-64:{arrived:016x} arrived there, xxh3-64:{left:016x} left"
    )]
    Changed {
        stop: String,
        arrived: u64,
        left: u64,
    },
    /// A signal.
    #[cfg(unix)]
    #[error(transparent)]
    Stopped(#[from] crate::interrupt::Stopped),
    /// Writing to the output failed. A pipe closed by its reader is not such a failure.
    #[error("the output was not written: {0}")]
    Output(io::Error),
}

/// The categories of exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Usage,
    Missing,
    Differs,
    Device,
    /// A signal ended the program: the code that a shell gives for it.
    #[cfg(unix)]
    Stopped(u8),
}

impl Kind {
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Kind::Usage => 2,
            Kind::Missing => 3,
            Kind::Differs => 4,
            Kind::Device => 5,
            #[cfg(unix)]
            Kind::Stopped(code) => code,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Usage => "usage",
            Kind::Missing => "missing",
            Kind::Differs => "differs",
            Kind::Device => "device",
            #[cfg(unix)]
            Kind::Stopped(_) => "stopped",
        }
    }
}

impl From<Kind> for ExitCode {
    fn from(kind: Kind) -> ExitCode {
        ExitCode::from(kind.exit_code())
    }
}

impl Failure {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Failure::Arguments(_)
            | Failure::Topology(_)
            | Failure::Machine { .. }
            | Failure::Create { .. }
            | Failure::NoFolder { .. }
            | Failure::Folder { .. }
            | Failure::StandardOutput
            | Failure::Occupied { .. } => Kind::Usage,
            Failure::Open(error) => by_class(error.class()),
            Failure::Profile(error) => by_class(error.class()),
            // The library calls it a caller's mistake to ask for more than a memory can ever give;
            // the user of `copy` names a file and no size.
            Failure::Library(transload::Error::Alloc(AllocError::TooLarge { .. })) => Kind::Device,
            Failure::Library(error) => by_class(error.class()),
            Failure::NotSimulated { .. } | Failure::NoneOfKind { .. } => Kind::Missing,
            Failure::Hop { source, .. } => match &**source {
                TransferError::Differs { .. } => Kind::Differs,
                // The transfer was accepted, so it failed while bytes moved: a file that another
                // program shortened is no mistake in the arguments.
                TransferError::Failed(failure) => match by_class(failure.fault.class) {
                    Kind::Usage => Kind::Device,
                    kind => kind,
                },
                refused => by_class(refused.class()),
            },
            Failure::Changed { .. } | Failure::WrongBytes(_) => Kind::Differs,
            #[cfg(unix)]
            Failure::Stopped(stopped) => Kind::Stopped(stopped.exit_code),
            Failure::Place { .. } | Failure::Output(_) => Kind::Device,
        }
    }
}

fn by_class(class: ErrorClass) -> Kind {
    match class {
        ErrorClass::Caller => Kind::Usage,
        ErrorClass::Unsupported => Kind::Missing,
        _ => Kind::Device,
    }
}

/// The message of the argument parser, without the usage.
fn first_sentence(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let end = text.find("\n\n").unwrap_or(text.len());
    text[..end].split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_parsers_first_sentence_is_told() {
        let text = "error: invalid value 'x' for '<STOP>...':\n  not a stop\n\nUsage: transload";
        let failure = Failure::Arguments(text.into());
        assert_eq!(
            failure.to_string(),
            "invalid value 'x' for '<STOP>...': not a stop"
        );
        assert_eq!(failure.kind().exit_code(), 2);
    }

    #[test]
    fn every_class_has_its_exit_code() {
        let classes = [
            (ErrorClass::Caller, 2),
            (ErrorClass::Unsupported, 3),
            (ErrorClass::Exhausted, 5),
            (ErrorClass::Lost, 5),
            (ErrorClass::Failed, 5),
        ];
        for (class, code) in classes {
            assert_eq!(by_class(class).exit_code(), code, "{class:?}");
        }
    }
}
