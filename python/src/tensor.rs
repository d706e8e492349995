//! The class `Tensor`.

use std::ffi::c_int;

use pyo3::exceptions::{PyBufferError, PyIndexError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyEllipsis, PySlice, PyTuple};
use transload_tensors::dlpack::{DLDevice, IS_COPIED};
use transload_tensors::transload::hal::ExternalKind;
use transload_tensors::transload::{DeviceId, DeviceKind, MemoryId, MemoryKind};
use transload_tensors::{DType, Tensor, TensorError, transload};

use crate::exchange::{Stream, Use};
use crate::views::{Held, asked_by_torch, is_host};
use crate::{copies, dtype, errors, exchange, manager};

/// Elements of one type in any memory of the machine. `empty`, `copy` and `load` make tensors. NumPy, torch, JAX and others take one
/// of the host's memory without a copy, by `numpy.asarray`, `from_dlpack` or `memoryview`. Slices with integers, slices and `...` are
/// views: they show, and write, the same bytes.
#[pyclass(frozen, weakref, name = "Tensor", module = "transload")]
pub(crate) struct PyTensor {
    pub(crate) tensor: Tensor,
}

/// DLPack's number of WebGPU devices, whose memory is not exchanged.
const WEB_GPU: u32 = 15;

#[pymethods]
impl PyTensor {
    /// The sizes of its dimensions, the outermost first.
    #[getter]
    pub(crate) fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape())
    }

    /// For each dimension, how many bytes lie from one element to the next.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.byte_strides()?)
    }

    /// The number of dimensions.
    #[getter]
    pub(crate) fn ndim(&self) -> usize {
        self.tensor.shape().len()
    }

    /// The number of elements.
    #[getter]
    pub(crate) fn size(&self) -> u64 {
        self.tensor.shape().iter().product()
    }

    /// The name of its element type.
    #[getter]
    pub(crate) fn dtype(&self) -> &'static str {
        dtype::name(self.tensor.dtype())
    }

    /// How many bytes its elements have.
    #[getter]
    pub(crate) fn nbytes(&self) -> u64 {
        self.tensor.len_bytes()
    }

    /// The name of the device of its memory, such as `"cuda:0"`.
    #[getter]
    fn device(&self) -> String {
        self.memory().device.to_string()
    }

    /// The name of its memory, such as `"cuda:0/device"`.
    #[getter]
    #[pyo3(name = "memory")]
    fn memory_name(&self) -> String {
        self.memory().to_string()
    }

    /// Whether its elements may not be written.
    #[getter]
    pub(crate) fn readonly(&self) -> bool {
        !self.tensor.buffer().is_writable()
    }

    /// Whether the elements lie next to each other, those of the last dimension first.
    #[getter]
    fn contiguous(&self) -> bool {
        self.tensor.is_dense()
    }

    fn __len__(&self) -> PyResult<usize> {
        match self.tensor.shape().first() {
            Some(size) => Ok(usize::try_from(*size)?),
            None => Err(PyTypeError::new_err(
                "a tensor without dimensions has no length",
            )),
        }
    }

    fn __repr__(&self) -> String {
        let shape: Vec<String> = self.tensor.shape().iter().map(u64::to_string).collect();
        let (shape, dtype) = (shape.join(", "), dtype::name(self.tensor.dtype()));
        format!(
            "Tensor(shape=[{shape}], dtype={dtype}, memory={})",
            self.memory()
        )
    }

    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let keys: Vec<Bound<'_, PyAny>> = match key.cast::<PyTuple>() {
            Ok(keys) => keys.iter().collect(),
            Err(_) => vec![key.clone()],
        };
        let is_rest = |key: &&Bound<'_, PyAny>| key.is_instance_of::<PyEllipsis>();
        let (count, rests) = (keys.len(), keys.iter().filter(is_rest).count());
        let dimensions = self.tensor.shape().len();
        if rests > 1 || count - rests > dimensions {
            return Err(PyIndexError::new_err(format!(
                "key: {count} indices for a tensor of {dimensions} dimensions"
            )));
        }
        let all = self
            .tensor
            .shape()
            .iter()
            .copied()
            .zip(self.tensor.strides());
        let all: Vec<(u64, i64)> = all.collect();
        let mut left = all.into_iter();
        let mut first = 0i64;
        let (mut shape, mut strides) = (Vec::new(), Vec::new());
        let mut keep = |size: u64, stride: i64| {
            shape.push(size);
            strides.push(stride);
        };
        for key in &keys {
            if is_rest(&key) {
                let rest = dimensions - (count - 1);
                left.by_ref()
                    .take(rest)
                    .for_each(|(size, stride)| keep(size, stride));
                continue;
            }
            let Some((size, stride)) = left.next() else {
                return Err(PyIndexError::new_err("key: more indices than dimensions"));
            };
            if let Ok(slice) = key.cast::<PySlice>() {
                let part = slice.indices(isize::try_from(size)?)?;
                if part.slicelength > 0 {
                    first += part.start as i64 * stride;
                }
                // The stride of a single element says nothing, and may be larger than numbers are.
                keep(
                    part.slicelength as u64,
                    match part.slicelength > 1 {
                        true => stride * part.step as i64,
                        false => stride,
                    },
                );
            } else {
                // To NumPy, a truth value is a mask.
                let number = match key.is_instance_of::<PyBool>() {
                    true => None,
                    false => key.call_method0("__index__").ok(),
                };
                let Some(number) = number else {
                    return Err(PyTypeError::new_err(format!(
                        "key: {} is no index; pass integers, slices and ...",
                        errors::shown(key)
                    )));
                };
                let size = size as i64;
                let index = number.extract::<i64>().ok();
                let at = index.map(|index| if index < 0 { index + size } else { index });
                let Some(at) = at.filter(|at| (0..size).contains(at)) else {
                    return Err(PyIndexError::new_err(format!(
                        "key: index {} is out of a dimension of {size} elements",
                        errors::shown(key)
                    )));
                };
                first += at * stride;
            }
        }
        left.for_each(|(size, stride)| keep(size, stride));
        // Without elements there is no first one, wherever the indices point.
        let first = if shape.contains(&0) { 0 } else { first };
        let (buffer, of) = (self.tensor.buffer(), self.tensor.dtype());
        let (of_block, width) = of.block();
        if first % of_block as i64 != 0 {
            return Err(errors::raise(key.py(), &TensorError::Blocks { dtype: of }));
        }
        let first = self.tensor.offset_bytes() as i64 + first / of_block as i64 * width as i64;
        let part = Tensor::strided(buffer, first as u64, of, &shape, &strides);
        let tensor = part.map_err(|error| errors::raise(key.py(), &error))?;
        Ok(PyTensor { tensor })
    }

    /// Returns the same elements with other sizes of the dimensions, as a view. Copies nothing.
    ///
    /// Parameters
    /// ----------
    /// *shape : int, or one sequence of int
    ///     The sizes. One may be -1: it is what the others leave.
    ///
    /// Raises
    /// ------
    /// TypeError
    ///     When these are no sizes.
    /// ValueError
    ///     When there are more or fewer elements, or they do not lie next to each other.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, py: Python<'_>, shape: &Bound<'_, PyTuple>) -> PyResult<PyTensor> {
        let sizes: PyResult<Vec<i64>> = match shape.len() {
            1 => shape
                .get_item(0)?
                .extract()
                .or_else(|_| shape.extract::<Vec<i64>>()),
            _ => shape.extract(),
        };
        let sizes = sizes.map_err(|_| {
            PyTypeError::new_err(format!(
                "shape: {} has other things than sizes",
                errors::shown(shape)
            ))
        })?;
        let shape = self.inferred(&sizes)?;
        if !self.tensor.is_dense() {
            return Err(PyValueError::new_err(
                "shape: the elements of this view do not lie next to each other; reshape a copy",
            ));
        }
        let tensor = Tensor::new(self.tensor.buffer(), self.tensor.dtype(), &shape);
        let tensor = tensor.map_err(|error| errors::named(py, "shape", &error))?;
        Ok(PyTensor { tensor })
    }

    /// Returns the same bytes as elements of another type, as a view. Copies nothing. The last dimension has as many elements as
    /// fill its bytes: `view("uint8")` gives the bytes of a type that other libraries lack, and `view("float4_e2m1fn")` of bytes
    /// two elements in each.
    ///
    /// Parameters
    /// ----------
    /// dtype : str or dtype
    ///     The element type.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     When the type is not known, elements do not lie next to each other, or the last dimension has no whole number of them.
    fn view(&self, py: Python<'_>, dtype: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let (own, to) = (&self.tensor, crate::dtype::of(dtype)?);
        if !own.is_dense() {
            return Err(PyValueError::new_err(
                "dtype: the elements of this view do not lie next to each other; view a copy",
            ));
        }
        let mut shape = own.shape().to_vec();
        let (of_block, width) = to.block();
        if own.dtype().block() != (of_block, width) {
            let bytes = shape
                .last()
                .and_then(|last| own.dtype().len_bytes(&[*last]));
            let bytes = bytes.filter(|bytes| bytes.is_multiple_of(width));
            let (Some(bytes), Some(last)) = (bytes, shape.last_mut()) else {
                let (from, to) = (self.dtype(), crate::dtype::name(to));
                return Err(PyValueError::new_err(format!(
                    "dtype: the last dimension of {from} {shape:?} has no whole number of elements of {to}"
                )));
            };
            *last = bytes / width * of_block;
        }
        let tensor = Tensor::new(own.buffer(), to, &shape);
        let tensor = tensor.map_err(|error| errors::named(py, "dtype", &error))?;
        Ok(PyTensor { tensor })
    }

    /// Copies the tensor to a device. Returns the tensor itself where it is there in that type. Waits as `copy` does.
    ///
    /// Parameters
    /// ----------
    /// device : str or Device
    ///     The place.
    /// dtype : str or dtype, optional
    ///     The element type to convert to, as in `copy`.
    ///
    /// Raises
    /// ------
    /// As `copy`.
    #[pyo3(signature = (device, *, dtype = None))]
    fn to(
        slf: &Bound<'_, Self>,
        device: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let own = &slf.get().tensor;
        let wanted = dtype.map(crate::dtype::of).transpose()?;
        let place = copies::place(device, "device")?;
        let memory = manager(py)?.resolve(place);
        let memory = memory.map_err(|error| errors::raise(py, &transload::Error::from(error)))?;
        if memory == own.buffer().memory() && wanted.is_none_or(|of| of == own.dtype()) {
            return Ok(slf.clone().into_any().unbind());
        }
        let tensor = copies::to_place(py, own, place, wanted, &copies::Terms::default())?;
        Ok(Py::new(py, PyTensor { tensor })?.into_any())
    }

    /// Returns a NumPy array: a view of the same memory if it is the host's, else a copy, for which it waits. Types that NumPy lacks are
    /// those of ml_dtypes; of fewer than 8 bits these have a byte for each element, so that the array is a copy. An array of a read-only
    /// tensor is read-only.
    ///
    /// Raises
    /// ------
    /// TypeError
    ///     When neither NumPy nor ml_dtypes has the type.
    /// ImportError
    ///     When NumPy is not installed.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let own = &slf.get().tensor;
        let numpy = py.import("numpy")?;
        let of_block = own.dtype().block().0;
        let host = match is_host(own.buffer().memory()) && (of_block == 1 || own.is_dense()) {
            true => slf.clone(),
            false => {
                let place = DeviceId::CPU0.into();
                let terms = copies::Terms::default();
                let tensor = copies::to_place(py, own, place, None, &terms)?;
                Bound::new(py, PyTensor { tensor })?
            }
        };
        if dtype::code(own.dtype()).is_some() {
            return numpy.call_method1("asarray", (host,));
        }
        let name = dtype::name(own.dtype());
        let foreign = py
            .import("ml_dtypes")
            .and_then(|module| module.getattr(name));
        let foreign = match foreign {
            Ok(foreign) => foreign,
            Err(_) => {
                return Err(PyTypeError::new_err(format!(
                    "NumPy has no elements of {name}; the package ml_dtypes brings bfloat16 and the float8, float6 and float4 types, and view(\"uint8\") \
                     gives the bytes"
                )));
            }
        };
        if of_block > 1 {
            let buffer = host.get().tensor.buffer();
            let bytes = Tensor::new(buffer, DType::U8, &[buffer.len()]);
            let bytes = bytes.map_err(|error| errors::raise(py, &error))?;
            let packed = py.import("transload._packed")?;
            let shape = slf.get().shape(py)?;
            let bytes = PyTensor { tensor: bytes };
            return packed.call_method1("unpack", (bytes, own.dtype().block(), foreign, shape));
        }
        let plain = match own.dtype().block().1 {
            1 => DType::U8,
            _ => DType::U16,
        };
        let plain = exchange::relabelled(&host.get().tensor, plain);
        let tensor = plain.map_err(|error| errors::raise(py, &error))?;
        let array = numpy.call_method1("asarray", (PyTensor { tensor },))?;
        array.call_method1("view", (foreign,))
    }

    /// Returns a NumPy array for `numpy.asarray`, which takes the host's memory as it is and never copies from a device unasked.
    ///
    /// Parameters
    /// ----------
    /// dtype : numpy.dtype, optional
    ///     The type of the array's elements.
    /// copy : bool, optional
    ///     True: the array has memory of its own. False: it must not.
    ///
    /// Raises
    /// ------
    /// TypeError
    ///     When the memory is not the host's: `transload.copy(tensor, "cpu:0")` and `numpy()` copy it.
    #[pyo3(signature = (dtype = None, *, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory = slf.get().memory();
        if !is_host(memory) {
            return Err(PyTypeError::new_err(format!(
                "a tensor in {memory} is no array of the host; transload.copy(tensor, \"cpu:0\") copies it"
            )));
        }
        if copy == Some(false) && slf.get().tensor.dtype().block().0 > 1 {
            return Err(PyValueError::new_err(format!(
                "copy: False, and NumPy has a byte for each element of {}",
                slf.get().dtype()
            )));
        }
        let array = PyTensor::numpy(slf)?;
        if copy.is_none() && dtype.is_none() {
            return Ok(array);
        }
        let keywords = PyDict::new(slf.py());
        keywords.set_item("dtype", dtype)?;
        keywords.set_item("copy", copy)?;
        let make = slf.py().import("numpy")?.getattr("array")?;
        make.call((array,), Some(&keywords))
    }

    /// Exports the tensor by DLPack, for `from_dlpack` of other libraries. Waits until copies into it that were started before have
    /// ended. The capsule keeps the memory. Consumers see what later copies write.
    ///
    /// Parameters
    /// ----------
    /// stream : int, optional
    ///     The consumer's stream of CUDA: 1 or None, the legacy default stream; 2, that of the thread; -1, no order; else a handle. Other
    ///     devices have none. No stream has to wait, since the bytes are there.
    /// max_version : tuple of int, optional
    ///     The newest version that the consumer knows. Without it, or before (1, 0), the capsule is a legacy one.
    /// dl_device : tuple of int, optional
    ///     Where the consumer wants the bytes: the tensor's device, or (1, 0) for a copy on the host.
    /// copy : bool, optional
    ///     True: a copy. False: never one.
    ///
    /// Raises
    /// ------
    /// BufferError
    ///     When the memory or the type is not exchanged, or a keyword asks for what is not there.
    /// TypeError
    ///     When a keyword has another type.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory = self.memory();
        let is_cuda = memory.device.kind == DeviceKind::CUDA;
        if let Some(stream) = stream {
            let number: i64 = stream.extract().map_err(|_| {
                PyTypeError::new_err(format!(
                    "stream: {} is no number of a stream",
                    errors::shown(stream)
                ))
            })?;
            // 0 could be either of CUDA's two default streams; -1 asks for no order.
            if !is_cuda || number == 0 || number < -1 {
                return Err(PyBufferError::new_err(format!(
                    "stream: {number} is no stream of {memory}"
                )));
            }
        }
        let is_versioned = max_version.is_some_and(|(major, _)| major > 0);
        let to_host = match dl_device {
            Some(wanted) if wanted == self.__dlpack_device__() => false,
            Some((DLDevice::CPU, 0)) => true,
            None => false,
            Some(wanted) => {
                return Err(PyBufferError::new_err(format!(
                    "dl_device: {memory} is not DLPack's device {wanted:?}; copy the tensor with transload.copy"
                )));
            }
        };
        // PyTorch takes read-only memory and writes it all the same.
        let is_asked = self.readonly() || self.tensor.dtype().block().0 > 1;
        let is_torch = is_versioned && is_asked && asked_by_torch(py)?;
        let is_unsafe = self.readonly() && copy.is_none() && is_torch;
        let must_copy = to_host || is_unsafe || copy == Some(true);
        if must_copy && copy == Some(false) {
            return Err(PyBufferError::new_err(format!(
                "copy: False, and only a copy of a tensor in {memory} is what was asked for"
            )));
        }
        if !must_copy {
            return exchange::to_capsule(py, &self.tensor, is_versioned, is_torch, 0);
        }
        let place = match to_host {
            true => DeviceId::CPU0.into(),
            false => memory.into(),
        };
        let terms = copies::Terms::default();
        let copied = copies::to_place(py, &self.tensor, place, None, &terms)?;
        exchange::to_capsule(py, &copied, is_versioned, is_torch, IS_COPIED)
    }

    /// Returns the type and number of the device, as DLPack counts: 1 for the host, 2 CUDA, 13 CUDA's managed memory, 15 wgpu.
    fn __dlpack_device__(&self) -> (u32, i32) {
        let memory = self.memory();
        let index = memory.device.index as i32;
        match (memory.device.kind, memory.kind) {
            (DeviceKind::CUDA, MemoryKind::Managed) => (DLDevice::CUDA_MANAGED, index),
            (DeviceKind::CUDA, _) => (DLDevice::CUDA, index),
            (DeviceKind::WGPU, _) => (WEB_GPU, index),
            _ => (DLDevice::CPU, 0),
        }
    }

    /// NumPy's description of the memory, if it is the host's.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.interface(py, is_host(self.memory()), ExternalKind::Host)
    }

    /// CUDA's description of the memory, if it is a CUDA device's.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let is_cuda = self.memory().device.kind == DeviceKind::CUDA;
        let interface = self.interface(py, is_cuda, ExternalKind::DevicePointer)?;
        interface.set_item("stream", py.None())?;
        Ok(interface)
    }

    /// # Safety
    /// The interpreter calls this, with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the interpreter's view; null marks a refusal.
        unsafe { (*view).obj = std::ptr::null_mut() };
        let own = slf.get();
        let told = own.described(slf.py(), flags)?;
        let (sizes, strides) = (own.tensor.shape(), own.byte_strides()?);
        let is_wanted = |flag: c_int| flags & flag == flag;
        let filled = ffi::Py_buffer {
            buf: told.first.cast(),
            obj: slf.clone().into_any().into_ptr(),
            len: told.len as isize,
            itemsize: told.item as isize,
            readonly: c_int::from(told.readonly),
            // Without their sizes, dimensions mean nothing: consumers count bytes.
            ndim: match is_wanted(ffi::PyBUF_ND) {
                true => sizes.len() as c_int,
                false => 1,
            },
            format: match is_wanted(ffi::PyBUF_FORMAT) {
                true => told.format.as_ptr().cast_mut(),
                false => std::ptr::null_mut(),
            },
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        };
        let shape = sizes.iter().map(|size| *size as isize).collect();
        let mut held = Box::new(Held {
            shape,
            strides: strides.iter().map(|stride| *stride as isize).collect(),
            _format: told.format,
            _memory: told.memory,
        });
        let filled = ffi::Py_buffer {
            shape: match is_wanted(ffi::PyBUF_ND) {
                true => held.shape.as_mut_ptr(),
                false => std::ptr::null_mut(),
            },
            strides: match is_wanted(ffi::PyBUF_STRIDES) {
                true => held.strides.as_mut_ptr(),
                false => std::ptr::null_mut(),
            },
            internal: Box::into_raw(held).cast(),
            ..filled
        };
        // SAFETY: as above.
        unsafe { view.write(filled) };
        Ok(())
    }

    /// # Safety
    /// The interpreter calls this, with a view that was filled in.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the interpreter's view.
        let held = unsafe { (*view).internal }.cast::<Held>();
        // SAFETY: `__getbuffer__` made it, and a view is released once.
        drop(unsafe { Box::from_raw(held) });
    }

    /// Returns the number of a tensor with one element.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     When there are more, or none.
    fn item<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::numpy(slf)?.call_method0("item")
    }

    /// Returns the elements as nested lists of Python's numbers. Those of another device are copied to the host first.
    fn tolist<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        PyTensor::numpy(slf)?.call_method0("tolist")
    }

    /// Pickles the tensor through the host. From protocol 5 on its bytes are a buffer, which `buffer_callback` takes without a copy.
    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, protocol: u8) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let own = slf.get();
        let raised = |error: TensorError| errors::raise(py, &error);
        let bytes = if protocol < 5 {
            let (manager, region) = (manager(py)?, own.tensor.region().map_err(raised)?);
            let bytes = py.detach(|| manager.read_to_vec(region));
            let bytes = bytes.map_err(|error| errors::raise(py, &error))?;
            PyBytes::new(py, &bytes).into_any()
        } else {
            let host = match is_host(own.memory()) && own.tensor.is_dense() {
                true => own.tensor.clone(),
                false => {
                    let terms = copies::Terms::default();
                    copies::to_place(py, &own.tensor, DeviceId::CPU0.into(), None, &terms)?
                }
            };
            let (at, len) = (host.offset_bytes(), host.len_bytes());
            let part = host.buffer().slice(at..at + len);
            let part = part.map_err(|error| PyValueError::new_err(error.to_string()))?;
            let tensor = Tensor::new(&part, DType::U8, &[len]).map_err(raised)?;
            let buffer = py.import("pickle")?.getattr("PickleBuffer")?;
            buffer.call1((PyTensor { tensor },))?
        };
        let made = (
            bytes,
            own.dtype(),
            own.tensor.shape().to_vec(),
            own.memory().to_string(),
        );
        let restore = py.import("transload._transload")?.getattr("_restore")?;
        Ok((restore, made).into_pyobject(py)?.into_any())
    }
}

/// Makes a tensor again that was pickled: in its memory, or on the host where that is not here. A buffer that was passed out of band
/// becomes the tensor's memory.
#[pyfunction]
#[pyo3(name = "_restore")]
pub(crate) fn restore(
    py: Python<'_>,
    bytes: &Bound<'_, PyAny>,
    dtype: &str,
    shape: Vec<u64>,
    memory: &str,
) -> PyResult<PyTensor> {
    let manager = manager(py)?;
    let of = dtype::named(dtype).ok_or_else(|| PyValueError::new_err(format!("dtype: {dtype}")))?;
    let taken = exchange::take(manager, bytes, "bytes", Use::Read, Stream::default())?;
    let given = taken.tensor.buffer();
    let is_fresh = !bytes.is_instance_of::<PyBytes>() && taken.tensor.is_dense();
    let is_fresh = is_fresh && memory == "cpu:0/pageable";
    if is_fresh && of.len_bytes(&shape) == Some(given.len()) {
        let tensor = Tensor::new(given, of, &shape).map_err(|error| errors::raise(py, &error))?;
        return Ok(PyTensor { tensor });
    }
    let known = memory.parse().ok().map(|memory: MemoryId| memory.into());
    let known = known.filter(|place| py.detach(|| manager.resolve(*place)).is_ok());
    let place = known.unwrap_or(DeviceId::CPU0.into());
    let tensor = copies::allocate(py, of, &shape, place, "shape")?;
    let region = taken.tensor.region();
    let region = region.map_err(|error| errors::raise(py, &error))?;
    let copied = py.detach(|| manager.copy(region, tensor.buffer()).wait());
    taken.release(py);
    copied.map_err(|error| errors::raise(py, &error))?;
    Ok(PyTensor { tensor })
}
