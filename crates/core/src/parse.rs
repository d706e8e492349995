//! Errors of reading names and sizes as text.

use alloc::string::String;

/// Text that names no device, memory, place, shape or size. Carries the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Not a name.
    #[error("{text:?} is not a name: 1 to 15 characters of a-z, 0-9, _ and -, a letter first")]
    Name {
        /// What was written.
        text: String,
    },
    /// Not a device.
    #[error(
        "{text:?} is not a device: write kind:index in small letters, as in cpu:0 or cuda:1, behind the name of another machine as in box2/cuda:1, or a UUID"
    )]
    Device {
        /// What was written.
        text: String,
    },
    /// Not a memory.
    #[error(
        "{text:?} is not a memory: pageable, pinned, device, managed, mapped, upload, readback, shared, file or disk, as in cpu:0/shared"
    )]
    Memory {
        /// What was written.
        text: String,
    },
    /// Not an engine.
    #[error("{text:?} is not an engine: a device and a number, as in cuda:0#1")]
    Engine {
        /// What was written.
        text: String,
    },
    /// A size that is no number of bytes, or past `u64::MAX`.
    #[error("{text:?} is not a size: write bytes, as in 4096, or 64KiB, 2MiB, 1.5GB, below 16 EiB")]
    Size {
        /// What was written.
        text: String,
    },
}

impl ParseError {
    pub(crate) fn name(text: &str) -> ParseError {
        ParseError::Name {
            text: shortened(text),
        }
    }

    pub(crate) fn device(text: &str) -> ParseError {
        ParseError::Device {
            text: shortened(text),
        }
    }

    pub(crate) fn memory(text: &str) -> ParseError {
        ParseError::Memory {
            text: shortened(text),
        }
    }

    pub(crate) fn size(text: &str) -> ParseError {
        ParseError::Size {
            text: shortened(text),
        }
    }
}

/// What was written, as far as an error shows it.
fn shortened(text: &str) -> String {
    const MOST: usize = 100;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => alloc::format!("{}…", &text[..end]),
        None => text.into(),
    }
}
