//! How the files of a save go to their places, so that at every moment a reader finds the older model or the new one.
//!
//! Shards go to names that nothing has. What a reader looks for first, the list or the only file, is replaced by one rename.
//! The other one of these two, if an older model has it, goes after that, for readers that look for it first; the older
//! shards go last. Each step that others build on is on the disk before the next one begins.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use transload::host::partial::steps::{self, StepError};
use transload::host::partial::{Partial, aside, folder};

use super::Left;
use super::older::Seen;

/// The steps that were taken, and how they are taken back.
#[derive(Debug, Default)]
pub(super) struct Placing {
    taken: Vec<Taken>,
    /// The list of the files, before its own step. It is in the folder longer than any file that no other list names, so that a
    /// later save finds these if the process ends.
    list: Option<Partial>,
    /// The step since which readers find the new model, by its number.
    shown: Option<usize>,
}

#[derive(Debug)]
enum Taken {
    /// A file is at a path where nothing was. `now` is what is there since, here and below.
    New { path: PathBuf, now: Option<Seen> },
    /// What was at `path` is at `aside`: of the older model, or of another save that ended meanwhile.
    Aside {
        path: PathBuf,
        aside: PathBuf,
        is_older: bool,
        now: Option<Seen>,
    },
    /// What was there is gone: the file system has no second names.
    Replaced,
}

impl Placing {
    /// Has the list that names the files before they are added. It replaces an earlier one.
    pub(super) fn announce(&mut self, list: Partial) {
        self.list = Some(list);
    }

    /// Places the list over what is there.
    pub(super) fn replace_list(&mut self) -> Result<(), StepError> {
        self.list.take().map_or(Ok(()), |list| self.replace(list))
    }

    /// Places a file at a name that nothing has. Returns the file if another process was faster.
    pub(super) fn add(
        &mut self,
        partial: Partial,
        path: &Path,
    ) -> Result<Option<Partial>, StepError> {
        let back = partial.place_free(path)?;
        if back.is_none() {
            self.taken.push(Taken::new(path.to_owned()));
        }
        Ok(back)
    }

    /// Places a file over what is there. It is on the disk then.
    pub(super) fn replace(&mut self, partial: Partial) -> Result<(), StepError> {
        let path = partial.target().to_owned();
        let aside = aside(&path);
        let was_there = is_there(&path);
        // The older file keeps another name until nothing can fail any more.
        let is_kept = was_there && steps::link(&path, &aside)?;
        if let Err(error) = partial.place() {
            if is_kept {
                self.taken.push(Taken::new(aside));
            }
            return Err(error);
        }
        self.shown = Some(self.taken.len());
        self.taken.push(match (was_there, is_kept) {
            (false, _) => Taken::new(path.clone()),
            (true, false) => Taken::Replaced,
            (true, true) => Taken::Aside {
                now: Seen::at(&path),
                path: path.clone(),
                aside,
                is_older: true,
            },
        });
        steps::sync_folder(folder(&path))
    }

    /// Takes a file away, if the one that was seen is there, for good. Another one is of a save that ended meanwhile.
    pub(super) fn take_away(&mut self, path: &Path, seen: Option<&Seen>) -> Result<(), StepError> {
        // A link that leads nowhere would be told of.
        let is_another = |path: &Path| match (Seen::at(path), seen) {
            (Some(now), Some(seen)) => now.has_other_content(seen),
            (now, seen) => now.is_some() || seen.is_some(),
        };
        if !(path.is_file() || path.is_symlink()) || is_another(path) {
            return Ok(());
        }
        let aside = aside(path);
        match steps::rename(path, &aside) {
            // Another save took it away.
            Err(error) if error.source.kind() == ErrorKind::NotFound => return Ok(()),
            done => done?,
        }
        let is_older = !is_another(&aside);
        self.taken.push(Taken::Aside {
            path: path.to_owned(),
            aside: aside.clone(),
            is_older,
            now: None,
        });
        // The other save was faster.
        if !is_older && !is_there(path) {
            steps::rename(&aside, path)?;
            self.taken.pop();
            return Ok(());
        }
        steps::sync_folder(folder(path))
    }

    /// Removes what no reader finds any more, the older shards among it; the older list, too, unless it is the one to be `kept`.
    /// What the system does not remove stays: it is part of no model.
    pub(super) fn finish(self, older: impl Iterator<Item = PathBuf>, kept: Option<&Path>) {
        for path in older {
            let _ = steps::remove(&path);
        }
        for taken in self.taken {
            if let Taken::Aside { path, aside, .. } = taken
                && kept != Some(&path)
            {
                let _ = steps::remove(&aside);
            }
        }
    }

    /// Takes back the steps, up to the first one that cannot be taken back. What is below that one belongs to the new model,
    /// which stays whole. What another save has put at a path since then is left alone. Returns what is there then; an older
    /// model may be at `other`.
    pub(super) fn undo(mut self, other: Option<&Path>) -> Left {
        let new = |other: Option<&Path>| match other {
            Some(other) if is_there(other) => Left::Both,
            _ => Left::New,
        };
        // The new model stays, and what was taken away beside it would hide it again.
        if self.taken.iter().any(|of| matches!(of, Taken::Replaced)) {
            return new(other);
        }
        // Where another save has replaced what this one shows, the older model is gone.
        let is_over =
            { self.shown.and_then(|shown| self.taken.get(shown)) }.is_some_and(|of| match of {
                Taken::New { path, now } | Taken::Aside { path, now, .. } => {
                    has_another(path, now.as_ref())
                }
                Taken::Replaced => false,
            });
        while let Some(taken) = self.taken.pop() {
            let is_undone = match taken {
                Taken::New { path, now } => {
                    has_another(&path, now.as_ref()) || steps::remove(&path).is_ok()
                }
                Taken::Aside {
                    path,
                    aside,
                    is_older,
                    now,
                } => match is_older && is_over || has_another(&path, now.as_ref()) {
                    true => steps::remove(&aside).is_ok(),
                    false => steps::rename(&aside, &path).is_ok(),
                },
                Taken::Replaced => false,
            };
            if !is_undone {
                let number = self.taken.len();
                return match self.shown {
                    Some(shown) if number >= shown => new(other),
                    _ => Left::OlderAndFiles,
                };
            }
        }
        Left::Older
    }
}

impl Taken {
    fn new(path: PathBuf) -> Taken {
        let now = Seen::at(&path);
        Taken::New { path, now }
    }
}

/// Whether the path has not the file any more that was seen there, nor nothing if nothing was.
fn has_another(path: &Path, seen: Option<&Seen>) -> bool {
    match (Seen::at(path), seen) {
        (Some(now), Some(seen)) => now.is_another(seen),
        (None, None) => false,
        _ => true,
    }
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
