//! Loads candle's models through Transload: a [`VarBuilder`] whose tensors [`transload_tensors`] finds and Transload moves.
//!
//! ```no_run
//! use candle_core::{DType, Device};
//! use transload_candle::transload_tensors::transload::TransferManager;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = TransferManager::builder().host().build()?;
//! let variables = transload_candle::var_builder(&manager, "model/", DType::F32, &Device::Cpu)?;
//! let weight = variables.pp("layer").get((384, 384), "weight")?;
//! # Ok(())
//! # }
//! ```
//!
//! The adapter reads a tensor when the model asks for it, from the file straight into the vector that candle then owns.
//! Transload converts floating-point numbers on the way: f16 of a file becomes f32 without an f16 tensor in between. A tensor
//! that no model asks for is not read. Several threads read a large tensor.
//!
//! # What is copied
//!
//! | load | copies after the read |
//! |---|---|
//! | F32, F64, F16, BF16 of a file to any of these; I64, I32, I16, U32, U8 as they are; all on the CPU | none |
//! | integers to another type, as candle converts them | one, by candle |
//! | F8_E4M3 as it is | one: candle takes the bytes of this type only as a slice |
//! | to a GPU | one more, by candle, from the host's memory to the device's |
//!
//! The read itself copies from the system's cache into the vector. candle's CPU tensors own a `Vec`, so a tensor cannot be
//! a view of a mapped file or of memory that Transload allocated.

use std::path::Path;
use std::thread;

use bytemuck::{Pod, allocation::zeroed_vec};
use candle_core::{DType, Device, Error, Result, Shape, Tensor, WithDType};
use candle_nn::var_builder::{SimpleBackend, VarBuilder};
use half::{bf16, f16};
pub use transload_tensors;
use transload_tensors::transload::{
    Buffer, Conversion, Element, IntoInnerReason, Request, TransferManager,
};
use transload_tensors::{DType as FileDType, Model, TensorInfo};

/// Opens the model at `path` as variables of type `dtype` on `device`. `path` is what [`Model::open`] takes: a safetensors
/// file, a list of shards, or a folder with either. Reads the headers only.
///
/// [`VarBuilder::get`] blocks until its tensor is there, and may be called from several threads at once. The files stay open
/// as long as the builder or a part of it exists.
///
/// # Errors
/// When there is no model at `path`, a header is wrong, or the manager cannot take a file in. Later, candle's errors
/// [`CannotFindTensor`](Error::CannotFindTensor) for a name that the model does not have, and
/// [`UnexpectedShape`](Error::UnexpectedShape) for another shape than it has, both before anything is read; and an error that
/// names the tensor when it is of a type that candle does not have, or cannot be read.
pub fn var_builder(
    manager: &TransferManager,
    path: impl AsRef<Path>,
    dtype: DType,
    device: &Device,
) -> Result<VarBuilder<'static>> {
    let model = Model::open(path).map_err(Error::wrap)?;
    let files = model
        .files()
        .iter()
        .map(|of| of.adopt(manager).map_err(Error::wrap));
    let variables = Variables {
        manager: manager.clone(),
        files: files.collect::<Result<_>>()?,
        model,
    };
    Ok(VarBuilder::from_backend(
        Box::new(variables),
        dtype,
        device.clone(),
    ))
}

struct Variables {
    manager: TransferManager,
    model: Model,
    /// The files of the model, by number.
    files: Vec<Buffer>,
}

impl Variables {
    fn find(&self, name: &str) -> Result<&TensorInfo> {
        let found = self.model.tensor(name);
        found.ok_or_else(|| Error::CannotFindTensor { path: name.into() }.bt())
    }

    fn load(&self, tensor: &TensorInfo, dtype: DType, device: &Device) -> Result<Tensor> {
        let own = candle_dtype(tensor)?;
        let conversion = match (element(own), element(dtype)) {
            (Some(from), Some(to)) if from != to => Conversion::new(from, to).ok(),
            _ => None,
        };
        let (shape, from) = (shape(tensor)?, self.bytes(tensor)?);
        let loaded = match conversion.map_or(own, |_| dtype) {
            DType::F64 => self.read::<f64>(&from, conversion, shape),
            DType::F32 => self.read::<f32>(&from, conversion, shape),
            DType::F16 => self.read::<f16>(&from, conversion, shape),
            DType::BF16 => self.read::<bf16>(&from, conversion, shape),
            DType::I64 => self.read::<i64>(&from, None, shape),
            DType::I32 => self.read::<i32>(&from, None, shape),
            DType::I16 => self.read::<i16>(&from, None, shape),
            DType::U32 => self.read::<u32>(&from, None, shape),
            DType::U8 => self.read::<u8>(&from, None, shape),
            other => {
                let bytes = self.manager.read_to_vec(&from).map_err(Error::wrap)?;
                Tensor::from_raw_buffer(&bytes, other, shape.dims(), &Device::Cpu)
            }
        };
        loaded?.to_device(device)?.to_dtype(dtype)
    }

    /// Returns where a tensor lies in its file.
    fn bytes(&self, tensor: &TensorInfo) -> Result<Buffer> {
        let range = tensor.offset..tensor.offset + tensor.len_bytes;
        self.files[tensor.file].slice(range).map_err(Error::wrap)
    }

    /// Reads into a vector and gives the vector to candle.
    fn read<T: WithDType + Pod>(
        &self,
        from: &Buffer,
        conversion: Option<Conversion>,
        shape: Shape,
    ) -> Result<Tensor> {
        // The allocator has large zeroed memory from the system and does not write it.
        let vector = zeroed_vec::<T>(shape.elem_count());
        let mut to = self.manager.adopt(vector).map_err(Error::wrap)?;
        let mut request = Request::new(from, &to);
        if let Some(conversion) = conversion {
            request = request.convert(conversion);
        }
        self.manager.submit(&request).wait().map_err(Error::wrap)?;
        drop(request);
        loop {
            match to.into_inner::<Vec<T>>() {
                Ok(vector) => return Tensor::from_vec(vector, shape, &Device::Cpu),
                // Another thread that turned the engine may drop its view of the vector a moment later.
                Err(error) if error.reason == IntoInnerReason::InUse => to = error.buffer,
                Err(error) => return Err(Error::wrap(error)),
            }
            thread::yield_now();
        }
    }
}

impl SimpleBackend for Variables {
    fn get(
        &self,
        expected: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let got = shape(self.find(name)?)?;
        if got != expected {
            let msg = format!("shape mismatch for {name}");
            return Err(Error::UnexpectedShape { msg, expected, got }.bt());
        }
        self.get_unchecked(name, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let loaded = self.load(self.find(name)?, dtype, device);
        loaded.map_err(|error| error.context(format!("cannot load tensor {name}")))
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.model.tensor(name).is_some()
    }
}

fn shape(tensor: &TensorInfo) -> Result<Shape> {
    let sizes = tensor.shape.iter().map(|size| usize::try_from(*size));
    Ok(Shape::from(
        sizes.collect::<std::result::Result<Vec<_>, _>>()?,
    ))
}

/// Returns candle's name of a tensor's type.
fn candle_dtype(tensor: &TensorInfo) -> Result<DType> {
    Ok(match tensor.dtype {
        FileDType::F64 => DType::F64,
        FileDType::F32 => DType::F32,
        FileDType::F16 => DType::F16,
        FileDType::BF16 => DType::BF16,
        FileDType::F8_E4M3 => DType::F8E4M3,
        FileDType::I64 => DType::I64,
        FileDType::I32 => DType::I32,
        FileDType::I16 => DType::I16,
        FileDType::U32 => DType::U32,
        FileDType::U8 => DType::U8,
        other => candle_core::bail!("candle has no tensors of type {other}"),
    })
}

/// Returns Transload's name of a type that it converts.
fn element(dtype: DType) -> Option<Element> {
    Some(match dtype {
        DType::F64 => Element::F64,
        DType::F32 => Element::F32,
        DType::F16 => Element::F16,
        DType::BF16 => Element::BF16,
        DType::F8E4M3 => Element::F8E4M3,
        _ => return None,
    })
}
