//! Loads models into burn's tensors on a wgpu device: burn allocates a tensor, and Transload writes the numbers of the file
//! into its memory.
//!
//! ```no_run
//! use burn::nn::{Linear, LinearConfig, LinearLayout};
//! use burn::tensor::Device;
//! use transload_burn::Loader;
//!
//! # fn main() -> Result<(), transload_burn::Error> {
//! let loader = Loader::new(Device::wgpu_options())?;
//! let weights = loader.open("model/")?;
//! let layer = LinearConfig::new(384, 1536).with_layout(LinearLayout::Col);
//! let layer: Linear = layer.init(loader.device());
//! let layer = weights.fill(layer, |path| format!("encoder.layer.0.intermediate.dense.{path}"))?;
//! # Ok(())
//! # }
//! ```
//!
//! burn and Transload share one device and one queue of wgpu. The host's threads read the file, and convert the numbers,
//! straight into the staging slots that the device copies from; no tensor exists in the host's memory.
//!
//! # Limits
//!
//! - burn takes no memory that it did not allocate, so tensors cannot be views of memory that Transload allocated.
//! - Floating-point tensors only, and burn without its feature `fusion`, whose tensors have no memory yet
//!   when they are made.
//! - Numbers lie as in the file. PyTorch's linear layers have a row for each output, which is burn's `LinearLayout::Col`. A
//!   square matrix of another layout has the right shape, so it loads, transposed.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use burn::cubecl::wgpu::{AutoCompiler, WgpuServer};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::wgpu::{WgpuInitError, WgpuOptions, WgpuSetup};
use burn::tensor::{Bool, DType, Device, Int, Tensor};
use burn_wgpu::{CubeTensor, Wgpu, WgpuResource};
pub use transload_tensors;
use transload_tensors::transload::{
    self, Buffer, Conversion, Element, OpenError, Place, Request, TransferManager, wgpu_backend,
};
use transload_tensors::{DType as FileDType, Model, ModelError};

/// Why tensors were not loaded. Each error of a tensor has its name in the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the texts of the errors say it")]
pub enum Error {
    #[error("cannot open a wgpu device for burn: {0}")]
    Device(#[from] WgpuInitError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    File(#[from] OpenError),
    #[error(transparent)]
    Transload(#[from] transload::Error),
    #[error("the model has no tensor {name}")]
    Missing { name: String },
    #[error("tensor {name} has shape {found:?} in the file, and {expected} was asked for")]
    Shape {
        name: String,
        found: Vec<u64>,
        expected: String,
    },
    #[error("tensor {name} is {found} in the file, which does not load as {expected}")]
    Type {
        name: String,
        found: FileDType,
        expected: String,
    },
    #[error("parameter {path} has integers or truth values, and only floating-point numbers load")]
    Parameter { path: String },
    #[error("burn has no memory for tensor {name}: {reason}")]
    Burn { name: String, reason: String },
    #[error("cannot copy tensor {name}: {source}")]
    Transfer {
        name: String,
        source: transload::TransferError,
    },
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// A wgpu device that burn and Transload share.
#[derive(Debug)]
pub struct Loader {
    manager: TransferManager,
    device: Device,
}

impl Loader {
    /// Has burn open a device with these options, and shares it.
    ///
    /// # Errors
    /// When there is no such adapter, or burn has opened it already: then use [`Loader::with_setup`].
    pub fn new(options: WgpuOptions) -> Result<Loader> {
        let (device, setup) = options.init_with_setup()?;
        Loader::share(device, setup)
    }

    /// Shares a device that the program opened. Registers it with burn, once more if burn has it already.
    ///
    /// # Errors
    /// When burn or Transload cannot use the device.
    pub fn with_setup(setup: WgpuSetup) -> Result<Loader> {
        let device = Device::wgpu_options().setup(setup.clone()).init()?;
        Loader::share(device, setup)
    }

    fn share(device: Device, setup: WgpuSetup) -> Result<Loader> {
        let manager = TransferManager::builder().host().build()?;
        let shared = wgpu_backend::Wgpu::with_devices([(setup.device, setup.queue)]);
        let registered = manager.register_backend(shared);
        registered.map_err(transload::Error::from)?;
        Ok(Loader { manager, device })
    }

    /// Returns the device as burn knows it: initialize modules there.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Opens a model: a safetensors file, a list of shards, or a folder with either. Reads the headers only. The files stay
    /// open as long as the result exists.
    ///
    /// # Errors
    /// When there is no model at `path`, or a header is wrong.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Weights> {
        let model = Model::open(path)?;
        let files = model.files().iter();
        let files = files.map(|of| of.adopt(&self.manager));
        Ok(Weights {
            manager: self.manager.clone(),
            device: self.device.clone(),
            files: files.collect::<Result<_, _>>()?,
            model,
        })
    }
}

/// A model whose tensors become burn's.
#[derive(Debug)]
pub struct Weights {
    manager: TransferManager,
    device: Device,
    model: Model,
    /// The files of the model, by number.
    files: Vec<Buffer>,
}

impl Weights {
    /// Returns what the headers say of the model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Loads one tensor, as the device's own type of floating-point numbers, which is f32 unless the program configured
    /// another. Blocks until it is there.
    ///
    /// # Errors
    /// When the model has no such tensor, it has other than `D` dimensions or no floating-point numbers, or it cannot be
    /// read.
    pub fn tensor<const D: usize>(&self, name: &str) -> Result<Tensor<D>> {
        let pending = self.allocate::<D>(name, None)?;
        self.copy([&pending])?;
        Ok(Tensor::from_primitive::<Wgpu>(pending.tensor))
    }

    /// Loads all parameters of a module, each from the tensor of the file that `name_of` names for the parameter's path in the
    /// module, such as `layers.0.norm.gamma`. Blocks until all are there. Numbers become the device's own type, as
    /// [`Weights::tensor`] says.
    ///
    /// # Errors
    /// As [`Weights::tensor`]; when a shape is not the parameter's; and when the module has parameters of integers or truth
    /// values. Tensors of the file that no parameter wants are left out.
    pub fn fill<M: Module>(&self, module: M, name_of: impl Fn(&str) -> String) -> Result<M> {
        let mut filler = Filler {
            weights: self,
            name_of,
            path: Vec::new(),
            pending: HashMap::new(),
            arrived: false,
            failed: None,
        };
        // Parameters transform what they load, so the numbers are there before a parameter sees the tensor.
        let module = module.map(&mut filler);
        if let Some(error) = filler.failed {
            return Err(error);
        }
        self.copy(filler.pending.values())?;
        filler.arrived = true;
        Ok(module.map(&mut filler))
    }

    /// Has burn allocate a tensor, and takes its memory in.
    fn allocate<const D: usize>(&self, name: &str, wanted: Option<&[usize]>) -> Result<Pending> {
        let name = name.to_owned();
        let Some(info) = self.model.tensor(&name) else {
            return Err(Error::Missing { name });
        };
        let shape = info.shape.iter().map(|size| *size as usize);
        let shape: Vec<usize> = shape.collect();
        let sizes = match <[usize; D]>::try_from(&shape[..]) {
            Ok(sizes) if wanted.is_none_or(|wanted| wanted == sizes) => sizes,
            _ => {
                let expected = match wanted {
                    Some(shape) => format!("{shape:?}"),
                    None => format!("one of {D} dimensions"),
                };
                let found = info.shape.clone();
                return Err(Error::Shape {
                    name,
                    found,
                    expected,
                });
            }
        };
        let dtype = DType::from(self.device.settings().float_dtype);
        let (Some(from), Some(to)) = (element(info.dtype), burn_element(dtype)) else {
            let (found, expected) = (info.dtype, dtype.name().to_owned());
            return Err(Error::Type {
                name,
                found,
                expected,
            });
        };
        let conversion = Conversion::new(from, to).ok();
        let range = info.offset..info.offset + info.len_bytes;
        let source = self.files[info.file].slice(range);
        let burn = |error: &dyn fmt::Debug| Error::Burn {
            name: name.clone(),
            reason: format!("{error:?}"),
        };
        let tensor = Tensor::<D>::empty(sizes, (&self.device, dtype));
        let tensor = tensor
            .try_into_primitive::<Wgpu>()
            .map_err(|error| burn(&error))?;
        let memory =
            { &tensor.client }.get_resource::<WgpuServer<AutoCompiler>>(tensor.handle.clone());
        let memory = memory.map_err(|error| burn(&error))?;
        // burn puts many tensors into one buffer.
        let WgpuResource { buffer, offset, .. } = memory.resource();
        let len_bytes = sizes.iter().product::<usize>() as u64 * to.len_bytes();
        let place: Place = "wgpu:0/device".parse().map_err(transload::Error::from)?;
        // SAFETY: the device that this manager was lent made the buffer: `share` lends the one that burn's device uses, and
        // the tensor was allocated there.
        let target = unsafe { self.manager.adopt_native(place, buffer.clone()) }?;
        let target = target.slice(*offset..*offset + len_bytes);
        Ok(Pending {
            source: source.map_err(transload::Error::from)?,
            target: target.map_err(transload::Error::from)?,
            conversion: conversion.filter(|_| from != to),
            name,
            tensor,
            _memory: Box::new(memory),
        })
    }

    /// Copies the numbers of tensors into their memory.
    fn copy<'a>(&self, pending: impl IntoIterator<Item = &'a Pending>) -> Result<()> {
        let pending: Vec<&Pending> = pending.into_iter().collect();
        // burn reuses the memory of dropped tensors while commands that write it still wait in burn's own list; submitted
        // behind our copies, they would overwrite the copies. A thread allocates from its own stream, and a stream keeps
        // memory that another stream's commands use until these are done, so the commands of this thread are all that can
        // wait. The flush puts them into wgpu's queue, which runs them before our copies, and later commands of burn's
        // behind. cubecl 0.11 submits in `get_resource` too; burn documents only the flush.
        if let Some(Pending { name, tensor, .. }) = pending.first() {
            tensor.client.flush().map_err(|error| Error::Burn {
                name: name.clone(),
                reason: error.to_string(),
            })?;
        }
        let started = pending.iter().map(|of| {
            let request = Request::new(&of.source, &of.target);
            let request = match of.conversion {
                Some(conversion) => request.convert(conversion),
                None => request,
            };
            self.manager.submit(&request)
        });
        let started: Vec<_> = started.collect();
        // All end before burn has any memory back.
        let ended: Vec<_> = started
            .into_iter()
            .map(|transfer| transfer.wait())
            .collect();
        for (of, result) in pending.iter().zip(ended) {
            result.map_err(|source| Error::Transfer {
                name: of.name.clone(),
                source,
            })?;
        }
        Ok(())
    }
}

/// A tensor whose numbers are not there yet.
struct Pending {
    name: String,
    tensor: CubeTensor,
    source: Buffer,
    target: Buffer,
    conversion: Option<Conversion>,
    /// Keeps burn from moving the tensor.
    _memory: Box<dyn Any + Send>,
}

/// Walks through a module twice: to allocate the tensors, and to hand them over.
struct Filler<'a, F> {
    weights: &'a Weights,
    name_of: F,
    path: Vec<String>,
    /// By path.
    pending: HashMap<String, Pending>,
    arrived: bool,
    failed: Option<Error>,
}

impl<F> Filler<'_, F> {
    fn refuse(&mut self) {
        let path = self.path.join(".");
        self.failed.get_or_insert(Error::Parameter { path });
    }
}

impl<F: Fn(&str) -> String> ModuleMapper for Filler<'_, F> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.path.join(".");
        if self.arrived {
            let Some(Pending { tensor, .. }) = self.pending.remove(&path) else {
                return param;
            };
            let id = param.id;
            return param.transform_for_load(Tensor::from_primitive::<Wgpu>(tensor), id);
        }
        if self.failed.is_none() {
            let (name, shape) = ((self.name_of)(&path), param.lazy_shape());
            match self.weights.allocate::<D>(&name, Some(&shape)) {
                Ok(pending) => drop(self.pending.insert(path, pending)),
                Err(error) => self.failed = Some(error),
            }
        }
        param
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.refuse();
        param
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        self.refuse();
        param
    }
}

/// Returns Transload's name of a type of floating-point numbers.
fn element(dtype: FileDType) -> Option<Element> {
    Some(match dtype {
        FileDType::F64 => Element::F64,
        FileDType::F32 => Element::F32,
        FileDType::F16 => Element::F16,
        FileDType::BF16 => Element::BF16,
        FileDType::F8_E4M3 => Element::F8E4M3,
        FileDType::F8_E5M2 => Element::F8E5M2,
        _ => return None,
    })
}

/// Returns Transload's name of a type of burn's that it can write.
fn burn_element(dtype: DType) -> Option<Element> {
    Some(match dtype {
        DType::F64 => Element::F64,
        DType::F32 => Element::F32,
        DType::F16 => Element::F16,
        DType::BF16 => Element::BF16,
        _ => return None,
    })
}
