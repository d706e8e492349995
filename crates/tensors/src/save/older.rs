//! What a save replaces.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use transload::host::partial::{folder, left_lists, steps};

use super::{Left, SaveError};
use crate::model::{List, is_no_list, mark_of};

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
        let is_same = cfg!(unix) && self.file == other.file;
        !is_same && self.has_other_content(other)
    }

    /// Whether it is another file, even if it has the number of one that is gone.
    pub(super) fn has_other_content(&self, other: &Seen) -> bool {
        (self.len_bytes, self.modified) != (other.len_bytes, other.modified)
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
    ///
    /// # Errors
    /// When a list in the folder cannot be read: any file may be named there.
    pub(super) fn find(list: &Path) -> Result<Older, SaveError> {
        let mut names = listed(list)?;
        // Only what can have been written as a part of a model is removed.
        names.retain(|name| name.ends_with(".safetensors"));
        if !names.is_empty() {
            for other in others(list)? {
                names = &names - &listed(&other)?;
            }
        }
        Ok(Older {
            other: None,
            files: names.iter().map(|name| list.with_file_name(name)).collect(),
        })
    }

    /// Returns the files that no list names any more, at the end of the save: another save may have ended meanwhile, or failed
    /// and brought its older list back.
    ///
    /// # Errors
    /// When a list in the folder cannot be read.
    pub(super) fn unlisted(self, list: &Path) -> Result<Vec<PathBuf>, SaveError> {
        let mut files = self.files;
        if files.is_empty() {
            return Ok(files);
        }
        let listed = all_listed(list)?;
        files.retain(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| !listed.contains(name))
        });
        Ok(files)
    }
}

/// Returns the names of the files of a list; none where it is missing or no list.
pub(super) fn listed(list: &Path) -> Result<BTreeSet<String>, SaveError> {
    let read = List::read(list).map_err(unread(list))?;
    Ok(read.names)
}

/// What a save may not change was not seen.
fn unread(path: &Path) -> impl Fn(io::Error) -> SaveError {
    |source| SaveError::Step {
        step: "read".into(),
        path: path.to_owned(),
        source,
        left: Left::Older,
    }
}

/// Removes the shards that earlier saves of the name left when their processes ended. Each has left its list, too: the new one,
/// which was made before the first shard had its place, or the older one, put aside. A shard's own header names its save. What
/// cannot be read now is left to a later save.
pub(super) fn remove_left(list: &Path, is_shard: impl Fn(&str, &str) -> bool) {
    for left in left_lists(folder(list)) {
        let Ok(List { save, mut names }) = List::read(&left) else {
            continue;
        };
        // What another program wrote says nothing of a save, and stays.
        if let Some(save) = save.filter(|_| !has_another_name(&left)) {
            names.retain(|name| is_shard(&save, name));
            // Of a save of another name, all files may be there, and open without their list.
            if names.is_empty() {
                continue;
            }
            let Ok(listed) = all_listed(list) else {
                continue;
            };
            names = &names - &listed;
            names.retain(|name| {
                let path = list.with_file_name(name);
                if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
                    return false;
                }
                match mark_of(&path) {
                    Ok(Some(mark)) if mark.save == save => steps::remove(&path).is_err(),
                    Ok(_) => false,
                    Err(_) => true,
                }
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

/// Whether a list that was put aside by a second name is still there under the first one, or where the user has moved that.
fn has_another_name(path: &Path) -> bool {
    #[cfg(unix)]
    return fs::symlink_metadata(path)
        .is_ok_and(|found| std::os::unix::fs::MetadataExt::nlink(&found) > 1);
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

/// Returns all names in the lists of the folder of a list.
fn all_listed(list: &Path) -> Result<BTreeSet<String>, SaveError> {
    let mut names = listed(list)?;
    for other in others(list)? {
        names.append(&mut listed(&other)?);
    }
    Ok(names)
}

/// Returns the other lists in the folder of a list, those of variants too, `model.safetensors.index.fp16.json`.
pub(super) fn others(list: &Path) -> Result<Vec<PathBuf>, SaveError> {
    let failed = unread(folder(list));
    let own = list.file_name().unwrap_or_default();
    let mut lists = Vec::new();
    let entries = match fs::read_dir(folder(list)) {
        Err(error) if is_no_list(&error) => return Ok(lists),
        read => read.map_err(&failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(&failed)?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        // Where names are the same in any case, it may be there by another one.
        let is_own = || {
            name == own
                || name.eq_ignore_ascii_case(own) && Seen::at(&entry.path()) == Seen::at(list)
        };
        if text.contains(".index.") && text.ends_with(".json") && !is_own() {
            lists.push(entry.path());
        }
    }
    Ok(lists)
}
