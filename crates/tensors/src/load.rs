//! Loads: from the files of a model into the memory of a device.

mod error;
mod loading;
mod part;
mod plan;
mod run;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use transload::{
    AllocSpec, Buffer, DeviceId, Instant, MemoryId, MemoryKind, Place, Priority, TransferManager,
};
use wildmatch::WildMatch;

use crate::{DType, Model, TensorInfo};

use part::Ranges;

pub use error::LoadError;
pub use loading::{Loaded, Loading};
pub(crate) use part::Part;
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
            places: vec![DeviceId::CPU0.into()],
            chosen: (0..model.tensors().len()).map(Choice::whole).collect(),
            unfitting: None,
            verify: false,
            priority: Priority::default(),
            deadline: None,
        }
    }

    /// Returns all tensors as read-only views of the mapped files, in `cpu:0/shared`. Reads nothing yet, and takes no
    /// memory: the system reads a page when it is first touched, and drops it when it needs the memory. So this is for
    /// programs that use few of the tensors, or pass them on at once; what is read in whole is loaded faster.
    ///
    /// A tensor begins where its file has it: in safetensors files at a multiple of 8 bytes at best. One of a type that is not
    /// known has the bytes that [`TensorInfo::len_bytes`] tells of.
    ///
    /// # Errors
    /// When a file is not mapped. Linux and Windows alone map files here, and no system maps objects of stores.
    ///
    /// # Safety
    /// Until the last of the tensors is dropped, no program shortens the files or writes to them. Touching a page that a file
    /// has lost ends the process by SIGBUS, as does one that the disk does not give.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("model.safetensors");
    /// # let header = r#"{"layer.weight":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    /// # std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[1, 2, 3, 4]].concat())?;
    /// use transload_tensors::transload::TransferManager;
    /// use transload_tensors::{Loader, Model};
    ///
    /// let manager = TransferManager::discover()?;
    /// let model = Model::open(path)?;
    /// // SAFETY: nothing changes the file while the example runs.
    /// let tensors = unsafe { Loader::new(&manager).map(&model) }?;
    /// assert_eq!(tensors[0].buffer().read()?[..], [1, 2, 3, 4]);
    /// # Ok(())
    /// # }
    /// ```
    #[expect(
        unsafe_code,
        reason = "the caller promises that the files stay as they are"
    )]
    pub unsafe fn map(&self, model: &Model) -> Result<Vec<Loaded>, LoadError> {
        let place = DeviceId::CPU0.memory(MemoryKind::Shared).into();
        let files = { model.files().iter() }.map(|of| {
            let again = of.source.again().map_err(LoadError::Open)?;
            // SAFETY: the caller's promise.
            let mapped = unsafe { self.manager.import(place, again.external()) };
            mapped.map_err(LoadError::from)
        });
        let files = files.collect::<Result<Vec<Buffer>, _>>()?;
        let tensors = model.tensors().iter().enumerate();
        let tensors = tensors.map(|(number, info)| {
            let (file, end) = (&files[info.file], info.offset + info.len_bytes);
            let buffer = file.slice(info.offset..end).map_err(|_| LoadError::Cut {
                path: model.files()[info.file].path().to_owned(),
                end,
                len_bytes: file.len(),
            })?;
            Ok(Loaded::new(model.shared_tensors(), number, None, buffer))
        });
        tensors.collect()
    }

    /// Frees the memory in which no tensor lies, and what the manager keeps ([`TransferManager::trim`]).
    pub fn trim(&self) {
        self.arenas().retain(|arena| !arena.is_unique());
        self.manager.trim();
    }

    /// Returns how many bytes there is room for in a memory, with what earlier loads have left.
    fn room(&self, memory: MemoryId) -> Option<u64> {
        let idle = self.idle(memory);
        Some(self.manager.available_bytes(memory)?.saturating_add(idle))
    }

    /// Returns how many bytes earlier loads have left in a memory.
    fn idle(&self, memory: MemoryId) -> u64 {
        let arenas = self.arenas();
        let idle = { arenas.iter() }.filter(|of| of.memory() == memory && of.is_unique());
        idle.map(Buffer::len).sum()
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
///
/// Functions that ask for something of each tensor are called for those that earlier calls have left.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `start`"]
pub struct Load<'a> {
    loader: &'a Loader,
    model: &'a Model,
    /// Where tensors go for which nothing else is said, each to all of them.
    places: Vec<Place>,
    /// In the model's order.
    chosen: Vec<Choice>,
    /// The first pattern that no tensor's name fits.
    unfitting: Option<String>,
    verify: bool,
    priority: Priority,
    deadline: Option<Instant>,
}

/// What is wanted of a tensor.
#[derive(Clone, Debug)]
struct Choice {
    /// Its number in the model.
    number: usize,
    /// The only place to which it goes.
    place: Option<Place>,
    /// The dimension along which it is cut, a part to each place.
    split: Option<usize>,
    /// Elements along each dimension.
    ranges: Option<Ranges>,
    dtype: Option<DType>,
}

impl Choice {
    fn whole(number: usize) -> Choice {
        Choice {
            number,
            place: None,
            split: None,
            ranges: None,
            dtype: None,
        }
    }
}

impl<'a> Load<'a> {
    /// Loads into the default memory of a device, or into one that is named.
    pub fn to(mut self, place: impl Into<Place>) -> Load<'a> {
        self.places = vec![place.into()];
        self.for_all()
    }

    /// Forgets where single tensors were to go.
    fn for_all(self) -> Load<'a> {
        self.each(|choice, _| (choice.place, choice.split) = (None, None))
    }

    fn each(mut self, mut change: impl FnMut(&mut Choice, &TensorInfo)) -> Load<'a> {
        for choice in &mut self.chosen {
            change(choice, &self.model.tensors()[choice.number]);
        }
        self
    }

    /// Loads each tensor into every one of these places. Files are read once: the bytes go on from the first place to the
    /// second, and so on. [`Loading`] tells of each tensor in each place.
    pub fn to_all(mut self, places: &[Place]) -> Load<'a> {
        self.places = places.to_vec();
        self.for_all()
    }

    /// Loads each tensor into the place that `place_of` names.
    pub fn to_each(self, mut place_of: impl FnMut(&TensorInfo) -> Place) -> Load<'a> {
        self.each(|choice, tensor| {
            (choice.place, choice.split) = (Some(place_of(tensor)), None);
        })
    }

    /// Loads the tensors that earlier calls have left into these places, in the order of the files and each whole: shares like
    /// the memory that is free there ([`TransferManager::available_bytes`]), or equal ones where that is not known of all.
    pub fn to_shares(self, places: &[Place]) -> Load<'a> {
        let all = self.model.tensors();
        let lens = self.chosen.iter().map(|of| all[of.number].len_bytes);
        let total = lens.fold(0, u64::saturating_add);
        if places.is_empty() {
            return self.to_all(places);
        }
        let manager = &self.loader.manager;
        let free = |place: &Place| self.loader.room(manager.resolve(*place).ok()?);
        let free: Option<Vec<u64>> = places.iter().map(free).collect();
        let free = free.filter(|free| free.iter().any(|bytes| *bytes > 0));
        let free = free.unwrap_or_else(|| vec![1; places.len()]);
        let all: u128 = free.iter().map(|bytes| u128::from(*bytes)).sum();
        let (mut before, mut place, mut past) = (0u64, 0, u128::from(free[0]));
        self.to_each(|tensor| {
            // By the middle of the tensor, as a part of what there is room for.
            let middle = u128::from(before) * 2 + u128::from(tensor.len_bytes);
            let middle = middle * all / (u128::from(total.max(1)) * 2);
            while middle >= past && place + 1 < places.len() {
                place += 1;
                past += u128::from(free[place]);
            }
            before = before.saturating_add(tensor.len_bytes);
            places[place]
        })
    }

    /// Loads a part of each tensor into each of these places: a tensor whose whole name fits the pattern of a rule is cut along
    /// the dimension of the first such rule, counted from 0, into as many parts as there are places; others go to all of
    /// them. Parts are whole blocks of the tensor's type, and none is more than a block longer than another. In patterns `*`
    /// stands for any characters, `?` for one; [`Load::plan`] refuses one that no tensor fits. Short rows of a part are read
    /// with what lies between them, for each place again ([`LoadPlan::over_read_bytes`]).
    ///
    /// So layers are spread for tensor parallelism: the first of two matrices along its outputs, the second one along its
    /// inputs.
    pub fn to_split(mut self, places: &[Place], rules: &[(&str, usize)]) -> Load<'a> {
        let rules = rules
            .iter()
            .map(|(pattern, dimension)| (WildMatch::new(pattern), *dimension));
        let rules: Vec<(WildMatch, usize)> = rules.collect();
        self = self.expect(rules.iter().map(|rule| &rule.0)).to_all(places);
        self.each(|choice, tensor| {
            let mut fitting = rules.iter().filter(|rule| rule.0.matches(&tensor.name));
            choice.split = fitting.next().map(|rule| rule.1);
        })
    }

    /// Notes a pattern that the name of no tensor fits.
    fn expect<'p>(mut self, patterns: impl Iterator<Item = &'p WildMatch>) -> Load<'a> {
        let all = self.model.tensors();
        let fits = |pattern: &WildMatch| {
            let mut chosen = self.chosen.iter();
            chosen.any(|of| pattern.matches(&all[of.number].name))
        };
        let unfitting = { patterns }.find(|pattern| !fits(pattern));
        let unfitting = unfitting.map(WildMatch::pattern);
        self.unfitting = self.unfitting.or(unfitting);
        self
    }

    /// Loads a slice of each tensor for which `slice_of` returns one: the elements along each dimension, from the outermost
    /// on; along the dimensions of which nothing is said, all. A slice of a type in blocks, such as `Q4_0`, has whole blocks
    /// of the last dimension.
    ///
    /// Short pieces that lie near each other in the file are read together with what lies between
    /// ([`LoadPlan::over_read_bytes`]), and cut apart on the way.
    pub fn slice(
        self,
        mut slice_of: impl FnMut(&TensorInfo) -> Option<Vec<Range<u64>>>,
    ) -> Load<'a> {
        self.each(|choice, tensor| choice.ranges = slice_of(tensor))
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

    /// Converts each tensor to the type that `dtype_of` names, as [`Load::dtype`] does, in place of what was said before.
    /// [`Load::plan`] refuses what is not converted.
    pub fn dtype_of(self, mut dtype_of: impl FnMut(&TensorInfo) -> DType) -> Load<'a> {
        self.each(|choice, tensor| choice.dtype = Some(dtype_of(tensor)))
    }

    /// Loads only tensors whose whole names fit one of the patterns, of those that earlier calls have left: `*` stands for any
    /// characters, `?` for one. [`Load::plan`] refuses a pattern that none fits.
    pub fn only<'p>(self, patterns: impl IntoIterator<Item = &'p str>) -> Load<'a> {
        let patterns: Vec<WildMatch> = patterns.into_iter().map(WildMatch::new).collect();
        let load = self.expect(patterns.iter());
        load.filter(|tensor| patterns.iter().any(|pattern| pattern.matches(&tensor.name)))
    }

    /// Loads only tensors for which `wanted` returns true, of those that earlier calls have left.
    pub fn filter(mut self, mut wanted: impl FnMut(&TensorInfo) -> bool) -> Load<'a> {
        let tensors = self.model.tensors();
        self.chosen.retain(|of| wanted(&tensors[of.number]));
        self
    }

    /// Sets whether the copies go before or after others that wait for the same engine or the same staging.
    pub fn priority(mut self, priority: Priority) -> Load<'a> {
        self.priority = priority;
        self
    }

    /// Ends the load with an error at that time by the manager's clock, if it is not over
    /// ([`Request::deadline`](transload::Request::deadline)).
    pub fn deadline(mut self, at: Instant) -> Load<'a> {
        self.deadline = Some(at);
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
    /// When a file cannot be opened once more, a pattern fits no tensor, no tensor of a model that has some is left, a tensor
    /// has a type that is not known, has no such slice or is not converted so, a place is not here or takes no tensors, none
    /// is named, or a memory has too little free room for its tensors or for one of them in one allocation.
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
