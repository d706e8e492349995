//! Failures and their exit codes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fmt, io};

use transload::hal::{AllocError, ErrorClass, NotRegular, SystemError};
use transload::host::FileError;
use transload::{OpenError, PlaceError, ProfileError, TransferError};
use transload_tensors::{LoadError, ModelError, SaveError};
use transload_testkit::sim::BuildError;
use transload_testkit::topology::TopologyError;

use crate::nodes::{KeyError, ServeError};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "there are no other machines")
)]
pub(crate) enum Failure {
    /// Arguments that cannot be read; the text is the parser's.
    #[error("{}", first_sentence(.0))]
    Arguments(String),
    /// A topology file that describes no machine.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A machine that cannot be simulated.
    #[error("cannot simulate the machine in {path}: {source}", path = path.display())]
    Machine {
        path: PathBuf,
        source: Box<BuildError>,
    },
    /// A file that cannot be read.
    #[error("{}", Unread(.0))]
    Open(#[from] OpenError),
    /// A file that cannot be created.
    #[error("cannot create {path}: {}", SystemError(source), path = path.display())]
    Create { path: PathBuf, source: io::Error },
    /// A path that ends as a directory's, where nothing is.
    #[error(
        "cannot create {path}: it names a directory, which does not exist; create the directory, and name a file in \
         it, as in {}",
        inside(path),
        path = path.display()
    )]
    NoDirectory { path: PathBuf },
    /// A directory that is to hold a file and is not there.
    #[error(
        "cannot create {path}: the directory {folder} does not exist; create it first",
        path = path.display(),
        folder = folder.display()
    )]
    NoFolder { path: PathBuf, folder: PathBuf },
    /// A directory in which no file can be created.
    #[error(
        "cannot create {path}: the system creates no file in {folder}: {}; name a file in another directory",
        SystemError(source),
        path = path.display(),
        folder = folder.display()
    )]
    Folder {
        path: PathBuf,
        folder: PathBuf,
        source: io::Error,
    },
    /// `--trace -`.
    #[error(
        "{option} - does not write to standard output; name a file; a file named - is {option} ./-"
    )]
    StandardOutput { option: &'static str },
    /// Bytes for standard output, which cannot take them.
    #[error("standard output {because}: redirect it, as in > FILE or | PROGRAM")]
    NotRedirected { because: &'static str },
    /// Standard input that was not read to its end.
    #[error(
        "cannot read standard input: {}; give it a file or a pipe, as in < FILE or PROGRAM |",
        SystemError(source)
    )]
    StandardInput { source: io::Error },
    /// The nameless file between a standard stream and a copy.
    #[error(
        "cannot keep standard {stream} in a file in {folder}: {}; TMPDIR names another directory",
        SystemError(source),
        folder = folder.display()
    )]
    Temporary {
        stream: &'static str,
        folder: PathBuf,
        source: io::Error,
    },
    /// The reader of standard output wants no more of its bytes.
    #[error("standard output was closed before it had all bytes")]
    Closed,
    /// An output in the place of another file of the command.
    #[error("{option} would replace {path}, which is {what}; name another file", path = path.display())]
    Replaces {
        option: &'static str,
        path: PathBuf,
        what: &'static str,
    },
    /// A place that something other than a file has.
    #[error("cannot replace {path}: {found}{}", Inside(path, *found), path = path.display())]
    Occupied { path: PathBuf, found: NotRegular },
    /// A file that may not be written.
    #[error(
        "cannot replace {path}: it is read-only; allow writing to it, or name another file",
        path = path.display()
    )]
    ReadOnly { path: PathBuf },
    /// A file that was written and not put in its place.
    #[error("cannot put {path} in its place: {}", SystemError(source), path = path.display())]
    Place { path: PathBuf, source: io::Error },
    /// A path that is no model.
    #[error("{}", NoModel(.0))]
    Model(Box<ModelError>),
    /// Tensors that were not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Tensors that were not saved.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// A file that lists no machines.
    #[error("{path} cannot be read as a list of machines: {reason}", path = path.display())]
    Nodes { path: PathBuf, reason: String },
    /// Two machines of one name.
    #[error("two machines are named {name}")]
    Twins { name: String },
    /// A place at a machine that is not given.
    #[error("there is no machine {name} here; {}", Given(name, given))]
    NoNode { name: String, given: Vec<String> },
    /// A machine, and no key to connect with.
    #[error(
        "other machines want a key: make one with `transload key FILE`, and name it with --key FILE, or as key = \"FILE\" in the file of --nodes"
    )]
    NoKey,
    /// A key that cannot be used or written.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An address that is none.
    #[error("{address:?} is no address of a machine: {reason}; write ADDRESS:PORT")]
    Address { address: String, reason: String },
    /// Memory that is not offered to other machines.
    #[error(transparent)]
    Serve(#[from] ServeError),
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
    /// A signal ended the program.
    #[cfg(unix)]
    #[error("stopped by {name}{told}")]
    Stopped {
        name: &'static str,
        /// What happened to unfinished files.
        told: String,
        exit_code: u8,
    },
    /// Writing to the output failed. A pipe closed by its reader is not such a failure.
    #[error("cannot write the output: {0}")]
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

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Failure {
        Failure::Model(Box::new(error))
    }
}

impl Failure {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Failure::Arguments(_)
            | Failure::Topology(_)
            | Failure::Machine { .. }
            | Failure::NoFolder { .. }
            | Failure::NoDirectory { .. }
            | Failure::StandardOutput { .. }
            | Failure::NotRedirected { .. }
            | Failure::Replaces { .. }
            | Failure::ReadOnly { .. }
            | Failure::Nodes { .. }
            | Failure::Twins { .. }
            | Failure::NoKey
            | Failure::Address { .. }
            | Failure::Occupied { .. } => Kind::Usage,
            Failure::Create { source, .. }
            | Failure::Folder { source, .. }
            | Failure::Temporary { source, .. }
            | Failure::StandardInput { source } => by_class(ErrorClass::of_io(source)),
            Failure::Key(error) => by_class(error.class()),
            Failure::Open(error) => by_class(error.class()),
            Failure::Model(error) => by_class(error.class()),
            Failure::Load(error) => by_class(error.class()),
            Failure::Save(error) => by_class(error.class()),
            Failure::Profile(error) => by_class(error.class()),
            Failure::Serve(error) => by_class(error.class()),
            // The library calls it a caller's mistake to ask for more than a memory can ever give;
            // the user of `copy` names a file and no size.
            Failure::Library(transload::Error::Alloc(AllocError::TooLarge { .. })) => Kind::Device,
            Failure::Library(error) => by_class(error.class()),
            Failure::NotSimulated { .. } | Failure::NoNode { .. } => Kind::Missing,
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
            Failure::Stopped { exit_code, .. } => Kind::Stopped(*exit_code),
            #[cfg(unix)]
            Failure::Closed => Kind::Stopped(128 + signal_hook::consts::SIGPIPE as u8),
            #[cfg(not(unix))]
            Failure::Closed => Kind::Device,
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

/// Why a file was not opened, with advice for the user of a shell: the library's is for programs.
struct Unread<'a>(&'a OpenError);

impl fmt::Display for Unread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenError::File(error) = self.0 else {
            return self.0.fmt(f);
        };
        match error {
            FileError::NoFixedLength { path } => {
                let path = path.display();
                write!(
                    f,
                    "{path}: the system generates its bytes, and reports a length of 0; write them to a regular file \
                     first, as in cat {path} > FILE, and take that"
                )
            }
            FileError::NotRegular { path, found } => {
                error.fmt(f)?;
                let path = path.display();
                match found {
                    NotRegular::Directory => f.write_str("; name a file in it"),
                    NotRegular::Pipe => write!(
                        f,
                        "; write its bytes to a regular file first, as in cat {path} > FILE, and take that"
                    ),
                    NotRegular::Device => write!(
                        f,
                        "; write bytes of it to a regular file first, as in head -c BYTES {path} > FILE, and take that"
                    ),
                    _ => Ok(()),
                }
            }
            FileError::System { path, .. } if path.as_os_str() == "-" => write!(
                f,
                "{error}; only copy reads standard input: write it to a regular file first, as in cat > FILE, and take that"
            ),
            _ => error.fmt(f),
        }
    }
}

/// Why a path is no model, with the same advice.
struct NoModel<'a>(&'a ModelError);

impl fmt::Display for NoModel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ModelError::Open(error) => Unread(error).fmt(f),
            other => other.fmt(f),
        }
    }
}

/// Where a directory was named in place of a file, what to name.
struct Inside<'a>(&'a Path, NotRegular);

impl fmt::Display for Inside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            NotRegular::Directory => write!(f, "; name a file in it, as in {}", inside(self.0)),
            _ => f.write_str("; name another file"),
        }
    }
}

/// An example of a file in a directory.
fn inside(directory: &Path) -> String {
    directory.join("FILE").display().to_string()
}

/// What to do about a machine that was not given, and those that were.
struct Given<'a>(&'a str, &'a [String]);

impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            [] => f.write_str("there are none: add ")?,
            given => write!(f, "there are: {}; add ", given.join(", "))?,
        }
        write!(
            f,
            "--node {}=ADDRESS:PORT,PUBLIC_KEY, or --nodes FILE",
            self.0
        )
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
