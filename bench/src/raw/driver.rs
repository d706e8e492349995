//! The driver's double, and the calls that a user would make by hand to copy between pinned memory and a device.

use std::ffi::c_void;
use std::ptr;

use anyhow::{Result, anyhow};
use transload_cuda::raw::{
    CU_MEMHOSTALLOC, CUcontext, CUdevice, CUdeviceptr, CUevent, CUevent_flags, CUstream,
    CUstream_flags, Driver,
};

/// A device behind 4 GB/s in each direction.
pub(crate) const MACHINE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/machines/four-gigabytes.toml");

/// The double with a machine description, which the process keeps to its end.
pub(crate) fn double(machine: &str) -> Driver {
    // A second case finds it set.
    let _ = cuda::control(&format!("set TRANSLOAD_DOUBLE_TOPOLOGY={machine}"));
    // SAFETY: the functions are the double's, which stay loaded.
    unsafe { Driver::from_table(cuda::table(), "the driver's double") }
}

/// A pinned block, a device block of the same length, and a stream. Freed when dropped.
pub(crate) struct Bare {
    driver: Driver,
    context: CUcontext,
    stream: CUstream,
    event: CUevent,
    pinned: *mut c_void,
    device: CUdeviceptr,
    len: usize,
}

impl Bare {
    pub(crate) fn new(driver: Driver, len: usize) -> Result<Bare> {
        let mut bare = Bare {
            driver,
            context: CUcontext::NULL,
            stream: CUstream::NULL,
            event: CUevent::NULL,
            pinned: ptr::null_mut(),
            device: 0,
            len,
        };
        let driver = &bare.driver;
        let no_timing = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
        let non_blocking = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: flags are zero.
        unsafe { driver.cuInit(0) }?;
        // SAFETY: the out-pointers here and below are local variables.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut bare.context, CUdevice(0)) }?;
        // SAFETY: the context was retained.
        unsafe { driver.cuCtxPushCurrent_v2(bare.context) }?;
        // SAFETY: as above.
        unsafe { driver.cuStreamCreate(&raw mut bare.stream, non_blocking) }?;
        // SAFETY: as above.
        unsafe { driver.cuEventCreate(&raw mut bare.event, no_timing) }?;
        // SAFETY: as above.
        unsafe { driver.cuMemAlloc_v2(&raw mut bare.device, len) }?;
        let portable = CU_MEMHOSTALLOC::PORTABLE;
        // SAFETY: as above.
        unsafe { driver.cuMemHostAlloc(&raw mut bare.pinned, len, portable) }?;
        Ok(bare)
    }

    /// Starts a copy of `len` bytes from `at` on to the device.
    pub(crate) fn up(&self, at: usize, len: usize) -> Result<()> {
        self.check(at, len)?;
        let to = self.device + at as u64;
        let from = self.pinned.cast::<u8>().wrapping_add(at).cast();
        // SAFETY: the range lies within both blocks, which stay until the stream is done.
        unsafe { self.driver.cuMemcpyHtoDAsync_v2(to, from, len, self.stream) }?;
        Ok(())
    }

    /// Starts a copy of `len` bytes from `at` on from the device.
    pub(crate) fn down(&self, at: usize, len: usize) -> Result<()> {
        self.check(at, len)?;
        let from = self.device + at as u64;
        let to = self.pinned.cast::<u8>().wrapping_add(at).cast();
        // SAFETY: as in `up`.
        unsafe { self.driver.cuMemcpyDtoHAsync_v2(to, from, len, self.stream) }?;
        Ok(())
    }

    fn check(&self, at: usize, len: usize) -> Result<()> {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        fits.then_some(())
            .ok_or_else(|| anyhow!("a copy reaches past its block"))
    }

    /// Records an event after the started copies.
    pub(crate) fn record(&self) -> Result<()> {
        // SAFETY: both are this object's.
        unsafe { self.driver.cuEventRecord(self.event, self.stream) }?;
        Ok(())
    }

    /// Waits for the stream.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the stream is this object's.
        unsafe { self.driver.cuStreamSynchronize(self.stream) }?;
        Ok(())
    }

    /// Writes the pinned block, while no copy is in flight.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<()> {
        self.check(0, bytes.len())?;
        // SAFETY: the block has that length, and no device uses it now.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.pinned.cast(), bytes.len()) };
        Ok(())
    }

    /// Reads the pinned block, while no copy is in flight.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the block has that length, and no device writes it now.
        unsafe { ptr::copy_nonoverlapping(self.pinned.cast(), bytes.as_mut_ptr(), self.len) };
        bytes
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let driver = &self.driver;
        // SAFETY: `new` made each of them, and each is freed once; those that it did not make are null, which the
        // driver refuses.
        let _ = unsafe { driver.cuStreamDestroy_v2(self.stream) };
        // SAFETY: as above.
        let _ = unsafe { driver.cuEventDestroy_v2(self.event) };
        // SAFETY: as above.
        let _ = unsafe { driver.cuMemFreeHost(self.pinned) };
        // SAFETY: as above.
        let _ = unsafe { driver.cuMemFree_v2(self.device) };
        let mut popped = CUcontext::NULL;
        // SAFETY: the out-pointer is a local variable, and `new` pushed the context.
        let _ = unsafe { driver.cuCtxPopCurrent_v2(&raw mut popped) };
        // SAFETY: it was retained once.
        let _ = unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(0)) };
    }
}
