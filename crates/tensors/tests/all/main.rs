//! Model files: what is read of them, and what is refused.

mod files;
mod gguf;
mod hostile;
mod loads;
mod models;
mod safetensors;
