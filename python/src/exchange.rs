//! Tensors of other libraries, by the buffer protocol or DLPack.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use pyo3::{ffi, intern};
use transload_tensors::dlpack::{
    DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackError, DLPackVersion,
};
use transload_tensors::transload::TransferManager;
use transload_tensors::{DType, Tensor};

use crate::buffers::{self, Lease};
use crate::tensor::PyTensor;
use crate::{dtype, errors, service};

/// The names of capsules before and after their structure was taken out.
const VERSIONED: [&CStr; 2] = [c"dltensor_versioned", c"used_dltensor_versioned"];
const LEGACY: [&CStr; 2] = [c"dltensor", c"used_dltensor"];

/// An argument as a tensor.
pub(crate) struct Taken {
    pub(crate) tensor: Tensor,
    lease: Option<Lease>,
}

impl Taken {
    /// Gives the memory back before the tensor is dropped: nothing of the library uses it any more.
    pub(crate) fn release(self, py: Python<'_>) {
        if let Some(lease) = self.lease {
            lease.release(py);
        }
    }

    /// What gives the memory back, without the tensor.
    pub(crate) fn into_lease(self) -> Option<Lease> {
        self.lease
    }

    fn of(tensor: Tensor) -> Taken {
        Taken {
            tensor,
            lease: None,
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
                "stream: {argument} is no CUDA stream: pass one of torch or CuPy, or a handle, 1 for the legacy default stream"
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
        Ok(tensor) => Taken::of(tensor.get().tensor.clone()),
        Err(_) => foreign(
            manager,
            &resolved(object, argument, used)?,
            argument,
            stream,
        )?,
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
    stream: Stream,
) -> PyResult<Taken> {
    Ok(match buffers::is_buffer(object) && !is_on_cuda(object) {
        true => match unspoken(object)? {
            Some((bytes, dtype)) => {
                let (tensor, lease) = buffers::import(manager, &bytes, argument)?;
                let tensor = relabelled(&tensor, dtype)
                    .map_err(|error| errors::named(object.py(), argument, &error))?;
                Taken {
                    tensor,
                    lease: Some(lease),
                }
            }
            None => {
                let (tensor, lease) = buffers::import(manager, object, argument)
                    .map_err(|error| blamed(object.py(), argument, error))?;
                Taken {
                    tensor,
                    lease: Some(lease),
                }
            }
        },
        false => Taken::of(from_dlpack(manager, object, argument, stream)?),
    })
}

/// Whether it lies on a CUDA device. Arrays of JAX have the buffer protocol there, too, and refuse it.
fn is_on_cuda(object: &Bound<'_, PyAny>) -> bool {
    let device = object.call_method0(intern!(object.py(), "__dlpack_device__"));
    let device = device.and_then(|device| device.extract::<(i64, i64)>());
    device.is_ok_and(|(kind, _)| kind == i64::from(DLDevice::CUDA))
}

/// The tensor of torch that has the bytes as they mean: its views may be conjugated or negated without that their bytes are.
fn resolved<'py>(
    object: &Bound<'py, PyAny>,
    argument: &str,
    used: Use,
) -> PyResult<Bound<'py, PyAny>> {
    let module = object.get_type().module()?;
    let module = module.to_str()?;
    if module != "torch" && !module.starts_with("torch.") {
        return Ok(object.clone());
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

/// The bytes of a NumPy array whose type the buffer protocol cannot say, and the type.
fn unspoken<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<(Bound<'py, PyAny>, DType)>> {
    let Ok(of) = object.getattr("dtype") else {
        return Ok(None);
    };
    let known = || dtype::named(of.getattr("name").ok()?.extract::<String>().ok()?.as_str());
    let is_foreign = |of: &DType| dtype::code(*of).is_none() && of.block().0 == 1;
    match known().filter(is_foreign) {
        Some(dtype) => {
            let plain = match dtype.block().1 {
                1 => "uint8",
                _ => "uint16",
            };
            Ok(Some((object.call_method1("view", (plain,))?, dtype)))
        }
        None => Ok(None),
    }
}

/// The same elements under another type of their size.
pub(crate) fn relabelled(
    tensor: &Tensor,
    dtype: DType,
) -> Result<Tensor, transload_tensors::TensorError> {
    let (buffer, at) = (tensor.buffer(), tensor.offset_bytes());
    Tensor::strided(buffer, at, dtype, tensor.shape(), &tensor.strides())
}

/// The error of another library, or of this one, with the name of the argument.
fn blamed(py: Python<'_>, argument: &str, error: PyErr) -> PyErr {
    let text = error.value(py).to_string();
    let is_foreign = error.is_instance_of::<PyBufferError>(py)
        || error.get_type(py).is(py.get_type::<PyValueError>());
    if text.starts_with(argument) || !is_foreign {
        return error;
    }
    let blamed = PyValueError::new_err(format!("{argument}: it gives no memory: {text}"));
    blamed.set_cause(py, Some(error));
    blamed
}

fn from_dlpack(
    manager: &TransferManager,
    object: &Bound<'_, PyAny>,
    argument: &str,
    stream: Stream,
) -> PyResult<Tensor> {
    let py = object.py();
    let Ok(give) = object.getattr("__dlpack__") else {
        let kind = object.get_type();
        return Err(PyTypeError::new_err(format!(
            "{argument}: {kind} has neither __dlpack__ nor the buffer protocol"
        )));
    };
    let device = object.call_method0("__dlpack_device__")?;
    let device: (i64, i64) = device.extract().map_err(|_| {
        PyTypeError::new_err(format!(
            "{argument}: its __dlpack_device__ returned {device}, and no pair of numbers"
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
            give.call((), Some(&arguments))?
        }
        capsule => capsule?,
    };
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
        let shim = shim(managed);
        // SAFETY: the producer made the structure, and the shim calls its deleter once.
        let tensor = unsafe { Tensor::from_dlpack(manager, shim) };
        tensor
            .inspect_err(|_| forget(shim))
            .map(|tensor| (tensor, VERSIONED[1]))
    } else if let Some(managed) = pointer(&capsule, LEGACY[0]) {
        let shim = shim(managed.cast::<DLManagedTensor>());
        // SAFETY: as above.
        let tensor = unsafe { Tensor::from_dlpack_legacy(manager, shim) };
        tensor
            .inspect_err(|_| forget(shim))
            .map(|tensor| (tensor, LEGACY[1]))
    } else {
        return Err(PyValueError::new_err(format!(
            "{argument}: its DLPack capsule was used before, or is none"
        )));
    };
    let (tensor, used) = imported.map_err(|error| errors::named(py, argument, &error))?;
    // SAFETY: the capsule is alive, and the name is for ever.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    Ok(tensor)
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

/// A producer's structure, which is given back by the thread that may take the interpreter's lock: the library may drop the
/// last view of its bytes on a thread of the engine.
trait Given: Sized {
    /// A copy of the structure, with another deleter and the original as its context.
    ///
    /// # Safety
    /// The structure is whole.
    unsafe fn lent(producer: NonNull<Self>) -> Self;

    /// The original.
    fn producer(&self) -> *mut Self;

    /// Calls the producer's deleter.
    ///
    /// # Safety
    /// This is the only call for the structure, which is whole.
    unsafe fn give_back(producer: NonNull<Self>);
}

fn shim<M: Given>(producer: NonNull<M>) -> NonNull<M> {
    // SAFETY: a capsule of that name holds such a structure.
    let lent = unsafe { M::lent(producer) };
    NonNull::from(Box::leak(Box::new(lent)))
}

/// Frees the copy alone: the producer's structure stays the capsule's.
fn forget<M: Given>(shim: NonNull<M>) {
    // SAFETY: `shim` leaked it, and the library did not take it over.
    drop(unsafe { Box::from_raw(shim.as_ptr()) });
}

/// The copy's deleter.
///
/// # Safety
/// `shim` was made by [`shim`], and this is the only call with it.
unsafe extern "C" fn delete<M: Given + 'static>(shim: *mut M) {
    // SAFETY: the caller's promise.
    let shim = unsafe { Box::from_raw(shim) };
    if let Some(producer) = NonNull::new(shim.producer()) {
        let producer = Producer(producer);
        service::later(move |_| producer.give_back());
    }
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
            unsafe fn lent(producer: NonNull<Self>) -> Self {
                let of = producer.as_ptr();
                $structure {
                    $(
                        // SAFETY: the caller's promise.
                        $field: unsafe { (&raw const (*of).$field).read() },
                    )*
                    manager_ctx: of.cast(),
                    deleter: Some(delete::<$structure>),
                }
            }

            fn producer(&self) -> *mut Self {
                self.manager_ctx.cast()
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
    flags: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let capsule = match is_versioned {
        true => {
            let managed = py.detach(|| tensor.to_dlpack().map(Exported));
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
