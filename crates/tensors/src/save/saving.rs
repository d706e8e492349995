//! A save under way.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use transload::host::HostFile;
use transload::host::partial::{Partial, folder, steps};
use transload::{Canceller, OnFailure, OpenError, Request, Transfer, TransferManager};

use super::layout::Content;
use super::older::{Older, Seen, others};
use super::placing::Placing;
use super::{Left, SaveError};
use crate::mark::Mark;
use crate::model::{listed, parts};

/// A save under way. Dropped before [`Saving::wait`], it is cancelled, and its files are removed.
#[derive(Debug)]
#[must_use = "dropped, the save is cancelled"]
pub struct Saving {
    files: Vec<Shard>,
    /// The copies into all files, in their order.
    copies: Vec<(PathBuf, String, Transfer)>,
    /// Where there are several files, what they are called.
    sharded: Option<Names>,
    /// The file that the user named: the only one, or the one that a list replaces.
    single: PathBuf,
    older: Older,
    canceller: Canceller,
    all_bytes: u64,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    partial: Partial,
    /// The names of its tensors, for the list.
    tensors: Vec<String>,
}

impl Saving {
    pub(super) fn start(
        manager: &TransferManager,
        path: &Path,
        contents: Vec<Content>,
        mark: Option<Mark>,
    ) -> Result<Saving, SaveError> {
        let sharded = mark.map(|mark| Names::of(path, mark)).transpose()?;
        let older = replaced(path, sharded.is_some())?;
        let paths = match &sharded {
            Some(names) => names.shards(),
            None => vec![path.to_owned()],
        };
        let sources = contents.iter().flat_map(|content| &content.tensors);
        let sources = sources.map(|item| {
            let region = item.tensor.region();
            region.map_err(|source| SaveError::Tensor {
                tensor: item.name.clone(),
                source,
            })
        });
        let mut sources = sources.collect::<Result<Vec<_>, _>>()?.into_iter();
        let (mut files, mut requests, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        // The new files are for the users that the older ones were for.
        let like = [path]
            .into_iter()
            .chain(older.files.iter().map(PathBuf::as_path));
        let like = like
            .filter(|path| path.is_file())
            .map(Path::to_owned)
            .next();
        for (path, content) in paths.into_iter().zip(contents) {
            let failed = |source| SaveError::File {
                path: path.clone(),
                source,
            };
            let mut partial = Partial::instead_of(&path, like.as_deref()).map_err(failed)?;
            let lens = content.tensors.iter().map(|item| item.tensor.len_bytes());
            let len_bytes = content.header.len() as u64 + lens.sum::<u64>();
            partial.set_len(len_bytes).map_err(failed)?;
            let mut file = partial.file();
            let written = file.write_all(&content.header);
            let again = written.and_then(|()| file.try_clone()).map_err(failed)?;
            let library = |error: OpenError| SaveError::Library(error.into());
            let file = HostFile::from_file(again, &path, true);
            let file = manager.adopt_file(file.map_err(|error| library(error.into()))?);
            let file = file.map_err(library)?;
            let mut at = content.header.len() as u64;
            let mut tensors = Vec::new();
            for (item, source) in content.tensors.into_iter().zip(&mut sources) {
                let end = at + item.tensor.len_bytes();
                let target = file.slice(at..end).map_err(transload::Error::from)?;
                requests.push(Request::new(source, &target).cancel_on_drop());
                if sharded.is_some() {
                    tensors.push(item.name.clone());
                }
                copies.push((path.clone(), item.name));
                at = end;
            }
            files.push(Shard {
                path,
                partial,
                tensors,
            });
        }
        // One batch, so that no other transfer writes a tensor between the copies of two files.
        let batch = manager.copy_batch(&requests, OnFailure::Stop);
        let batch = batch.map_err(transload::Error::from)?;
        let canceller = batch.canceller();
        let copies = copies.into_iter().zip(batch.into_transfers());
        Ok(Saving {
            all_bytes: requests
                .iter()
                .map(|request| request.src().shape().payload_bytes())
                .sum(),
            files,
            copies: copies
                .map(|((path, tensor), transfer)| (path, tensor, transfer))
                .collect(),
            sharded,
            single: path.to_owned(),
            older,
            canceller,
        })
    }

    /// Returns how many bytes of tensors are in the files, and how many there are. Does not block.
    pub fn progress(&self) -> (u64, u64) {
        let arrived = self
            .copies
            .iter()
            .filter_map(|(_, _, copy)| Some(copy.progress()?.0));
        (arrived.sum(), self.all_bytes)
    }

    /// Returns a handle that cancels the save, from any thread. [`Saving::wait`] returns an error then.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// Returns the paths of the files until they are in their places. A program that a signal ends removes them. On Linux the
    /// next save to the folder on this machine does it otherwise.
    pub fn partial_paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|shard| shard.partial.path())
    }

    /// Waits until the files have all bytes, and the disk has the files, and puts them in their places: [`Saving::written`],
    /// then [`Saving::place`].
    ///
    /// # Errors
    /// As these two.
    pub fn wait(mut self) -> Result<Vec<PathBuf>, SaveError> {
        self.written()?;
        self.place()
    }

    /// Waits until the files have all bytes, and the disk has the files.
    ///
    /// # Errors
    /// When a copy or the system fails.
    pub fn written(&mut self) -> Result<(), SaveError> {
        let mut failed: Option<SaveError> = None;
        for (path, tensor, copy) in std::mem::take(&mut self.copies) {
            let Err(source) = copy.wait() else { continue };
            if failed.is_none() {
                self.canceller.cancel();
            }
            // Copies that end for this reason tell less.
            if failed.as_ref().is_none_or(SaveError::is_consequence) {
                failed = Some(SaveError::Transfer {
                    path,
                    tensor,
                    source: Box::new(source),
                });
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        for shard in &mut self.files {
            shard.partial.sync()?;
        }
        Ok(())
    }

    /// Puts the files in their places, and returns the paths. At every moment, also where the process or the machine ends,
    /// the folder opens as the older model or as the new one: shards have names that no file had, their list replaces an
    /// older one after they are there, and the files of the older model are removed at the end. Files that the system does
    /// not let go stay; they are part of no model.
    ///
    /// # Errors
    /// When the system fails, and when [`Saving::written`] did not return before. The older model is there as before then,
    /// and nothing of the new one, unless [`SaveError::Step`] says otherwise.
    pub fn place(mut self) -> Result<Vec<PathBuf>, SaveError> {
        if let Some((path, ..)) = std::mem::take(&mut self.copies).into_iter().next() {
            let source = io::Error::new(ErrorKind::InvalidInput, "its bytes have not arrived");
            return Err(SaveError::File { path, source });
        }
        // Another save may have ended since this one began.
        self.older = replaced(&self.single, self.sharded.is_some())?;
        let mut placing = Placing::default();
        match self.place_all(&mut placing) {
            Ok(paths) => {
                let is_older = |path: &PathBuf| !paths.contains(path) && *path != self.single;
                placing.finish(self.older.files.into_iter().filter(is_older));
                Ok(paths)
            }
            Err(mut error) => {
                let other = match &self.sharded {
                    Some(_) => Some(self.single.clone()),
                    None => list_of(&self.single),
                };
                let found = placing.undo(other.as_deref());
                if let SaveError::Step { left, .. } = &mut error {
                    *left = found;
                }
                Err(error)
            }
        }
    }

    fn place_all(&mut self, placing: &mut Placing) -> Result<Vec<PathBuf>, SaveError> {
        let mut files = std::mem::take(&mut self.files);
        let Some(names) = &self.sharded else {
            let list = list_of(&self.single).filter(|_| is_safetensors(&self.single));
            let is_listed = self.older.files.contains(&self.single);
            let Some(file) = files.pop() else {
                unreachable!("a save has a file");
            };
            // A list that names the file would show its new content as the older model.
            if let Some(list) = list.as_ref().filter(|_| is_listed) {
                placing.take_away(list, self.older.other.as_ref())?;
            }
            placing.replace(file.partial)?;
            if let Some(list) = list {
                placing.take_away(&list, self.older.other.as_ref())?;
            }
            return Ok(vec![self.single.clone()]);
        };
        let mut paths = Vec::with_capacity(files.len() + 1);
        let mut weights = BTreeMap::new();
        for (number, shard) in (1..).zip(files) {
            let path = placing.add(shard.partial, shard.path, names.marked(number))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            weights.extend({ shard.tensors.into_iter() }.map(|of| (of, name.to_string())));
            paths.push(path);
        }
        steps::sync_folder(folder(&names.list))?;
        let list = names.list(weights)?;
        let failed = |source| SaveError::Step {
            step: "write".into(),
            path: names.list.clone(),
            source,
            left: Left::Older,
        };
        // A link there is this folder's, and the list behind it another one's.
        let like = [&names.list, &self.single];
        let like = like.into_iter().find(|path| path.is_file());
        let mut partial = Partial::over(&names.list, like.map(PathBuf::as_path)).map_err(failed)?;
        partial.file().write_all(&list).map_err(failed)?;
        partial.sync()?;
        placing.replace(partial)?;
        placing.take_away(&self.single, self.older.other.as_ref())?;
        paths.push(names.list.clone());
        Ok(paths)
    }
}

/// Returns what the save replaces.
///
/// # Errors
/// When a file that is there would be opened in place of the save, and is not the same model's.
fn replaced(path: &Path, is_sharded: bool) -> Result<Older, SaveError> {
    let Some(list) = list_of(path) else {
        return Ok(Older::default());
    };
    let hidden = |older: &Path| {
        let older = older.to_owned();
        Err(SaveError::Hidden { older })
    };
    if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
        if let Some(count) = parts(name).filter(|count| *count > 1) {
            let told = format!(
                "by its name it is one of {count} files of a model, and readers look for the others; save under another name"
            );
            let source = io::Error::new(ErrorKind::InvalidInput, told);
            let path = path.to_owned();
            return Err(SaveError::File { path, source });
        }
        if let Some(other) = others(&list).find(|other| listed(other).contains(name)) {
            return hidden(&other);
        }
    }
    let other = Seen::at(match is_sharded {
        true => path,
        false => &list,
    });
    let older = Older {
        other,
        ..Older::find(&list)
    };
    match (is_safetensors(path), is_sharded) {
        (false, true) if path.is_file() => return hidden(path),
        (false, false) if list.is_file() => return hidden(&list),
        // Neither order of the two renames would leave one model whole.
        (true, false) if older.files.len() > 1 && older.files.iter().any(|of| of == path) => {
            return hidden(&list);
        }
        _ => {}
    }
    Ok(older)
}

fn is_safetensors(path: &Path) -> bool {
    path.extension()
        .is_some_and(|ending| ending == "safetensors")
}

/// The names of the files of a save.
#[derive(Debug)]
struct Names {
    list: PathBuf,
    stem: String,
    mark: Mark,
}

impl Names {
    fn of(path: &Path, mark: Mark) -> Result<Names, SaveError> {
        let stem = stem(path)?;
        Ok(Names {
            list: path.with_file_name(list_name(stem)),
            stem: stem.to_owned(),
            mark,
        })
    }

    /// Returns the usual names of the shards, or where a list or one of them is there, names of this save: a
    /// reader may still have the list of a save before the last one, and would find other tensors under its names.
    fn shards(&self) -> Vec<PathBuf> {
        let is_free = |path: &PathBuf| fs::symlink_metadata(path).is_err();
        let numbers = 1..=self.mark.files;
        let plain: Vec<PathBuf> = numbers.clone().map(|number| self.plain(number)).collect();
        match is_free(&self.list) && plain.iter().all(is_free) {
            true => plain,
            false => numbers.map(|number| self.marked(number)).collect(),
        }
    }

    fn plain(&self, number: u64) -> PathBuf {
        let (stem, count) = (&self.stem, self.mark.files);
        let name = format!("{stem}-{number:05}-of-{count:05}.safetensors");
        self.list.with_file_name(name)
    }

    fn marked(&self, number: u64) -> PathBuf {
        let Names { stem, mark, .. } = self;
        let Mark { save, files, .. } = mark;
        let save = &save[..8];
        let name = format!("{stem}-{save}-{number:05}-of-{files:05}.safetensors");
        self.list.with_file_name(name)
    }

    /// Returns the content of the list.
    fn list(&self, weight_map: BTreeMap<String, String>) -> Result<Vec<u8>, SaveError> {
        let metadata = Total {
            total_size: self.mark.bytes,
            save: &self.mark.save,
        };
        let list = serde_json::to_vec_pretty(&Index {
            metadata,
            weight_map,
        });
        list.map_err(|error| SaveError::Header {
            reason: error.to_string(),
        })
    }
}

/// Returns the name without its ending.
fn stem(path: &Path) -> Result<&str, SaveError> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    stem.ok_or_else(|| SaveError::File {
        path: path.to_owned(),
        source: io::Error::new(
            ErrorKind::InvalidInput,
            "several files are named after it, and the list of their names is UTF-8",
        ),
    })
}

/// Returns the list of the model of that name; `None` where the name is no text, and so no list's.
fn list_of(path: &Path) -> Option<PathBuf> {
    Some(path.with_file_name(list_name(stem(path).ok()?)))
}

/// Returns the name of the list of shards.
fn list_name(stem: &str) -> String {
    format!("{stem}.safetensors.index.json")
}

#[derive(Serialize)]
struct Index<'a> {
    metadata: Total<'a>,
    weight_map: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Total<'a> {
    total_size: u64,
    #[serde(rename = "transload.save")]
    save: &'a str,
}
