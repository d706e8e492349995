//! The Metal backend of Transload: the devices of Apple's machines.
//!
//! Each device has its own memory, `device` (`MTLStorageModePrivate`), and `mapped`, which host and device both reach
//! (`MTLStorageModeShared`). If host and device share one memory (`hasUnifiedMemory`), `mapped` is the default and the
//! host's threads copy straight into it. Otherwise `device` is the default, slots in `mapped` stage for it, and macOS has a
//! third memory, `managed` (`MTLStorageModeManaged`), of which host and device each have a copy.
//!
//! Programs use it through the crate `transload`, whose feature `metal` brings it, or register it with a manager
//! themselves:
//!
//! ```no_run
//! # #[cfg(all(target_vendor = "apple", not(transload_local)))] {
//! use transload_metal::Metal;
//!
//! match Metal::discover() {
//!     Ok(metal) => println!("{} devices", metal.len()),
//!     Err(error) => println!("no Metal devices: {error}"),
//! }
//! # }
//! ```
//!
//! # Existing memory
//! A device reads and writes host memory in place if it begins at a page: the backend wraps it for one submission
//! (`newBufferWithBytesNoCopy`), and the submission is over when Metal has released it. Memory that begins elsewhere is
//! refused; the engine then takes a route through `mapped` and says so in its report. Apple requires memory of `vm_allocate`
//! or `mmap` that lies in one region of the address space; a proof by the engine shows whether a driver accepts other
//! memory.
//!
//! `TransferManager::import` imports a [`MetalBuffer`] of the program's own, and `Buffer::native` returns the one of every
//! buffer here, for commands of the program's own. The same holds for a [`MetalTexture`], for its texels. A `wgpu::Buffer`
//! cannot be imported: wgpu 30 keeps its `MTLBuffer` to itself (`raw` of `wgpu_hal::metal::Buffer` is private, and there is
//! no accessor in wgpu-hal 30.0.1, `src/metal/mod.rs`). The reverse works: `wgpu_hal::metal::Device::buffer_from_raw` takes
//! a `MTLBuffer` that both then use.
//!
//! # The program's own commands
//! Transfers of one manager are ordered by the bytes that they touch. The backend cannot see commands in the program's own
//! queues, because Metal has no query for them. [`Metal::when_done`] and [`Metal::when_event`] start transfers after such
//! commands; [`Metal::follow`] and [`Metal::signal`] start such commands after transfers.
//!
//! # Completion
//! Metal calls back when commands are over, and the callback reports to the engine. The backend has no thread and no tick.
//!
//! # Versions
//! Metal objects are those of objc2-metal 0.3. The backend needs macOS 10.15 or iOS 13: the newest call is
//! `hasUnifiedMemory`, which it makes for every device (Metal, `MTLDevice.h`).
//!
//! # Test status
//! The backend is type-checked for Apple, and executed against a double, `doubles/metal` of the repository. It has not run
//! on a Mac yet.
//!
//! The crate is empty on systems without Metal, and in a build for one thread.
#![cfg_attr(
    not(all(
        any(target_vendor = "apple", transload_metal_double),
        not(transload_local)
    )),
    allow(
        rustdoc::broken_intra_doc_links,
        reason = "where the library is empty the links of this page go nowhere"
    )
)]
#![cfg(all(
    any(target_vendor = "apple", transload_metal_double),
    not(transload_local)
))]

// The double's symbols are those of Metal.
#[cfg(all(test, transload_metal_double))]
extern crate transload_metal_double as _;

mod device;
mod error;
mod fault;
mod gpu;
mod inventory;
mod memory;
mod queue;
mod raw;
mod submit;
mod translate;
mod types;

pub use device::Metal;
pub use error::{Absent, AbsentReason, OpenError};
pub use memory::{MetalBuffer, MetalTexture};
pub use queue::EventError;
pub use types::BACKEND;
