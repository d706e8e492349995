//! Model files.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use transload_tensors::transload::{DeviceId, Place};
use transload_tensors::{DType, Loaded, Loader, Loading, Model, Save, Value};

use crate::exchange::{self, Use};
use crate::tensor::PyTensor;
use crate::{copies, dtype, errors, manager, wait};

/// The loader of the process, which keeps memory for the next load.
fn loader(py: Python<'_>) -> PyResult<&'static Loader> {
    static LOADER: OnceLock<Loader> = OnceLock::new();
    let manager = manager(py)?;
    Ok(LOADER.get_or_init(|| Loader::new(manager)))
}

/// What is asked of a load.
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
        split: Option<&Bound<'_, PyDict>>,
        broadcast: bool,
        dtype: Option<&Bound<'_, PyAny>>,
        only: Option<&Bound<'_, PyAny>>,
        verify: bool,
    ) -> PyResult<Wanted> {
        let places = match device {
            None => vec![DeviceId::CPU0.into()],
            Some(several)
                if several.is_instance_of::<PyList>()
                    || several.is_instance_of::<pyo3::types::PyTuple>() =>
            {
                let each = several.try_iter()?.map(|one| copies::place(&one?));
                each.collect::<PyResult<_>>()?
            }
            Some(one) => vec![copies::place(one)?],
        };
        let split: Vec<(String, usize)> = match split {
            None => Vec::new(),
            Some(rules) => rules
                .iter()
                .map(|(name, at)| Ok((name.extract()?, at.extract()?)))
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
            Some(several) => Some(several.extract()?),
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

    fn start(&self, py: Python<'_>, path: &PathBuf) -> PyResult<Loading> {
        let loader = loader(py)?;
        let model = py
            .detach(|| Model::open(path))
            .map_err(|error| errors::raise(py, &error))?;
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

/// Reads one path or several.
fn paths(argument: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    if let Ok(one) = argument.extract::<PathBuf>() {
        return Ok(vec![one]);
    }
    argument.extract::<Vec<PathBuf>>().map_err(|_| {
        PyTypeError::new_err(format!(
            "path: {argument} is no path and no sequence of paths"
        ))
    })
}

/// The tensors of a model in the order of their arrival.
#[pyclass(frozen, module = "transload")]
pub(crate) struct Stream(Mutex<Running>);

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
        look: &mut dyn FnMut(&Loading) -> PyResult<()>,
    ) -> PyResult<Option<Loaded>> {
        loop {
            let Some(loading) = &mut self.now else {
                let Some(path) = self.left.pop() else {
                    return Ok(None);
                };
                self.now = Some(self.wanted.start(py, &path)?);
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
        let running = self.0.try_lock();
        let Ok(mut running) = running else {
            return Err(PyValueError::new_err(
                "another thread waits for the next tensor",
            ));
        };
        let Some(loaded) = running.next(py, &mut |_| Ok(()))? else {
            return Ok(None);
        };
        let tensor = loaded.tensor.clone();
        let tensor = Bound::new(py, PyTensor { tensor })?;
        Ok(Some((loaded.name().to_owned(), tensor)))
    }

    /// How many bytes of the file that is loaded have arrived, and how many there are.
    fn progress(&self) -> Option<(u64, u64)> {
        let running = self.0.try_lock().ok()?;
        Some(running.now.as_ref()?.progress())
    }

    /// Ends the load. Tensors that have arrived stay.
    fn close(&self, py: Python<'_>) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.stop(py);
    }
}

/// Loads models and returns their tensors as they arrive.
#[pyfunction]
#[pyo3(signature = (path, *, device = None, split = None, broadcast = false, dtype = None, only = None, verify = false))]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn stream(
    py: Python<'_>,
    path: &Bound<'_, PyAny>,
    device: Option<&Bound<'_, PyAny>>,
    split: Option<&Bound<'_, PyDict>>,
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
        .map(|first| wanted.start(py, &first))
        .transpose()?;
    Ok(Stream(Mutex::new(Running { now, wanted, left })))
}

/// Loads models, and returns their tensors by name.
#[pyfunction]
#[pyo3(signature = (path, *, device = None, split = None, broadcast = false, dtype = None, only = None, verify = false, progress = None))]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn load<'py>(
    py: Python<'py>,
    path: &Bound<'py, PyAny>,
    device: Option<&Bound<'py, PyAny>>,
    split: Option<&Bound<'py, PyDict>>,
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
    let tensors = PyDict::new(py);
    for path in paths(path)? {
        let mut running = Running {
            now: Some(wanted.start(py, &path)?),
            wanted: Wanted {
                places: Vec::new(),
                split: Vec::new(),
                only: None,
                ..wanted
            },
            left: Vec::new(),
        };
        let mut own: Vec<Loaded> = Vec::new();
        let tell = |progress: &Bound<'_, PyAny>, of: (u64, u64)| progress.call1(of).map(drop);
        while let Some(loaded) = running.next(py, &mut |loading| match progress {
            Some(progress) => tell(progress, loading.progress()),
            None => Ok(()),
        })? {
            own.push(loaded);
        }
        if let Some(progress) = progress {
            let all = own.iter().map(|of| of.tensor.len_bytes()).sum();
            tell(progress, (all, all))?;
        }
        for loaded in own {
            let name = loaded.name();
            let at = memories
                .iter()
                .position(|of| *of == Some(loaded.tensor.buffer().memory()));
            let known = tensors.get_item(name)?;
            let tensor = Bound::new(
                py,
                PyTensor {
                    tensor: loaded.tensor.clone(),
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

/// Frees the memory that is kept for the next load.
#[pyfunction]
pub(crate) fn trim(py: Python<'_>) -> PyResult<()> {
    let loader = loader(py)?;
    py.detach(|| loader.trim());
    Ok(())
}

/// Saves tensors as safetensors.
#[pyfunction]
#[pyo3(signature = (tensors, path, *, metadata = None, max_shard_bytes = None))]
pub(crate) fn save(
    py: Python<'_>,
    tensors: &Bound<'_, PyDict>,
    path: PathBuf,
    metadata: Option<std::collections::BTreeMap<String, String>>,
    max_shard_bytes: Option<u64>,
) -> PyResult<Vec<PathBuf>> {
    let manager = manager(py)?;
    let mut save = Save::new(manager);
    let mut taken = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors.iter() {
        let name: String = name.extract()?;
        let of = exchange::take(
            manager,
            &tensor,
            &format!("tensors[{name:?}]"),
            Use::Read,
            Default::default(),
        )?;
        save = save.tensor(name, &of.tensor);
        taken.push(of);
    }
    for (key, text) in metadata.unwrap_or_default() {
        save = save.metadata(key, text);
    }
    if let Some(bytes) = max_shard_bytes {
        save = save.most_shard_bytes(bytes);
    }
    let saved = py.detach(|| save.start(path)?.wait());
    taken.into_iter().for_each(|of| of.release(py));
    saved.map_err(|error| errors::raise(py, &error))
}

/// Reads the headers of a model.
#[pyfunction]
pub(crate) fn inspect<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyDict>> {
    let model = py
        .detach(|| Model::open(path))
        .map_err(|error| errors::raise(py, &error))?;
    let tensors = PyDict::new(py);
    for of in model.tensors() {
        let info = PyDict::new(py);
        info.set_item("dtype", dtype::name(of.dtype))?;
        info.set_item("shape", pyo3::types::PyTuple::new(py, &of.shape)?)?;
        info.set_item("nbytes", of.len_bytes)?;
        info.set_item("file", model.files()[of.file].path())?;
        tensors.set_item(&of.name, info)?;
    }
    let metadata = PyDict::new(py);
    for (key, value) in model.metadata() {
        metadata.set_item(key, object(py, value)?)?;
    }
    let found = PyDict::new(py);
    found.set_item("tensors", tensors)?;
    found.set_item("metadata", metadata)?;
    let files = model.files().iter().map(|file| file.path().to_owned());
    found.set_item("files", files.collect::<Vec<PathBuf>>())?;
    Ok(found)
}

fn object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::String(text) => text.into_pyobject(py)?.into_any(),
        Value::Unsigned(number) => number.into_pyobject(py)?.into_any(),
        Value::Signed(number) => number.into_pyobject(py)?.into_any(),
        Value::Float(number) => number.into_pyobject(py)?.into_any(),
        Value::Bool(flag) => flag.into_pyobject(py)?.to_owned().into_any(),
        Value::Array(values) => {
            let values = values.iter().map(|value| object(py, value));
            PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        _ => py.None().into_bound(py),
    })
}
