//! Model files: what is read of them, and what is refused.

mod devices;
#[cfg(feature = "dlpack")]
mod dlpack;
mod files;
mod gguf;
mod hostile;
mod loads;
mod models;
#[cfg(feature = "remote-files")]
mod remote;
mod resaves;
mod safetensors;
mod saves;
mod slices;
mod tensor;
