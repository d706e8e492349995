//! The buffer protocol: memory of NumPy, `bytes`, `memoryview`, pyarrow and others as tensors.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use transload_tensors::transload::hal::{External, HostSpan};
use transload_tensors::transload::{
    AllocSpec, Axis, Conversion, DeviceId, HostEnd, MemoryKind, Strided, TransferError,
    TransferManager,
};
use transload_tensors::{DType, Tensor};

use crate::tensor::PyTensor;
use crate::{dtype, errors, exchange, service};

/// Memory of another library, until it is given back: by a call that is over, or when the last that holds it is gone, which may be
/// on any thread.
#[derive(Clone)]
pub(crate) struct Lease(Arc<Held>);

struct Held(Mutex<Option<GiveBack>>);

type GiveBack = Box<dyn FnOnce(Python<'_>) + Send>;

impl Lease {
    /// `give_back` is called at most once.
    pub(crate) fn new(give_back: impl FnOnce(Python<'_>) + Send + 'static) -> Lease {
        Lease(Arc::new(Held(Mutex::new(Some(Box::new(give_back))))))
    }

    /// Gives the memory back. Nothing of the library uses it any more.
    pub(crate) fn release(&self, py: Python<'_>) {
        if let Some(give_back) = self.take() {
            give_back(py);
        }
    }

    /// Has the memory not given back: it was not taken.
    pub(crate) fn forget(&self) {
        drop(self.take());
    }

    fn take(&self) -> Option<GiveBack> {
        self.0
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let held = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(give_back) = held.take() {
            service::later(give_back);
        }
    }
}

struct View(Box<ffi::Py_buffer>);

// SAFETY: what the view points to stays in place until it is released, which takes the interpreter's lock.
unsafe impl Send for View {}

impl View {
    fn release(mut self, _: Python<'_>) {
        // SAFETY: the interpreter's lock is held, and the view is released once.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// Copies where the engine can take the memory as it is, which is the least work: host memory at both ends, of which one at least is
/// another library's, and few enough elements that signals can wait for the end. `dst`: an array, or where a new tensor is made; it
/// is asked once the elements are known. Returns `None` where it did nothing; what is wrong with the arguments is told by those who
/// take all.
pub(crate) fn copy(
    manager: &TransferManager,
    src: &Bound<'_, PyAny>,
    dst: Destination<'_, '_>,
    wanted: Option<DType>,
) -> PyResult<Option<Option<Tensor>>> {
    let py = src.py();
    let Some(from) = Ready::of(src, false) else {
        return Ok(None);
    };
    let mut made = None;
    let to = match dst {
        Destination::Array(dst) => {
            let is_ours = |object: &Bound<'_, PyAny>| object.is_exact_instance_of::<PyTensor>();
            if is_ours(src) && is_ours(dst) {
                return Ok(None);
            }
            Ready::of(dst, true)
        }
        Destination::New(make) => {
            let shape: Vec<u64> = from.shape().collect();
            let Some(dtype) = wanted.or(from.dtype) else {
                return Ok(None);
            };
            if dtype.len_bytes(&shape).is_none_or(|len| len > MOST_AT_ONCE) {
                return Ok(None);
            }
            let tensor = made.insert(make(dtype, &shape)?);
            Ready::of_tensor(tensor, true)
        }
    };
    let Some(to) = to else {
        return Ok(None);
    };
    let conversion = match from.dtype.zip(to.dtype) {
        None if wanted.is_none() && from.is_alike(&to) => None,
        Some((from, to)) if from == to => None,
        Some((from, to)) if wanted == Some(to) => {
            let elements = from.element().zip(to.element());
            match elements.and_then(|(from, to)| Conversion::new(from, to).ok()) {
                None => return Ok(None),
                conversion => conversion,
            }
        }
        _ => return Ok(None),
    };
    let is_shaped = from.shape().eq(to.shape());
    let is_known = from.dtype.is_some();
    if !is_shaped && !is_known {
        let [from, to] = [from, to].map(|of| of.shape().collect::<Vec<u64>>());
        return Err(PyValueError::new_err(format!(
            "dst: its shape is {to:?}, and the shape of src {from:?}"
        )));
    }
    if is_shaped && !is_known && from.shape().any(|size| size == 0) {
        return Ok(Some(None));
    }
    let is_like = is_shaped && (wanted.is_none() || wanted == to.dtype);
    let lens = from.len_bytes().max(to.len_bytes());
    let is_empty = from.shape().any(|size| size == 0);
    // Elements that no tensor has go no other way.
    if is_empty || !is_like || is_known && lens > MOST_AT_ONCE {
        return Ok(None);
    }
    let (Some(src), Some(dst)) = (from.end(), to.end()) else {
        return Ok(None);
    };
    // SAFETY: both views keep their memory in place. That other threads of the program leave it alone is asked of callers, as
    // of those of NumPy.
    let copied = py.detach(|| unsafe { manager.copy_host(src, dst, conversion) });
    drop(to);
    match copied {
        Ok(_) => Ok(Some(made)),
        // Signals may come while it waits for its turn.
        Err(TransferError::WouldBlock) => Ok(None),
        Err(error) => Err(errors::raise(py, &error)),
    }
}

/// Where a copy goes.
pub(crate) enum Destination<'a, 'py> {
    Array(&'a Bound<'py, PyAny>),
    /// A new tensor in memory that the host reaches.
    New(&'a dyn Fn(DType, &[u64]) -> PyResult<Tensor>),
}

/// Some 10 ms.
const MOST_AT_ONCE: u64 = 64 << 20;

/// Host memory that is ready for a copy: a view of another library's, or a tensor.
struct Ready<'a> {
    memory: Memory<'a>,
    /// `None`: elements that no tensor has, such as `complex128` or those of another order of bytes.
    dtype: Option<DType>,
}

enum Memory<'a> {
    View(Rows),
    Tensor(&'a Tensor),
}

impl<'a> Ready<'a> {
    fn of(object: &'a Bound<'_, PyAny>, writes: bool) -> Option<Ready<'a>> {
        if let Ok(tensor) = object.cast_exact::<PyTensor>() {
            return Ready::of_tensor(&tensor.get().tensor, writes);
        }
        if !is_buffer(object) || may_be_masked(object) {
            return None;
        }
        // Arrays of a device may have the protocol, and other bytes behind it.
        if !exchange::is_numpy(object).ok()? && exchange::is_on_cuda(object) {
            return None;
        }
        let rows = Rows::of(object, ffi::PyBUF_STRIDES, writes)?;
        let item = usize::try_from(rows.0.itemsize).ok()?;
        let dtype = dtype::of_format(format(&rows.0), item);
        Some(Ready {
            memory: Memory::View(rows),
            dtype,
        })
    }

    fn of_tensor(tensor: &'a Tensor, writes: bool) -> Option<Ready<'a>> {
        let (buffer, memory) = (tensor.buffer(), tensor.buffer().memory());
        let is_near = memory.device == DeviceId::CPU0 && !memory.kind.is_file();
        let is_open = is_near && (!writes || buffer.is_writable());
        is_open.then_some(Ready {
            memory: Memory::Tensor(tensor),
            dtype: Some(tensor.dtype()),
        })
    }

    /// Whether both have elements of one kind, whatever that is, which are their bytes: no references to objects.
    fn is_alike(&self, other: &Ready<'_>) -> bool {
        let (Memory::View(own), Memory::View(other)) = (&self.memory, &other.memory) else {
            return false;
        };
        let (own, other) = (&*own.0, &*other.0);
        own.itemsize == other.itemsize && format(own) == format(other) && !refers(format(own))
    }

    fn shape(&self) -> impl Iterator<Item = u64> + '_ {
        let (view, tensor): (&[isize], &[u64]) = match &self.memory {
            Memory::View(rows) => (rows.shape(), &[]),
            Memory::Tensor(tensor) => (&[], tensor.shape()),
        };
        view.iter()
            .map(|size| *size as u64)
            .chain(tensor.iter().copied())
    }

    fn len_bytes(&self) -> u64 {
        match &self.memory {
            Memory::View(rows) => rows.0.len as u64,
            Memory::Tensor(tensor) => tensor.len_bytes(),
        }
    }

    /// `None` where the engine does not take the layout.
    fn end(&self) -> Option<HostEnd> {
        match &self.memory {
            Memory::View(rows) => rows.end(),
            Memory::Tensor(tensor) => tensor.region().ok().map(HostEnd::from),
        }
    }
}

/// Reads whole numbers of one dimension that lie next to each other. `None` where the object has no such memory.
pub(crate) fn integers(object: &Bound<'_, PyAny>) -> Option<Vec<i128>> {
    let rows = { is_buffer(object) && !may_be_masked(object) }
        .then(|| Rows::of(object, ffi::PyBUF_C_CONTIGUOUS, false));
    let rows = rows.flatten()?;
    let ([_], Some(start)) = (rows.shape(), NonNull::new(rows.0.buf.cast::<u8>())) else {
        return None;
    };
    let item = usize::try_from(rows.0.itemsize).ok()?;
    let dtype = dtype::of_format(format(&rows.0), item)?;
    // SAFETY: the view has that many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), rows.0.len as usize) };
    let read = |of: &[u8]| {
        let mut number = [0; 8];
        let first = if cfg!(target_endian = "little") {
            0
        } else {
            8 - item
        };
        number[first..first + item].copy_from_slice(of);
        let (number, spare) = (u64::from_ne_bytes(number), 64 - 8 * item as u32);
        match dtype {
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
                Some(i128::from(((number << spare) as i64) >> spare))
            }
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => Some(i128::from(number)),
            _ => None,
        }
    };
    bytes.chunks_exact(item).map(read).collect()
}

/// A view of an object's elements, held for a call with the interpreter's lock at its end.
struct Rows(Box<ffi::Py_buffer>);

impl Rows {
    /// `None` where the object gives no such view.
    fn of(object: &Bound<'_, PyAny>, layout: i32, writes: bool) -> Option<Rows> {
        let flags = layout | ffi::PyBUF_FORMAT | if writes { ffi::PyBUF_WRITABLE } else { 0 };
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

    fn end(&self) -> Option<HostEnd> {
        let view = &*self.0;
        let first = NonNull::new(view.buf.cast())?;
        let shape = self.shape();
        let strides = match NonNull::new(view.strides) {
            // SAFETY: the view has a stride for each dimension.
            Some(strides) => unsafe { std::slice::from_raw_parts(strides.as_ptr(), shape.len()) },
            None => return Some(HostSpan::new(first, view.len as usize).into()),
        };
        let mut dense = view.itemsize;
        let mut is_dense = true;
        for (size, stride) in shape.iter().zip(strides).rev() {
            is_dense &= *size == 1 || *stride == dense;
            dense *= size;
        }
        if is_dense {
            return Some(HostSpan::new(first, view.len as usize).into());
        }
        let axes = shape.iter().zip(strides);
        let axes = axes.map(|(size, stride)| Axis::new(*size as u64, *stride as i64));
        let array = Strided::new(view.itemsize as u64, &axes.collect::<Vec<_>>());
        Some(HostEnd::strided(first, &array.ok()?))
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

/// Whether elements of a format are or hold references, which no copy of bytes counts: to objects, and to memory or functions as
/// ctypes has them.
fn refers(format: &str) -> bool {
    // Names stand between colons.
    let codes: Vec<char> = format.split(':').step_by(2).flat_map(str::chars).collect();
    codes.iter().enumerate().any(|(at, code)| match code {
        'O' | 'P' | '&' | 'X' | 'z' => true,
        // A complex number, or a text elsewhere.
        'Z' => !matches!(codes.get(at + 1), Some('f' | 'd' | 'g')),
        _ => false,
    })
}

/// Returns the code of a view's elements.
fn format(view: &ffi::Py_buffer) -> &str {
    match NonNull::new(view.format) {
        // SAFETY: the text is the view's, and ends with a zero.
        Some(format) => unsafe { CStr::from_ptr(format.as_ptr()) }
            .to_str()
            .unwrap_or("O"),
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
    let view = View(view);
    let lease = Lease::new(move |py| view.release(py));
    let tensor = |described: Described| described.tensor(py, manager, writable, lease.clone());
    match described.and_then(tensor) {
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
        owner: Lease,
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
