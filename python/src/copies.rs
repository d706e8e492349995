//! Copies.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use transload_tensors::transload::{AllocSpec, Conversion, Place, Request, Transfer};
use transload_tensors::{DType, Tensor};

use crate::exchange::{self, Stream, Use};
use crate::pending::{Outcome, Pending};
use crate::tensor::PyTensor;
use crate::{buffers, dtype, errors, manager, wait};

/// How a copy is done.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms<'a, 'py> {
    pub(crate) verify: bool,
    /// Called with the bytes that have arrived, and all.
    pub(crate) progress: Option<&'a Bound<'py, PyAny>>,
}

/// Reads a place: `"cuda:1"`, `"cpu:0/shared"`, or an object of torch or JAX that spells itself so.
pub(crate) fn place(argument: &Bound<'_, PyAny>) -> PyResult<Place> {
    let text = argument.str()?;
    let text = text.to_str()?;
    let place = text.parse::<Place>();
    place.map_err(|error| {
        errors::raise(
            argument.py(),
            &transload_tensors::transload::Error::from(error),
        )
    })
}

/// Allocates a dense tensor. Its first content is unspecified.
pub(crate) fn allocate(
    py: Python<'_>,
    dtype: DType,
    shape: &[u64],
    place: Place,
) -> PyResult<Tensor> {
    let manager = manager(py)?;
    let len_bytes = dtype.len_bytes(shape).ok_or_else(|| {
        let name = dtype::name(dtype);
        PyValueError::new_err(format!(
            "shape: {shape:?} elements of {name} are no whole bytes, or more than 2^64"
        ))
    })?;
    let buffer = py.detach(|| manager.allocate(place, AllocSpec::bytes(len_bytes)));
    let buffer = buffer.map_err(|error| errors::raise(py, &error))?;
    Tensor::new(&buffer, dtype, shape).map_err(|error| errors::raise(py, &error))
}

/// Copies a tensor to new memory at a place.
pub(crate) fn to_place(
    py: Python<'_>,
    src: &Tensor,
    place: Place,
    dtype: Option<DType>,
    terms: &Terms<'_, '_>,
) -> PyResult<Tensor> {
    let dst = allocate(py, dtype.unwrap_or(src.dtype()), src.shape(), place)?;
    let transfer = start(py, src, &dst, terms.verify)?;
    finish(py, transfer, terms)?;
    Ok(dst)
}

/// Submits a copy, converted where the types differ.
fn start(py: Python<'_>, src: &Tensor, dst: &Tensor, verify: bool) -> PyResult<Transfer> {
    let region = |of: &Tensor| of.region().map_err(|error| errors::raise(py, &error));
    let mut request = Request::new(region(src)?, region(dst)?);
    if src.dtype() != dst.dtype() {
        let elements = src.dtype().element().zip(dst.dtype().element());
        let conversion = elements.and_then(|(from, to)| Conversion::new(from, to).ok());
        let conversion = conversion.ok_or_else(|| {
            let (from, to) = (dtype::name(src.dtype()), dtype::name(dst.dtype()));
            PyValueError::new_err(format!("dtype: {from} is not converted to {to}"))
        })?;
        request = request.convert(conversion);
    }
    if verify {
        request = request.verify();
    }
    let manager = manager(py)?;
    Ok(py.detach(|| manager.submit(&request)))
}

fn finish(py: Python<'_>, transfer: Transfer, terms: &Terms<'_, '_>) -> PyResult<()> {
    let look = |_: Python<'_>, transfer: &Transfer| match (terms.progress, transfer.progress()) {
        (Some(tell), Some(progress)) => tell.call1(progress).map(drop),
        _ => Ok(()),
    };
    let report = wait::transfer(py, transfer, look)?;
    match terms.progress {
        Some(tell) => tell.call1((report.bytes(), report.bytes())).map(drop),
        None => Ok(()),
    }
}

/// Checks that a tensor can take another one's elements.
fn must_fit(src: &Tensor, dst: &Tensor, converts: bool) -> PyResult<()> {
    if src.shape() != dst.shape() {
        let (from, to) = (src.shape(), dst.shape());
        return Err(PyValueError::new_err(format!(
            "dst: its shape is {to:?}, and the shape of src {from:?}"
        )));
    }
    if src.dtype() != dst.dtype() && !converts {
        let (from, to) = (dtype::name(src.dtype()), dtype::name(dst.dtype()));
        return Err(PyValueError::new_err(format!(
            "dst: its elements are {to}, and those of src {from}; pass dtype=\"{to}\" to convert them"
        )));
    }
    Ok(())
}

/// Copies to a device, or into an array.
#[pyfunction]
#[pyo3(signature = (src, dst, *, dtype = None, verify = false, progress = None, stream = None))]
pub(crate) fn copy<'py>(
    src: &Bound<'py, PyAny>,
    dst: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    verify: bool,
    progress: Option<&Bound<'py, PyAny>>,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = src.py();
    let manager = manager(py)?;
    let is_plain = dtype.is_none() && !verify && progress.is_none();
    if is_plain && buffers::copy(manager, src, dst)? {
        return Ok(dst.clone());
    }
    let wanted = dtype.map(dtype::of).transpose()?;
    let progress = progress.map(told).transpose()?;
    let progress = progress.as_ref();
    let terms = Terms { verify, progress };
    let stream = stream.map(Stream::of).transpose()?.unwrap_or_default();
    let from = exchange::take(manager, src, "src", Use::Read, stream)?;
    let copied = if is_place(dst) {
        let copied = place(dst).and_then(|place| to_place(py, &from.tensor, place, wanted, &terms));
        copied.and_then(|tensor| Ok(Bound::new(py, PyTensor { tensor })?.into_any()))
    } else {
        exchange::take(manager, dst, "dst", Use::Write, stream).and_then(|to| {
            let converts = wanted == Some(to.tensor.dtype());
            let copied = must_fit(&from.tensor, &to.tensor, converts)
                .and_then(|()| start(py, &from.tensor, &to.tensor, verify))
                .and_then(|transfer| finish(py, transfer, &terms));
            // Whether it worked or not, nothing is under way.
            to.release(py);
            copied.map(|()| dst.clone())
        })
    };
    from.release(py);
    copied
}

/// Starts a copy.
#[pyfunction]
#[pyo3(signature = (src, dst, *, dtype = None, verify = false, stream = None))]
pub(crate) fn copy_async<'py>(
    src: &Bound<'py, PyAny>,
    dst: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    verify: bool,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, Pending>> {
    let py = src.py();
    let manager = manager(py)?;
    let wanted = dtype.map(dtype::of).transpose()?;
    let stream = stream.map(Stream::of).transpose()?.unwrap_or_default();
    let from = exchange::take(manager, src, "src", Use::Read, stream)?;
    let (to, outcome) = if is_place(dst) {
        let of = wanted.unwrap_or(from.tensor.dtype());
        let tensor = allocate(py, of, from.tensor.shape(), place(dst)?)?;
        (tensor.clone(), Outcome::Tensor(tensor))
    } else {
        let to = exchange::take(manager, dst, "dst", Use::Write, stream)?;
        must_fit(&from.tensor, &to.tensor, wanted == Some(to.tensor.dtype()))?;
        (to.tensor, Outcome::Object(dst.clone().unbind()))
    };
    let transfer = start(py, &from.tensor, &to, verify)?;
    Pending::start(py, transfer, outcome)
}

/// Returns what is called with the progress: the argument, or a bar of tqdm's for `True`.
pub(crate) fn told<'py>(argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match argument.extract::<bool>() {
        Ok(is_bar) => {
            let module = argument.py().import("transload._progress")?;
            module.call_method1("bar", (is_bar,))
        }
        Err(_) => Ok(argument.clone()),
    }
}

/// Whether an argument names a place. Arrays do not.
fn is_place(argument: &Bound<'_, PyAny>) -> bool {
    let named = |module: &str| argument.get_type().name().is_ok_and(|name| name == module);
    argument.is_instance_of::<PyString>() || named("device") || named("Device")
}

/// Allocates a tensor. Its first content is unspecified.
#[pyfunction]
#[pyo3(signature = (shape, dtype = None, device = None))]
pub(crate) fn empty(
    py: Python<'_>,
    shape: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyTensor> {
    let sizes = match shape.extract::<u64>() {
        Ok(size) => vec![size],
        Err(_) => shape.extract::<Vec<u64>>().map_err(|_| {
            PyTypeError::new_err(format!(
                "shape: {shape} is no size and no sequence of sizes"
            ))
        })?,
    };
    let dtype = dtype.map_or(Ok(DType::F32), dtype::of)?;
    let device = device.map_or_else(
        || Ok(transload_tensors::transload::DeviceId::CPU0.into()),
        place,
    )?;
    Ok(PyTensor {
        tensor: allocate(py, dtype, &sizes, device)?,
    })
}
