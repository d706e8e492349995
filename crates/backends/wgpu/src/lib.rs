//! The wgpu backend of Transload: the memory of graphics adapters, through `wgpu`.
//!
//! Each device has three memories: `device` holds users' buffers; the host writes slots of `upload` and the
//! device copies out of them; the device writes slots of `readback` and the host copies out of them. Slots
//! stay mapped except while the device uses them, so that the host's own engine fills and drains them. If
//! host and device share one memory and the driver shows it to both, there is a fourth, `mapped`, for
//! buffers that the host's engine reaches in place. It is then the default.
//!
//! wgpu copies whole words of four bytes. Copies that begin or end inside a word, or whose ends lie
//! differently within their words, go through a compute shader that puts the bytes in their places and
//! leaves their neighbours alone.
//!
//! The texels of a texture are a buffer, too: row after row without the padding that wgpu wants. Transfers
//! can use any range or rectangle of it. See [`Texels`].
//!
//! Completion needs no tick: one thread per device waits in the driver while operations are under way, and
//! is parked otherwise. In a build for one thread this crate is empty.
//!
//! # In the browser
//! The browser has no threads to wait in, and a mapping has no address. So a device has only the memory
//! `device`, the backend itself moves bytes between the host's memory and it, and callbacks of the browser
//! settle fences. Opening a device is a `Future`: `Wgpu::request`.
#![cfg_attr(
    browser,
    allow(
        clippy::arc_with_non_send_sync,
        reason = "the same code counts references where there is one thread"
    )
)]

#[cfg(any(browser, native))]
mod adopt;
#[cfg(browser)]
mod browser;
#[cfg(native)]
mod device;
#[cfg(any(browser, native))]
mod endpoints;
#[cfg(native)]
mod exit;
#[cfg(native)]
mod fault;
#[cfg(native)]
mod gpu;
#[cfg(native)]
mod host_import;
#[cfg(native)]
mod identity;
#[cfg(any(browser, native))]
mod inventory;
#[cfg(native)]
mod memory;
#[cfg(native)]
mod queue;
#[cfg(any(browser, native))]
mod raw;
#[cfg(any(browser, native))]
mod storage;
#[cfg(any(browser, native))]
mod texture;
#[cfg(any(browser, native))]
mod watch;

// What is shared by both finds the names that it uses at the same places.
#[cfg(browser)]
use browser::gpu;

#[cfg(browser)]
pub use browser::device::{RequestError, Wgpu};
#[cfg(native)]
pub use device::{Wgpu, open_device};
#[cfg(any(browser, native))]
pub use storage::BACKEND;
#[cfg(any(browser, native))]
pub use texture::{TexelLayout, Texels};
#[cfg(any(browser, native))]
pub use watch::WatchError;
