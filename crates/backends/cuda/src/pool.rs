//! Memory of a device that is allocated and freed in the order of a stream, and kept between uses.
//!
//! Freeing what `cuMemAlloc` gave out waits for all that the device is doing; freeing to a pool waits for nothing.
//! All allocations and frees of a pool go through one stream that has no other work. So each free is over as soon
//! as it is ordered, memory that was freed is used again at once, and waiting for the stream waits for no copies.

use crate::raw::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationType, CUmemLocation,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUstream, CUstream_flags, CallError, Driver,
};

/// A pool keeps this part of the device's memory while it is unused, and no more than [`MAX_THRESHOLD`]. Other
/// programs on the device and other libraries of the process cannot have what is kept, so it is little: a round
/// figure, not a measured one.
const THRESHOLD_PART: u64 = 32;

/// See [`THRESHOLD_PART`]. In bytes.
const MAX_THRESHOLD: u64 = 1 << 30;

/// A pool of the backend's own. Its handles are given back by [`Pool::destroy`].
#[derive(Debug)]
pub(crate) struct Pool {
    handle: CUmemoryPool,
    stream: CUstream,
    threshold_bytes: u64,
}

/// How many unused bytes a pool keeps on a device with `memory_bytes` of memory.
pub(crate) fn threshold_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / THRESHOLD_PART).min(MAX_THRESHOLD)
}

impl Pool {
    /// A pool of the current context's device. Holds no memory yet.
    ///
    /// # Errors
    /// Where the driver has no pools, which is no fault: there is `cuMemAlloc`.
    pub(crate) fn new(
        driver: &Driver,
        device: CUdevice,
        threshold_bytes: u64,
    ) -> Result<Pool, CallError> {
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: CUmemLocation::device(device.0),
            ..CUmemPoolProps::default()
        };
        let mut pool = Pool {
            handle: CUmemoryPool::NULL,
            stream: CUstream::NULL,
            threshold_bytes,
        };
        // SAFETY: place and properties are ours.
        unsafe { driver.cuMemPoolCreate(&raw mut pool.handle, &raw const props) }?;
        match pool.prepare(driver) {
            Ok(()) => Ok(pool),
            Err(error) => {
                pool.destroy(driver);
                Err(error)
            }
        }
    }

    fn prepare(&mut self, driver: &Driver) -> Result<(), CallError> {
        let mut bytes = self.threshold_bytes;
        let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: this attribute is 64 bits long.
        unsafe { driver.cuMemPoolSetAttribute(self.handle, threshold, (&raw mut bytes).cast()) }?;
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: the place is ours.
        unsafe { driver.cuStreamCreate(&raw mut self.stream, flags) }
    }

    /// Memory that any stream may use as soon as this returns.
    pub(crate) fn allocate(&self, driver: &Driver, len: usize) -> Result<CUdeviceptr, CallError> {
        let mut start = 0;
        // SAFETY: the place is ours.
        unsafe { driver.cuMemAllocFromPoolAsync(&raw mut start, len, self.handle, self.stream) }?;
        // SAFETY: the stream is the pool's.
        match unsafe { driver.cuStreamSynchronize(self.stream) } {
            Ok(()) => Ok(start),
            Err(error) => {
                if self.free(driver, start, len) {
                    self.trim(driver);
                }
                Err(error)
            }
        }
    }

    /// Takes back memory that nothing uses any more, without waiting. Returns true if the caller should trim the
    /// pool: a driver may take the limit as the least that it must keep, and keep one large piece whole.
    #[must_use]
    pub(crate) fn free(&self, driver: &Driver, start: CUdeviceptr, len: usize) -> bool {
        // SAFETY: it was allocated from this pool, and no operation uses it any more.
        let freed = unsafe { driver.cuMemFreeAsync(start, self.stream) };
        if freed.is_err() {
            // SAFETY: as above. Of a context that is gone nothing is left to free.
            let _ = unsafe { driver.cuMemFree_v2(start) };
        }
        len as u64 > self.threshold_bytes
    }

    /// Lets another device read and write what is and will be allocated here: access between contexts is no
    /// access to pools (CUDA C++ Programming Guide, Stream Ordered Memory Allocator, Device Accessibility for
    /// Multi-GPU Support).
    pub(crate) fn admit(&self, driver: &Driver, device: CUdevice) -> Result<(), CallError> {
        let access = CUmemAccessDesc {
            location: CUmemLocation::device(device.0),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: there is one description.
        unsafe { driver.cuMemPoolSetAccess(self.handle, &raw const access, 1) }
    }

    /// Gives unused memory back to the device.
    pub(crate) fn trim(&self, driver: &Driver) {
        // Only frees that the host has seen end count (CUDA Driver API, Stream Ordered Memory Allocator,
        // cuMemPoolTrimTo).
        // SAFETY: the stream is the pool's.
        let _ = unsafe { driver.cuStreamSynchronize(self.stream) };
        // SAFETY: keeps what is in use.
        let _ = unsafe { driver.cuMemPoolTrimTo(self.handle, 0) };
    }

    /// Ends it. Nothing is allocated in it any more.
    pub(crate) fn destroy(&self, driver: &Driver) {
        if !self.stream.is_null() {
            // SAFETY: no other code knows the stream; the driver lets ordered work end.
            let _ = unsafe { driver.cuStreamDestroy_v2(self.stream) };
        }
        // SAFETY: no other code knows the pool.
        let _ = unsafe { driver.cuMemPoolDestroy(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_part_is_kept_and_never_much() {
        assert_eq!(threshold_bytes(8 << 30), 256 << 20);
        assert_eq!(threshold_bytes(80 << 30), MAX_THRESHOLD);
        assert_eq!(threshold_bytes(0), 0);
    }
}
