//! What a save replaces.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use transload::host::partial::{folder, left_lists, steps};

use crate::model::{List, listed, mark_of};

/// A file or a link, as it was when a save looked. Another one at its path is another save's.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// The device and the number of the file; elsewhere its length alone tells.
    file: (u64, u64),
    len_bytes: u64,
    modified: Option<SystemTime>,
}

impl Seen {
    /// Looks at a path; `None` where nothing is there.
    pub(super) fn at(path: &Path) -> Option<Seen> {
        let found = fs::symlink_metadata(path).ok()?;
        #[cfg(unix)]
        let file = {
            use std::os::unix::fs::MetadataExt;
            (found.dev(), found.ino())
        };
        #[cfg(not(unix))]
        let file = (0, 0);
        Some(Seen {
            file,
            len_bytes: found.len(),
            modified: found.modified().ok(),
        })
    }

    /// Whether it is another file for certain: some file systems give a file another number each time, and not all systems
    /// tell one.
    pub(super) fn is_another(&self, other: &Seen) -> bool {
        let content = |of: &Seen| (of.len_bytes, of.modified);
        let is_same = cfg!(unix) && self.file == other.file;
        !is_same && content(self) != content(other)
    }
}

/// The older model of the same name: one file, or a list of files.
#[derive(Debug, Default)]
pub(super) struct Older {
    /// What a reader looks for beside that which the save replaces: the list, or the only file.
    pub(super) other: Option<Seen>,
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
            other: None,
            files: names.iter().map(|name| list.with_file_name(name)).collect(),
        }
    }
}

/// Removes the shards that earlier saves of the name left when their processes ended. Each has left its list, too: the new one,
/// which was made before the first shard had its place, or the older one, put aside. A shard's own header names its save.
pub(super) fn remove_left(list: &Path, is_shard: impl Fn(&str, &str) -> bool) {
    for left in left_lists(folder(list)) {
        let List { save, mut names } = List::read(&left);
        // What another program wrote says nothing of a save, and stays.
        if let Some(save) = save {
            names.retain(|name| is_shard(&save, name));
            // Of a save of another name, all files may be there, and open without their list.
            if names.is_empty() {
                continue;
            }
            for other in lists(list) {
                names = &names - &listed(&other);
            }
            names.retain(|name| {
                let path = list.with_file_name(name);
                let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
                let is_left = is_file && mark_of(&path).is_some_and(|mark| mark.save == save);
                is_left && steps::remove(&path).is_err()
            });
        } else {
            names.clear();
        }
        // As long as one is there, so is what tells of it.
        if names.is_empty() {
            let _ = steps::remove(&left);
        }
    }
}

/// Returns the lists in the folder of a list, those of variants too, `model.safetensors.index.fp16.json`.
fn lists(list: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder(list)).into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.contains(".index.") && name.ends_with(".json")
        })
        .map(|entry| entry.path())
}

/// Returns the other lists in the folder of a list.
pub(super) fn others(list: &Path) -> impl Iterator<Item = PathBuf> {
    lists(list).filter(|other| other.file_name() != list.file_name())
}
