//! The buffer protocol: memory of NumPy, `bytes`, `memoryview`, pyarrow and others as tensors.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use transload_tensors::transload::hal::{External, HostSpan};
use transload_tensors::transload::{AllocSpec, DeviceId, MemoryKind, TransferManager};
use transload_tensors::{DType, Tensor};

use crate::tensor::PyTensor;
use crate::{dtype, errors, service};

/// A view of another object's memory, which keeps the object from moving it.
#[derive(Clone)]
pub(crate) struct Lease(Arc<Mutex<Option<View>>>);

struct View(Box<ffi::Py_buffer>);

// SAFETY: what the view points to stays in place until it is released, which takes the interpreter's lock.
unsafe impl Send for View {}

impl Lease {
    /// Gives the view back. Nothing of the library uses the memory any more.
    pub(crate) fn release(&self, _: Python<'_>) {
        if let Some(mut view) = self.take() {
            // SAFETY: the interpreter's lock is held, and the view was not released before.
            unsafe { ffi::PyBuffer_Release(&raw mut *view.0) };
        }
    }

    fn take(&self) -> Option<View> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn is_held(&self) -> bool {
        let view = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        view.is_some()
    }
}

/// The owner of the memory on the library's side. It may be dropped by any thread.
struct Owner(Lease);

impl Drop for Owner {
    fn drop(&mut self) {
        // The view stays in the lease until then: a call that is over gives it back itself, if it comes first.
        if self.0.is_held() {
            let lease = self.0.clone();
            service::later(move |py| lease.release(py));
        }
    }
}

/// Copies from one object to another where that is the least work: elements of one type and shape that lie next to each other,
/// few enough that signals can wait for the end. Returns whether it did.
pub(crate) fn copy(
    manager: &TransferManager,
    src: &Bound<'_, PyAny>,
    dst: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let is_ours = |object: &Bound<'_, PyAny>| object.is_exact_instance_of::<PyTensor>();
    let is_plain = |object| is_buffer(object) && !may_be_masked(object);
    if is_ours(src) || is_ours(dst) || !is_plain(src) || !is_plain(dst) {
        return Ok(false);
    }
    let py = src.py();
    let (Some(src), Some(dst)) = (Rows::of(src, false), Rows::of(dst, true)) else {
        return Ok(false);
    };
    let (from, to) = (&*src.0, &*dst.0);
    let is_like = from.len == to.len
        && from.len <= MOST_AT_ONCE
        && format(from) == format(to)
        && src.shape() == dst.shape();
    let item = usize::try_from(from.itemsize).unwrap_or(0);
    if !is_like || dtype::of_format(format(from), item).is_none() {
        return Ok(false);
    }
    let span = |view: &ffi::Py_buffer| {
        Some(HostSpan::new(
            NonNull::new(view.buf.cast())?,
            view.len as usize,
        ))
    };
    let (Some(from), Some(to)) = (span(from), span(to)) else {
        return Ok(false);
    };
    // SAFETY: both views keep their memory in place. That other threads of the program leave it alone is asked of callers, as
    // of those of NumPy.
    let copied = py.detach(|| unsafe { manager.copy_host(from, to) });
    copied
        .map(|_| true)
        .map_err(|error| errors::raise(py, &error))
}

/// Some 10 ms.
const MOST_AT_ONCE: isize = 64 << 20;

/// A view of elements that lie next to each other, held for a call with the interpreter's lock at its end.
struct Rows(Box<ffi::Py_buffer>);

impl Rows {
    /// `None` where the object gives no such view.
    fn of(object: &Bound<'_, PyAny>, writes: bool) -> Option<Rows> {
        let flags = ffi::PyBUF_C_CONTIGUOUS
            | ffi::PyBUF_FORMAT
            | if writes { ffi::PyBUF_WRITABLE } else { 0 };
        // In a box, because it may not move: the shape of `bytes` points to the view's length (`PyBuffer_FillInfo`).
        // SAFETY: zeroed is what the protocol wants.
        let mut view: Box<ffi::Py_buffer> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: the object is alive, and the view is written.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } == -1 {
            drop(PyErr::take(object.py()));
            return None;
        }
        Some(Rows(view))
    }

    fn shape(&self) -> &[isize] {
        match (NonNull::new(self.0.shape), usize::try_from(self.0.ndim)) {
            // SAFETY: the view has a size for each dimension.
            (Some(shape), Ok(count)) => unsafe {
                std::slice::from_raw_parts(shape.as_ptr(), count)
            },
            _ => &[],
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        // SAFETY: the call that made it has the interpreter's lock again.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// Returns the code of a view's elements.
fn format(view: &ffi::Py_buffer) -> &str {
    match NonNull::new(view.format) {
        // SAFETY: the text is the view's, and ends with a zero.
        Some(format) => unsafe { CStr::from_ptr(format.as_ptr()) }
            .to_str()
            .unwrap_or("not UTF-8"),
        // The protocol's word for bytes.
        None => "B",
    }
}

/// Returns whether the object has the buffer protocol.
pub(crate) fn is_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) == 1 }
}

/// Returns whether the object has a mask beside its memory. Those are subclasses of NumPy's array; the class itself is none that a
/// program makes, and is not asked.
pub(crate) fn may_be_masked(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive.
    let class = unsafe { ffi::Py_TYPE(object.as_ptr()) };
    // SAFETY: the class lives as long as the object.
    let flags = unsafe { ffi::PyType_GetFlags(class) };
    flags & ffi::Py_TPFLAGS_HEAPTYPE != 0 && object.hasattr("mask").unwrap_or(true)
}

/// Makes a tensor of an object's memory. The lease gives it back early, when a copy is over.
pub(crate) fn import(
    manager: &TransferManager,
    object: &Bound<'_, PyAny>,
    argument: &str,
) -> PyResult<(Tensor, Lease)> {
    let py = object.py();
    // SAFETY: zeroed is what the protocol wants.
    let mut view: Box<ffi::Py_buffer> = Box::new(unsafe { std::mem::zeroed() });
    // SAFETY: the object is alive, and the view is written.
    let refused = unsafe {
        ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_FULL_RO) == -1
    };
    if refused {
        return Err(PyErr::fetch(py));
    }
    let described = Described::of(&view, argument);
    let writable = view.readonly == 0;
    let lease = Lease(Arc::new(Mutex::new(Some(View(view)))));
    let owner = Owner(lease.clone());
    match described.and_then(|described| described.tensor(py, manager, writable, owner)) {
        Ok(tensor) => Ok((tensor, lease)),
        Err(refused) => {
            lease.release(py);
            Err(refused)
        }
    }
}

/// What a view says of its elements.
struct Described {
    first: *mut u8,
    dtype: DType,
    shape: Vec<u64>,
    /// In elements. `None`: dense.
    strides: Option<Vec<i64>>,
}

impl Described {
    fn of(view: &ffi::Py_buffer, argument: &str) -> PyResult<Described> {
        let format = format(view);
        let dtype = usize::try_from(view.itemsize)
            .ok()
            .and_then(|bytes| dtype::of_format(format, bytes));
        let dtype = dtype.ok_or_else(|| {
            PyValueError::new_err(format!(
                "{argument}: elements of format {format:?} with {} bytes are not known",
                view.itemsize
            ))
        })?;
        if !view.suboffsets.is_null() {
            return Err(PyBufferError::new_err(format!(
                "{argument}: its memory is reached by pointers (suboffsets), which is not taken; pass a copy"
            )));
        }
        let count = usize::try_from(view.ndim).unwrap_or(0);
        let numbers = |start: *mut isize| {
            // SAFETY: the view has as many numbers as dimensions.
            (0..count).map(move |at| unsafe { start.wrapping_add(at).read() })
        };
        let shape: Vec<u64> = match view.shape.is_null() {
            // Views of one element without dimensions have no shape.
            true if count == 0 => Vec::new(),
            // Without a shape they are plain bytes.
            true => vec![(view.len / view.itemsize.max(1)) as u64],
            false => numbers(view.shape).map(|size| size as u64).collect(),
        };
        let strides = match view.strides.is_null() || view.shape.is_null() {
            true => None,
            false => {
                let strides = numbers(view.strides).zip(&shape).map(|(stride, size)| {
                    // The stride of a single element says nothing.
                    match (stride % view.itemsize, size) {
                        (0, _) => Ok((stride / view.itemsize) as i64),
                        (_, 0 | 1) => Ok(0),
                        _ => Err(PyValueError::new_err(format!(
                            "{argument}: elements of {} bytes lie {stride} bytes apart, which is no multiple; pass a copy",
                            view.itemsize
                        ))),
                    }
                });
                Some(strides.collect::<PyResult<Vec<i64>>>()?)
            }
        };
        Ok(Described {
            first: view.buf.cast(),
            dtype,
            shape,
            strides,
        })
    }

    fn tensor(
        self,
        py: Python<'_>,
        manager: &TransferManager,
        writable: bool,
        owner: Owner,
    ) -> PyResult<Tensor> {
        let Described {
            first,
            dtype,
            shape,
            strides,
        } = self;
        let pageable = DeviceId::CPU0.memory(MemoryKind::Pageable).into();
        let width = dtype.block().1 as i64;
        // From the lowest byte to the highest one; the object's memory holds all elements, so that nothing overflows.
        let (mut before, mut after) = (0i64, width);
        match &strides {
            _ if shape.contains(&0) => after = 0,
            None => after *= shape.iter().product::<u64>() as i64,
            Some(strides) => {
                for (size, stride) in shape.iter().zip(strides) {
                    let reach = (*size as i64 - 1) * stride * width;
                    match reach < 0 {
                        true => before -= reach,
                        false => after += reach,
                    }
                }
            }
        }
        let buffer = match NonNull::new(first.wrapping_sub(before as usize)) {
            Some(lowest) if after > 0 => {
                let external = External::Host {
                    span: HostSpan::new(lowest, (before + after) as usize),
                    writable,
                    owner: Box::new(owner),
                };
                // SAFETY: the view keeps the memory in place until it is released, which the owner does.
                unsafe { manager.import(pageable, external) }
            }
            _ => manager.allocate(pageable, AllocSpec::bytes(0)),
        };
        let buffer = buffer.map_err(|error| errors::raise(py, &error))?;
        let tensor = match strides {
            None => Tensor::new(&buffer, dtype, &shape),
            Some(strides) => Tensor::strided(&buffer, before as u64, dtype, &shape, &strides),
        };
        tensor.map_err(|error| errors::raise(py, &error))
    }
}
