//! Calls that move bytes. Each returns only when no operation is in flight, so that between two calls their memory may
//! be read, changed and freed.

use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;

use anyhow::{Result, bail};
use transload_cuda::raw::{
    CUdevice, CUdeviceptr, CUmemLocation, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUstream,
    CUstream_flags, CallError,
};

use super::gpu::Gpu;
use super::memory::Memory;

/// A stream of the caller's own.
pub(crate) struct Stream {
    gpu: Arc<Gpu>,
    raw: CUstream,
}

/// The operations that a caller can put into a stream until [`Stream::finish`] returns. The lifetime is that of all
/// memory of the operations; it is invariant, so it cannot shrink within the closure.
pub(crate) struct Orders<'stream, 'memory> {
    stream: &'stream Stream,
    memory: PhantomData<&'memory mut &'memory ()>,
}

impl Stream {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Stream> {
        let mut raw = CUstream::NULL;
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: the out-pointer is a local variable.
        unsafe { gpu.driver.cuStreamCreate(&raw mut raw, flags) }?;
        let gpu = Arc::clone(gpu);
        Ok(Stream { gpu, raw })
    }

    /// Submits the operations of `order` and waits until they are done, even when some were refused.
    pub(crate) fn finish<'memory>(
        &self,
        order: impl FnOnce(&Orders<'_, 'memory>) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let waits = WaitsOnPanic(self);
        let ordered = order(&Orders {
            stream: self,
            memory: PhantomData,
        });
        let settled = self.settle();
        mem::forget(waits);
        ordered.and(settled)
    }

    fn settle(&self) -> Result<(), CallError> {
        // SAFETY: the stream is this object's until `self` is dropped.
        unsafe { self.gpu.driver.cuStreamSynchronize(self.raw) }
    }
}

struct WaitsOnPanic<'stream>(&'stream Stream);

impl Drop for WaitsOnPanic<'_> {
    fn drop(&mut self) {
        // If the wait fails, the stream moves no bytes any more.
        let _ = self.0.settle();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: `new` created it, and it has no work in flight.
        let _ = unsafe { self.gpu.driver.cuStreamDestroy_v2(self.raw) };
    }
}

/// Many copies of one length, in the arrays that the driver wants.
pub(crate) struct Batch {
    /// Keeps both ends alive as long as the addresses.
    _ends: [Arc<Memory>; 2],
    dsts: Vec<CUdeviceptr>,
    srcs: Vec<CUdeviceptr>,
    sizes: Vec<usize>,
    attributes: [CUmemcpyAttributes; 1],
}

impl Batch {
    /// Copies `len` bytes from the second offset of each pair to the first.
    pub(crate) fn new(
        dst: &Arc<Memory>,
        src: &Arc<Memory>,
        offsets: &[(usize, usize)],
        len: usize,
    ) -> Batch {
        Batch {
            _ends: [Arc::clone(dst), Arc::clone(src)],
            dsts: offsets.iter().map(|(to, _)| dst.at(*to, len)).collect(),
            srcs: offsets.iter().map(|(_, from)| src.at(*from, len)).collect(),
            sizes: vec![len; offsets.len()],
            attributes: [CUmemcpyAttributes {
                srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                ..CUmemcpyAttributes::default()
            }],
        }
    }
}

/// The destination of a prefetch.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Device,
    Host,
}

impl<'memory> Orders<'_, 'memory> {
    /// From host to device, offsets first.
    pub(crate) fn up(
        &self,
        dst: (&'memory Memory, usize),
        src: (&'memory Memory, usize),
        len: usize,
    ) -> Result<(), CallError> {
        let (to, from) = (dst.0.at(dst.1, len), src.0.host(src.1, len).cast());
        let Stream { gpu, raw } = self.stream;
        // SAFETY: both are as long, and stay alive until `finish` has waited; here and below.
        unsafe { gpu.driver.cuMemcpyHtoDAsync_v2(to, from, len, *raw) }
    }

    /// From device to host.
    pub(crate) fn down(
        &self,
        dst: (&'memory Memory, usize),
        src: (&'memory Memory, usize),
        len: usize,
    ) -> Result<(), CallError> {
        let (to, from) = (dst.0.host(dst.1, len).cast(), src.0.at(src.1, len));
        let Stream { gpu, raw } = self.stream;
        // SAFETY: as above.
        unsafe { gpu.driver.cuMemcpyDtoHAsync_v2(to, from, len, *raw) }
    }

    /// Within the device, or from managed memory to it.
    pub(crate) fn across(
        &self,
        dst: &'memory Memory,
        src: &'memory Memory,
        len: usize,
    ) -> Result<(), CallError> {
        let (to, from) = (dst.at(0, len), src.at(0, len));
        let Stream { gpu, raw } = self.stream;
        // SAFETY: as above.
        unsafe { gpu.driver.cuMemcpyDtoDAsync_v2(to, from, len, *raw) }
    }

    /// From one device to another, by the driver's own choice of a way.
    pub(crate) fn between(
        &self,
        dst: &'memory Memory,
        src: &'memory Memory,
        len: usize,
    ) -> Result<(), CallError> {
        let (to, from) = (dst.at(0, len), src.at(0, len));
        let [there, here] = [dst, src].map(|memory| memory.gpu.context());
        let Stream { gpu, raw } = self.stream;
        // SAFETY: as above.
        unsafe {
            gpu.driver
                .cuMemcpyPeerAsync(to, there, from, here, len, *raw)
        }
    }

    /// Copies a batch by the newest signature that the driver has.
    pub(crate) fn batch(&self, batch: &'memory mut Batch) -> Result<(), CallError> {
        let Stream { gpu, raw } = self.stream;
        let Batch {
            dsts,
            srcs,
            sizes,
            attributes,
            ..
        } = batch;
        let count = sizes.len();
        let (to, from, sizes) = (dsts.as_mut_ptr(), srcs.as_mut_ptr(), sizes.as_mut_ptr());
        let attributes = attributes.as_mut_ptr();
        // From the first copy on, one set of attributes.
        let (mut first, mut failed) = (0, usize::MAX);
        let first = &raw mut first;
        if gpu.driver.table().cuMemcpyBatchAsync_v2.is_some() {
            // SAFETY: the arrays have that length; `Batch::new` has checked the ranges, and the memory stays alive as
            // above.
            unsafe {
                gpu.driver
                    .cuMemcpyBatchAsync_v2(to, from, sizes, count, attributes, first, 1, *raw)
            }
        } else {
            let failed = &raw mut failed;
            // SAFETY: as above, and the out-pointer for an index is a local variable.
            unsafe {
                gpu.driver
                    .cuMemcpyBatchAsync(to, from, sizes, count, attributes, first, 1, failed, *raw)
            }
        }
    }

    /// Moves managed memory, by the newest signature that the driver has.
    pub(crate) fn prefetch(&self, memory: &'memory Memory, to: Place) -> Result<(), CallError> {
        let Stream { gpu, raw } = self.stream;
        let (driver, len) = (&gpu.driver, memory.len());
        let address = memory.at(0, len);
        if driver.table().cuMemPrefetchAsync_v2.is_some() {
            let location = match to {
                Place::Device => CUmemLocation::device(gpu.device.0),
                Place::Host => CUmemLocation::HOST,
            };
            // SAFETY: no byte changes; the memory stays as above.
            unsafe { driver.cuMemPrefetchAsync_v2(address, len, location, 0, *raw) }
        } else {
            let device = match to {
                Place::Device => gpu.device,
                Place::Host => CUdevice::CU_DEVICE_CPU,
            };
            // SAFETY: as above.
            unsafe { driver.cuMemPrefetchAsync(address, len, device, *raw) }
        }
    }
}

impl Gpu {
    /// The driver's own copy from host memory that is not pinned. The call may return when the bytes are in the
    /// driver's own memory (CUDA Driver API, API synchronization behavior), so this waits for the end.
    pub(crate) fn up_blocking(
        &self,
        dst: &Memory,
        src: &Memory,
        len: usize,
    ) -> Result<(), CallError> {
        let (to, from) = (dst.at(0, len), src.host(0, len).cast());
        // SAFETY: both have that length.
        unsafe { self.driver.cuMemcpyHtoD_v2(to, from, len) }?;
        // SAFETY: the default stream always exists.
        unsafe { self.driver.cuStreamSynchronize(CUstream::NULL) }
    }

    /// The same back, which returns at its end.
    pub(crate) fn down_blocking(
        &self,
        dst: &Memory,
        dst_at: usize,
        src: &Memory,
        src_at: usize,
        len: usize,
    ) -> Result<(), CallError> {
        let (to, from) = (dst.host(dst_at, len).cast(), src.at(src_at, len));
        // SAFETY: both have that length.
        unsafe { self.driver.cuMemcpyDtoH_v2(to, from, len) }
    }

    /// Pins process memory and unpins it.
    pub(crate) fn register_once(&self, memory: &Memory) -> Result<(), CallError> {
        let start = memory.host(0, memory.len()).cast();
        // SAFETY: the memory is mapped and has that length.
        unsafe { self.driver.cuMemHostRegister_v2(start, memory.len(), 0) }?;
        // SAFETY: it was registered just now, and no operation uses it.
        unsafe { self.driver.cuMemHostUnregister(start) }
    }
}

/// Returns an error if the driver lacks these functions, with the reason that a call would give.
pub(crate) fn wants(gpu: &Gpu, any_of: &[&str]) -> Result<()> {
    let missing: Vec<_> = gpu.driver.missing().collect();
    let lacks = |name: &&str| missing.iter().any(|function| function.name == *name);
    if any_of.iter().all(lacks) {
        let version = gpu.driver.version();
        bail!(
            "the driver, of CUDA {version}, has no {}",
            any_of.join(" nor ")
        );
    }
    Ok(())
}
