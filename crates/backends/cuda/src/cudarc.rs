//! Adopts allocations of cudarc, and converts its streams and events for [`Cuda`](crate::Cuda).
//!
//! cudarc 0.19 and this crate each load the driver, and get the same one.
//!
//! ```no_run
//! use cudarc::driver::{CudaContext, CudaSlice};
//! use transload_cuda::{Cuda, cudarc::Slice};
//! use transload_hal::{Backend, DeviceId, DeviceKind, External, MemoryKind};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let stream = CudaContext::new(0)?.default_stream();
//! let slice: CudaSlice<f32> = stream.alloc_zeros(1 << 20)?;
//!
//! let cuda = Cuda::discover()?;
//! let memory = DeviceId::new(DeviceKind::CUDA, 0).memory(MemoryKind::Device);
//! let slice = External::object(Slice::new(slice)?);
//! // SAFETY: a `Slice` has no other owner.
//! let buffer = unsafe { cuda.import(memory, slice) }?;
//! let slice: CudaSlice<f32> = buffer.into_owner().map_err(|_| "it is in use")?;
//! # Ok(()) }
//! ```
//!
//! With a manager of the crate `transload` that is `manager.adopt_native(place, Slice::new(slice)?)` and
//! `buffer.into_inner::<CudaSlice<f32>>()`.
//!
//! A program that uses cudarc itself chooses the version of CUDA and the way to link by cudarc's features, as always.
//! By default it is the newest version, and the library is loaded when the program runs.

use std::fmt;

use bytemuck::AnyBitPattern;
use cudarc::driver::result::ctx;
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtrMut, DriverError};
use transload_hal::Owner;

use crate::raw::{CUdeviceptr, CUevent, CUstream};

/// An unused allocation of cudarc, to be imported as memory. `into_owner` gives the `CudaSlice` back.
pub struct Slice {
    pub(crate) address: CUdeviceptr,
    pub(crate) len_bytes: u64,
    pub(crate) owner: Box<dyn Owner>,
}

/// A slice with work that failed.
#[non_exhaustive]
pub struct SliceError<T> {
    /// The slice.
    pub slice: CudaSlice<T>,
    /// The driver's error.
    pub source: DriverError,
}

impl Slice {
    /// Takes over a slice. Blocks until all work that cudarc knows to use the slice is over. The caller must wait for
    /// any other use, such as kernels that were launched with its bare address.
    ///
    /// Transfers write arbitrary bytes, so every byte pattern must be a valid element.
    ///
    /// # Errors
    /// If the driver reports that the work failed. The error returns the slice.
    pub fn new<T: AnyBitPattern>(mut slice: CudaSlice<T>) -> Result<Slice, SliceError<T>> {
        let before = ctx::get_current();
        let idle = wait(&mut slice);
        // cudarc replaces the thread's current context, which belongs to the user.
        if let Ok(before) = before {
            // SAFETY: it was current a moment ago. Null takes cudarc's off again.
            let _ = unsafe { ctx::set_current(before.unwrap_or(std::ptr::null_mut())) };
        }
        match idle {
            Ok(address) => Ok(Slice {
                address,
                len_bytes: slice.num_bytes() as u64,
                owner: Box::new(slice),
            }),
            Err(source) => Err(SliceError { slice, source }),
        }
    }
}

/// Waits until a slice is idle, and returns its address.
fn wait<T>(slice: &mut CudaSlice<T>) -> Result<CUdeviceptr, DriverError> {
    let stream = std::sync::Arc::clone(slice.stream());
    // Makes the stream wait for other streams' work on the slice.
    let (address, used) = slice.device_ptr_mut(&stream);
    drop(used);
    stream.synchronize()?;
    stream.context().check_err()?;
    Ok(address)
}

/// The handle of a stream, for [`Cuda::when_done`](crate::Cuda::when_done) and [`Cuda::follow`](crate::Cuda::follow).
#[must_use]
pub fn stream(stream: &CudaStream) -> CUstream {
    CUstream(stream.cu_stream().cast())
}

/// The handle of an event, for [`Cuda::when_event`](crate::Cuda::when_event).
#[must_use]
pub fn event(event: &CudaEvent) -> CUevent {
    CUevent(event.cu_event().cast())
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Slice {
            address, len_bytes, ..
        } = self;
        write!(f, "Slice({address:#x}, {len_bytes} bytes)")
    }
}

impl<T> fmt::Debug for SliceError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SliceError({:?})", self.source)
    }
}

impl<T> fmt::Display for SliceError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the work of a slice did not end well: {}", self.source)
    }
}

impl<T> std::error::Error for SliceError<T> {}
