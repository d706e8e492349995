//! Saves: tensors of any devices into safetensors files.

mod error;
mod layout;
mod older;
mod placing;
mod saving;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use transload::TransferManager;

use crate::{Loaded, Tensor};

pub(crate) use error::is_consequence;
pub use error::{Left, SaveError};
pub use saving::Saving;

/// A save that is being described: tensors of any memories that the manager knows, as safetensors.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `start`"]
pub struct Save {
    manager: TransferManager,
    tensors: Vec<Item>,
    metadata: BTreeMap<String, String>,
    most_shard_bytes: u64,
}

/// Endings of files that are none of safetensors, whose readers would not find out why they fail.
const OTHER_FORMATS: [&str; 11] = [
    "gguf", "h5", "hdf5", "json", "npy", "npz", "onnx", "pickle", "pkl", "pt", "pth",
];

/// A tensor to save.
#[derive(Clone, Debug)]
struct Item {
    name: String,
    tensor: Tensor,
}

impl Save {
    /// Begins to describe a save of no tensors. Nothing happens before [`Save::start`].
    pub fn new(manager: &TransferManager) -> Save {
        Save {
            manager: manager.clone(),
            tensors: Vec::new(),
            metadata: BTreeMap::new(),
            most_shard_bytes: u64::MAX,
        }
    }

    /// Adds a tensor. The file has its elements densely, those of the last dimension next to each other.
    pub fn tensor(mut self, name: impl Into<String>, tensor: &Tensor) -> Save {
        self.tensors.push(Item {
            name: name.into(),
            tensor: tensor.clone(),
        });
        self
    }

    /// Adds tensors that were loaded, under their names.
    pub fn tensors<'a>(self, tensors: impl IntoIterator<Item = &'a Loaded>) -> Save {
        let tensors = tensors.into_iter();
        tensors.fold(self, |save, of| save.tensor(of.name(), of))
    }

    /// Adds a text to the metadata of each file, or replaces the one of that key.
    pub fn metadata(mut self, key: impl Into<String>, text: impl Into<String>) -> Save {
        self.metadata.insert(key.into(), text.into());
        self
    }

    /// Begins a new file where a file would have more than so many bytes of tensors. A larger tensor has a file of its own.
    /// Several files are `NAME-00001-of-00003.safetensors` and so on, with the list `NAME.safetensors.index.json`. Where a
    /// file has such a name, or an older model is there, they are `NAME-SAVE-00001-of-00003.safetensors`, with a random
    /// `SAVE`. The metadata of each
    /// names the save, the number of its files and the bytes of all tensors, as `transload.save`, `transload.save.files` and
    /// `transload.save.bytes`.
    pub fn most_shard_bytes(mut self, bytes: u64) -> Save {
        self.most_shard_bytes = bytes;
        self
    }

    /// Starts the save to a file at `path`, or to several beside it ([`Save::most_shard_bytes`]). Copies go on by
    /// themselves. The files hold the bytes that the tensors have now: transfers that were submitted before come first, and
    /// those that write a tensor later wait for its copy.
    ///
    /// The files are written as `.transload-WRITER-RANDOM.partial` in their folder. [`Saving::wait`] puts them in their
    /// places. An older model of the name is replaced then: the file, or the list and the files that it names.
    ///
    /// # Errors
    /// When the path has the ending of another format, such as `.gguf`, `.json`, `.npz` or `.pt`, two tensors have one name, a tensor has no [region](Tensor::region),
    /// safetensors has no such type, a file cannot be created, a file that is there would be opened in place of the save
    /// and is not replaced by it, or the library refuses a copy.
    pub fn start(self, path: impl AsRef<Path>) -> Result<Saving, SaveError> {
        let path = path.as_ref();
        let is_other = |ending: &OsStr| {
            let ending = ending.to_str().map(str::to_ascii_lowercase);
            ending.is_some_and(|ending| OTHER_FORMATS.contains(&&*ending))
        };
        if path.extension().is_some_and(is_other) {
            let path = path.to_owned();
            return Err(SaveError::Ending { path });
        }
        let (files, mark) = layout::files(self.tensors, self.metadata, self.most_shard_bytes)?;
        Saving::start(&self.manager, path, files, mark)
    }
}
