//! A save under way.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use transload::host::HostFile;
use transload::host::partial::Partial;
use transload::{Canceller, OnFailure, OpenError, Request, Transfer, TransferManager};

use super::SaveError;
use super::layout::Content;

/// A save under way. Dropped before [`Saving::wait`], it is cancelled, and its files are removed.
#[derive(Debug)]
#[must_use = "dropped, the save is cancelled"]
pub struct Saving {
    files: Vec<Shard>,
    /// The copies into all files, in their order.
    copies: Vec<(PathBuf, String, Transfer)>,
    /// The list of shards, where there are several.
    index: Option<(PathBuf, Vec<u8>)>,
    canceller: Canceller,
    all_bytes: u64,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    partial: Partial,
}

impl Saving {
    pub(super) fn start(
        manager: &TransferManager,
        path: &Path,
        contents: Vec<Content>,
    ) -> Result<Saving, SaveError> {
        let paths = paths(path, contents.len())?;
        let index = index(path, &paths, &contents)?;
        let older = match (&index, stem(path)) {
            (None, Ok(stem)) => path.with_file_name(list_name(stem)),
            _ => path.to_owned(),
        };
        if older.is_file() && older != paths[0] {
            return Err(SaveError::Hidden { older });
        }
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
        for (path, content) in paths.into_iter().zip(contents) {
            let failed = |source| SaveError::File {
                path: path.clone(),
                source,
            };
            let partial = Partial::beside(&path).map_err(failed)?;
            let lens = content.tensors.iter().map(|item| item.tensor.len_bytes());
            let len_bytes = content.header.len() as u64 + lens.sum::<u64>();
            let mut file = partial.file();
            let written = file
                .set_len(len_bytes)
                .and_then(|()| file.write_all(&content.header));
            let again = written.and_then(|()| file.try_clone()).map_err(failed)?;
            let library = |error: OpenError| SaveError::Library(error.into());
            let file = HostFile::from_file(again, &path, true);
            let file = manager.adopt_file(file.map_err(|error| library(error.into()))?);
            let file = file.map_err(library)?;
            let mut at = content.header.len() as u64;
            for (item, source) in content.tensors.into_iter().zip(&mut sources) {
                let end = at + item.tensor.len_bytes();
                let target = file.slice(at..end).map_err(transload::Error::from)?;
                requests.push(Request::new(source, &target).cancel_on_drop());
                copies.push((path.clone(), item.name));
                at = end;
            }
            files.push(Shard { path, partial });
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
            index,
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

    /// Returns the paths of the files until they are in their places. A program that a signal ends removes them; the next
    /// save to the folder does it otherwise.
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
        for Shard { path, partial } in &self.files {
            partial
                .file()
                .sync_all()
                .map_err(|source| SaveError::File {
                    path: path.clone(),
                    source,
                })?;
        }
        Ok(())
    }

    /// Puts the files in their places, the list of shards last. Each file is there whole or as it was before. A list that
    /// is replaced is removed before the first of its shards is replaced. Returns the paths.
    ///
    /// # Errors
    /// When the system fails, and when [`Saving::written`] did not return before. Files that are not in their places are
    /// removed.
    pub fn place(self) -> Result<Vec<PathBuf>, SaveError> {
        if let Some((path, ..)) = self.copies.into_iter().next() {
            let source = io::Error::new(ErrorKind::InvalidInput, "its bytes have not arrived");
            return Err(SaveError::File { path, source });
        }
        if let Some((path, _)) = &self.index {
            match fs::remove_file(path) {
                Err(source) if source.kind() != ErrorKind::NotFound => {
                    return Err(SaveError::File {
                        path: path.clone(),
                        source,
                    });
                }
                _ => {}
            }
        }
        let mut paths = Vec::with_capacity(self.files.len() + 1);
        let place = |path: PathBuf, partial: io::Result<Partial>| {
            let placed = partial.and_then(Partial::place_for_good);
            match placed {
                Ok(()) => Ok(path),
                Err(source) => Err(SaveError::File { path, source }),
            }
        };
        for shard in self.files {
            paths.push(place(shard.path, Ok(shard.partial))?);
        }
        if let Some((path, list)) = self.index {
            let partial = Partial::write(&path, &list);
            paths.push(place(path, partial)?);
        }
        Ok(paths)
    }
}

/// Returns the paths of the files.
fn paths(path: &Path, count: usize) -> Result<Vec<PathBuf>, SaveError> {
    if count == 1 {
        return Ok(vec![path.to_owned()]);
    }
    let stem = stem(path)?;
    let name = |number| format!("{stem}-{number:05}-of-{count:05}.safetensors");
    Ok((1..=count)
        .map(|number| path.with_file_name(name(number)))
        .collect())
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

/// Returns the name of the list of shards.
fn list_name(stem: &str) -> String {
    format!("{stem}.safetensors.index.json")
}

#[derive(Serialize)]
struct Index<'a> {
    metadata: Total,
    weight_map: BTreeMap<&'a str, String>,
}

#[derive(Serialize)]
struct Total {
    total_size: u64,
}

/// Returns the list of shards and its place, where there are several.
fn index(
    path: &Path,
    paths: &[PathBuf],
    contents: &[Content],
) -> Result<Option<(PathBuf, Vec<u8>)>, SaveError> {
    if paths.len() == 1 {
        return Ok(None);
    }
    let mut weight_map = BTreeMap::new();
    let mut total_size = 0;
    for (path, content) in paths.iter().zip(contents) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for item in &content.tensors {
            weight_map.insert(item.name.as_str(), name.to_string());
            total_size += item.tensor.len_bytes();
        }
    }
    let metadata = Total { total_size };
    let list = serde_json::to_vec_pretty(&Index {
        metadata,
        weight_map,
    });
    let list = list.map_err(|error| SaveError::Header {
        reason: error.to_string(),
    })?;
    Ok(Some((path.with_file_name(list_name(stem(path)?)), list)))
}
