//! What a save replaces.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use transload::host::partial::folder;

use crate::model::listed;

/// The older model of the same name: one file, or a list of files.
#[derive(Debug, Default)]
pub(super) struct Older {
    /// The files that its list names, where no other list in the folder does.
    pub(super) files: Vec<PathBuf>,
}

impl Older {
    /// Looks for the list, which may be missing, or name files that are.
    pub(super) fn find(list: &Path) -> Older {
        let mut names = listed(list);
        // Only what can have been written as a part of a model is removed.
        names.retain(|name| name.ends_with(".safetensors"));
        if !names.is_empty() {
            let others: BTreeSet<String> = others(list).flat_map(|other| listed(&other)).collect();
            names.retain(|name| !others.contains(name));
        }
        Older {
            files: names.iter().map(|name| list.with_file_name(name)).collect(),
        }
    }
}

/// Returns the other lists in the folder of a list.
pub(super) fn others(list: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder(list)).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".index.json"))
        .map(|entry| entry.path())
        .filter(|other| other.file_name() != list.file_name())
}
