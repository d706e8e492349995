//! The backend for the conformance suite: the driver's synchronous copies, which the backend never uses, fill and read
//! device memory.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use transload::hal::{Backend, Buffer, HostSpan};
use transload_cuda::Cuda;
use transload_testkit::conformance::Harness;

use super::gpu::Gpu;

/// The backend, and a second handle to each of its devices.
pub(crate) struct OfCuda {
    pub(crate) cuda: Cuda,
    pub(crate) gpus: Vec<Arc<Gpu>>,
}

impl OfCuda {
    /// Makes the context of a buffer's device current.
    fn entered(&self, buffer: &Buffer) -> Option<&Gpu> {
        let gpu = self.gpus.get(buffer.memory().device.index as usize)?;
        gpu.enter().ok().map(|()| &**gpu)
    }
}

impl Harness for OfCuda {
    fn backend(&self) -> &dyn Backend {
        &self.cuda
    }

    fn fill(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> bool {
        if let Some(span) = buffer.host(offset, bytes.len() as u64) {
            // SAFETY: the suite fills buffers that no operation uses, and keeps them alive.
            unsafe { HostSpan::of(bytes).copy_to(span) };
            return true;
        }
        let Some(gpu) = self.entered(buffer) else {
            return false;
        };
        let (to, from) = (buffer.position() + offset, bytes.as_ptr().cast());
        // SAFETY: the range lies within the buffer, and no operation uses it.
        let filled = unsafe { gpu.driver.cuMemcpyHtoD_v2(to, from, bytes.len()) };
        // It may return before the bytes have arrived: see `Gpu::up_blocking`.
        filled.and_then(|()| gpu.settle()).is_ok()
    }

    fn read(&self, buffer: &Buffer, offset: u64, out: &mut [u8]) -> bool {
        if let Some(span) = buffer.host(offset, out.len() as u64) {
            // SAFETY: the suite reads buffers that no operation writes, and keeps them alive.
            unsafe { span.copy_to(HostSpan::of_mut(out)) };
            return true;
        }
        let Some(gpu) = self.entered(buffer) else {
            return false;
        };
        let (to, from) = (out.as_mut_ptr().cast(), buffer.position() + offset);
        // SAFETY: the range lies within the buffer, and no operation writes it.
        unsafe { gpu.driver.cuMemcpyDtoH_v2(to, from, out.len()) }.is_ok()
    }

    /// Yields the processor to the lanes' threads, for longer than a small copy takes.
    fn drive(&self) {
        let end = Instant::now() + Duration::from_micros(200);
        while Instant::now() < end {
            thread::yield_now();
        }
    }
}
