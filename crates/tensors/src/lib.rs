#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![cfg_attr(
    not(feature = "remote-files"),
    allow(
        clippy::infallible_destructuring_match,
        reason = "all files lie on the disk then"
    )
)]

#[cfg(all(doctest, feature = "remote-files"))]
#[doc = include_str!("../../../docs/guide/models.md")]
mod guide {}

mod bytes;
#[cfg(feature = "dlpack")]
#[allow(
    unsafe_code,
    reason = "other libraries pass structures of C, and free them"
)]
pub mod dlpack;
mod dtype;
mod header;
mod load;
mod mark;
mod model;
mod pairs;
#[cfg(feature = "remote-files")]
#[allow(
    unsafe_code,
    reason = "a backend makes promises, and writes where the engine says"
)]
mod remote;
mod save;
mod tensor;

pub use dtype::{DType, UnknownDType};
pub use header::{Format, Header, HeaderError, TensorInfo, Value};
pub use load::{Load, LoadError, LoadPlan, Loaded, Loader, Loading, Reading};
pub use model::{Model, ModelError, ModelFile};
#[cfg(feature = "remote-files")]
pub use object_store;
#[cfg(feature = "remote-files")]
pub use remote::{Remote, RemoteObject};
pub use save::{Left, Save, SaveError, Saving};
pub use tensor::{Tensor, TensorError};
pub use transload;
