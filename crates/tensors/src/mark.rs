//! What each file of a save in several files says of the save, in the texts of its metadata.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::Value;

/// The save that a file is of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// Is the same in all files of the save, and in no file of another one.
    pub(crate) save: String,
    /// How many files the save has.
    pub(crate) files: u64,
    /// How many bytes all its tensors have.
    pub(crate) bytes: u64,
}

/// The text in the metadata of a file, and in that of a list of files.
pub(crate) const SAVE: &str = "transload.save";
const FILES: &str = "transload.save.files";
const BYTES: &str = "transload.save.bytes";

/// Whether the text can name a save. Errors repeat it.
pub(crate) fn is_save(text: &str) -> bool {
    const MOST_BYTES: usize = 64;
    text.len() <= MOST_BYTES
}

impl Mark {
    pub(crate) fn new(files: usize, bytes: u64) -> Mark {
        let hasher = RandomState::new().build_hasher();
        // A child of `fork` has its parent's random state.
        #[cfg(unix)]
        let hasher = {
            let mut hasher = hasher;
            let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
            hasher.write_u128(since.unwrap_or_default().as_nanos());
            hasher.write_u32(std::process::id());
            hasher
        };
        Mark {
            save: format!("{:016x}", hasher.finish()),
            files: files as u64,
            bytes,
        }
    }

    /// Returns what the metadata of a file say; `None` where another program wrote it, or where it is the only file.
    pub(crate) fn read(metadata: &BTreeMap<String, Value>) -> Option<Mark> {
        let text = |key| match metadata.get(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        Some(Mark {
            save: text(SAVE).filter(|save| is_save(save))?.clone(),
            files: text(FILES)?.parse().ok()?,
            bytes: text(BYTES)?.parse().ok()?,
        })
    }

    /// Replaces what the metadata of the file that tensors were loaded from said.
    pub(crate) fn write(this: Option<&Mark>, metadata: &mut BTreeMap<String, String>) {
        for key in [SAVE, FILES, BYTES] {
            metadata.remove(key);
        }
        if let Some(Mark { save, files, bytes }) = this {
            metadata.insert(SAVE.into(), save.clone());
            metadata.insert(FILES.into(), files.to_string());
            metadata.insert(BYTES.into(), bytes.to_string());
        }
    }
}
