//! Where a tensor's elements lie, as other libraries are told.

use std::ffi::{CString, c_int};

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use transload_tensors::DType;
use transload_tensors::transload::hal::{External, ExternalKind};
use transload_tensors::transload::{DeviceId, MemoryId};

use crate::tensor::PyTensor;
use crate::{dtype, errors};

/// What a view of the buffer protocol points to.
pub(crate) struct Held {
    pub(crate) shape: Vec<isize>,
    pub(crate) strides: Vec<isize>,
    pub(crate) _format: CString,
    pub(crate) _memory: Option<External>,
}

pub(crate) struct Told {
    pub(crate) first: *mut u8,
    pub(crate) len: u64,
    pub(crate) item: u64,
    pub(crate) readonly: bool,
    pub(crate) format: CString,
    pub(crate) memory: Option<External>,
}

impl PyTensor {
    pub(crate) fn memory(&self) -> MemoryId {
        self.tensor.buffer().memory()
    }

    /// Whether the elements lie next to each other, those of the first dimension first.
    pub(crate) fn is_dense_by_columns(&self) -> bool {
        let strides = self.tensor.strides();
        let mut expected = 1i64;
        let mut dimensions = self.tensor.shape().iter().zip(strides);
        self.tensor.shape().contains(&0)
            || dimensions.all(|(size, stride)| {
                let fits = *size == 1 || stride == expected;
                expected = expected.saturating_mul(*size as i64);
                fits
            })
    }

    /// The sizes with the one that is -1 filled in.
    pub(crate) fn inferred(&self, sizes: &[i64]) -> PyResult<Vec<u64>> {
        let refused = |why: &str| PyValueError::new_err(format!("shape: {sizes:?} {why}"));
        let unknown = sizes.iter().filter(|size| **size == -1).count();
        if unknown > 1 || sizes.iter().any(|size| *size < -1) {
            return Err(refused("has a negative size, other than one -1"));
        }
        let mut known = sizes.iter().filter(|size| **size != -1);
        let known = known.try_fold(1u64, |all, size| all.checked_mul(*size as u64));
        let left = match known {
            Some(known) if known > 0 && self.size().is_multiple_of(known) => {
                Some(self.size() / known)
            }
            _ => None,
        };
        let filled = sizes.iter().map(|size| match *size {
            -1 => left.ok_or_else(|| refused("does not divide the elements")),
            size => Ok(size as u64),
        });
        filled.collect()
    }

    pub(crate) fn item_bytes(&self) -> PyResult<u64> {
        match self.tensor.dtype().block() {
            (1, bytes) => Ok(bytes),
            _ => Err(PyTypeError::new_err(format!(
                "elements of {} share bytes, and have no places of their own",
                self.dtype()
            ))),
        }
    }

    pub(crate) fn byte_strides(&self) -> PyResult<Vec<i64>> {
        let bytes = self.item_bytes()? as i64;
        let strides = self.tensor.strides();
        Ok(strides.into_iter().map(|stride| stride * bytes).collect())
    }

    /// Has the bytes stay in place, and returns where they are.
    pub(crate) fn lend(
        &self,
        py: Python<'_>,
        kind: ExternalKind,
    ) -> PyResult<(Option<External>, *mut u8)> {
        let buffer = self.tensor.buffer();
        if buffer.is_empty() {
            return Ok((None, std::ptr::null_mut()));
        }
        let lent = py.detach(|| buffer.lend(kind));
        let lent = lent.map_err(|error| errors::raise(py, &error))?;
        let lowest = match &lent {
            External::Host { span, .. } => span.as_ptr(),
            External::Device { address, .. } => {
                std::ptr::with_exposed_provenance_mut(*address as usize)
            }
            _ => return Err(PyBufferError::new_err("the memory has no address")),
        };
        let first = lowest.wrapping_add(self.tensor.offset_bytes() as usize);
        Ok((Some(lent), first))
    }

    pub(crate) fn described(&self, py: Python<'_>, flags: c_int) -> PyResult<Told> {
        let memory = self.memory();
        let refused = |why: String| Err(PyBufferError::new_err(why));
        if !is_host(memory) {
            return refused(format!(
                "a tensor in {memory} has no host memory; transload.copy(tensor, \"cpu:0\") copies it"
            ));
        }
        let Some(code) = dtype::code(self.tensor.dtype()) else {
            return refused(format!(
                "the buffer protocol has no elements of {}; numpy() gives them with ml_dtypes",
                self.dtype()
            ));
        };
        if flags & ffi::PyBUF_WRITABLE != 0 && self.readonly() {
            return refused("the tensor is read-only".into());
        }
        let takes_strides = flags & ffi::PyBUF_STRIDES == ffi::PyBUF_STRIDES;
        let wants = |flag: c_int| flags & flag == flag;
        let is_dense = self.tensor.is_dense();
        let is_refused = if wants(ffi::PyBUF_ANY_CONTIGUOUS) {
            !is_dense && !self.is_dense_by_columns()
        } else if wants(ffi::PyBUF_F_CONTIGUOUS) {
            !self.is_dense_by_columns()
        } else {
            !is_dense && (!takes_strides || wants(ffi::PyBUF_C_CONTIGUOUS))
        };
        if is_refused {
            return refused(
                "the elements of the view do not lie in the order that was asked for; copy it"
                    .into(),
            );
        }
        let (memory, first) = self.lend(py, ExternalKind::Host)?;
        Ok(Told {
            first,
            len: self.tensor.len_bytes(),
            item: self.item_bytes()?,
            readonly: self.readonly(),
            format: CString::new(code).unwrap_or_default(),
            memory,
        })
    }

    pub(crate) fn interface<'py>(
        &self,
        py: Python<'py>,
        is_here: bool,
        kind: ExternalKind,
    ) -> PyResult<Bound<'py, PyDict>> {
        let memory = self.memory();
        if !is_here {
            return Err(PyAttributeError::new_err(format!(
                "a tensor in {memory} has no such interface; transload.copy(tensor, \"cpu:0\") copies it"
            )));
        }
        let letter = match self.tensor.dtype() {
            DType::BOOL => "b",
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => "u",
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => "i",
            DType::F16 | DType::F32 | DType::F64 => "f",
            DType::C64 => "c",
            other => {
                return Err(PyAttributeError::new_err(format!(
                    "the interface has no elements of {}",
                    dtype::name(other)
                )));
            }
        };
        // The tensor keeps the bytes alive, and the interface the tensor.
        let (_, first) = self.lend(py, kind)?;
        let interface = PyDict::new(py);
        let order = if cfg!(target_endian = "little") {
            "<"
        } else {
            ">"
        };
        let bytes = self.item_bytes()?;
        interface.set_item("version", 3)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", format!("{order}{letter}{bytes}"))?;
        interface.set_item("strides", PyTuple::new(py, self.byte_strides()?)?)?;
        interface.set_item("data", (first.expose_provenance(), self.readonly()))?;
        Ok(interface)
    }
}

/// Whether the host's own programs reach the memory.
pub(crate) fn is_host(memory: MemoryId) -> bool {
    memory.device == DeviceId::CPU0 && !memory.kind.is_file()
}

/// Whether PyTorch's `from_dlpack` is what asks.
pub(crate) fn asked_by_torch(py: Python<'_>) -> PyResult<bool> {
    let frame = py.import("sys")?.call_method1("_getframe", (0,));
    let Ok(frame) = frame else {
        return Ok(false);
    };
    let module = frame.getattr("f_globals")?.get_item("__name__");
    let module = module.and_then(|name| name.extract::<String>());
    Ok(module.is_ok_and(|name| name == "torch" || name.starts_with("torch.")))
}
