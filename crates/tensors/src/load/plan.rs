//! The plan of a load: which bytes go where, in which pieces.

use std::ops::Range;

use transload::host::HostFile;
use transload::{
    Buffer, DeviceId, Explanation, MemoryId, MemoryKind, OnFailure, OpenError, Region, Request,
};

use super::{Load, LoadError, Loading};
use crate::TensorInfo;

/// Where tensors begin in memory: at multiples of this. JAX takes host memory without a copy from 64 on, and vector
/// instructions load whole registers.
const ALIGNMENT: u64 = 64;

/// Where runs begin: the alignment that adapters ask for, for whole buffers of a shader.
const RUN_ALIGNMENT: u64 = 256;

/// Small tensors are read together, so many bytes at most, so that the first ones arrive while the next ones are read.
const MOST_RUN_BYTES: u64 = 16 << 20;

/// And in so many pieces at most: one thread reads the pieces of a run.
const MOST_PIECES: usize = 1024;

/// Tensors of one load lie in memory of at most so many bytes each, or of one tensor.
const MOST_ARENA_BYTES: u64 = 1 << 30;

/// A load, planned.
#[derive(Debug)]
#[must_use = "nothing happens before `start`"]
pub struct LoadPlan<'a> {
    load: Load<'a>,
    memory: MemoryId,
    runs: Vec<Run>,
    /// How many bytes each arena has.
    arenas: Vec<u64>,
}

/// Bytes of a file that are read with one transfer, to bytes that lie end to end.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) file: usize,
    /// The pieces of the file. Between two tensors they go on beyond the first, up to a multiple of [`ALIGNMENT`]: what
    /// lies there in memory does not matter.
    pieces: Vec<Range<u64>>,
    len_bytes: u64,
    arena: usize,
    at: u64,
    /// The numbers of the tensors, and where each begins in the run.
    pub(super) tensors: Vec<(usize, u64)>,
}

impl Run {
    fn of(number: usize, tensor: &TensorInfo) -> Run {
        let bytes = tensor.offset..tensor.offset + tensor.len_bytes;
        Run {
            file: tensor.file,
            pieces: vec![bytes],
            len_bytes: tensor.len_bytes,
            arena: 0,
            at: 0,
            tensors: vec![(number, 0)],
        }
    }

    /// Adds a tensor that comes later in the file. Returns whether it can be read with the others.
    fn takes(
        &mut self,
        number: usize,
        tensor: &TensorInfo,
        (file_bytes, most_pieces): (u64, usize),
    ) -> bool {
        let pieces = self.pieces.len();
        let Some(last) = self.pieces.last_mut() else {
            return false;
        };
        let at = self.len_bytes.next_multiple_of(ALIGNMENT);
        let padded = last.end + (at - self.len_bytes);
        let follows = padded == tensor.offset;
        if tensor.file != self.file
            || at + tensor.len_bytes > MOST_RUN_BYTES
            || padded > file_bytes
            || !(follows || pieces < most_pieces)
        {
            return false;
        }
        let end = tensor.offset + tensor.len_bytes;
        last.end = padded;
        match follows {
            true => last.end = end,
            false => self.pieces.push(tensor.offset..end),
        }
        self.len_bytes = at + tensor.len_bytes;
        self.tensors.push((number, at));
        true
    }

    /// Returns where the bytes to read end in the file.
    fn end(&self) -> u64 {
        let ends = self.pieces.iter().map(|piece| piece.end);
        ends.max().unwrap_or(0)
    }
}

impl<'a> LoadPlan<'a> {
    pub(super) fn new(load: Load<'a>) -> Result<LoadPlan<'a>, LoadError> {
        let manager = &load.loader.manager;
        let memory = manager
            .resolve(load.place)
            .map_err(transload::Error::from)?;
        let all = load.model.tensors();
        if load.chosen.is_empty() {
            return Err(LoadError::NoTensor { of: all.len() });
        }
        let memories = manager.memories();
        let info = memories.iter().find(|info| info.id == memory);
        let largest = info.map_or(u64::MAX, |info| info.max_alloc_bytes);
        // A checksum is one of bytes that lie end to end at both ends.
        let most_pieces = if load.verify { 1 } else { MOST_PIECES };
        let mut runs: Vec<Run> = Vec::new();
        for at in &load.chosen {
            let tensor = &all[*at];
            if tensor.len_bytes > largest {
                return Err(LoadError::TooLarge {
                    tensor: tensor.name.clone(),
                    len_bytes: tensor.len_bytes,
                    memory,
                    limit: largest,
                });
            }
            let file_bytes = load.model.files()[tensor.file].file.span().len;
            let joins = { runs.last_mut() }
                .is_some_and(|run| run.takes(*at, tensor, (file_bytes, most_pieces)));
            if !joins {
                runs.push(Run::of(*at, tensor));
            }
        }
        let arenas = placed(&mut runs, largest.min(MOST_ARENA_BYTES));
        let needs = arenas.iter().sum();
        let has = info.and_then(|info| info.total_bytes);
        if let Some(has) = has.filter(|has| needs > *has) {
            return Err(LoadError::NoRoom { memory, needs, has });
        }
        Ok(LoadPlan {
            load,
            memory,
            runs,
            arenas,
        })
    }

    /// Returns the tensors, in the order in which they are read.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &'a TensorInfo> + '_ {
        let all = self.load.model.tensors();
        self.load.chosen.iter().map(|at| &all[*at])
    }

    /// Returns how many bytes the tensors have.
    pub fn len_bytes(&self) -> u64 {
        self.tensors().map(|tensor| tensor.len_bytes).sum()
    }

    /// Returns how many bytes of files are read: those of the tensors, and up to 63 between two of them, which fill the
    /// place up to the next multiple of 64.
    pub fn read_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.len_bytes).sum()
    }

    /// Returns the memory of the tensors.
    pub fn memory(&self) -> MemoryId {
        self.memory
    }

    /// Returns how many bytes of it the tensors take, with what lies between them.
    pub fn memory_bytes(&self) -> u64 {
        self.arenas.iter().sum()
    }

    /// Returns how many transfers there are.
    pub fn transfers(&self) -> usize {
        self.runs.len()
    }

    /// Explains the way of the bytes, with the predicted time of all of them as one transfer, and what bounds it. The
    /// prediction is for files in the system's cache.
    ///
    /// # Errors
    /// When no way leads from files to the memory.
    pub fn explain(&self) -> Result<Explanation, LoadError> {
        let manager = &self.load.loader.manager;
        let files = DeviceId::CPU0.memory(MemoryKind::File).into();
        let explained = manager.explain_places(files, self.memory.into(), self.read_bytes());
        Ok(explained.map_err(transload::Error::from)?)
    }

    /// Starts the load.
    ///
    /// # Errors
    /// When memory is not allocated, and when a file was cut short since the model was opened.
    pub fn start(self) -> Result<Loading, LoadError> {
        let loader = self.load.loader;
        let files = self.files()?;
        let arenas = { self.arenas.iter() }
            .map(|len_bytes| loader.arena(self.memory, *len_bytes))
            .collect::<Result<Vec<_>, _>>()?;
        let mut targets = Vec::with_capacity(self.runs.len());
        let mut requests = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            let Some(file) = &files[run.file] else {
                unreachable!("each file of a run was taken in");
            };
            let target = arenas[run.arena].slice(run.at..run.at + run.len_bytes);
            let source = Region::spans(file, &run.pieces).map_err(|_| LoadError::Cut {
                path: self.path(run.file),
                end: run.end(),
                len_bytes: file.len(),
            })?;
            let source = match &run.pieces[..] {
                [only] => file
                    .slice(only.clone())
                    .map_err(transload::Error::from)?
                    .into(),
                _ => source,
            };
            let target = target.map_err(transload::Error::from)?;
            let mut request = Request::new(source, &target).cancel_on_drop();
            if self.load.verify {
                request = request.verify();
            }
            requests.push(request);
            targets.push(target);
        }
        let batch = loader.manager.copy_batch(&requests, OnFailure::Stop);
        let batch = batch.map_err(transload::Error::from)?;
        let model = self.load.model;
        let parts = self.runs.iter().cloned().zip(targets);
        Ok(Loading::new(model, parts, batch, self.len_bytes()))
    }

    /// Takes in the files that are read, by number.
    fn files(&self) -> Result<Vec<Option<Buffer>>, LoadError> {
        let mut files = vec![None; self.load.model.files().len()];
        for run in &self.runs {
            if files[run.file].is_some() {
                continue;
            }
            let own = &self.load.model.files()[run.file].file;
            let Some(file) = own.file() else {
                unreachable!("a file that was opened by its path is no shared memory");
            };
            let failed = |source| LoadError::Open(OpenError::File(source));
            let again = file.try_clone().map_err(|source| {
                failed(transload::host::FileError::System {
                    path: own.path().to_owned(),
                    source,
                })
            })?;
            let file = HostFile::from_file(again, own.path(), false).map_err(failed)?;
            let buffer = self.load.loader.manager.adopt_file(file);
            files[run.file] = Some(buffer.map_err(LoadError::Open)?);
        }
        Ok(files)
    }

    fn path(&self, file: usize) -> std::path::PathBuf {
        self.load.model.files()[file].file.path().to_owned()
    }
}

/// Places the runs in arenas of at most `most` bytes, or of one run. Returns how many bytes each has.
fn placed(runs: &mut [Run], most: u64) -> Vec<u64> {
    let mut arenas: Vec<u64> = Vec::new();
    for run in runs {
        let len = run.len_bytes;
        let room = arenas.last().and_then(|used| {
            let at = used.checked_next_multiple_of(RUN_ALIGNMENT)?;
            (at.checked_add(len)? <= most).then_some(at)
        });
        run.at = room.unwrap_or_else(|| {
            arenas.push(0);
            0
        });
        run.arena = arenas.len() - 1;
        arenas[run.arena] = run.at + len;
    }
    arenas
}
