//! Copies.

use std::cell::Cell;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use transload_tensors::transload::{
    AllocSpec, Conversion, DeviceId, Error, MemoryKind, Place, Request, Transfer,
};
use transload_tensors::{DType, Tensor};

use crate::buffers::Destination;
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
    /// Set when the wait was given up with the copy under way.
    pub(crate) left: Option<&'a Cell<bool>>,
}

/// Reads a place: `"cuda:1"`, `"cpu:0/shared"`, or an object of torch or JAX that spells itself so.
pub(crate) fn place(argument: &Bound<'_, PyAny>, name: &str) -> PyResult<Place> {
    let py = argument.py();
    let text = argument.str()?;
    let text = text.to_str()?;
    let refused = |error: Error| errors::named(py, name, &error);
    let place = text.parse::<Place>();
    let place = place.map_err(|error| refused(error.into()))?;
    let manager = manager(py)?;
    // The first place of a kind of device opens its driver.
    let resolved = py.detach(|| manager.resolve(place));
    resolved.map_err(|error| refused(error.into()))?;
    Ok(place)
}

/// Allocates a dense tensor. Its first content is unspecified.
pub(crate) fn allocate(
    py: Python<'_>,
    dtype: DType,
    shape: &[u64],
    place: Place,
    argument: &str,
) -> PyResult<Tensor> {
    let manager = manager(py)?;
    let len_bytes = dtype.len_bytes(shape).ok_or_else(|| {
        let name = dtype::name(dtype);
        PyValueError::new_err(format!(
            "shape: {shape:?} elements of {name} are no whole bytes, or more than 2^64"
        ))
    })?;
    let buffer = py.detach(|| manager.allocate(place, AllocSpec::bytes(len_bytes)));
    let buffer = buffer.map_err(|error| errors::named(py, argument, &error))?;
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
    let dst = allocate(py, dtype.unwrap_or(src.dtype()), src.shape(), place, "dst")?;
    let transfer = start(py, src, &dst, terms.verify)?;
    finish(py, transfer, terms)?;
    Ok(dst)
}

/// Submits a copy, converted where the types differ.
fn start(py: Python<'_>, src: &Tensor, dst: &Tensor, verify: bool) -> PyResult<Transfer> {
    let region = |of: &Tensor| of.region().map_err(|error| errors::raise(py, &error));
    let mut request = Request::new(region(src)?, region(dst)?);
    if src.dtype() != dst.dtype() {
        let conversion = conversion(src, dst).ok_or_else(|| {
            let (from, to) = (dtype::name(src.dtype()), dtype::name(dst.dtype()));
            PyValueError::new_err(format!(
                "dtype: {from} is not converted to {to}: {CONVERTED}"
            ))
        })?;
        request = request.convert(conversion);
    }
    if verify {
        request = request.verify();
    }
    let manager = manager(py)?;
    Ok(py.detach(|| manager.submit(&request)))
}

/// How elements of one tensor become those of another, if they are converted.
fn conversion(src: &Tensor, dst: &Tensor) -> Option<Conversion> {
    Conversion::new(src.dtype().element()?, dst.dtype().element()?).ok()
}

fn finish(py: Python<'_>, transfer: Transfer, terms: &Terms<'_, '_>) -> PyResult<()> {
    let look = |_: Python<'_>, transfer: &Transfer| match (terms.progress, transfer.progress()) {
        (Some(tell), Some(progress)) => tell.call1(progress).map(drop),
        _ => Ok(()),
    };
    let report = wait::transfer(py, transfer, terms.left, look)?;
    match terms.progress {
        Some(tell) => tell.call1((report.bytes(), report.bytes())).map(drop),
        None => Ok(()),
    }
}

const CONVERTED: &str = "float64, float32, float16, bfloat16, float8_e4m3fn and float8_e5m2 are converted to the first four";

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
        let remedy = match conversion(src, dst) {
            Some(_) => format!("pass dtype=\"{to}\" to convert them"),
            None => CONVERTED.into(),
        };
        return Err(PyValueError::new_err(format!(
            "dst: its elements are {to}, and those of src {from}; {remedy}"
        )));
    }
    Ok(())
}

/// Copies elements to a device, or into an array. Waits until they have arrived, without the interpreter's lock.
///
/// Parameters
/// ----------
/// src : Tensor, or an object with the buffer protocol or `__dlpack__`
///     The elements: NumPy, torch, JAX, CuPy, pyarrow, `bytes`, `memoryview`.
/// dst : str, Device, or an array as `src`
///     A place, such as `"cuda:1"` or `"cpu:0/shared"`: a new tensor is made there. An array of the same shape: it is written in
///     place, whatever its strides.
/// dtype : str or dtype, optional
///     The element type to convert to. Floating-point types are converted: float64, float32, float16, bfloat16, float8_e4m3fn and
///     float8_e5m2 to the first four. An array as `dst` must have that type.
/// verify : bool
///     Read both ends once more and compare them.
/// progress : callable or bool, optional
///     True draws a bar by tqdm. A callable is called as `progress(done_bytes, all_bytes)` on this thread about every 0.1 s, and
///     at the end. What it raises ends the copy.
/// stream : int, or a stream of torch or CuPy, optional
///     The CUDA stream on which other libraries' arrays are ready, by default the legacy one. The copy waits for it.
///
/// Returns
/// -------
/// The new Tensor, or `dst` itself.
///
/// Raises
/// ------
/// TypeError
///     When an argument has neither protocol.
/// ValueError
///     When shapes or types differ, a type is not known or not converted, elements are masked or null, or the memory of `dst` is
///     read-only.
/// ParseError, PlaceError
///     When `dst` names no place, or none on this machine.
/// AllocError
///     When there is no memory for the new tensor.
/// DLPackError
///     When another library's tensor was not taken in.
/// TransferError
///     When elements of `dst` overlap, or the copy failed.
/// KeyboardInterrupt
///     On Ctrl-C, and what else signal handlers raise: the copy is cancelled, and `dst` has unspecified elements. The call waits until
///     the device has ended what it has begun; a second Ctrl-C ends that wait, and the copy keeps the memory of both ends.
///
/// Examples
/// --------
/// >>> transload.copy(np.arange(3.0), "cpu:0", dtype="float16").numpy()
/// array([0., 1., 2.], dtype=float16)
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
    let wanted = dtype.map(dtype::of).transpose()?;
    if !verify && progress.is_none() && stream.is_none() {
        let make = |dtype, shape: &[u64]| {
            let heap = DeviceId::CPU0.memory(MemoryKind::Pageable).into();
            allocate(py, dtype, shape, heap, "dst")
        };
        let to = match is_heap(dst) {
            true => Destination::New(&make),
            false => Destination::Array(dst),
        };
        match buffers::copy(manager, src, to, wanted)? {
            Some(Some(tensor)) => return Ok(Bound::new(py, PyTensor { tensor })?.into_any()),
            Some(None) => return Ok(dst.clone()),
            None => {}
        }
    }
    let progress = progress.map(told).transpose()?;
    let left = Cell::new(false);
    let terms = Terms {
        verify,
        progress: progress.as_ref(),
        left: Some(&left),
    };
    let stream = stream.map(Stream::of).transpose()?.unwrap_or_default();
    let from = exchange::take(manager, src, "src", Use::Read, stream)?;
    let copied = if is_place(dst) {
        let copied =
            place(dst, "dst").and_then(|place| to_place(py, &from.tensor, place, wanted, &terms));
        copied.and_then(|tensor| Ok(Bound::new(py, PyTensor { tensor })?.into_any()))
    } else {
        exchange::take(manager, dst, "dst", Use::Write, stream).and_then(|to| {
            let converts = wanted == Some(to.tensor.dtype());
            let copied = must_fit(&from.tensor, &to.tensor, converts)
                .and_then(|()| start(py, &from.tensor, &to.tensor, verify))
                .and_then(|transfer| finish(py, transfer, &terms));
            // Whether it worked or not, nothing is under way, unless the wait was given up: the library then drops the memory.
            if !left.get() {
                to.release(py);
            }
            copied.map(|()| dst.clone())
        })
    };
    if !left.get() {
        from.release(py);
    }
    copied
}

/// Starts a copy, and returns when it is under way. A new tensor is allocated before, which takes a while where it is large:
/// pass one of `empty` from an event loop. The copy goes on by itself, also when the result is dropped. The memory of both ends is
/// kept until it has ended; the program must not change the source, nor use the destination, before.
///
/// Where the bytes of a CUDA array of another library are not ready, the call waits for its stream.
///
/// Parameters
/// ----------
/// src : Tensor, or an object with the buffer protocol or `__dlpack__`
///     The elements: NumPy, torch, JAX, CuPy, pyarrow, `bytes`, `memoryview`.
/// dst : str, Device, or an array as `src`
///     As in `copy`.
/// dtype : str or dtype, optional
///     As in `copy`.
/// verify : bool
///     As in `copy`.
/// stream : int, or a stream of torch or CuPy, optional
///     As in `copy`.
///
/// Returns
/// -------
/// A Pending: `await` it in asyncio or trio, or wait with `result()`. Both give the new Tensor, or `dst` itself.
///
/// Raises
/// ------
/// As `copy`, for what is wrong with the arguments. A copy that fails later raises TransferError where it is awaited.
///
/// Examples
/// --------
/// >>> transload.copy_async(b"abc", "cpu:0").result().nbytes
/// 3
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
    let started = if is_place(dst) {
        let of = wanted.unwrap_or(from.tensor.dtype());
        place(dst, "dst")
            .and_then(|place| allocate(py, of, from.tensor.shape(), place, "dst"))
            .and_then(|to| {
                let transfer = start(py, &from.tensor, &to, verify)?;
                Ok((transfer, Outcome::Tensor(to), None))
            })
    } else {
        exchange::take(manager, dst, "dst", Use::Write, stream).and_then(|to| {
            let converts = wanted == Some(to.tensor.dtype());
            let started = must_fit(&from.tensor, &to.tensor, converts)
                .and_then(|()| start(py, &from.tensor, &to.tensor, verify));
            match started {
                Ok(transfer) => {
                    let outcome = Outcome::Object(dst.clone().unbind());
                    Ok((transfer, outcome, to.into_lease()))
                }
                Err(refused) => {
                    to.release(py);
                    Err(refused)
                }
            }
        })
    };
    match started {
        // The copy has both ends' memory until it is over.
        Ok((transfer, outcome, lease)) => {
            Pending::start(py, transfer, outcome, [from.into_lease(), lease])
        }
        Err(refused) => {
            from.release(py);
            Err(refused)
        }
    }
}

/// Returns what is called with the progress: the argument, or a bar of tqdm's for `True`.
pub(crate) fn told<'py>(argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match argument.extract::<bool>() {
        Ok(is_bar) => {
            let module = argument.py().import("transload._progress")?;
            module.call_method1("bar", (is_bar,))
        }
        Err(_) if argument.is_callable() => Ok(argument.clone()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "progress: {} is neither callable nor a bool",
            errors::shown(argument)
        ))),
    }
}

/// Whether an argument names the memory of the process as most programs do.
fn is_heap(argument: &Bound<'_, PyAny>) -> bool {
    let text = argument.cast_exact::<PyString>();
    text.is_ok_and(|text| matches!(text.to_str(), Ok("cpu:0" | "cpu" | "cpu:0/pageable")))
}

/// Whether an argument names a place. Arrays do not.
pub(crate) fn is_place(argument: &Bound<'_, PyAny>) -> bool {
    let named = |module: &str| argument.get_type().name().is_ok_and(|name| name == module);
    argument.is_instance_of::<PyString>() || named("device") || named("Device")
}

/// Takes another library's array as a tensor, where it lies. The tensor keeps the array's memory; it is read-only if the array
/// is, or if its library cannot say so, as JAX.
///
/// Parameters
/// ----------
/// array : Tensor, or an object with the buffer protocol or `__dlpack__`
///     NumPy, torch, JAX, CuPy, pyarrow, `bytes`, `memoryview`. The program must not write it while a transfer reads it, nor use
///     it while a transfer writes it.
///
/// Returns
/// -------
/// A Tensor of the same memory. Of torch's conjugated and negated views, and of NumPy's elements of fewer than 8 bits, one of a
/// copy that is resolved, or packed.
///
/// Raises
/// ------
/// TypeError, ValueError, DLPackError
///     As `copy` of its source.
///
/// Examples
/// --------
/// >>> transload.asarray(b"abc").readonly
/// True
#[pyfunction]
pub(crate) fn asarray(array: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
    let manager = manager(array.py())?;
    let taken = exchange::take(manager, array, "array", Use::Read, Stream::default())?;
    Ok(PyTensor {
        tensor: taken.tensor,
    })
}

/// Allocates a dense tensor. Its elements are unspecified. May wait for a device that allocates.
///
/// Parameters
/// ----------
/// shape : int or sequence of int
///     The sizes of its dimensions, the outermost first. `()` is one element.
/// dtype : str or dtype, optional
///     The element type: a name of NumPy, ml_dtypes, torch or of model files, such as `"BF16"`. Unless given, float32.
/// device : str or Device, optional
///     The place. Unless given, `"cpu:0"`.
///
/// Returns
/// -------
/// The Tensor. On the host it is aligned to at least 256 bytes.
///
/// Raises
/// ------
/// TypeError
///     When `shape` is none.
/// ValueError
///     When the type is not known, or the tensor has 2^64 bytes or more.
/// ParseError, PlaceError
///     When `device` names no place, or none on this machine.
/// AllocError
///     When there is not so much memory. It has the fields `memory`, `nbytes` and `limit` where they are known.
///
/// Examples
/// --------
/// >>> transload.empty((2, 3), "int8").nbytes
/// 6
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
                "shape: {} is no size and no sequence of sizes",
                errors::shown(shape)
            ))
        })?,
    };
    let dtype = dtype.map_or(Ok(DType::F32), dtype::of)?;
    let device = device.map_or_else(
        || Ok(transload_tensors::transload::DeviceId::CPU0.into()),
        |device| place(device, "device"),
    )?;
    Ok(PyTensor {
        tensor: allocate(py, dtype, &sizes, device, "shape")?,
    })
}
