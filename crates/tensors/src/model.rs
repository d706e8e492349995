//! A model: one file, or several that belong together.

mod folder;
mod index;
mod split;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::BuildHasher;
use std::io::{self, BufReader, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use transload::hal::{External, Span, SystemError, read_regular};
use transload::host::{FileError, HostFile};
use transload::{Buffer, ErrorClass, MemoryId, OpenError, TransferManager};

use crate::mark::Mark;
use crate::{Format, Header, HeaderError, TensorInfo, Value};

pub(crate) use index::{List, is_no_list};
pub(crate) use split::part_of;

/// The files of a model, open, and what their headers say.
///
/// The files stay open, so that a file that is replaced meanwhile is read as it was. Copies of the bytes that a file loses
/// fail and name the file.
#[derive(Debug)]
pub struct Model {
    files: Vec<ModelFile>,
    tensors: Arc<Vec<TensorInfo>>,
    /// The numbers of the tensors, by name.
    by_name: HashTable<usize>,
    hasher: DefaultHashBuilder,
    metadata: BTreeMap<String, Value>,
    /// The save that all files are of.
    mark: Option<Mark>,
}

/// A file of a model.
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelFile {
    /// The file, open.
    pub(crate) source: Source,
    /// Its format.
    pub format: Format,
}

/// Where the bytes of a file are.
#[derive(Debug)]
pub(crate) enum Source {
    Disk(HostFile),
    #[cfg(feature = "remote-files")]
    Remote(crate::RemoteObject),
}

impl ModelFile {
    /// Returns the path of the file, in a store that of the object.
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// Returns how many bytes the file had when it was opened.
    pub fn len_bytes(&self) -> u64 {
        match &self.source {
            Source::Disk(file) => file.span().len,
            #[cfg(feature = "remote-files")]
            Source::Remote(object) => object.len_bytes(),
        }
    }

    /// Takes the file into a manager once more, as a read-only buffer of all its bytes: the same file, also where another one
    /// has taken its name meanwhile. Does not read.
    ///
    /// # Errors
    /// When the system has no more descriptors, the file was cut to nothing, or the manager has no backend for it.
    pub fn adopt(&self, manager: &TransferManager) -> Result<Buffer, transload::Error> {
        self.source.again()?.adopt(manager)
    }

    /// How many bytes are read for rows of the file.
    pub(crate) fn read_bytes(&self, rows: impl Iterator<Item = Span> + Clone) -> u64 {
        match &self.source {
            Source::Disk(_) => HostFile::read_bytes(rows),
            #[cfg(feature = "remote-files")]
            Source::Remote(_) => crate::remote::read_bytes(rows),
        }
    }
}

impl Source {
    /// Opens a file once more, through the same description.
    pub(crate) fn again(&self) -> Result<Source, OpenError> {
        let open = match self {
            Source::Disk(open) => open,
            #[cfg(feature = "remote-files")]
            Source::Remote(object) => return Ok(Source::Remote(object.clone())),
        };
        let Some(file) = open.file() else {
            unreachable!("a file that was opened by its path is no shared memory");
        };
        let path = open.path();
        let again = file.try_clone().map_err(|source| FileError::System {
            path: path.to_owned(),
            source,
        })?;
        Ok(Source::Disk(HostFile::from_file(again, path, false)?))
    }

    pub(crate) fn adopt(self, manager: &TransferManager) -> Result<Buffer, transload::Error> {
        match self {
            Source::Disk(file) => Ok(manager.adopt_file(file)?),
            #[cfg(feature = "remote-files")]
            Source::Remote(object) => object.adopt(manager),
        }
    }

    /// As a backend imports it.
    pub(crate) fn external(self) -> External {
        match self {
            Source::Disk(file) => External::object(file),
            #[cfg(feature = "remote-files")]
            Source::Remote(object) => External::object(object),
        }
    }

    pub(crate) fn memory(&self) -> MemoryId {
        match self {
            Source::Disk(file) => file.memory(),
            #[cfg(feature = "remote-files")]
            Source::Remote(_) => crate::remote::MEMORY,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Source::Disk(file) => file.path(),
            #[cfg(feature = "remote-files")]
            Source::Remote(object) => object.path(),
        }
    }
}

/// Where the files of a model lie.
pub(crate) trait Files {
    /// Reads a whole file of at most so many bytes.
    fn read(&self, path: &Path, most_bytes: u64) -> Result<Vec<u8>, ModelError>;

    /// Whether a file whose read gave that error may be missing.
    fn may_be_missing(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::NotFound
    }

    /// Returns false of a file that is known to be missing.
    fn exists(&self, path: &Path) -> bool;

    /// Opens a file, and reads its header.
    fn open(&self, path: &Path) -> Result<(Source, Header), ModelError>;
}

/// The files of the system.
struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path, most_bytes: u64) -> Result<Vec<u8>, ModelError> {
        let read = read_regular(path, most_bytes).map_err(|source| ModelError::Read {
            path: path.to_owned(),
            source,
        });
        read.map_err(|error| dangling(path).unwrap_or(error))
    }

    /// Says that a link exists: opening it tells where it leads.
    fn exists(&self, path: &Path) -> bool {
        !matches!(path.try_exists(), Ok(false)) || path.is_symlink()
    }

    fn open(&self, path: &Path) -> Result<(Source, Header), ModelError> {
        let file = HostFile::open(path).map_err(OpenError::from);
        let file = file.map_err(|error| dangling(path).unwrap_or(error.into()))?;
        let header = read(&file)?;
        Ok((Source::Disk(file), header))
    }
}

/// Returns the link of a path that leads nowhere, if there is one.
fn dangling(path: &Path) -> Option<ModelError> {
    let is_dangling = |of: &&Path| of.is_symlink() && matches!(of.try_exists(), Ok(false));
    let link = path.ancestors().find(is_dangling)?;
    Some(ModelError::Dangling {
        path: link.to_owned(),
        target: link.read_link().ok()?,
    })
}

/// Returns the save that a file on the disk is of; `None` where its header names none, or is not right.
///
/// # Errors
/// When the system does not open or read it, and may do so later.
pub(crate) fn mark_of(path: &Path) -> Result<Option<Mark>, ModelError> {
    match Disk.open(path) {
        Ok((_, header)) => Ok(Mark::read(&header.metadata)),
        Err(error) if error.class() == ErrorClass::Caller => Ok(None),
        Err(error) => Err(error),
    }
}

/// Why a path is no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file that was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A link to a file or a folder that is not there.
    #[error(
        "{path} is a link to {target}, which is not there: where it is of a hub's cache, its download was cut short or cleaned \
         up; download the model again", path = path.display(), target = target.display()
    )]
    Dangling {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// A folder or an index that was not read.
    #[error("{path}: {}", SystemError(source), path = path.display())]
    Read {
        /// The folder or index.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file whose header is not right.
    #[error("{path}: {source}", path = path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is not right.
        source: HeaderError,
    },
    /// A list of shards that is not right.
    #[error("{path}: no list of shards: {reason}", path = path.display())]
    Index {
        /// The list.
        path: PathBuf,
        /// What is not right.
        reason: String,
    },
    /// A folder without a model.
    #[error("{path} has no model: no *.safetensors and no *.gguf{}", pickled(*.is_pickled), path = path.display())]
    NoModel {
        /// The folder.
        path: PathBuf,
        /// Whether it has pickled models.
        is_pickled: bool,
    },
    /// A folder with several models.
    #[error("{path} has several models: {}; name one of them", few(names), path = path.display())]
    Several {
        /// The folder.
        path: PathBuf,
        /// The names of the files.
        names: Vec<String>,
    },
    /// A model of several files, of which some are not there.
    #[error("{path} lacks {} of its {files} files: {}; put them beside it", names.len(), few(names), path = path.display())]
    Missing {
        /// The list of the files, or the part that was named.
        path: PathBuf,
        /// How many there are to be.
        files: usize,
        /// The names of the missing ones.
        names: Vec<String>,
    },
    /// A part of a GGUF model that is another one than its name or the other parts say: it was renamed, or the parts are of
    /// several models.
    #[error("{path}: {reason}", path = path.display())]
    Part {
        /// The part.
        path: PathBuf,
        /// What is not right.
        reason: String,
    },
    /// Files of two saves, which no list of one model names together.
    #[error(
        "files of two models are mixed: {first} {}, {second} {}; take all files and the list from one of them",
        Saved(first_save),
        Saved(second_save),
        first = first.display(),
        second = second.display()
    )]
    Mixed {
        /// A file, or the list.
        first: PathBuf,
        /// The save that it names in its metadata; `None` where it names none, as files of other programs do.
        first_save: Option<String>,
        /// Another file.
        second: PathBuf,
        /// The save that it names.
        second_save: Option<String>,
    },
    /// Files without a list that are not all files of their save.
    #[error(
        "{path} is of the save {save:?}, which has {files} files with {bytes} bytes of tensors, and here are {files_here} \
         files with {bytes_here} bytes, without a list; copy all files of the save",
        path = path.display()
    )]
    Parts {
        /// The first file.
        path: PathBuf,
        /// The save that it names in its metadata.
        save: String,
        /// How many files the save has.
        files: u64,
        /// How many bytes its tensors have.
        bytes: u64,
        /// How many files are there.
        files_here: u64,
        /// How many bytes their tensors have.
        bytes_here: u64,
    },
    /// A tensor that two files have.
    #[error("tensor {name:?} is in {first} and in {second}", first = first.display(), second = second.display())]
    Duplicate {
        /// The tensor.
        name: String,
        /// A file.
        first: PathBuf,
        /// Another file.
        second: PathBuf,
    },
    /// A tensor that is not where the list says.
    #[error("tensor {name:?} is not in {path}, where the list of shards says it is", path = path.display())]
    NotThere {
        /// The tensor.
        name: String,
        /// The file.
        path: PathBuf,
    },
}

/// What a file says of its save.
struct Saved<'a>(&'a Option<String>);

impl fmt::Display for Saved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(save) => write!(f, "is of the save {save:?}"),
            None => f.write_str("names no save"),
        }
    }
}

/// The first names, and how many more there are.
fn few(names: &[String]) -> String {
    const FEW: usize = 5;
    let shown: Vec<String> = names
        .iter()
        .take(FEW)
        .map(|name| format!("{name:?}"))
        .collect();
    match names.len().saturating_sub(FEW) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn pickled(found: bool) -> &'static str {
    match found {
        true => {
            "; pickled files (*.bin, *.pt, *.pth, *.ckpt) may run any code when they are read, so they are not read: take \
             the model's safetensors"
        }
        false => "",
    }
}

impl ModelError {
    /// Whether the files may have been replaced since their list or their folder was read.
    fn may_be_replaced(&self) -> bool {
        match self {
            ModelError::Missing { .. }
            | ModelError::Mixed { .. }
            | ModelError::Parts { .. }
            | ModelError::NoModel { .. }
            | ModelError::Several { .. } => true,
            ModelError::Open(OpenError::File(FileError::System { source, .. }))
            | ModelError::Read { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// Returns the category of the error. A file that is no model is the caller's.
    pub fn class(&self) -> ErrorClass {
        match self {
            ModelError::Open(error) => error.class(),
            ModelError::Read { source, .. }
            | ModelError::Header {
                source: HeaderError::Read(source),
                ..
            } => ErrorClass::of_io(source),
            _ => ErrorClass::Caller,
        }
    }
}

impl Model {
    /// Opens the model at `path` and reads its headers. Blocks on the disk. The path is
    ///
    /// - a file in safetensors or GGUF;
    /// - any part of a model in several, `NAME-00001-of-00003.gguf` or `.safetensors`: the model of all its parts, or of the
    ///   list of shards `NAME.safetensors.index.json` that names the part. A part under another name is a model by itself,
    ///   unless the header of a GGUF file says that it is a part;
    /// - a list of shards, `model.safetensors.index.json`;
    /// - a folder, such as a snapshot of a hub: with a list of shards the model of that list, with `model.safetensors` that
    ///   file, else the only other model in it, in one file or in numbered parts. Symbolic links are followed, and hidden files
    ///   are passed over. What a save that ended early has left beside a model is none;
    /// - a hub's folder of a model, with `snapshots` and `refs/main`: the snapshot that is named there.
    ///
    /// Tensors that a list of shards does not name are no part of the model. Tensors of a type that is not known are listed, and
    /// a load that does not leave them out fails ([`DType::Unknown`](crate::DType::Unknown)).
    ///
    /// # Errors
    /// When there is no model, when one of its files is missing, cannot be read, was cut short, or says something of itself
    /// that is not so, when a GGUF file is another part than its name says, when two files have a tensor of one name, and when
    /// files are of two saves, or without a list not all files of their save
    /// ([`Save::most_shard_bytes`](crate::Save::most_shard_bytes)).
    pub fn open(path: impl AsRef<Path>) -> Result<Model, ModelError> {
        let path = path.as_ref();
        if path.is_dir() {
            return folder::open(&Disk, path);
        }
        Model::open_file(&Disk, path)
    }

    /// Opens the model of a file, of a list of shards, or of a part.
    pub(crate) fn open_file(files: &dyn Files, path: &Path) -> Result<Model, ModelError> {
        if path.extension().is_some_and(|ending| ending == "json") {
            return index::open(files, path);
        }
        match split::open(files, path)? {
            Some(model) => Ok(model),
            None => Model::of_files(files, &[path.to_owned()])?.indexed(),
        }
    }

    /// Opens files that together are a model. Its tensors are not found by name yet.
    fn of_files(from: &dyn Files, paths: &[PathBuf]) -> Result<Model, ModelError> {
        let mut files = Vec::with_capacity(paths.len());
        let mut tensors = Vec::new();
        let mut metadata = BTreeMap::new();
        let mut said = Vec::new();
        let mut mark = None;
        for path in paths {
            let (source, mut header) = from.open(path)?;
            said.push(split::Said::of(&header));
            let number = files.len();
            let found = Mark::read(&header.metadata);
            match number {
                0 => mark = found,
                _ => same_save((&paths[0], mark.as_ref()), (path, found.as_ref()))?,
            }
            files.push(ModelFile {
                source,
                format: header.format,
            });
            for (key, value) in header.metadata {
                metadata.entry(key).or_insert(value);
            }
            for tensor in &mut header.tensors {
                tensor.file = number;
            }
            match tensors.is_empty() {
                true => tensors = header.tensors,
                false => tensors.append(&mut header.tensors),
            }
        }
        split::check(paths, &said)?;
        Ok(Model {
            files,
            tensors: Arc::new(tensors),
            by_name: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            metadata,
            mark,
        })
    }

    /// Checks that the files, which no list names, are all files of their save, where they are of one.
    fn whole(self) -> Result<Model, ModelError> {
        let here = (self.files.len() as u64, self.len_bytes());
        match &self.mark {
            Some(mark) if here != (mark.files, mark.bytes) => Err(ModelError::Parts {
                path: self.path(0).to_owned(),
                save: mark.save.clone(),
                files: mark.files,
                bytes: mark.bytes,
                files_here: here.0,
                bytes_here: here.1,
            }),
            _ => Ok(self),
        }
    }

    /// Checks that the files are of the save that their list names.
    fn is_of_list(&self, list: &Path, save: Option<String>) -> Result<(), ModelError> {
        let Some(save) = save else {
            return Ok(());
        };
        let mark = Mark {
            save,
            files: 0,
            bytes: 0,
        };
        same_save((list, Some(&mark)), (self.path(0), self.mark.as_ref()))
    }

    /// Finds the tensors by name.
    fn indexed(mut self) -> Result<Model, ModelError> {
        let (tensors, hasher) = (&self.tensors, &self.hasher);
        let hash = |at: &usize| hasher.hash_one(&tensors[*at].name);
        let mut by_name = HashTable::with_capacity(tensors.len());
        for (at, tensor) in tensors.iter().enumerate() {
            let same = |other: &usize| tensors[*other].name == tensor.name;
            match by_name.entry(hash(&at), same, hash) {
                Entry::Vacant(place) => place.insert(at),
                Entry::Occupied(other) => {
                    let (name, path) = (tensor.name.clone(), self.path(tensor.file).to_owned());
                    let first = tensors[*other.get()].file;
                    return Err(match first == tensor.file {
                        true => ModelError::Header {
                            path,
                            source: HeaderError::Duplicate { name },
                        },
                        false => ModelError::Duplicate {
                            name,
                            first: self.path(first).to_owned(),
                            second: path,
                        },
                    });
                }
            };
        }
        self.by_name = by_name;
        Ok(self)
    }

    /// Returns the files.
    pub fn files(&self) -> &[ModelFile] {
        &self.files
    }

    /// Returns the path of a file, by its number.
    fn path(&self, file: usize) -> &Path {
        self.files[file].path()
    }

    /// The tensors, to keep beside the model.
    pub(crate) fn shared_tensors(&self) -> &Arc<Vec<TensorInfo>> {
        &self.tensors
    }

    /// Returns the tensors, file by file, in the order of their bytes.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let is_it = |at: &usize| self.tensors[*at].name == name;
        let found = self.by_name.find(self.hasher.hash_one(name), is_it);
        found.map(|at| &self.tensors[*at])
    }

    /// Returns what else the headers say. Of a key that several files have, the value of the first file.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// Returns how many bytes all tensors have.
    pub fn len_bytes(&self) -> u64 {
        let lens = self.tensors.iter().map(|of| of.len_bytes);
        // Sparse files may be as long as they like.
        lens.fold(0, u64::saturating_add)
    }
}

/// Checks that two files, which are said to be of one model, are of one save.
fn same_save(
    (first, one): (&Path, Option<&Mark>),
    (second, other): (&Path, Option<&Mark>),
) -> Result<(), ModelError> {
    let save = |mark: Option<&Mark>| mark.map(|mark| mark.save.clone());
    let (first_save, second_save) = (save(one), save(other));
    if first_save == second_save {
        return Ok(());
    }
    Err(ModelError::Mixed {
        first: first.to_owned(),
        first_save,
        second: second.to_owned(),
        second_save,
    })
}

/// Reads the header of an open file.
fn read(file: &HostFile) -> Result<Header, ModelError> {
    let path = || file.path().to_owned();
    let failed = |source| ModelError::Header {
        path: path(),
        source,
    };
    let Some(mut bytes) = file.file() else {
        unreachable!("a file that was opened by its path is no shared memory");
    };
    bytes
        .rewind()
        .map_err(|error| failed(HeaderError::Read(error)))?;
    Header::read_names_later(BufReader::new(bytes), file.span().len).map_err(failed)
}
