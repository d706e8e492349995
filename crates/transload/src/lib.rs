//! Moves bytes between any two memories of a machine, by the fastest path that the machine really has. The library
//! proves a path before it trusts it, returns `Ok` only when the bytes moved, and can explain its choice.
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use transload::{AllocSpec, TransferManager};
//!
//! let manager = TransferManager::discover()?;
//! let weights = manager.adopt(vec![7u8; 1 << 20])?; // owned, not copied
//! let shared = manager.allocate("cpu:0/shared".parse()?, AllocSpec::bytes(weights.len()))?;
//! let report = manager.copy(&weights, &shared).wait()?;
//! println!("{report}"); // 1.0 MB  cpu:0 → cpu:0/shared  DirectCopy  … GB/s
//! assert_eq!(&*shared.read()?, &[7u8; 1 << 20][..]);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start at [`TransferManager`]. A copy returns a [`Transfer`], which is a `Future` and can be waited for without any
//! runtime. Its [`Report`] tells which way the bytes took, how fast they moved, and which ways failed before.
//!
//! # Existing memory of a program
//! [`TransferManager::adopt`] takes in a `Vec<T>` of plain data and other types that [`Adopt`] lists,
//! [`TransferManager::open_file`] a file, [`TransferManager::adopt_native`] a `wgpu::Buffer` or `wgpu::Texture`,
//! [`TransferManager::import`] memory of a CUDA device by its address, or a buffer of Metal's. None of these calls
//! copies the bytes. For borrowed memory use [`TransferManager::copy_from_slice`] and
//! [`TransferManager::copy_into_slice`]. [`TransferManager::read_to_vec`] makes a vector of a buffer's bytes, and
//! [`TransferManager::copy_into_uninit`] writes memory that has no values yet.
//!
//! # CUDA devices
//! With the feature `cuda`, [`TransferManager::discover`] finds them as `cuda:0` and so on through NVIDIA's driver,
//! which is loaded when the program runs: `libcuda.so.1` or `nvcuda.dll`, or the library that the environment variable
//! `TRANSLOAD_CUDA_DRIVER` names. Without a driver, or with one older than CUDA 11, the manager lacks only these
//! devices, and `cuda_backend::Cuda::discover` returns the reason.
//!
//! | place | memory |
//! |---|---|
//! | `cuda:0` | the device's own; the host reads and writes it by copies, such as [`TransferManager::copy_from_slice`] |
//! | `cuda:0/managed` | managed memory: copies, and guards ([`Buffer::read`], [`Buffer::write`]) |
//! | `cpu:0/pinned` | host memory that is locked in place, which all these devices read and write there; [`TransferManager::share`] locks memory that is there already |
//!
//! ```no_run
//! # #[cfg(all(feature = "cuda", not(any(target_family = "wasm", transload_local, loom))))] {
//! # fn tell_the_other_process(_: &[u8; 128]) {}
//! # fn example(address: u64, len_bytes: u64, owner: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
//! use transload::hal::{External, ExternalKind};
//! use transload::{AllocSpec, TransferManager};
//!
//! let manager = TransferManager::discover()?;
//! // What the program has allocated itself, by `cuMemAlloc` or the CUDA runtime. Dropping the owner frees it.
//! let own = External::Device { address, len_bytes, writable: true, owner: Box::new(owner) };
//! // SAFETY: `len_bytes` bytes lie there until the owner is dropped, and no other code uses them meanwhile.
//! let own = unsafe { manager.import("cuda:0".parse()?, own) }?;
//! let host = manager.allocate("cpu:0/pinned".parse()?, AllocSpec::bytes(own.len()))?;
//! host.write()?.fill(7);
//! manager.copy(&host, &own).wait()?;
//!
//! // Memory for another process, which takes the 128 bytes to `IpcHandle::from_bytes` and `import_ipc`.
//! let lent = manager.allocate("cuda:0".parse()?, AllocSpec::bytes(4096).for_sharing())?;
//! if let External::Ipc(handle) = manager.export(&lent, ExternalKind::CudaIpc)? {
//!     tell_the_other_process(&handle.to_bytes());
//! }
//! // And where memory lies on the device, for kernels.
//! if let External::Device { address, .. } = manager.export(&lent, ExternalKind::DevicePointer)? {
//!     println!("{address:#x}");
//! }
//! # Ok(())
//! # }
//! # }
//! ```
//!
//! Transfers are not ordered against the work of the program in its own CUDA streams. `manager.backend::<Cuda>()`
//! returns the backend: its `when_done` and `when_event` set an [`Event`] for a transfer to start
//! [after](Request::after), and its `follow` makes a stream wait for the [fences](Transfer::fences) of a transfer.
//!
//! So far all of this has run only on a stand-in for the driver (`doubles/cuda-driver` in the repository), and on no
//! GPU. Results of a stand-in are called simulated ([`Report::is_simulated`], `DeviceInfo::simulated`).
//!
//! # Graphics adapters
//! With the feature `wgpu`, [`TransferManager::discover`] finds them as `wgpu:0` and so on. A program that has a
//! `wgpu::Device` already, of wgpu 30, lends it to a manager:
//!
//! ```
//! # #[cfg(all(feature = "wgpu", not(any(target_family = "wasm", transload_local, loom))))] {
//! # use transload::TransferManager;
//! # fn lend(device: wgpu::Device, queue: wgpu::Queue, texture: wgpu::Texture)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use transload::wgpu_backend::Wgpu;
//!
//! let manager = TransferManager::builder().host().build()?;
//! manager.register_backend(Wgpu::with_devices([(device, queue)]))?; // it is `wgpu:0` from now on
//! // SAFETY: the device that was lent made it.
//! let texels = unsafe { manager.adopt_native("wgpu:0".parse()?, texture) }?; // row after row, without padding
//! let pixels = manager.adopt(vec![0u8; texels.len() as usize])?;
//! manager.copy(&texels, &pixels).wait()?; // behind what was submitted to the queue before
//! # Ok(())
//! # }
//! # }
//! ```
//!
//! In the browser a program awaits `Wgpu::request` to open a device, or lends its own. Transfers are awaited there: a
//! call that would block is an error, since the browser goes on only when the page's own code has returned to it.
//!
//! `Wgpu::when_done` sets an [`Event`] when a submission of the program is over, for a transfer to start
//! [after](Request::after). The folder `examples` of this crate has whole programs: `upload`, `adopt`, `readback`.
//!
//! # Metal devices
//! With the feature `metal`, [`TransferManager::discover`] finds them as `metal:0` and so on, on Apple's machines.
//!
//! | place | memory |
//! |---|---|
//! | `metal:0` | where device and host have one memory, `mapped`; else `device` |
//! | `metal:0/mapped` | memory that both reach; the host's threads copy straight into it, and [`TransferManager::share`] has the device reach whole pages of the host's. It has no guards: programs read and write it by copies, or where `MetalBuffer::get` shows it |
//! | `metal:0/device` | the device's own; the host reads and writes it by copies |
//! | `metal:0/managed` | on Macs whose device has memory of its own: a copy for each side; copies, and guards ([`Buffer::read`], [`Buffer::write`]) |
//!
//! ```no_run
//! # #[cfg(all(feature = "metal", target_vendor = "apple", not(any(transload_local, loom))))] {
//! # fn example(own: transload::metal_backend::MetalBuffer) -> Result<(), Box<dyn std::error::Error>> {
//! use transload::metal_backend::{Metal, MetalBuffer};
//! use transload::{AllocSpec, TransferManager};
//!
//! let manager = TransferManager::discover()?;
//! // A buffer of the program's own, `MetalBuffer::new(buffer)`, whose storage mode is shared.
//! // SAFETY: no command of the program's touches it while a transfer does.
//! let own = unsafe { manager.adopt_native("metal:0/mapped".parse()?, own) }?;
//! let device = manager.allocate("metal:0/device".parse()?, AllocSpec::bytes(own.len()))?;
//! manager.copy(&own, &device).wait()?;
//! // And the buffer behind one of the manager's, for commands.
//! // SAFETY: as above.
//! let buffer = unsafe { device.native::<MetalBuffer>().ok_or("none")?.get() };
//! # let _ = buffer;
//! let metal = manager.backend::<Metal>();
//! # let _ = metal;
//! # Ok(())
//! # }
//! # }
//! ```
//!
//! A program that has a `MTLDevice` already lends it, as it lends one of wgpu:
//! `manager.register_backend(Metal::with_devices([device])?)`. Metal's objects are those of objc2-metal 0.3.
//! `Metal::when_done` and `when_event` start a transfer after the program's own commands; `follow` and `signal` make
//! commands start after a transfer.
//!
//! On other systems the feature adds nothing: there is no `metal_backend`, and `metal:0` is a device that the machine
//! lacks ([`PlaceError::UnknownDevice`]). All of this was type-checked for Apple, and executed against a double of
//! Metal (`doubles/metal` in the repository); not on a Mac yet.
//!
//! # Features
//! `std`, which is on unless it is switched off: the host's memory, files, discovery, the probe, a
//! thread for futures. `wgpu`: graphics adapters. `cuda`: CUDA devices. `metal`: Metal devices. `bytes`, `mmap` and `cudarc`: objects of the crates
//! `bytes`, `memmap2` and `cudarc` can be adopted. `tracing` and `metrics`: spans, counters and histograms of every transfer.
//!
//! # Without an operating system
//! Without the feature `std` the engine is `no_std`: register backends by hand and call
//! [`TransferManager::turn`] from your loop. The program must provide an implementation of
//! `critical-section`; the manager must not be used from interrupt handlers.
#![cfg_attr(not(feature = "std"), no_std)]
#![cfg_attr(
    not(threads),
    allow(
        clippy::arc_with_non_send_sync,
        reason = "the same code counts references where there is one thread"
    )
)]

extern crate alloc;

mod adopt;
mod buffer;
mod builder;
mod engine;
mod error;
mod event;
mod explain;
mod guard;
mod manager;
mod prepared;
mod region;
mod report;
mod request;
#[cfg(feature = "std")]
mod std;
mod transfer;
mod unwind_safe;

#[cfg(feature = "std")]
pub use self::std::profile::{Profile, ProfileError};
#[cfg(feature = "std")]
pub use self::std::{probe, profile};
pub use adopt::{Adopt, OwnedSlice};
pub use buffer::{Buffer, IntoInnerError, IntoInnerReason};
pub use builder::Builder;
pub use engine::admission::budget::StagingBudget;
pub use engine::clock::NoClock;
#[cfg(feature = "std")]
pub use engine::clock::SystemClock;
pub use engine::types::Priority;
#[cfg(feature = "std")]
pub use error::OpenError;
pub use error::{
    BatchError, Error, GuardError, PlaceError, RegionError, RegisterError, ShareError,
    TransferError, TransferFailure,
};
pub use event::Event;
pub use explain::{Choice, Explanation, LaneChoice, Proof};
pub use guard::{ReadFuture, ReadGuard, WriteFuture, WriteGuard};
pub use manager::{BackendInfo, Placed, TransferManager};
pub use prepared::Prepared;
pub use region::{Rect, Region};
pub use report::{Fallback, Report};
pub use request::{Batch, OnFailure, Request};
pub use transfer::{Cancelled, Canceller, Transfer};
/// The machine as the planner sees it: what [`TransferManager::topology`], [`Explanation`] and [`Report`] show.
pub mod model {
    pub use transload_core::{
        Access, Cost, Curve, CurveError, DeviceInfo, EngineId, Estimate, Lack, Lane, Limits, Link,
        LinkClass, LinkId, MemoryInfo, Name, ParseError, Piece, Plan, Ring, Role, Route,
        ShapeError, Step, StepKind, Timing, Topology, TopologyError, Transformer, defaults,
    };
}

pub use transload_core::{
    ByteRate, ByteSize, DeviceId, DeviceKind, DeviceName, Instant, MemoryId, MemoryKind, Method,
    Nanoseconds, PciAddress, Place, Shape, Span, Topology, Uuid, stats,
};
/// CUDA devices, whose [`Cuda`](cuda_backend::Cuda) takes users' own memory in.
#[cfg(cuda)]
pub use transload_cuda as cuda_backend;
/// What a backend implements, and what a program passes to one: for programs that add a memory system or take in foreign
/// memory.
pub use transload_hal as hal;
pub use transload_hal::{Advice, AllocSpec, Backend, BackendId, Clock, ErrorClass};
/// The host's own backend, and files as memory.
#[cfg(feature = "std")]
pub mod host {
    #[cfg(target_os = "linux")]
    pub use transload_host::memory::shared::seal;
    #[doc(hidden)]
    pub use transload_host::partial;
    pub use transload_host::{FileError, Host, HostFile, HostOptions};
}
/// Metal devices, whose [`Metal`](metal_backend::Metal) takes users' own devices and buffers in.
#[cfg(metal)]
pub use transload_metal as metal_backend;
/// Adapters through wgpu, whose [`Wgpu`](wgpu_backend::Wgpu) takes users' own devices and buffers in.
#[cfg(adapters)]
pub use transload_wgpu as wgpu_backend;

#[cfg(all(doctest, threads, first_page))]
mod guide;

/// The first page's example compiles and runs.
#[cfg(all(doctest, feature = "std", first_page))]
#[doc = include_str!("../../../README.md")]
struct FirstPage;

/// So does that of the package's page.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct PackagePage;
