#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/models.md")]
mod guide {}

mod dtype;
mod header;
mod load;
mod model;
mod pairs;
mod save;

pub use dtype::DType;
pub use header::{Format, Header, HeaderError, TensorInfo, Value};
pub use load::{Load, LoadError, LoadPlan, Loader, Loading, Reading, Tensor};
pub use model::{Model, ModelError, ModelFile};
pub use save::{Save, SaveError, Saving};
pub use transload;
