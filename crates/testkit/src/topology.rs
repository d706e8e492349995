//! Reads machine descriptions from TOML: the files under `topologies/` and users' own files.

use std::io;
use std::path::{Path, PathBuf};

use transload_core::schema::{Machine, SchemaError};
use transload_hal::{BackendId, read_regular};

/// The reason why no machine could be read from a text or a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The file could not be read.
    #[error("cannot read the topology in {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        r#source: io::Error,
    },
    /// Not TOML, an unknown field, or a value of the wrong kind. Names line and field.
    #[error("{origin} does not describe a machine: {reason}")]
    Syntax {
        /// The file, or "the text".
        origin: String,
        /// The line, what is wrong in it, and the field.
        reason: String,
        /// The error and its position.
        r#source: Box<toml::de::Error>,
    },
    /// Valid TOML that does not describe a valid machine.
    #[error("{origin} does not describe a machine: {source}")]
    Schema {
        /// The file, or "the text".
        origin: String,
        /// The error.
        r#source: SchemaError,
    },
}

/// Reads a machine, and checks all of its names and values.
///
/// # Errors
/// As [`TopologyError`] lists, without `Io`.
pub fn from_str(text: &str) -> Result<Machine, TopologyError> {
    parse("the text", text)
}

/// Reads a machine from a regular file of at most 16 MiB. Blocks on the file.
///
/// # Errors
/// As [`TopologyError`] lists.
pub fn from_file(path: impl AsRef<Path>) -> Result<Machine, TopologyError> {
    let path = path.as_ref();
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let bytes = read_regular(path, MOST_BYTES);
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(invalid));
    let text = text.map_err(|source| TopologyError::Io {
        path: path.into(),
        source,
    })?;
    parse(&path.display().to_string(), &text)
}

/// Says on one line which line of a text is wrong, why, and in which field.
pub fn one_line(error: &toml::de::Error, text: &str) -> String {
    let mut bare = error.clone();
    // Else it shows the line, with a mark below it.
    bare.set_input(None);
    let bare = bare.to_string();
    let message = bare.split_whitespace().collect::<Vec<_>>().join(" ");
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

fn parse(origin: &str, text: &str) -> Result<Machine, TopologyError> {
    let machine: Machine = toml::from_str(text).map_err(|source| TopologyError::Syntax {
        origin: origin.into(),
        reason: one_line(&source, text),
        source: Box::new(source),
    })?;
    match machine.inventory(BackendId(crate::sim::BACKEND.0)) {
        Ok(_) => Ok(machine),
        Err(source) => Err(TopologyError::Schema {
            origin: origin.into(),
            source,
        }),
    }
}

/// A thousand times the size of the largest description here.
const MOST_BYTES: u64 = 16 << 20;
