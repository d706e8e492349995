//! Loads: from the files of a model into the memory of a device.

mod error;
mod loading;
mod plan;

use std::sync::{Arc, Mutex, PoisonError};

use transload::{AllocSpec, Buffer, MemoryId, Place, TransferManager};

use crate::{Model, TensorInfo};

pub use error::LoadError;
pub use loading::{Loading, Tensor};
pub use plan::LoadPlan;

/// Loads models, and keeps the memory of earlier ones for the next: the first use of new memory takes longer than the bytes
/// of a file that the system has in its cache.
///
/// The memory is used again when all tensors that lie in it were dropped.
#[derive(Debug)]
pub struct Loader {
    manager: TransferManager,
    /// Memory in which tensors lie or lay.
    arenas: Arc<Mutex<Vec<Buffer>>>,
}

impl Loader {
    /// Makes a loader whose transfers are the manager's.
    pub fn new(manager: &TransferManager) -> Loader {
        Loader {
            manager: manager.clone(),
            arenas: Arc::default(),
        }
    }

    /// Begins to describe a load of all tensors into the heap. Nothing happens before [`Load::start`].
    pub fn load<'a>(&'a self, model: &'a Model) -> Load<'a> {
        Load {
            loader: self,
            model,
            place: transload::DeviceId::CPU0.into(),
            chosen: (0..model.tensors().len()).collect(),
            verify: false,
        }
    }

    /// Frees the memory in which no tensor lies.
    pub fn trim(&self) {
        self.arenas().retain(|arena| !arena.is_unique());
    }

    /// Returns memory for so many bytes: some that an earlier load has left, or new memory.
    fn arena(&self, memory: MemoryId, len_bytes: u64) -> Result<Buffer, LoadError> {
        let mut arenas = self.arenas();
        let fits = |arena: &Buffer| {
            arena.memory() == memory && arena.len() >= len_bytes && arena.is_unique()
        };
        let mut kept: Vec<usize> = (0..arenas.len()).filter(|at| fits(&arenas[*at])).collect();
        kept.sort_unstable_by_key(|at| arenas[*at].len());
        if let Some(smallest) = kept.first() {
            return Ok(arenas[*smallest].clone());
        }
        // What is too small is not kept beside what replaces it.
        arenas.retain(|arena| arena.memory() != memory || !arena.is_unique());
        let arena = self
            .manager
            .allocate(memory.into(), AllocSpec::bytes(len_bytes.max(1)))?;
        arenas.push(arena.clone());
        Ok(arena)
    }

    fn arenas(&self) -> std::sync::MutexGuard<'_, Vec<Buffer>> {
        // A panic leaves the list as it was.
        self.arenas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A load that is being described.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `start`"]
pub struct Load<'a> {
    loader: &'a Loader,
    model: &'a Model,
    place: Place,
    /// The numbers of the tensors, in the model's order.
    chosen: Vec<usize>,
    verify: bool,
}

impl<'a> Load<'a> {
    /// Loads into the default memory of a device, or into one that is named.
    pub fn to(mut self, place: impl Into<Place>) -> Load<'a> {
        self.place = place.into();
        self
    }

    /// Loads only tensors whose names fit the pattern, of those that earlier calls have left: `*` stands for any characters,
    /// `?` for one.
    pub fn only(self, pattern: &str) -> Load<'a> {
        let pattern = wildmatch::WildMatch::new(pattern);
        self.filter(|tensor| pattern.matches(&tensor.name))
    }

    /// Loads only tensors for which `wanted` returns true, of those that earlier calls have left.
    pub fn filter(mut self, mut wanted: impl FnMut(&TensorInfo) -> bool) -> Load<'a> {
        let tensors = self.model.tensors();
        self.chosen.retain(|at| wanted(&tensors[*at]));
        self
    }

    /// Reads all bytes once more at both ends when they have arrived, and compares their checksums (xxh3).
    pub fn verify(mut self) -> Load<'a> {
        self.verify = true;
        self
    }

    /// Plans the load: allocates nothing and reads nothing.
    ///
    /// # Errors
    /// When the place is not here, no tensor is left, or the memory has too little room for all of them.
    pub fn plan(self) -> Result<LoadPlan<'a>, LoadError> {
        LoadPlan::new(self)
    }

    /// Plans the load and starts it. Allocates the memory of the tensors; the copies go on by themselves.
    ///
    /// # Errors
    /// As [`Load::plan`]; when memory is not allocated; and when a file was cut short since the model was opened.
    pub fn start(self) -> Result<Loading, LoadError> {
        self.plan()?.start()
    }
}
