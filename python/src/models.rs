//! Model files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use transload_tensors::transload::{DeviceId, Place};
use transload_tensors::{DType, Loaded, Loader, Loading, Model, Tensor};

use crate::files::{FilePath, mapping};
use crate::tensor::PyTensor;
use crate::{copies, dtype, errors, manager, wait};

/// The loader of the process, which keeps memory for the next load.
fn loader(py: Python<'_>) -> PyResult<&'static Loader> {
    // A child of `fork` has a manager of its own, and needs a loader of its own.
    static LOADER: Mutex<Option<(u32, &'static Loader)>> = Mutex::new(None);
    let manager = manager(py)?;
    let process = std::process::id();
    let mut known = LOADER.lock().unwrap_or_else(PoisonError::into_inner);
    match *known {
        Some((of, loader)) if of == process => Ok(loader),
        _ => {
            let loader: &'static Loader = Box::leak(Box::new(Loader::new(manager)));
            *known = Some((process, loader));
            Ok(loader)
        }
    }
}

/// What is asked of a load.
#[derive(Clone)]
struct Wanted {
    places: Vec<Place>,
    split: Vec<(String, usize)>,
    broadcast: bool,
    dtype: Option<DType>,
    only: Option<Vec<String>>,
    verify: bool,
}

impl Wanted {
    fn of(
        device: Option<&Bound<'_, PyAny>>,
        split: Option<&Bound<'_, PyAny>>,
        broadcast: bool,
        dtype: Option<&Bound<'_, PyAny>>,
        only: Option<&Bound<'_, PyAny>>,
        verify: bool,
    ) -> PyResult<Wanted> {
        let places = match device {
            None => vec![DeviceId::CPU0.into()],
            Some(several)
                if several.is_instance_of::<PyList>() || several.is_instance_of::<PyTuple>() =>
            {
                let each = several
                    .try_iter()?
                    .map(|one| copies::place(&one?, "device"));
                each.collect::<PyResult<_>>()?
            }
            Some(one) => vec![copies::place(one, "device")?],
        };
        let split: Vec<(String, usize)> = match split {
            None => Vec::new(),
            Some(rules) => mapping(rules, "split", "patterns to dimensions")?
                .iter()
                .map(|(name, at)| {
                    let rule = name.extract().and_then(|of| Ok((of, at.extract()?)));
                    rule.map_err(|_| {
                        PyTypeError::new_err(format!(
                            "split: {name:?}: {at:?} is no pattern with the number of a dimension, counted from 0"
                        ))
                    })
                })
                .collect::<PyResult<_>>()?,
        };
        if broadcast && !split.is_empty() {
            return Err(PyValueError::new_err(
                "broadcast: tensors that are split go to each device in parts",
            ));
        }
        let only = match only {
            None => None,
            Some(one) if one.is_instance_of::<PyString>() => Some(vec![one.extract()?]),
            Some(several) => Some(several.extract().map_err(|_| {
                PyTypeError::new_err(format!(
                    "only: {several} is no pattern and no sequence of these"
                ))
            })?),
        };
        Ok(Wanted {
            places,
            split,
            broadcast,
            dtype: dtype.map(dtype::of).transpose()?,
            only,
            verify,
        })
    }

    /// Whether each name has a tensor for each device.
    fn is_several(&self) -> bool {
        self.places.len() > 1 && (self.broadcast || !self.split.is_empty())
    }

    /// Starts to load a model. Its other parts are taken from those that are `left`.
    fn start(&self, py: Python<'_>, path: &Path, left: &mut Vec<PathBuf>) -> PyResult<Loading> {
        let loader = loader(py)?;
        let model = py
            .detach(|| Model::open(path))
            .map_err(|error| errors::raise(py, &error))?;
        let own = located(path);
        let of_it: Vec<PathBuf> = { model.files().iter() }
            .map(|file| located(file.path()))
            .filter(|file| *file != own)
            .collect();
        left.retain(|other| !of_it.contains(&located(other)));
        let loading = py.detach(|| {
            let mut load = loader.load(&model);
            if let Some(only) = &self.only {
                load = load.only(only.iter().map(String::as_str));
            }
            let rules: Vec<(&str, usize)> =
                self.split.iter().map(|of| (of.0.as_str(), of.1)).collect();
            load = match (&rules[..], self.broadcast) {
                ([], true) => load.to_all(&self.places),
                ([], false) => load.to_shares(&self.places),
                (rules, _) => load.to_split(&self.places, rules),
            };
            if let Some(dtype) = self.dtype {
                load = load.dtype(dtype);
            }
            if self.verify {
                load = load.verify();
            }
            load.start()
        });
        loading.map_err(|error| errors::raise(py, &error))
    }
}

/// The path with its folder as the system has it, so that each spelling of a file's name is the same. A link in the place of the
/// file stays: the other parts of its model lie beside the link.
fn located(path: &Path) -> PathBuf {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let folder = folder.canonicalize();
    let whole = folder.ok().zip(path.file_name());
    whole.map_or_else(|| path.to_owned(), |(folder, name)| folder.join(name))
}

/// Reads one path or several.
fn paths(argument: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    if let Ok(FilePath(one)) = argument.extract() {
        if one.to_string_lossy().contains("://") {
            return Err(PyValueError::new_err(format!(
                "path: models are read from files; fetch {} first",
                one.display()
            )));
        }
        return Ok(vec![one]);
    }
    let several = argument.try_iter().and_then(|each| {
        let each = each.map(|path| path?.extract().map(|FilePath(path)| path));
        each.collect::<PyResult<Vec<PathBuf>>>()
    });
    several.map_err(|_| {
        PyTypeError::new_err(format!("path: {argument} is no path, and gives no paths"))
    })
}

/// The tensors of models in the order of their arrival: an iterator of pairs of a name and a Tensor, which `stream` makes. A step
/// raises LoadError when bytes did not arrive; the load is over then. One thread at a time may wait for the next tensor; others get
/// ValueError.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Stream {
    running: Mutex<Running>,
    /// Asks the thread that waits for the next tensor to end the load.
    closing: AtomicBool,
}

struct Running {
    now: Option<Loading>,
    wanted: Wanted,
    /// Those that come next, the last one first.
    left: Vec<PathBuf>,
}

impl Running {
    /// Waits for the next tensor. When a signal's handler or `look` raises, the rest is cancelled.
    fn next(
        &mut self,
        py: Python<'_>,
        closing: &AtomicBool,
        look: &mut dyn FnMut(&Loading) -> PyResult<()>,
    ) -> PyResult<Option<Loaded>> {
        loop {
            if closing.load(Ordering::Relaxed) {
                self.stop(py);
                return Ok(None);
            }
            let Some(loading) = &mut self.now else {
                let Some(path) = self.left.pop() else {
                    return Ok(None);
                };
                self.now = Some(self.wanted.start(py, &path, &mut self.left)?);
                continue;
            };
            match py.detach(|| loading.next_timeout(wait::LOOK)) {
                Some(Some(Ok(tensor))) => return Ok(Some(tensor)),
                Some(Some(Err(error))) => {
                    self.stop(py);
                    return Err(errors::raise(py, &error));
                }
                Some(None) => self.now = None,
                None => {
                    let looked = py.check_signals().and_then(|()| look(loading));
                    if let Err(raised) = looked {
                        self.stop(py);
                        return Err(raised);
                    }
                }
            }
        }
    }

    fn stop(&mut self, py: Python<'_>) {
        self.left.clear();
        let loading = self.now.take();
        py.detach(|| drop(loading));
    }
}

#[pymethods]
impl Stream {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(String, Bound<'py, PyTensor>)>> {
        let running = self.running.try_lock();
        let Ok(mut running) = running else {
            return Err(PyValueError::new_err(
                "another thread waits for the next tensor of this stream",
            ));
        };
        let next = running.next(py, &self.closing, &mut |_| Ok(()))?;
        drop(running);
        let Some(loaded) = next else {
            return Ok(None);
        };
        let tensor = Tensor::clone(&loaded);
        let tensor = Bound::new(py, PyTensor { tensor })?;
        Ok(Some((loaded.name().to_owned(), tensor)))
    }

    /// Returns how many bytes of the file that is loaded have arrived, and how many there are, as a pair. None after the last file, and
    /// while another thread waits for a tensor. Does not block.
    fn progress(&self) -> Option<(u64, u64)> {
        let running = self.running.try_lock().ok()?;
        Some(running.now.as_ref()?.progress())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    /// Ends the load, for every thread. Tensors that have arrived stay. Waits up to 0.1 s for a thread that waits for the next one.
    fn close(&self, py: Python<'_>) {
        self.closing.store(true, Ordering::Relaxed);
        // The thread that waits for a tensor has the lock, and needs the interpreter's to give it back.
        let stopped = py.detach(|| {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.left.clear();
            running.now.take()
        });
        py.detach(|| drop(stopped));
    }
}

/// Starts to load models. The iterator gives tensors as they arrive. This call waits for headers and allocations only; each step of
/// the iterator waits for the next tensor, without the interpreter's lock.
///
/// Parameters
/// ----------
/// path : str, bytes or path-like, or an iterable of these
///     As in `load`.
/// device : str, Device or a sequence of these, optional
///     As in `load`.
/// split : dict of str to int, optional
///     As in `load`.
/// broadcast : bool
///     As in `load`.
/// dtype : str or dtype, optional
///     As in `load`.
/// only : str or sequence of str, optional
///     As in `load`.
/// verify : bool
///     As in `load`.
///
/// Returns
/// -------
/// A Stream of pairs of a name and a Tensor. With `split` or `broadcast` a name comes once for each place.
///
/// Raises
/// ------
/// As `load`. What is wrong with the arguments and the first file is raised here, other errors by the iterator.
#[pyfunction]
#[pyo3(signature = (path, *, device = None, split = None, broadcast = false, dtype = None, only = None, verify = false))]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn stream(
    py: Python<'_>,
    path: &Bound<'_, PyAny>,
    device: Option<&Bound<'_, PyAny>>,
    split: Option<&Bound<'_, PyAny>>,
    broadcast: bool,
    dtype: Option<&Bound<'_, PyAny>>,
    only: Option<&Bound<'_, PyAny>>,
    verify: bool,
) -> PyResult<Stream> {
    let wanted = Wanted::of(device, split, broadcast, dtype, only, verify)?;
    let mut left = paths(path)?;
    left.reverse();
    // What is wrong with the first file or the request is said here.
    let now = left
        .pop()
        .map(|first| wanted.start(py, &first, &mut left))
        .transpose()?;
    Ok(Stream {
        running: Mutex::new(Running { now, wanted, left }),
        closing: AtomicBool::new(false),
    })
}

/// Loads models, and returns their tensors by name. Waits until all have arrived, without the interpreter's lock.
///
/// Parameters
/// ----------
/// path : str, bytes or path-like, or an iterable of these
///     A file of safetensors or GGUF, a list of shards (`*.index.json`), or a folder with one model. A part
///     (`NAME-00001-of-00003.safetensors` or `.gguf`) stands for all parts of its model, also where others are named beside it.
/// device : str, Device or a sequence of these, optional
///     The places. Unless given, `"cpu:0"`. Several places get whole tensors in shares like their free memory, unless `split` or
///     `broadcast` says otherwise.
/// split : dict of str to int, optional
///     For patterns of names the dimension along which tensors are cut, a part for each place: `{"*.q_proj.weight": 0}`. Other
///     tensors go to all places.
/// broadcast : bool
///     Each tensor goes to each place.
/// dtype : str or dtype, optional
///     The type that floating-point tensors are converted to; others stay as they are.
/// only : str or sequence of str, optional
///     Patterns of the names to load, with `*` and `?`.
/// verify : bool
///     Read the bytes once more at both ends and compare them.
/// progress : callable or bool, optional
///     True draws a bar by tqdm. A callable is called as `progress(done_bytes, all_bytes)` for each file, on this thread about
///     every 0.1 s, and at its end. What it raises ends the load.
///
/// Returns
/// -------
/// A dict of Tensors by name. With `split` or `broadcast` and several places, of lists with a Tensor for each place.
///
/// Raises
/// ------
/// ModelError
///     When a file is not there, or is no model.
/// LoadError
///     When no tensor fits a pattern, a tensor is not split or converted so, there is too little memory, or bytes did not arrive.
///     Fields: `tensor`, `memory`, `needs`, `has`, `path`, `tensors`, where they apply.
/// ParseError, PlaceError, ValueError, TypeError
///     When an argument is wrong; the text names it.
/// KeyboardInterrupt
///     On Ctrl-C, and what else signal handlers raise: the load is cancelled.
///
/// Examples
/// --------
/// >>> transload.save({"w": np.ones((2, 2), "f4")}, "m.safetensors")[0].name
/// 'm.safetensors'
/// >>> transload.load("m.safetensors", dtype="bfloat16")
/// {'w': Tensor(shape=[2, 2], dtype=bfloat16, memory=cpu:0/pageable)}
#[pyfunction]
#[pyo3(signature = (path, *, device = None, split = None, broadcast = false, dtype = None, only = None, verify = false, progress = None))]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn load<'py>(
    py: Python<'py>,
    path: &Bound<'py, PyAny>,
    device: Option<&Bound<'py, PyAny>>,
    split: Option<&Bound<'py, PyAny>>,
    broadcast: bool,
    dtype: Option<&Bound<'py, PyAny>>,
    only: Option<&Bound<'py, PyAny>>,
    verify: bool,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let wanted = Wanted::of(device, split, broadcast, dtype, only, verify)?;
    let is_several = wanted.is_several();
    let progress = progress.map(copies::told).transpose()?;
    let progress = progress.as_ref();
    let places = wanted.places.clone();
    let manager = manager(py)?;
    let memories: Vec<_> = places
        .iter()
        .map(|place| manager.resolve(*place).ok())
        .collect();
    let is_known = |at: usize| memories[..at].contains(&memories[at]);
    if let Some(again) = (0..memories.len()).find(|at| is_several && is_known(*at)) {
        let place = places[again];
        return Err(PyValueError::new_err(format!(
            "device: {place} is named twice, and each place gets a tensor of its own"
        )));
    }
    let tensors = PyDict::new(py);
    let mut left = paths(path)?;
    left.reverse();
    while let Some(path) = left.pop() {
        let mut running = Running {
            now: Some(wanted.start(py, &path, &mut left)?),
            wanted: wanted.clone(),
            left: Vec::new(),
        };
        let mut own: Vec<Loaded> = Vec::new();
        let tell = |progress: &Bound<'_, PyAny>, of: (u64, u64)| progress.call1(of).map(drop);
        let open = AtomicBool::new(false);
        while let Some(loaded) = running.next(py, &open, &mut |loading| match progress {
            Some(progress) => tell(progress, loading.progress()),
            None => Ok(()),
        })? {
            own.push(loaded);
        }
        if let Some(progress) = progress {
            let all = own.iter().map(|of| of.len_bytes()).sum();
            tell(progress, (all, all))?;
        }
        for loaded in own {
            let name = loaded.name();
            let at = memories
                .iter()
                .position(|of| *of == Some(loaded.buffer().memory()));
            let known = tensors.get_item(name)?;
            let tensor = Bound::new(
                py,
                PyTensor {
                    tensor: Tensor::clone(&loaded),
                },
            )?;
            match (is_several, known) {
                (false, None) => tensors.set_item(name, tensor)?,
                (true, None) => {
                    let each = PyList::new(py, places.iter().map(|_| py.None()))?;
                    each.set_item(at.unwrap_or(0), tensor)?;
                    tensors.set_item(name, each)?;
                }
                (true, Some(each)) => each.set_item(at.unwrap_or(0), tensor)?,
                (false, Some(_)) => {
                    return Err(PyValueError::new_err(format!(
                        "path: two of the models have a tensor {name:?}"
                    )));
                }
            }
        }
    }
    Ok(tensors)
}

/// Gives memory back to the system that is kept for later: that of loaded tensors that are gone, idle staging memory, and freed
/// blocks of ordinary memory, of which at most 1 GiB and a sixteenth of the process's memory are kept. Does not wait for loads
/// under way, which keep theirs.
#[pyfunction]
pub(crate) fn trim(py: Python<'_>) -> PyResult<()> {
    let loader = loader(py)?;
    py.detach(|| loader.trim());
    Ok(())
}
