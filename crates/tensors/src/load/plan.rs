//! The plan of a load: which bytes go where, in which pieces.

use std::path::Path;
use std::sync::Arc;

use transload::host::HostFile;
use transload::{Buffer, Explanation, MemoryId, OnFailure, Place, Region, Request};

use super::part::{Part, Ranges, split_along};
use super::run::{Limits, MOST_RUN_BYTES, Run};
use super::{Choice, Load, LoadError, Loading};
use crate::bytes::Bytes;
use crate::model::Source;
use crate::{DType, TensorInfo};

/// Where runs begin: the alignment that adapters ask for, for whole buffers of a shader.
const RUN_ALIGNMENT: u64 = 256;

/// The last run for the same memories is among the last ones, one for each place and one for all of them.
const LOOKED_AT: usize = 64;

/// Tensors of one load lie in memory of at most so many bytes each, or of one tensor. Drivers do not give as much at once as
/// they say: SwiftShader refuses 1 GiB, its limit.
const MOST_ARENA_BYTES: u64 = 1 << 29;

/// A load, planned.
#[derive(Debug)]
#[must_use = "nothing happens before `start`"]
pub struct LoadPlan<'a> {
    load: Load<'a>,
    memories: Vec<MemoryId>,
    /// The largest allocation in each of them.
    limits: Vec<u64>,
    items: Vec<Item>,
    runs: Vec<Run>,
    arenas: Vec<Arena>,
    /// Of each run, the arena in each of its memories, and where it begins there.
    places: Vec<Vec<(usize, u64)>>,
    /// Of the model's files, by number, those that are read.
    files: Vec<Option<(Source, Reading)>>,
}

/// A tensor, or a part of one, that arrives as one.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The tensor's number in the model.
    pub(super) number: usize,
    /// What of it, where it is not the tensor as its file has it.
    pub(super) part: Option<Arc<Part>>,
    /// Its bytes in the file.
    read_bytes: u64,
    /// Its bytes in memory.
    pub(super) len_bytes: u64,
}

/// Memory to allocate.
#[derive(Debug)]
struct Arena {
    /// The number of the memory.
    memory: usize,
    len_bytes: u64,
}

impl<'a> LoadPlan<'a> {
    pub(super) fn new(load: Load<'a>) -> Result<LoadPlan<'a>, LoadError> {
        let all = load.model.tensors();
        if let Some(pattern) = load.unfitting {
            return Err(LoadError::Pattern { pattern });
        }
        if load.chosen.is_empty() && !all.is_empty() {
            return Err(LoadError::NoTensor { of: all.len() });
        }
        let chosen = load.chosen.iter().map(|choice| &all[choice.number]);
        let mut unknown = chosen.filter(|of| matches!(of.dtype, DType::Unknown(_)));
        if let Some(first) = unknown.next() {
            return Err(LoadError::UnknownDType {
                tensor: first.name.clone(),
                dtype: first.dtype,
                others: unknown.count(),
            });
        }
        let mut plan = LoadPlan {
            load,
            memories: Vec::new(),
            limits: Vec::new(),
            items: Vec::new(),
            runs: Vec::new(),
            arenas: Vec::new(),
            places: Vec::new(),
            files: Vec::new(),
        };
        let chosen = std::mem::take(&mut plan.load.chosen);
        let places = plan.load.places.clone();
        let is_needed = chosen.iter().any(|choice| choice.place.is_none());
        let places = places.into_iter().filter(|_| is_needed);
        let common = places.map(|place| plan.number(place));
        let common = common.collect::<Result<Vec<usize>, _>>()?;
        for choice in &chosen {
            let tensor = &all[choice.number];
            if let Some(dimension) = choice.split {
                let parts = split_along(tensor, choice.ranges.clone(), dimension, common.len())?;
                for (ranges, memory) in parts.into_iter().zip(&common) {
                    plan.add(choice, Some(ranges), &[*memory])?;
                }
                continue;
            }
            let own = match choice.place {
                Some(place) => Some([plan.number(place)?]),
                None if common.is_empty() => return Err(LoadError::NoPlace),
                None => None,
            };
            let memories = own.as_ref().map_or(&common[..], |own| own);
            plan.add(choice, choice.ranges.clone(), memories)?;
        }
        plan.load.chosen = chosen;
        plan.allot()?;
        plan.open()?;
        Ok(plan)
    }

    /// Adds what arrives of a tensor in some memories, to the last run there or as a new one.
    fn add(
        &mut self,
        choice: &Choice,
        ranges: Option<Ranges>,
        memories: &[usize],
    ) -> Result<(), LoadError> {
        let tensor = &self.load.model.tensors()[choice.number];
        let part = ranges.map(|ranges| Part::new(tensor, ranges)).transpose()?;
        let bytes = match &part {
            Some(part) => part.bytes(tensor)?,
            None => Bytes::of_tensor(tensor),
        };
        let (part, conversion) = match choice.dtype.filter(|to| *to != tensor.dtype) {
            None => (part, None),
            Some(to) => {
                let part = part.map_or_else(|| Part::new(tensor, Vec::new()), Ok)?;
                let (part, conversion) = part.converted(tensor, to)?;
                (Some(part), conversion)
            }
        };
        let read = bytes.len_bytes();
        let len_bytes = match conversion {
            Some(conversion) => conversion.converted_bytes(read),
            None => Some(read),
        };
        let Some(len_bytes) = len_bytes else {
            return Err(LoadError::TooLarge {
                tensor: tensor.name.clone(),
                len_bytes: u64::MAX,
                memory: self.memories[memories[0]],
                limit: self.limits[memories[0]],
            });
        };
        let item = self.items.len();
        self.items.push(Item {
            number: choice.number,
            part: part.map(Arc::new),
            read_bytes: read,
            len_bytes,
        });
        let most = memories.iter().map(|at| self.limits[*at]);
        let limits = Limits {
            file_bytes: self.load.model.files()[tensor.file].len_bytes(),
            run_bytes: most.fold(MOST_RUN_BYTES, u64::min),
        };
        let near = self.runs.iter_mut().rev().take(LOOKED_AT);
        let mut last = near.filter(|run| run.memories == memories && run.conversion == conversion);
        let last = last.next().filter(|run| run.file == tensor.file);
        if !last.is_some_and(|run| run.takes(item, (&bytes, len_bytes), &limits)) {
            self.runs.push(Run {
                file: tensor.file,
                bytes,
                conversion,
                len_bytes,
                memories: memories.to_vec(),
                items: vec![(item, 0)],
            });
        }
        Ok(())
    }

    /// Returns the number of the memory of a place, which is new or not.
    fn number(&mut self, place: Place) -> Result<usize, LoadError> {
        let found = self.load.loader.manager.resolve(place);
        let memory = found.map_err(transload::Error::from)?;
        if memory.kind.is_file() || memory.kind.takes_turns() {
            return Err(LoadError::Unfit { memory });
        }
        let known = self.memories.iter().position(|other| *other == memory);
        Ok(known.unwrap_or_else(|| {
            let opened = self.load.loader.manager.opened();
            let limit = opened
                .memory(memory)
                .map_or(u64::MAX, |info| info.max_alloc_bytes);
            self.limits.push(limit);
            self.memories.push(memory);
            self.memories.len() - 1
        }))
    }

    /// Gives each run its place in each of its memories, in arenas of limited size or of one run.
    fn allot(&mut self) -> Result<(), LoadError> {
        let mut last: Vec<Option<usize>> = vec![None; self.memories.len()];
        for run in &self.runs {
            let mut places = Vec::with_capacity(run.memories.len());
            for memory in run.memories.iter().copied() {
                let limit = self.limits[memory];
                if run.len_bytes > limit {
                    let number = self.items[run.items[0].0].number;
                    return Err(LoadError::TooLarge {
                        tensor: self.load.model.tensors()[number].name.clone(),
                        len_bytes: run.len_bytes,
                        memory: self.memories[memory],
                        limit,
                    });
                }
                let most = limit.min(MOST_ARENA_BYTES);
                let room = last[memory].and_then(|at| {
                    let begin = self.arenas[at]
                        .len_bytes
                        .checked_next_multiple_of(RUN_ALIGNMENT)?;
                    (begin.checked_add(run.len_bytes)? <= most).then_some((at, begin))
                });
                let (arena, begin) = room.unwrap_or((self.arenas.len(), 0));
                if arena == self.arenas.len() {
                    self.arenas.push(Arena {
                        memory,
                        len_bytes: 0,
                    });
                    last[memory] = Some(arena);
                }
                self.arenas[arena].len_bytes = begin + run.len_bytes;
                places.push((arena, begin));
            }
            self.places.push(places);
        }
        let opened = self.load.loader.manager.opened();
        for (memory, needs) in self.memories() {
            // Asking the system takes longer than a small load.
            if needs <= self.load.loader.idle(memory) {
                continue;
            }
            let loader = self.load.loader;
            let ask = || {
                loader
                    .room(memory)
                    .or_else(|| opened.memory(memory)?.total_bytes)
            };
            let lacks = |has: &u64| needs > *has;
            let Some(_) = ask().filter(lacks) else {
                continue;
            };
            // What is kept for later makes room.
            loader.manager.trim();
            if let Some(has) = ask().filter(lacks) {
                return Err(LoadError::NoRoom { memory, needs, has });
            }
        }
        Ok(())
    }

    /// Returns the tensors, in the order in which they are read.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &'a TensorInfo> + '_ {
        let all = self.load.model.tensors();
        self.load.chosen.iter().map(|of| &all[of.number])
    }

    /// Returns how many bytes arrive. What goes to several places counts once.
    pub fn len_bytes(&self) -> u64 {
        let lens = self.items.iter().map(|item| item.len_bytes);
        lens.fold(0, u64::saturating_add)
    }

    /// Returns how many bytes of files are read: those that arrive, and what lies between them where that is quicker to
    /// read than to leave out. Between two tensors that are up to 63 bytes, which fill the place up to the next multiple of
    /// 64, between short pieces up to 4 KiB, and between pieces of an object in a store up to 256 KiB.
    pub fn read_bytes(&self) -> u64 {
        let files = self.load.model.files();
        let lens = { self.runs.iter() }.map(|run| run.bytes.read_bytes(&files[run.file]));
        lens.fold(0, u64::saturating_add)
    }

    /// Returns how many of [`LoadPlan::read_bytes`] belong to no tensor or part that arrives, but lie between two of them.
    pub fn over_read_bytes(&self) -> u64 {
        let wanted = self.items.iter().map(|item| item.read_bytes);
        let wanted = wanted.fold(0, u64::saturating_add);
        self.read_bytes().saturating_sub(wanted)
    }

    /// Returns the memories of the tensors, each with the bytes that they take there, with what lies between them.
    pub fn memories(&self) -> impl Iterator<Item = (MemoryId, u64)> + '_ {
        self.memories.iter().enumerate().map(|(number, memory)| {
            let own = self
                .arenas
                .iter()
                .filter(move |arena| arena.memory == number);
            let lens = own.map(|arena| arena.len_bytes);
            (*memory, lens.fold(0, u64::saturating_add))
        })
    }

    /// Returns how many transfers there are.
    pub fn transfers(&self) -> usize {
        self.places.iter().map(Vec::len).sum()
    }

    /// Explains the way of the bytes from the files to the first memory, with the predicted time of all bytes as one transfer,
    /// and what bounds it: for each memory that has files, as those in the system's cache and those on the disk. For files that
    /// are read from the disk through the cache ([`Reading::ThroughCache`]) the prediction is that of cached ones.
    ///
    /// # Errors
    /// When no way leads from files to the memory.
    pub fn explain(&self) -> Result<Vec<Explanation>, LoadError> {
        let files = self.load.model.files();
        let mut read: Vec<(MemoryId, u64)> = Vec::new();
        for run in &self.runs {
            let Some((source, _)) = &self.files[run.file] else {
                unreachable!("each file of a run was opened");
            };
            let (memory, bytes) = (source.memory(), run.bytes.read_bytes(&files[run.file]));
            match read.iter_mut().find(|of| of.0 == memory) {
                Some(of) => of.1 = of.1.saturating_add(bytes),
                None => read.push((memory, bytes)),
            }
        }
        let manager = &self.load.loader.manager;
        let explain = |(from, bytes): (MemoryId, u64)| {
            let explained = manager.explain_places(from.into(), self.memories[0].into(), bytes);
            Ok(explained.map_err(transload::Error::from)?)
        };
        read.into_iter().map(explain).collect()
    }

    /// Starts the load.
    ///
    /// # Errors
    /// When memory is not allocated, and when a file was cut short since the model was opened.
    pub fn start(mut self) -> Result<Loading, LoadError> {
        let loader = self.load.loader;
        let library = transload::Error::from;
        let files = std::mem::take(&mut self.files).into_iter().map(|file| {
            let file = file.map(|(file, _)| file.adopt(&loader.manager));
            file.transpose().map_err(LoadError::from)
        });
        let files = files.collect::<Result<Vec<Option<Buffer>>, _>>()?;
        let arenas = self
            .arenas
            .iter()
            .map(|arena| loader.arena(self.memories[arena.memory], arena.len_bytes));
        let arenas = arenas.collect::<Result<Vec<_>, _>>()?;
        let mut parts = Vec::with_capacity(self.transfers());
        let mut requests = Vec::with_capacity(self.transfers());
        for (number, (run, places)) in self.runs.iter().zip(&self.places).enumerate() {
            let mut source = self.source(run, files[run.file].as_ref())?;
            let mut conversion = run.conversion;
            // A checksum is one of the same bytes at both ends.
            let is_apart = conversion.is_some();
            let again = (self.load.verify && is_apart).then(|| (source.clone(), conversion));
            for (arena, at) in places {
                let target = arenas[*arena]
                    .slice(*at..at + run.len_bytes)
                    .map_err(library)?;
                let mut request = Request::new(source, &target).cancel_on_drop();
                request = request.priority(self.load.priority);
                if let Some(at) = self.load.deadline {
                    request = request.deadline(at);
                }
                if let Some(conversion) = conversion.take() {
                    request = request.convert(conversion);
                }
                if self.load.verify && again.is_none() {
                    request = request.verify();
                }
                requests.push(request);
                // Other devices take the bytes from the one before, once they are there: files are read once.
                source = (&target).into();
                parts.push((number, target, again.clone()));
            }
        }
        let batch = loader.manager.copy_batch(&requests, OnFailure::Stop);
        let batch = batch.map_err(transload::Error::from)?;
        Ok(Loading::new(self.load, self.items, self.runs, parts, batch))
    }

    /// Returns the bytes of a run in its file.
    fn source(&self, run: &Run, file: Option<&Buffer>) -> Result<Region, LoadError> {
        let Some(file) = file else {
            unreachable!("each file of a run was taken in");
        };
        let end = run.bytes.end();
        if end > file.len() {
            return Err(LoadError::Cut {
                path: self.load.model.files()[run.file].path().to_owned(),
                end,
                len_bytes: file.len(),
            });
        }
        Ok(run.bytes.of(file)?)
    }

    /// Opens the files that are read once more, by number, and decides how.
    fn open(&mut self) -> Result<(), LoadError> {
        self.files
            .resize_with(self.load.model.files().len(), || None);
        for run in &self.runs {
            if self.files[run.file].is_some() {
                continue;
            }
            let source = &self.load.model.files()[run.file].source;
            let mut file = match source.again().map_err(LoadError::Open)? {
                Source::Disk(file) => file,
                #[cfg(feature = "remote-files")]
                Source::Remote(object) => {
                    self.check_remote(run.file, &object)?;
                    self.files[run.file] = Some((Source::Remote(object), Reading::Remote));
                    continue;
                }
            };
            let is_cached = file.cached_share().is_none_or(|share| share >= MOSTLY);
            let reading = match is_cached {
                true => Reading::Cached,
                false if self.is_short(run.file) => Reading::ThroughCache {
                    reason: format!(
                        "most of its pieces are shorter than {} bytes",
                        HostFile::DIRECT_BYTES
                    ),
                },
                false => match file.read_directly() {
                    Ok(()) => Reading::Direct,
                    Err(error) => Reading::ThroughCache {
                        reason: error.to_string(),
                    },
                },
            };
            self.files[run.file] = Some((Source::Disk(file), reading));
        }
        Ok(())
    }

    /// Checks that the manager reads objects of stores, and that the numbers of this one stay as they are.
    #[cfg(feature = "remote-files")]
    fn check_remote(&self, file: usize, object: &crate::RemoteObject) -> Result<(), LoadError> {
        let path = object.path().to_owned();
        let manager = &self.load.loader.manager;
        if manager.backend::<crate::Remote>().is_none() {
            return Err(LoadError::NoBackend { path });
        }
        let mut runs = self.runs.iter().filter(|run| run.file == file);
        match runs.any(|run| run.conversion.is_some()) {
            true => Err(LoadError::NotConverted { path }),
            false => Ok(()),
        }
    }

    /// Returns whether most bytes of a file are read in short pieces, which are not read past the cache.
    fn is_short(&self, file: usize) -> bool {
        let runs = self.runs.iter().filter(|run| run.file == file);
        let lens = runs.map(|run| (run.bytes.long_bytes(), run.bytes.len_bytes()));
        let (long, all) = lens.fold((0u64, 0u64), |sums, (long, all)| {
            (sums.0.saturating_add(long), sums.1.saturating_add(all))
        });
        long < all / 2
    }

    /// Returns how each file is read.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &Reading)> {
        let files = self.files.iter().flatten();
        files.map(|(file, reading)| (file.path(), reading))
    }
}

/// How a file is read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reading {
    /// From the system's cache, which has at least half of it, or does not tell.
    Cached,
    /// From the disk, past the cache ([`HostFile::read_directly`]).
    Direct,
    /// From the disk, through the cache.
    ThroughCache {
        /// Why it is not read past the cache.
        reason: String,
    },
    /// From an object store, by requests for ranges.
    Remote,
}

/// A file is read from the cache if this part of it is there.
const MOSTLY: f64 = 0.5;
