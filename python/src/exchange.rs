//! Tensors of other libraries, by the buffer protocol or DLPack.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict, PyType};
use pyo3::{ffi, intern};
use transload_tensors::dlpack::{
    DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackError, DLPackVersion,
};
use transload_tensors::transload::TransferManager;
use transload_tensors::{DType, Tensor};

use crate::buffers::{self, Lease};
use crate::tensor::PyTensor;
use crate::{dtype, errors};

/// The names of capsules before and after their structure was taken out.
const VERSIONED: [&CStr; 2] = [c"dltensor_versioned", c"used_dltensor_versioned"];
const LEGACY: [&CStr; 2] = [c"dltensor", c"used_dltensor"];

/// An argument as a tensor.
pub(crate) struct Taken {
    pub(crate) tensor: Tensor,
    lease: Option<Lease>,
}

impl Taken {
    /// Gives the memory back now: nothing of the library uses it any more.
    pub(crate) fn release(self, py: Python<'_>) {
        let Taken { tensor, lease } = self;
        drop(tensor);
        if let Some(lease) = lease {
            lease.release(py);
        }
    }

    /// What gives the memory back, without the tensor.
    pub(crate) fn into_lease(self) -> Option<Lease> {
        self.lease
    }

    /// A tensor of this library.
    fn own(tensor: Tensor) -> Taken {
        Taken {
            tensor,
            lease: None,
        }
    }

    fn lent((tensor, lease): (Tensor, Lease)) -> Taken {
        Taken {
            tensor,
            lease: Some(lease),
        }
    }
}

/// A stream of CUDA, by its handle.
#[derive(Clone, Copy)]
pub(crate) struct Stream(usize);

impl Default for Stream {
    /// The legacy default stream, as DLPack says.
    fn default() -> Stream {
        Stream(1)
    }
}

impl Stream {
    /// Reads a handle, or a stream of torch or CuPy.
    pub(crate) fn of(argument: &Bound<'_, PyAny>) -> PyResult<Stream> {
        let handles = ["cuda_stream", "ptr"].map(|name| argument.getattr(name).ok());
        let handle = handles.into_iter().flatten().next();
        let number = handle.as_ref().unwrap_or(argument).extract::<usize>();
        // What DLPack forbids: 0 could be either of CUDA's default streams. torch and CuPy say it of the legacy one.
        match number {
            Ok(0) if handle.is_some() => Ok(Stream::default()),
            Ok(number) if number > 0 => Ok(Stream(number)),
            _ => Err(PyValueError::new_err(format!(
                "stream: {} is no CUDA stream: pass one of torch or CuPy, or a handle, 1 for the legacy default stream",
                errors::shown(argument)
            ))),
        }
    }
}

/// What a copy does with an argument.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

/// Takes an argument in: a tensor of this library, or an object with the buffer protocol or `__dlpack__`. Errors name it.
pub(crate) fn take(
    manager: &TransferManager,
    object: &Bound<'_, PyAny>,
    argument: &str,
    used: Use,
    stream: Stream,
) -> PyResult<Taken> {
    let taken = match object.cast::<PyTensor>() {
        Ok(tensor) => Taken::own(tensor.get().tensor.clone()),
        Err(_) if !is_numpy(object)? && is_of_torch(object)? => {
            let plain = resolved(object, argument, used)?;
            let taken = Taken::lent(from_dlpack(manager, &plain, argument, stream)?);
            let is_doubtful = matches!(taken.tensor.dtype(), DType::I8 | DType::U8);
            // torch exports its integers of fewer bits as these, too.
            if is_doubtful && let Some(error) = unknown(object, argument) {
                return Err(error);
            }
            taken
        }
        Err(_) => foreign(manager, object, argument, used, stream)?,
    };
    if used == Use::Write && !taken.tensor.buffer().is_writable() {
        taken.release(object.py());
        return Err(PyValueError::new_err(format!(
            "{argument}: its memory is read-only"
        )));
    }
    Ok(taken)
}

/// Takes an object of another library in.
fn foreign(
    manager: &TransferManager,
    object: &Bound<'_, PyAny>,
    argument: &str,
    used: Use,
    stream: Stream,
) -> PyResult<Taken> {
    if !buffers::is_buffer(object) || !is_numpy(object)? && is_on_cuda(object) {
        return Ok(Taken::lent(from_dlpack(manager, object, argument, stream)?));
    }
    must_be_whole(object, argument, used)?;
    let unspoken = unspoken(object)?;
    // Others than NumPy, such as JAX, have such elements packed, and export them so.
    if unspoken.is_some_and(|of| of.block().0 > 1) && !is_from_numpy(object)? {
        return Ok(Taken::lent(from_dlpack(manager, object, argument, stream)?));
    }
    let unspoken = unspoken
        .map(|of| bytes_of(object, of, argument, used))
        .transpose()?;
    let bytes = unspoken.as_ref().map_or(object, |(bytes, ..)| bytes);
    let (tensor, lease) = buffers::import(manager, bytes, argument)
        .map_err(|error| blamed(object, argument, error))?;
    let tensor = match unspoken {
        Some((_, dtype, shape)) => match dtype.block().0 {
            1 => relabelled(&tensor, dtype),
            _ => Tensor::new(tensor.buffer(), dtype, &shape),
        }
        .map_err(|error| errors::named(object.py(), argument, &error))?,
        None => tensor,
    };
    Ok(Taken::lent((tensor, lease)))
}

/// Refuses arrays of NumPy that mark elements as absent beside their memory, which has a number for each: those of `numpy.ma`, and
/// of astropy.
fn must_be_whole(object: &Bound<'_, PyAny>, argument: &str, used: Use) -> PyResult<()> {
    if !buffers::may_be_masked(object) {
        return Ok(());
    }
    let mask = object.getattr("mask")?;
    let count = mask
        .call_method0("sum")
        .and_then(|sum| sum.extract::<u64>());
    let remedy = match used {
        Use::Read => {
            "and its memory has numbers there; pass .filled(0) of it, or .data to copy these"
        }
        Use::Write => "which would stay masked; pass .data of it, and change its mask yourself",
    };
    match count {
        Ok(count) if count > 0 => Err(PyValueError::new_err(format!(
            "{argument}: masked elements: {count}, {remedy}"
        ))),
        _ => Ok(()),
    }
}

/// The error for an array of Arrow with nulls, which exports none.
fn null(object: &Bound<'_, PyAny>, argument: &str) -> Option<PyErr> {
    let count = object.getattr("null_count").ok()?.extract::<u64>().ok()?;
    (count > 0).then(|| {
        PyValueError::new_err(format!(
            "{argument}: null elements: {count}, and its memory has numbers there; pass .fill_null(0) or .drop_null() of it"
        ))
    })
}

/// The error for elements that this library does not have, where their library says what they are.
fn unknown(object: &Bound<'_, PyAny>, argument: &str) -> Option<PyErr> {
    let of = object.getattr("dtype").ok()?;
    let is_known = dtype::of(&of).is_ok() || of.str().ok()? == PACKED_OF_TORCH;
    if is_known {
        return None;
    }
    Some(PyValueError::new_err(format!(
        "{argument}: its elements are {of}, a type that Transload does not have; convert them, or pass their bytes as uint8"
    )))
}

/// Whether it lies on a CUDA device. Arrays of JAX have the buffer protocol there, too, and refuse it.
pub(crate) fn is_on_cuda(object: &Bound<'_, PyAny>) -> bool {
    let device = object.call_method0(intern!(object.py(), "__dlpack_device__"));
    let device = device.and_then(|device| device.extract::<(i64, i64)>());
    device.is_ok_and(|(kind, _)| kind == i64::from(DLDevice::CUDA))
}

fn is_of_torch(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let module = object.get_type().module()?;
    let module = module.to_str()?;
    Ok(module == "torch" || module.starts_with("torch."))
}

/// The tensor of torch that has the bytes as they mean: its views may be conjugated or negated without that their bytes are.
fn resolved<'py>(
    object: &Bound<'py, PyAny>,
    argument: &str,
    used: Use,
) -> PyResult<Bound<'py, PyAny>> {
    if object.get_type().name()? == "MaskedTensor" {
        return Err(PyValueError::new_err(format!(
            "{argument}: it is a masked tensor, and a copy would have numbers where it has none; pass its .to_tensor(0)"
        )));
    }
    let is = |name: &str| object.call_method0(name)?.extract::<bool>();
    let is_lazy = is("is_conj")? || is("is_neg")?;
    let has_gradient: bool = object.getattr("requires_grad")?.extract()?;
    if used == Use::Write && (is_lazy || has_gradient) {
        let what = match is_lazy {
            true => "it is a conjugated or negated view",
            false => "it requires a gradient; pass tensor.detach()",
        };
        return Err(PyValueError::new_err(format!(
            "{argument}: cannot write this torch tensor: {what}"
        )));
    }
    let plain = object.call_method0("detach")?;
    plain
        .call_method0("resolve_conj")?
        .call_method0("resolve_neg")
}

/// torch's name for two elements of `F4` in a byte, which DLPack tells from others.
const PACKED_OF_TORCH: &str = "torch.float4_e2m1fn_x2";

/// The type of an array, where NumPy has it by ml_dtypes and the buffer protocol cannot say it.
fn unspoken(object: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    let py = object.py();
    let Ok(of) = object.getattr(intern!(py, "dtype")) else {
        return Ok(None);
    };
    // NumPy's own types have no name before a function of Python makes it.
    let is_own = of.getattr(intern!(py, "isbuiltin"));
    if is_own.is_ok_and(|is_own| is_own.extract::<u8>().is_ok_and(|is_own| is_own == 1)) {
        return Ok(None);
    }
    let known = || dtype::named(of.getattr("name").ok()?.extract::<String>().ok()?.as_str());
    Ok(known().filter(|of| dtype::code(*of).is_none()))
}

/// Whether it is an array of NumPy, and none of a class derived from that.
pub(crate) fn is_numpy(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let (py, class) = (object.py(), object.get_type());
    if let Some(known) = CLASS.get(py) {
        return Ok(class.is(known));
    }
    let is_it = class.name()? == "ndarray" && class.module()? == "numpy";
    if is_it {
        let _ = CLASS.set(py, class.unbind());
    }
    Ok(is_it)
}

/// Whether it is an array of NumPy, or of a class derived from that.
fn is_from_numpy(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.is_instance(&object.py().import("numpy")?.getattr("ndarray")?)
}

/// The bytes of an array, their type, and its shape.
type Unspoken<'py> = (Bound<'py, PyAny>, DType, Vec<u64>);

/// The bytes of a NumPy array of such a type. Where NumPy has a byte for elements that share one, they are packed, and so copied.
fn bytes_of<'py>(
    array: &Bound<'py, PyAny>,
    dtype: DType,
    argument: &str,
    used: Use,
) -> PyResult<Unspoken<'py>> {
    let shape: Vec<u64> = array.getattr("shape")?.extract()?;
    let name = dtype::name(dtype);
    let bytes = match dtype.block() {
        (1, 1) => array.call_method1("view", ("uint8",))?,
        (1, _) => array.call_method1("view", ("uint16",))?,
        (elements, bytes) if used == Use::Write => {
            return Err(PyValueError::new_err(format!(
                "{argument}: NumPy has a byte for each element of {name}, and Transload {bytes} for {elements}; copy to a place, and \
                 assign the numpy() of that tensor"
            )));
        }
        _ if dtype.len_bytes(&shape).is_none() => {
            return Err(PyValueError::new_err(format!(
                "{argument}: {shape:?} elements of {name} are no whole bytes"
            )));
        }
        block => {
            let packed = array.py().import("transload._packed")?;
            packed.call_method1("pack", (array, block))?
        }
    };
    Ok((bytes, dtype, shape))
}

/// The same elements under another type of their size.
pub(crate) fn relabelled(
    tensor: &Tensor,
    dtype: DType,
) -> Result<Tensor, transload_tensors::TensorError> {
    let (buffer, at) = (tensor.buffer(), tensor.offset_bytes());
    Tensor::strided(buffer, at, dtype, tensor.shape(), &tensor.strides())
}

/// The error for an array that its library did not give: what is known of the array, or what the library says.
fn blamed(object: &Bound<'_, PyAny>, argument: &str, error: PyErr) -> PyErr {
    let py = object.py();
    let text = error.value(py).to_string();
    let is = |class: &Bound<'_, PyType>| error.get_type(py).is(class);
    let is_foreign = error.is_instance_of::<PyBufferError>(py)
        || error.is_instance_of::<PyTypeError>(py)
        || is(&py.get_type::<PyValueError>())
        || is(&py.get_type::<PyRuntimeError>());
    if !is_foreign {
        return error;
    }
    let known = null(object, argument).or_else(|| unknown(object, argument));
    let blamed = match known {
        Some(known) => known,
        None if text.starts_with(argument) => return error,
        None => {
            let text = format!("{argument}: it gives no memory: {text}");
            match error.is_instance_of::<PyTypeError>(py) {
                true => PyTypeError::new_err(text),
                false => PyValueError::new_err(text),
            }
        }
    };
    blamed.set_cause(py, Some(error));
    blamed
}

fn from_dlpack(
    manager: &TransferManager,
    object: &Bound<'_, PyAny>,
    argument: &str,
    stream: Stream,
) -> PyResult<(Tensor, Lease)> {
    let py = object.py();
    let Ok(give) = object.getattr("__dlpack__") else {
        let kind = object.get_type();
        let is_array = object.hasattr("__array__")? || object.hasattr("__array_interface__")?;
        let remedy = if is_array {
            "; pass numpy.asarray() of it"
        } else {
            ""
        };
        let error = PyTypeError::new_err(format!(
            "{argument}: {kind} has neither __dlpack__ nor the buffer protocol{remedy}"
        ));
        return Err(null(object, argument).unwrap_or(error));
    };
    let refused = |error| blamed(object, argument, error);
    let device = object.call_method0("__dlpack_device__").map_err(refused)?;
    let device: (i64, i64) = device.extract().map_err(|_| {
        PyTypeError::new_err(format!(
            "{argument}: its __dlpack_device__ returned {}, and no pair of numbers",
            errors::shown(&device)
        ))
    })?;
    let arguments = PyDict::new(py);
    let is_cuda = [DLDevice::CUDA, DLDevice::CUDA_MANAGED]
        .map(i64::from)
        .contains(&device.0);
    if is_cuda {
        // The producer makes that stream wait for its work, and the copy waits for the stream.
        arguments.set_item("stream", stream.0)?;
    }
    arguments.set_item("max_version", (1, 3))?;
    let capsule = match give.call((), Some(&arguments)) {
        // Of before version 1, as of JAX. Other errors in types, such as those of pyarrow, are about the elements.
        Err(error)
            if error.is_instance_of::<PyTypeError>(py)
                && error.value(py).to_string().contains("argument") =>
        {
            arguments.del_item("max_version")?;
            give.call((), Some(&arguments))
        }
        capsule => capsule,
    };
    let capsule = capsule.map_err(refused)?;
    let capsule = capsule.cast_into::<PyCapsule>().map_err(|_| {
        PyTypeError::new_err(format!("{argument}: its __dlpack__ returned no capsule"))
    })?;
    if is_cuda {
        synchronize(py, manager, stream)?;
    }
    let imported = if let Some(managed) = pointer(&capsule, VERSIONED[0]) {
        let managed = managed.cast::<DLManagedTensorVersioned>();
        // SAFETY: every structure in a capsule of that name begins with its version.
        let version = unsafe { managed.cast::<DLPackVersion>().read() };
        // Of another major version nothing else may be read.
        if version.major != DLPackVersion::CURRENT.major {
            let error = DLPackError::Version(version);
            return Err(errors::named(py, argument, &error));
        }
        let (shim, lease) = shim(managed);
        // SAFETY: the producer made the structure, and the lease calls its deleter once.
        let tensor = unsafe { Tensor::from_dlpack(manager, shim) };
        tensor
            .inspect_err(|_| forget(shim))
            .map(|tensor| (tensor, lease, VERSIONED[1]))
    } else if let Some(managed) = pointer(&capsule, LEGACY[0]) {
        let (shim, lease) = shim(managed.cast::<DLManagedTensor>());
        // SAFETY: as above.
        let tensor = unsafe { Tensor::from_dlpack_legacy(manager, shim) };
        tensor
            .inspect_err(|_| forget(shim))
            .map(|tensor| (tensor, lease, LEGACY[1]))
    } else {
        return Err(PyValueError::new_err(format!(
            "{argument}: its DLPack capsule was used before, or is none"
        )));
    };
    let (tensor, lease, used) = imported.map_err(|error| {
        let named = || errors::named(py, argument, &error);
        match error {
            DLPackError::DataType(_) => unknown(object, argument).unwrap_or_else(named),
            _ => named(),
        }
    })?;
    // SAFETY: the capsule is alive, and the name is for ever.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    Ok((tensor, lease))
}

fn pointer(capsule: &Bound<'_, PyCapsule>, name: &CStr) -> Option<NonNull<std::ffi::c_void>> {
    // SAFETY: the capsule is alive, and the name ends with a zero.
    let is_named = unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) } == 1;
    if !is_named {
        return None;
    }
    // SAFETY: as above.
    NonNull::new(unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) })
}

/// Waits until a stream of CUDA has done what was given to it.
fn synchronize(py: Python<'_>, manager: &TransferManager, stream: Stream) -> PyResult<()> {
    use transload_tensors::transload::cuda_backend::{Cuda, raw::CUstream};
    let Some(cuda) = py.detach(|| manager.backend::<Cuda>()) else {
        return Ok(());
    };
    let (tell, told) = channel();
    let stream = CUstream(std::ptr::with_exposed_provenance_mut(stream.0));
    // SAFETY: the caller vouches for a stream of its own; 1 is CUDA's legacy default stream (`CU_STREAM_LEGACY`).
    let asked = unsafe { cuda.when_done(stream, move || _ = tell.send(())) };
    asked.map_err(|error| PyBufferError::new_err(error.to_string()))?;
    let told = Mutex::new(told);
    let ended = || {
        let told = told.lock().unwrap_or_else(PoisonError::into_inner);
        told.recv_timeout(crate::wait::LOOK)
    };
    while let Err(RecvTimeoutError::Timeout) = py.detach(ended) {
        py.check_signals()?;
    }
    Ok(())
}

/// A producer's structure, which is given back with the interpreter's lock: the library may drop the last view of its bytes on a
/// thread of the engine.
trait Given: Sized + 'static {
    /// A copy of the structure, whose deleter drops a lease.
    ///
    /// # Safety
    /// The structure is whole.
    unsafe fn lent(producer: NonNull<Self>, lease: Lease) -> Self;

    /// The lease of such a copy.
    ///
    /// # Safety
    /// [`Given::lent`] made the copy, and this is the only call for it.
    unsafe fn lease(&self) -> Lease;

    /// Calls the producer's deleter.
    ///
    /// # Safety
    /// This is the only call for the structure, which is whole.
    unsafe fn give_back(producer: NonNull<Self>);
}

fn shim<M: Given>(producer: NonNull<M>) -> (NonNull<M>, Lease) {
    let given = Producer(producer);
    let lease = Lease::new(move |_| given.give_back());
    // SAFETY: a capsule of that name holds such a structure.
    let lent = unsafe { M::lent(producer, lease.clone()) };
    (NonNull::from(Box::leak(Box::new(lent))), lease)
}

/// Frees the copy alone: the producer's structure stays the capsule's.
fn forget<M: Given>(shim: NonNull<M>) {
    // SAFETY: `shim` leaked it, and the library did not take it over.
    let shim = unsafe { Box::from_raw(shim.as_ptr()) };
    // SAFETY: as above.
    unsafe { shim.lease() }.forget();
}

/// The copy's deleter.
///
/// # Safety
/// `shim` was made by [`shim`], and this is the only call with it.
unsafe extern "C" fn delete<M: Given>(shim: *mut M) {
    // SAFETY: the caller's promise.
    let shim = unsafe { Box::from_raw(shim) };
    // SAFETY: as above.
    drop(unsafe { shim.lease() });
}

struct Producer<M>(NonNull<M>);

// SAFETY: the deleter of a DLPack structure may be called from any thread.
unsafe impl<M> Send for Producer<M> {}

impl<M: Given> Producer<M> {
    fn give_back(self) {
        // SAFETY: the copy was deleted once, and the original is whole until its own deleter is called.
        unsafe { M::give_back(self.0) };
    }
}

macro_rules! given {
    ($structure:ident { $($field:ident),* }) => {
        impl Given for $structure {
            unsafe fn lent(producer: NonNull<Self>, lease: Lease) -> Self {
                let of = producer.as_ptr();
                $structure {
                    $(
                        // SAFETY: the caller's promise.
                        $field: unsafe { (&raw const (*of).$field).read() },
                    )*
                    manager_ctx: Box::into_raw(Box::new(lease)).cast(),
                    deleter: Some(delete::<$structure>),
                }
            }

            unsafe fn lease(&self) -> Lease {
                // SAFETY: `lent` leaked it, and the caller asks once.
                *unsafe { Box::from_raw(self.manager_ctx.cast::<Lease>()) }
            }

            unsafe fn give_back(producer: NonNull<Self>) {
                // SAFETY: the caller's promise.
                if let Some(deleter) = unsafe { producer.as_ref() }.deleter {
                    // SAFETY: as above.
                    unsafe { deleter(producer.as_ptr()) };
                }
            }
        }
    };
}

given!(DLManagedTensor { dl_tensor });
given!(DLManagedTensorVersioned {
    version,
    flags,
    dl_tensor
});

/// Exports a tensor as a capsule.
pub(crate) fn to_capsule<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    is_versioned: bool,
    in_lanes: bool,
    flags: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let capsule = match is_versioned {
        true => {
            let managed = py.detach(|| {
                let managed = match in_lanes {
                    true => tensor.to_dlpack_lanes(),
                    false => tensor.to_dlpack(),
                };
                managed.map(Exported)
            });
            let mut managed = managed.map_err(|error| errors::raise(py, &error))?.0;
            // SAFETY: the structure was just made, and no other code has it.
            unsafe { managed.as_mut() }.flags |= flags;
            let (name, free) = (VERSIONED[0], free_versioned as Destructor);
            // SAFETY: the pointer and the name outlive the capsule, whose destructor frees the former.
            unsafe { ffi::PyCapsule_New(managed.as_ptr().cast(), name.as_ptr(), Some(free)) }
        }
        false => {
            let managed = py.detach(|| tensor.to_dlpack_legacy().map(Exported));
            let managed = managed.map_err(|error| errors::raise(py, &error))?.0;
            let (name, free) = (LEGACY[0], free_legacy as Destructor);
            // SAFETY: as above.
            unsafe { ffi::PyCapsule_New(managed.as_ptr().cast(), name.as_ptr(), Some(free)) }
        }
    };
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// A structure of this library on its way to a capsule.
struct Exported<M>(NonNull<M>);

// SAFETY: the structure's deleter may be called from any thread, and nothing else is done with it there.
unsafe impl<M> Send for Exported<M> {}

type Destructor = unsafe extern "C" fn(*mut ffi::PyObject);

/// Frees a structure that no consumer took.
unsafe extern "C" fn free_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter destroys its capsule.
    if let Some(managed) = unsafe { untaken(capsule, VERSIONED[0]) } {
        // SAFETY: the capsule has its first name, so that nothing else frees the structure.
        unsafe { DLManagedTensorVersioned::give_back(managed.cast()) };
    }
}

/// As [`free_versioned`].
unsafe extern "C" fn free_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    if let Some(managed) = unsafe { untaken(capsule, LEGACY[0]) } {
        // SAFETY: as above.
        unsafe { DLManagedTensor::give_back(managed.cast()) };
    }
}

/// # Safety
/// `capsule` is one.
unsafe fn untaken(capsule: *mut ffi::PyObject, name: &CStr) -> Option<NonNull<std::ffi::c_void>> {
    // SAFETY: the caller's promise.
    if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } != 1 {
        return None;
    }
    // SAFETY: as above.
    NonNull::new(unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) })
}
