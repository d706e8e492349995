//! The wgpu backend of Transload: the memory of graphics adapters, through `wgpu`.
//!
//! Each device has three memories: `device`, where users' buffers lie; `upload`, whose slots the host
//! writes and the device copies out of; and `readback`, the other way round. Slots stay mapped except
//! while the device uses them, so that the host's own engine fills and drains them. Where host and device
//! have one memory and the driver shows it to both, there is a fourth, `mapped`, for buffers that the host's
//! engine reaches in place; it is the default then.
//!
//! wgpu copies whole words of four bytes. Copies that begin or end inside a word, or whose ends lie
//! differently within their words, go through a compute shader that puts the bytes in their places and
//! leaves their neighbours alone.
//!
//! The texels of a texture are a buffer, too: row after row without the padding that wgpu wants, any range
//! or rectangle of which takes part in transfers. See [`Texels`].
//!
//! Completion needs no tick: one thread per device waits in the driver while operations are under way,
//! and is parked otherwise. So there is nothing here where there are no threads, in the browser, nor in a
//! build whose types stay on one.
#![cfg(not(any(target_family = "wasm", transload_local)))]

mod device;
mod fault;
mod guest;
mod inventory;
mod look;
mod memory;
mod queue;
mod raw;
mod texture;

pub use device::{BACKEND, Wgpu, open_device};
pub use queue::WatchError;
pub use texture::{TexelLayout, Texels};
