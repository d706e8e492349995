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
//! println!("{report}"); // 1 MiB  cpu:0 → cpu:0/shared  DirectCopy  … GB/s
//! assert_eq!(&*shared.read()?, &[7u8; 1 << 20][..]);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start at [`TransferManager`]. A copy returns a [`Transfer`], which is a `Future` and can be waited for without any
//! runtime. Its [`Report`] tells which way the bytes took, how fast they moved, and which ways failed before.
//!
//! # By task
//! Each page of the [guide] is a whole program for a task.
//!
//! | to | use | guide |
//! |---|---|---|
//! | find the memories of the machine | [`TransferManager::discover`], [`Builder`], [`TransferManager::devices`] | |
//! | make memory at a place | [`TransferManager::allocate`] with an [`AllocSpec`] and a [`Place`] such as `wgpu:0` or `cpu:0/shared` | |
//! | bring a file to a device, or back | [`TransferManager::open_file`], [`TransferManager::create_file`] | [upload] |
//! | take in a `Vec<T>` of plain data, an `Arc<[T]>`, or another type that [`Adopt`] lists, without a copy | [`TransferManager::adopt`], [`Buffer::into_inner`] | [share] |
//! | copy borrowed memory | [`TransferManager::copy_from_slice`], [`TransferManager::copy_into_slice`], [`TransferManager::copy_into_uninit`], [`TransferManager::read_to_vec`] | |
//! | copy once | [`TransferManager::copy`], [`Transfer::wait`] or `.await` | |
//! | copy again and again, as frames | [`TransferManager::prepare`], [`Prepared::post`] | [readback] |
//! | copy rows, a rectangle, a part | [`Region`], [`Rect`], [`Buffer::slice`] | |
//! | lend a device of wgpu or Metal; take in its buffers and textures | `Wgpu::with_devices`, `Metal::with_devices`, [`TransferManager::adopt_native`], [`Buffer::native`] | [own device] |
//! | take in memory of a CUDA device by its address; share memory with other processes | [`TransferManager::import`], [`TransferManager::export`], [`TransferManager::import_ipc`] | [share] |
//! | let a device work in memory of the host | [`TransferManager::share`], [`TransferManager::place`] | [share] |
//! | order transfers with the program's own work | [`Event`], [`Request::after`], [`Request::then`], [`Transfer::fences`] | [own device] |
//! | look at bytes, or write them | [`Buffer::read`], [`Buffer::write`]: guards take part in the order of transfers | |
//! | copy many together, some before others | [`TransferManager::copy_batch`], [`Request::priority`] | [batch] |
//! | end in time | [`Request::deadline`], [`Transfer::cancel`], [`Transfer::canceller`] | [deadline] |
//! | know that the right bytes arrived | [`Request::verify`], [`Report::checksum`] | [verify] |
//! | handle errors | [`Error`], [`Error::class`] | [errors] |
//! | know why a copy goes this way; measure the machine | [`TransferManager::explain`], [`TransferManager::probe`], [`Profile`] | [profile] |
//! | watch a program | [`TransferManager::stats`], the features `tracing` and `metrics` | [observe] |
//! | add a memory system | [`Backend`], and the other names of `transload::hal` | [backend] |
//! | run without an operating system | [`TransferManager::turn`] | [no operating system] |
//!
//! # Devices
//! - `cuda:0` and so on, with the feature `cuda`: NVIDIA's driver is loaded when the program runs (`libcuda.so.1`,
//!   `nvcuda.dll`, or the library that the environment variable `TRANSLOAD_CUDA_DRIVER` names). It must be of CUDA 11 or
//!   newer. Transfers are not ordered with the program's own streams: `Cuda::when_done`, `when_event` and `follow` order
//!   them.
//! - `wgpu:0` and so on, with the feature `wgpu`: the adapters that wgpu 30 finds. A transfer runs behind what was
//!   submitted to the device's queue before; `Wgpu::when_done` is for copies that use no queue. In the browser a program
//!   awaits `Wgpu::request` to open a device, or lends its own, and awaits transfers: a call that would block is an error.
//! - `metal:0` and so on, with the feature `metal`, on Apple's systems; elsewhere the feature adds nothing. Objects are
//!   those of objc2-metal 0.3. `Metal::when_done`, `when_event`, `follow` and `signal` order transfers and commands.
//!
//! Where a driver is missing, the manager lacks only these devices: [`TransferManager::lacks`] tells why. The page
//! [own device] lists the memories of each.
//!
//! The tests run CUDA and Metal on stand-ins, and adapters on software drivers; an H100 and an H200 have run CUDA and
//! NVIDIA's Vulkan driver by hand: [limits]. Results of a stand-in are called simulated ([`Report::is_simulated`],
//! `DeviceInfo::simulated`).
//!
//! # Features
//! | feature | adds |
//! |---|---|
//! | `std` (on by default) | the host's memory, files, discovery, the probe, a thread for futures |
//! | `wgpu`, `cuda`, `metal` | graphics adapters, CUDA devices, Metal devices |
//! | `remote` | memory of other machines ([`TransferManager::connect`]), and this one's for them ([`TransferManager::serve`]) |
//! | `bytes`, `mmap`, `cudarc` | [`TransferManager::adopt`] takes objects of the crates `bytes`, `memmap2` and `cudarc` |
//! | `tracing`, `metrics` | events, counters and histograms of every transfer |
//!
//! # Without an operating system
//! Without the feature `std` the engine is `no_std`: register backends by hand and call
//! [`TransferManager::turn`] from your loop. The program must provide an implementation of
//! `critical-section`; the manager must not be used from interrupt handlers.
//!
//! [guide]: https://github.com/transload/transload/blob/main/docs/guide/README.md
//! [upload]: https://github.com/transload/transload/blob/main/docs/guide/upload.md
//! [readback]: https://github.com/transload/transload/blob/main/docs/guide/readback.md
//! [own device]: https://github.com/transload/transload/blob/main/docs/guide/own-device.md
//! [share]: https://github.com/transload/transload/blob/main/docs/guide/share.md
//! [batch]: https://github.com/transload/transload/blob/main/docs/guide/batch.md
//! [deadline]: https://github.com/transload/transload/blob/main/docs/guide/deadline.md
//! [verify]: https://github.com/transload/transload/blob/main/docs/guide/verify.md
//! [errors]: https://github.com/transload/transload/blob/main/docs/guide/errors.md
//! [profile]: https://github.com/transload/transload/blob/main/docs/guide/profile.md
//! [observe]: https://github.com/transload/transload/blob/main/docs/guide/observe.md
//! [backend]: https://github.com/transload/transload/blob/main/docs/guide/backend.md
//! [no operating system]: https://github.com/transload/transload/blob/main/docs/guide/no-os.md
//! [limits]: https://github.com/transload/transload/blob/main/docs/limits.md
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
mod trace;
mod transfer;
mod unwind_safe;

#[cfg(feature = "std")]
pub use self::std::profile::{Profile, ProfileError};
#[cfg(remote)]
pub use self::std::serve::{ServeError, ServeOptions, Server};
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
    BatchError, Error, FailedTask, GuardError, PlaceError, RegionError, RegisterError, ShareError,
    TransferError, TransferFailure,
};
pub use event::Event;
pub use explain::{Candidate, Choice, Explanation, LaneChoice, Proof};
pub use guard::{ReadFuture, ReadGuard, WriteFuture, WriteGuard};
pub use manager::{BackendInfo, Placed, TransferManager};
pub use prepared::Prepared;
pub use region::{HostEnd, Rect, Region};
pub use report::{Fallback, Report};
pub use request::{Batch, OnFailure, Request};
pub use trace::{Hop, Trace};
pub use transfer::{Cancelled, Canceller, Transfer};
/// The machine as the planner sees it: what [`TransferManager::topology`], [`Explanation`] and [`Report`] show.
pub mod model {
    pub use transload_core::flight::{Load, Resource, Tried};
    pub use transload_core::{
        Access, Bar, Barred, Cost, Curve, CurveError, DeviceInfo, EngineId, Estimate, Lack, Lane,
        Limits, Link, LinkClass, LinkId, MemoryInfo, Name, ParseError, Passage, Piece, Plan,
        Reason, Ring, Role, Route, ShapeError, Step, StepKind, StridedError, Timing, Topology,
        TopologyError, Transformer, defaults,
    };
}

pub use transload_core::{
    Axis, ByteRate, ByteSize, Conversion, DeviceId, DeviceKind, DeviceName, Element, Instant,
    MemoryId, MemoryKind, Method, Nanoseconds, NoConversion, Node, PciAddress, Place, Shape, Span,
    Strided, Topology, Uuid, stats,
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
    #[cfg(unix)]
    #[doc(hidden)]
    pub use transload_host::signals;
    pub use transload_host::{FileError, Host, HostFile, HostOptions};
}
/// Other machines: keys, and what is told of sessions with them.
#[cfg(remote)]
pub mod remote {
    pub use transload_remote::{
        KeyError, NodeError, Options, PrivateKey, PublicKey, SessionError, ucx_version,
    };
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
