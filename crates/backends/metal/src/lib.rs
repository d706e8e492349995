//! The Metal backend of Transload: the devices of Apple's machines.
//!
//! Each device has its own memory, `device` (`MTLStorageModePrivate`), and `mapped`, which host and device both reach
//! (`MTLStorageModeShared`). Where the two have one memory, which the device is asked (`hasUnifiedMemory`), `mapped` is
//! the default and the host's threads copy straight into it; elsewhere `device` is, slots in `mapped` stage for it, and
//! macOS has a third, `managed` (`MTLStorageModeManaged`), of which host and device have a copy each.
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
//! # Memory that is there already
//! A device reads and writes host memory in place where it begins with a page: it is wrapped for one submission
//! (`newBufferWithBytesNoCopy`), and the submission is over when Metal has let go of it. Memory that begins elsewhere
//! is refused, and the engine takes a way through `mapped` and says so in its report. Apple asks for memory of
//! `vm_allocate` or `mmap` that lies in one region of the address space; what else a driver takes the engine finds out
//! by a proof.
//!
//! A [`MetalBuffer`] of the program's own is taken in by `TransferManager::import`, and is what `Buffer::native` gives
//! of every buffer here, for commands of the program's own. So is a [`MetalTexture`], for its texels. A `wgpu::Buffer` is not: wgpu 30 keeps its `MTLBuffer` to
//! itself (`raw` of `wgpu_hal::metal::Buffer` is private, and there is no accessor in wgpu-hal 30.0.1,
//! `src/metal/mod.rs`). The other way round works: `wgpu_hal::metal::Device::buffer_from_raw` takes a `MTLBuffer` that
//! both then use.
//!
//! # The program's own commands
//! Transfers of one manager are ordered by the bytes that they touch. What the program gives a device in queues of its
//! own this backend does not know of, since nothing of Metal's can be asked: [`Metal::when_done`] and
//! [`Metal::when_event`] start transfers after it, [`Metal::follow`] and [`Metal::signal`] start it after transfers.
//!
//! # Completion
//! Metal calls back when commands are over, and the callback tells the engine. There is no thread here, and no tick.
//!
//! # Versions
//! Objects of Metal's are given and taken as those of objc2-metal 0.3. What is called of Metal is there from macOS 10.15 and
//! iOS 13 on: the newest of it is `hasUnifiedMemory`, which every device is asked (Metal, `MTLDevice.h`).
//!
//! # What has been seen of it
//! It is type-checked for Apple, and executed against a double, `doubles/metal` of the repository; on a Mac not yet.
//!
//! Where Metal is not, this library is empty; so it is in a build whose types stay on one thread.
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
mod discover;
mod fault;
mod gpu;
mod inventory;
mod memory;
mod queue;
mod raw;
mod submit;

pub use device::{BACKEND, Metal};
pub use discover::{Absent, OpenError};
pub use memory::{MetalBuffer, MetalTexture};
pub use queue::EventError;
