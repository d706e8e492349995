//! A save under way.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use transload::host::HostFile;
use transload::host::partial::steps::{self, Step, StepError};
use transload::host::partial::{Partial, folder};
use transload::{
    AllocSpec, Buffer, Canceller, DeviceId, MemoryKind, OnFailure, OpenError, Request, Transfer,
    TransferManager,
};

use super::layout::Content;
use super::older::{Older, Seen, listed, others, remove_left};
use super::placing::Placing;
use super::{Item, Left, SaveError};
use crate::mark::Mark;
use crate::model::part_of;

/// A save under way. Dropped before [`Saving::wait`], it is cancelled, and its files are removed.
#[derive(Debug)]
#[must_use = "dropped, the save is cancelled"]
pub struct Saving {
    files: Vec<Shard>,
    /// The copies into all files, in their order, and those on the way to one.
    copies: Vec<Copied>,
    /// Where there are several files, what they are called.
    sharded: Option<Names>,
    /// The file that the user named: the only one, or the one that a list replaces.
    single: PathBuf,
    older: Older,
    canceller: Canceller,
    all_bytes: u64,
}

/// A copy of a tensor, or of several that lie side by side, of which it names the first.
#[derive(Debug)]
struct Copied {
    path: PathBuf,
    tensor: String,
    transfer: Transfer,
    /// Whether it ends in the file.
    is_written: bool,
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
            Some(names) => names.shards(path),
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
        let mut packs = Packs::new(manager);
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
            for together in together(content.tensors) {
                let first = together[0].name.clone();
                let pack = { together.len() > 1 }.then(|| packs.next()).flatten();
                let (into, begin) = pack.as_ref().map_or((&file, 0), |pack| (pack, at));
                let mut end = at;
                for (item, source) in together.into_iter().zip(&mut sources) {
                    let start = end - begin;
                    end += item.tensor.len_bytes();
                    let target = into.slice(start..end - begin);
                    let target = target.map_err(transload::Error::from)?;
                    requests.push(Request::new(source, &target).cancel_on_drop());
                    if sharded.is_some() {
                        tensors.push(item.name.clone());
                    }
                    copies.push((path.clone(), item.name, pack.is_none()));
                }
                if let Some(pack) = pack {
                    let filled = pack.slice(..end - at).map_err(transload::Error::from)?;
                    let target = file.slice(at..end).map_err(transload::Error::from)?;
                    requests.push(Request::new(&filled, &target).cancel_on_drop());
                    copies.push((path.clone(), first, true));
                }
                at = end;
            }
            files.push(Shard {
                path,
                partial,
                tensors,
            });
        }
        let lens = requests.iter().zip(&copies);
        let lens = lens.filter(|(_, (.., is_written))| *is_written);
        let all_bytes = { lens.map(|(request, _)| request.src().shape().payload_bytes()) }.sum();
        // One batch, so that no other transfer writes a tensor between the copies of two files.
        let batch = manager.copy_batch(&requests, OnFailure::Stop);
        let batch = batch.map_err(transload::Error::from)?;
        let canceller = batch.canceller();
        let copies = copies.into_iter().zip(batch.into_transfers());
        let copies = copies.map(|((path, tensor, is_written), transfer)| Copied {
            path,
            tensor,
            transfer,
            is_written,
        });
        Ok(Saving {
            all_bytes,
            files,
            copies: copies.collect(),
            sharded,
            single: path.to_owned(),
            older,
            canceller,
        })
    }

    /// Returns how many bytes of tensors are in the files, and how many there are. Does not block.
    pub fn progress(&self) -> (u64, u64) {
        let written = self.copies.iter().filter(|copy| copy.is_written);
        let arrived = written.filter_map(|copy| Some(copy.transfer.progress()?.0));
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
        for copy in std::mem::take(&mut self.copies) {
            let Copied { path, tensor, .. } = copy;
            let Err(source) = copy.transfer.wait() else {
                continue;
            };
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
    /// not let go stay; they are part of no model. On Linux the shards go, too, that earlier saves of the name on this machine
    /// left when their processes ended.
    ///
    /// # Errors
    /// When the system fails, and when [`Saving::written`] did not return before. The older model is there as before then,
    /// and nothing of the new one, unless [`SaveError::Step`] says otherwise.
    pub fn place(mut self) -> Result<Vec<PathBuf>, SaveError> {
        if let Some(Copied { path, .. }) = std::mem::take(&mut self.copies).into_iter().next() {
            let source = io::Error::new(ErrorKind::InvalidInput, "its bytes have not arrived");
            return Err(SaveError::File { path, source });
        }
        // Another save may have ended since this one began.
        self.older = replaced(&self.single, self.sharded.is_some())?;
        let mut placing = Placing::default();
        match self.place_all(&mut placing) {
            Ok(paths) => {
                // On a file system that knows no cases, an older list may have another name of a new file.
                let new: Vec<Option<Seen>> = paths.iter().map(|path| Seen::at(path)).collect();
                let is_older = |path: &PathBuf| {
                    *path != self.single && !paths.contains(path) && !new.contains(&Seen::at(path))
                };
                let list = list_of(&self.single);
                let older = { list.as_deref() }.map(|list| self.older.unlisted(list));
                // Where no one can tell now what else names the older files, a later save finds them by their list.
                let kept = list.as_deref().filter(|_| matches!(older, Some(Err(_))));
                let older = older.and_then(Result::ok).unwrap_or_default();
                placing.finish(older.into_iter().filter(is_older), kept);
                if let (Some(list), Ok(stem)) = (list, stem(&self.single)) {
                    remove_left(&list, |save, name| is_shard(stem, save, name));
                }
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
        let mut paths: Vec<PathBuf> = files.iter().map(|shard| shard.path.clone()).collect();
        let (partials, tensors): (Vec<_>, Vec<_>) = {
            files
                .into_iter()
                .map(|shard| (shard.partial, shard.tensors))
        }
        .unzip();
        // A link there is this folder's, and the list behind it another one's.
        let like = [&names.list, &self.single];
        let like = like.into_iter().find(|path| path.is_file());
        let list =
            |paths: &[PathBuf]| names.write_list(paths, &tensors, like.map(PathBuf::as_path));
        placing.announce(list(&paths)?);
        for (at, shard) in partials.into_iter().enumerate() {
            let Some(shard) = placing.add(shard, &paths[at])? else {
                continue;
            };
            // Another save was faster.
            paths[at] = names.marked(at as u64 + 1);
            placing.announce(list(&paths)?);
            if placing.add(shard, &paths[at])?.is_some() {
                return Err(SaveError::from(StepError {
                    step: Step::Rename,
                    path: paths[at].clone(),
                    source: ErrorKind::AlreadyExists.into(),
                }));
            }
        }
        steps::sync_folder(folder(&names.list))?;
        // Another save may have ended while the shards went to their places: this one replaces it, too.
        self.older.files = Older::find(&names.list)?.files;
        placing.replace_list()?;
        placing.take_away(&self.single, self.older.other.as_ref())?;
        paths.push(names.list.clone());
        Ok(paths)
    }
}

/// Tensors of at most this length go to their file by way of memory, where others do beside them: a call of the system and a
/// thread that makes it take longer than the copy.
const SMALL_BYTES: u64 = 256 << 10;

/// As much is written with one call.
const PACK_BYTES: u64 = 4 << 20;

/// A pack is filled while others are written.
const MOST_PACKS: usize = 4;

/// Memory in which small tensors come together, taken in turn: the order of transfers keeps a pack until it is written.
struct Packs<'a> {
    manager: &'a TransferManager,
    made: Vec<Buffer>,
    next: usize,
}

impl<'a> Packs<'a> {
    fn new(manager: &'a TransferManager) -> Packs<'a> {
        Packs {
            manager,
            made: Vec::new(),
            next: 0,
        }
    }

    /// `None` where there is no memory.
    fn next(&mut self) -> Option<Buffer> {
        if self.made.len() < MOST_PACKS {
            let heap = DeviceId::CPU0.memory(MemoryKind::Pageable).into();
            let made = self.manager.allocate(heap, AllocSpec::bytes(PACK_BYTES));
            self.made.extend(made);
        }
        let at = self.next.checked_rem(self.made.len())?;
        self.next += 1;
        Some(self.made[at].clone())
    }
}

/// Returns the tensors in their order: small ones that are next to each other together, others alone.
fn together(tensors: Vec<Item>) -> Vec<Vec<Item>> {
    let mut groups: Vec<Vec<Item>> = Vec::new();
    let mut filled = PACK_BYTES;
    for item in tensors {
        let len = item.tensor.len_bytes();
        let is_small = len <= SMALL_BYTES;
        match groups.last_mut() {
            Some(group) if is_small && filled + len <= PACK_BYTES => {
                group.push(item);
                filled += len;
            }
            _ => {
                groups.push(vec![item]);
                filled = if is_small { len } else { PACK_BYTES };
            }
        }
    }
    groups
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
        if let Some(count) = part_of(name)
            .map(|part| part.count)
            .filter(|count| *count > 1)
        {
            let told = format!(
                "by its name it is one of {count} files of a model, and readers look for the others; save under another name"
            );
            let source = io::Error::new(ErrorKind::InvalidInput, told);
            let path = path.to_owned();
            return Err(SaveError::File { path, source });
        }
        for other in others(&list)? {
            if listed(&other)?.contains(name) {
                return hidden(&other);
            }
        }
    }
    let mut older = Older::find(&list)?;
    // What is there after the list was read may be newer: then its files stay, and belong to no model.
    older.other = Seen::at(match is_sharded {
        true => path,
        false => &list,
    });
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
        let names = Names {
            list: path.with_file_name(list_name(stem)),
            stem: stem.to_owned(),
            mark,
        };
        // A shard may get the longer name at the end, when all bytes are written.
        let longest = names.marked(names.mark.files);
        match fs::symlink_metadata(&longest) {
            Err(error) if error.kind() == ErrorKind::InvalidFilename => Err(SaveError::File {
                source: too_long(&longest).unwrap_or(error),
                path: longest,
            }),
            _ => Ok(names),
        }
    }

    /// Returns the usual names of the shards, or where a list, the only file or one of them is there, names of this save: a
    /// reader may still have the list of a save before the last one, and would find other tensors under its names.
    fn shards(&self, single: &Path) -> Vec<PathBuf> {
        let is_free = |path: &Path| fs::symlink_metadata(path).is_err();
        let numbers = 1..=self.mark.files;
        let plain: Vec<PathBuf> = numbers.clone().map(|number| self.plain(number)).collect();
        let first = is_free(&self.list) && is_free(single);
        match first && plain.iter().all(|path| is_free(path)) {
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
        let files = self.mark.files;
        let stem = marked_stem(&self.stem, &self.mark.save);
        let name = format!("{stem}-{number:05}-of-{files:05}.safetensors");
        self.list.with_file_name(name)
    }

    /// Writes the list beside its place, and to the disk.
    fn write_list(
        &self,
        shards: &[PathBuf],
        tensors: &[Vec<String>],
        like: Option<&Path>,
    ) -> Result<Partial, SaveError> {
        let mut weights = BTreeMap::new();
        for (path, tensors) in shards.iter().zip(tensors) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            weights.extend(tensors.iter().map(|of| (of.clone(), name.to_string())));
        }
        let list = self.list(weights)?;
        let failed = |source| SaveError::Step {
            step: "write".into(),
            path: self.list.clone(),
            source,
            left: Left::Older,
        };
        let mut partial = Partial::over(&self.list, like).map_err(failed)?;
        partial.file().write_all(&list).map_err(failed)?;
        partial.sync()?;
        Ok(partial)
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

/// The first letters of a save tell its shards from those of others.
fn marked_stem(stem: &str, save: &str) -> String {
    format!("{stem}-{}", save.get(..8).unwrap_or(save))
}

/// Whether a save of that stem gives its shards such names.
fn is_shard(stem: &str, save: &str, name: &str) -> bool {
    part_of(name).is_some_and(|part| part.stem == stem || part.stem == marked_stem(stem, save))
}

fn too_long(path: &Path) -> Option<io::Error> {
    const MOST_BYTES: usize = 255;
    let len = path.file_name()?.len();
    let told = format!(
        "the name of this file of the save has {len} bytes, and names have at most {MOST_BYTES}; save under a shorter name"
    );
    (len > MOST_BYTES).then(|| io::Error::new(ErrorKind::InvalidFilename, told))
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
