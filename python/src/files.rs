//! Model files: saved, and looked at.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping};
use transload_tensors::{DType, Model, Save, Saving, Value};

use crate::exchange::{self, Use};
use crate::{dtype, errors, manager, wait};

/// A path as programs pass it: `str`, `bytes`, or an object that stands for one of these (`os.PathLike`).
pub(crate) struct FilePath(pub(crate) PathBuf);

impl<'py> FromPyObject<'_, 'py> for FilePath {
    type Error = PyErr;

    fn extract(path: Borrowed<'_, 'py, PyAny>) -> PyResult<FilePath> {
        let decoded = path.py().import("os")?.call_method1("fsdecode", (path,))?;
        decoded.extract().map(FilePath)
    }
}

/// Returns what a mapping holds.
pub(crate) fn mapping<'py>(
    argument: &Bound<'py, PyAny>,
    name: &str,
    what: &str,
) -> PyResult<Bound<'py, PyDict>> {
    if let Ok(known) = argument.cast::<PyDict>() {
        return Ok(known.clone());
    }
    let copied = argument.cast::<PyMapping>().ok().map(|mapping| {
        let all = PyDict::new(argument.py());
        all.update(mapping).map(|()| all)
    });
    copied.unwrap_or_else(|| {
        let kind = argument.get_type();
        Err(PyTypeError::new_err(format!(
            "{name}: {kind} is no mapping of {what}"
        )))
    })
}

/// Saves tensors as safetensors. Waits until the disk has the files, without the interpreter's lock. Files appear under their names
/// when they are whole; a save that fails leaves none.
///
/// Parameters
/// ----------
/// tensors : dict of str to Tensor or array
///     What to save, by name. Arrays are anything that `copy` takes.
/// path : str, bytes or path-like
///     The file. An existing one is replaced.
/// metadata : dict of str to str, optional
///     Texts for the header.
/// max_shard_bytes : int, optional
///     The most bytes of tensors in one file. With more, several files and a list of them, `<path>.index.json`, are written.
///
/// Returns
/// -------
/// A list of the paths that were written.
///
/// Raises
/// ------
/// TypeError, ValueError
///     When a name is no string, or a tensor is not taken; the text names it.
/// SaveError
///     When a type or a name is none of safetensors, the path has the ending of another format, a file is not written, or bytes did not arrive.
/// KeyboardInterrupt
///     On Ctrl-C, and what else signal handlers raise: the save is cancelled, unless it has ended meanwhile.
#[pyfunction]
#[pyo3(signature = (tensors, path, *, metadata = None, max_shard_bytes = None))]
pub(crate) fn save(
    py: Python<'_>,
    tensors: &Bound<'_, PyAny>,
    path: FilePath,
    metadata: Option<&Bound<'_, PyAny>>,
    max_shard_bytes: Option<u64>,
) -> PyResult<Vec<PathBuf>> {
    let manager = manager(py)?;
    let mut save = Save::new(manager);
    let tensors = mapping(tensors, "tensors", "names to arrays")?;
    let mut taken = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors.iter() {
        let text = name.extract::<String>();
        let name = text.map_err(|_| {
            PyTypeError::new_err(format!("tensors: the name {name:?} is no string"))
        })?;
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
    let metadata = metadata.map(|texts| mapping(texts, "metadata", "strings to strings"));
    for (key, text) in metadata.transpose()?.into_iter().flatten() {
        let pair = key.extract().and_then(|of| Ok((of, text.extract()?)));
        let (key, text): (String, String) = pair.map_err(|_| {
            PyTypeError::new_err(format!("metadata: {key:?}: {text:?} is no pair of strings"))
        })?;
        save = save.metadata(key, text);
    }
    if let Some(bytes) = max_shard_bytes {
        save = save.most_shard_bytes(bytes);
    }
    let saved = py
        .detach(|| save.start(path.0))
        .map_err(|error| (errors::raise(py, &error), false))
        .and_then(|saving| finish(py, saving));
    match saved {
        // A device has not ended what it has begun: the library drops the memory when it has.
        Err((raised, true)) => Err(raised),
        ended => {
            taken.into_iter().for_each(|of| of.release(py));
            ended.map_err(|(raised, _)| raised)
        }
    }
}

/// Waits for a save on a thread of its own, so that a signal ends it: the save is cancelled, and its files are removed. A second
/// signal ends the wait for that, too; the error then says that the save is under way.
fn finish(py: Python<'_>, saving: Saving) -> Result<Vec<PathBuf>, (PyErr, bool)> {
    let canceller = saving.canceller();
    let (tell, told) = channel();
    let wait = move || _ = tell.send(saving.wait());
    let thread = std::thread::Builder::new().name("transload-save".into());
    // A save that no thread waits for is dropped, and stops at some time.
    let _thread = thread.spawn(wait).map_err(|error| (error.into(), true))?;
    let told = Mutex::new(told);
    let next = || {
        let told = told.lock().unwrap_or_else(PoisonError::into_inner);
        told.recv_timeout(wait::LOOK)
    };
    let mut raised = None;
    loop {
        match py.detach(next) {
            Ok(saved) => {
                let saved = saved.map_err(|error| errors::raise(py, &error));
                return raised.map_or(saved, Err).map_err(|error| (error, false));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(signal) = py.check_signals() {
                    if raised.is_some() {
                        return Err((signal, true));
                    }
                    canceller.cancel();
                    raised = Some(signal);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                let error = PyRuntimeError::new_err("the thread of the save has ended");
                return Err((error, true));
            }
        }
    }
}

/// Reads the headers of a model, and no tensor. Blocks while they are read.
///
/// Parameters
/// ----------
/// path : str, bytes or path-like
///     A file of safetensors or GGUF, any part of a model in parts, a list of shards, or a folder with one model.
///
/// Returns
/// -------
/// A dict with `tensors`, which has `dtype`, `shape`, `nbytes` and `file` by name; `metadata`; and `files`, a list of paths. A type
/// that is not known has the name in the file, in GGUF `GGML_` and its number; such a tensor is not loaded.
///
/// Raises
/// ------
/// ModelError
///     When a file is not there, or is no model.
#[pyfunction]
pub(crate) fn inspect<'py>(py: Python<'py>, path: FilePath) -> PyResult<Bound<'py, PyDict>> {
    let model = py
        .detach(|| Model::open(path.0))
        .map_err(|error| errors::raise(py, &error))?;
    let tensors = PyDict::new(py);
    for of in model.tensors() {
        let info = PyDict::new(py);
        let name = match &of.dtype {
            DType::Unknown(unknown) => unknown.name(),
            known => dtype::name(*known),
        };
        info.set_item("dtype", name)?;
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
