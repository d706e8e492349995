//! How the files of a save go to their places, so that at every moment a reader finds the older model or the new one.
//!
//! Shards go to names that nothing has. What a reader looks for first, the list or the only file, is replaced by one rename.
//! The other one of these two, if an older model has it, goes after that, for readers that look for it first; the older
//! shards go last. Each step that others build on is on the disk before the next one begins.

use std::fs;
use std::path::{Path, PathBuf};

use transload::host::partial::steps::{self, StepError};
use transload::host::partial::{Partial, aside, folder};

/// The steps that were taken, and how they are taken back.
#[derive(Debug, Default)]
pub(super) struct Placing {
    taken: Vec<Taken>,
}

#[derive(Debug)]
enum Taken {
    /// A file is at a path where nothing was.
    New(PathBuf),
    /// What was at `path` is at `aside`.
    Aside { path: PathBuf, aside: PathBuf },
    /// What was there is gone: the file system has no second names.
    Replaced,
}

impl Placing {
    /// Places a file at a name that nothing has: at `path`, or if another process was faster, at `other`.
    pub(super) fn add(
        &mut self,
        partial: Partial,
        path: PathBuf,
        other: PathBuf,
    ) -> Result<PathBuf, StepError> {
        let path = match partial.place_free(&path)? {
            None => path,
            Some(partial) => match partial.place_free(&other)? {
                None => other,
                Some(_) => {
                    return Err(StepError {
                        step: steps::Step::Rename,
                        path: other,
                        source: std::io::ErrorKind::AlreadyExists.into(),
                    });
                }
            },
        };
        self.taken.push(Taken::New(path.clone()));
        Ok(path)
    }

    /// Places a file over what is there. It is on the disk then.
    pub(super) fn replace(&mut self, partial: Partial) -> Result<(), StepError> {
        let path = partial.target().to_owned();
        let aside = aside(folder(&path));
        let was_there = is_there(&path);
        // The older file keeps another name until nothing can fail any more.
        let is_kept = was_there && steps::link(&path, &aside)?;
        if is_kept {
            let path = path.clone();
            self.taken.push(Taken::Aside { path, aside });
        }
        partial.place()?;
        match (was_there, is_kept) {
            (false, _) => self.taken.push(Taken::New(path.clone())),
            (true, false) => self.taken.push(Taken::Replaced),
            (true, true) => {}
        }
        steps::sync_folder(folder(&path))
    }

    /// Takes a file away, if it is there, for good.
    pub(super) fn take_away(&mut self, path: &Path) -> Result<(), StepError> {
        if !path.is_file() {
            return Ok(());
        }
        let aside = aside(folder(path));
        steps::rename(path, &aside)?;
        self.taken.push(Taken::Aside {
            path: path.to_owned(),
            aside,
        });
        steps::sync_folder(folder(path))
    }

    /// Removes what no reader finds any more, the older shards among it. What the system does not remove stays: it is part
    /// of no model.
    pub(super) fn finish(self, older: impl Iterator<Item = PathBuf>) {
        for path in older {
            let _ = steps::remove(&path);
        }
        for taken in self.taken {
            if let Taken::Aside { aside, .. } = taken {
                let _ = steps::remove(&aside);
            }
        }
    }

    /// Takes back all steps. Returns whether the folder is as it was.
    pub(super) fn undo(self) -> bool {
        let mut is_undone = true;
        for taken in self.taken.into_iter().rev() {
            is_undone &= match taken {
                Taken::New(path) => steps::remove(&path).is_ok(),
                Taken::Aside { path, aside } => {
                    let restored = steps::rename(&aside, &path).is_ok();
                    // A rename between two names of one file does nothing.
                    if restored && is_there(&aside) {
                        let _ = steps::remove(&aside);
                    }
                    restored
                }
                Taken::Replaced => false,
            };
        }
        is_undone
    }
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
