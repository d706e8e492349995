//! Loads: from the files of a model into the memory of a device.

mod error;
mod loading;
mod part;
mod plan;
mod run;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use transload::{AllocSpec, Buffer, MemoryId, Place, TransferManager};
use wildmatch::WildMatch;

use crate::{DType, Model, TensorInfo};

pub use error::LoadError;
pub use loading::{Loading, Tensor};
pub use plan::{LoadPlan, Reading};

/// Loads models, and keeps the memory of earlier ones for the next: the first use of new memory takes longer than the bytes
/// of a file that the system has in its cache.
///
/// Memory is used again when all tensors that lie in it were dropped, by a load that needs at least half of it.
#[derive(Debug)]
pub struct Loader {
    manager: TransferManager,
    /// Memory in which tensors lie or lay.
    arenas: Mutex<Vec<Buffer>>,
}

impl Loader {
    /// Makes a loader whose transfers are the manager's.
    pub fn new(manager: &TransferManager) -> Loader {
        Loader {
            manager: manager.clone(),
            arenas: Mutex::default(),
        }
    }

    /// Begins to describe a load of all tensors into the heap. Nothing happens before [`Load::start`].
    pub fn load<'a>(&'a self, model: &'a Model) -> Load<'a> {
        Load {
            loader: self,
            model,
            place: Where::All(vec![transload::DeviceId::CPU0.into()]),
            chosen: (0..model.tensors().len()).collect(),
            slices: Vec::new(),
            dtypes: Vec::new(),
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
        // A few small tensors do not hold the memory of a large model.
        let fitting = len_bytes..=len_bytes.saturating_mul(2).max(MOST_WASTED_BYTES);
        let fits = |arena: &Buffer| {
            arena.memory() == memory && fitting.contains(&arena.len()) && arena.is_unique()
        };
        let kept = arenas.iter().filter(|arena| fits(arena));
        if let Some(smallest) = kept.min_by_key(|arena| arena.len()) {
            return Ok(smallest.clone());
        }
        // What is too small is not kept beside what replaces it.
        arenas.retain(|arena| arena.memory() != memory || !arena.is_unique());
        let arena = self
            .manager
            .allocate(memory.into(), AllocSpec::bytes(len_bytes.max(1)))?;
        arenas.push(arena.clone());
        Ok(arena)
    }

    fn arenas(&self) -> MutexGuard<'_, Vec<Buffer>> {
        // A panic leaves the list as it was.
        self.arenas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of up to so many bytes is used again for any number of them.
const MOST_WASTED_BYTES: u64 = 1 << 20;

/// A load that is being described.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `start`"]
pub struct Load<'a> {
    loader: &'a Loader,
    model: &'a Model,
    place: Where,
    /// The numbers of the tensors, in the model's order.
    chosen: Vec<usize>,
    /// What is wanted of each tensor of the model, elements along each dimension; empty where no slice is.
    slices: Vec<Option<Vec<Range<u64>>>>,
    /// The wanted type of each tensor of the model; empty where none is.
    dtypes: Vec<DType>,
    verify: bool,
}

/// Where tensors go.
#[derive(Clone, Debug)]
enum Where {
    /// Each to all of them.
    All(Vec<Place>),
    /// Each to the one of its number in the model.
    Each(Vec<Place>),
    /// Cut along a dimension, a part to each of them, or where there is none, each to all of them.
    Split(Vec<Place>, Vec<Option<usize>>),
}

impl<'a> Load<'a> {
    /// Loads into the default memory of a device, or into one that is named.
    pub fn to(mut self, place: impl Into<Place>) -> Load<'a> {
        self.place = Where::All(vec![place.into()]);
        self
    }

    /// Loads each tensor into every one of these places. Files are read once: the bytes go on from the first place to the
    /// second, and so on. [`Loading`] tells of each tensor in each place.
    pub fn to_all(mut self, places: &[Place]) -> Load<'a> {
        self.place = Where::All(places.to_vec());
        self
    }

    /// Loads each tensor into the place that `place_of` names.
    pub fn to_each(mut self, place_of: impl FnMut(&TensorInfo) -> Place) -> Load<'a> {
        self.place = Where::Each(self.model.tensors().iter().map(place_of).collect());
        self
    }

    /// Loads the tensors that earlier calls have left into these places, in the order of the files and each whole, so that
    /// each place has about as many bytes as the others.
    pub fn to_shares(self, places: &[Place]) -> Load<'a> {
        let all = self.model.tensors();
        let lens = self.chosen.iter().map(|at| all[*at].len_bytes);
        let total = lens.fold(0, u64::saturating_add);
        let Some(first) = places.first() else {
            return self.to_all(places);
        };
        let mut place_of = vec![*first; all.len()];
        let mut before = 0u64;
        for at in &self.chosen {
            // By the middle of the tensor.
            let middle = u128::from(before) * 2 + u128::from(all[*at].len_bytes);
            let share = middle * places.len() as u128 / (u128::from(total.max(1)) * 2);
            place_of[*at] = places[(share as usize).min(places.len() - 1)];
            before = before.saturating_add(all[*at].len_bytes);
        }
        Load {
            place: Where::Each(place_of),
            ..self
        }
    }

    /// Loads a part of each tensor into each of these places: a tensor whose whole name fits the pattern of a rule is cut along
    /// the dimension of the first such rule, counted from 0, into as many parts as there are places; others go to all of
    /// them. Parts are whole blocks of the tensor's type, and none is more than a block longer than another. In patterns `*`
    /// stands for any characters, `?` for one.
    ///
    /// So layers are spread for tensor parallelism: the first of two matrices along its outputs, the second one along its
    /// inputs.
    pub fn to_split(mut self, places: &[Place], rules: &[(&str, usize)]) -> Load<'a> {
        let rules = rules
            .iter()
            .map(|(pattern, dimension)| (WildMatch::new(pattern), *dimension));
        let rules: Vec<(WildMatch, usize)> = rules.collect();
        let dimension = |tensor: &TensorInfo| {
            let mut fitting = rules.iter().filter(|rule| rule.0.matches(&tensor.name));
            fitting.next().map(|rule| rule.1)
        };
        let dimensions = self.model.tensors().iter().map(dimension).collect();
        self.place = Where::Split(places.to_vec(), dimensions);
        self
    }

    /// Loads a slice of each tensor for which `slice_of` returns one: the elements along each dimension, from the outermost
    /// on; along the dimensions of which nothing is said, all. A slice of a type in blocks, such as `Q4_0`, has whole blocks
    /// of the last dimension.
    ///
    /// Short pieces that lie near each other in the file are read together with what lies between
    /// ([`LoadPlan::read_bytes`]), and cut apart on the way.
    pub fn slice(
        mut self,
        slice_of: impl FnMut(&TensorInfo) -> Option<Vec<Range<u64>>>,
    ) -> Load<'a> {
        self.slices = self.model.tensors().iter().map(slice_of).collect();
        self
    }

    /// Converts the tensors of floating-point numbers to one type while they are read, by the host's threads: F64, F32, F16,
    /// BF16, F8_E4M3 and F8_E5M2 to one of the first four. Tensors of integers, truth values and complex numbers stay as they
    /// are. Numbers are rounded to the nearest one, of two to the even one; what is too large becomes an infinity.
    pub fn dtype(self, to: DType) -> Load<'a> {
        self.dtype_of(|tensor| match tensor.dtype.is_float() {
            true => to,
            false => tensor.dtype,
        })
    }

    /// Converts each tensor to the type that `dtype_of` names, as [`Load::dtype`] does. [`Load::plan`] refuses what is not
    /// converted.
    pub fn dtype_of(mut self, dtype_of: impl FnMut(&TensorInfo) -> DType) -> Load<'a> {
        self.dtypes = self.model.tensors().iter().map(dtype_of).collect();
        self
    }

    /// Loads only tensors whose whole names fit one of the patterns, of those that earlier calls have left: `*` stands for any
    /// characters, `?` for one.
    pub fn only<'p>(self, patterns: impl IntoIterator<Item = &'p str>) -> Load<'a> {
        let patterns: Vec<WildMatch> = patterns.into_iter().map(WildMatch::new).collect();
        self.filter(|tensor| patterns.iter().any(|pattern| pattern.matches(&tensor.name)))
    }

    /// Loads only tensors for which `wanted` returns true, of those that earlier calls have left.
    pub fn filter(mut self, mut wanted: impl FnMut(&TensorInfo) -> bool) -> Load<'a> {
        let tensors = self.model.tensors();
        self.chosen.retain(|at| wanted(&tensors[*at]));
        self
    }

    /// Reads all bytes once more at both ends when they have arrived, and compares their checksums (xxh3); of tensors that are
    /// converted, and of small ones that do not lie in memory as they lie in the file, the bytes themselves, when
    /// [`Loading`] comes to them.
    pub fn verify(mut self) -> Load<'a> {
        self.verify = true;
        self
    }

    /// Plans the load: allocates nothing, and reads no tensor. Looks at some pages of each file, to see whether the system has
    /// it in its cache.
    ///
    /// # Errors
    /// When a file is not opened again, a place is not here or takes no tensors, none is named, no tensor is left, or a memory has too little room for
    /// its tensors or for one of them in one allocation.
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
