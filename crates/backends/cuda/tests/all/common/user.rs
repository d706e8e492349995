//! A user of the driver next to the backend, with a stream and memory of its own.

use transload_cuda::Cuda;
use transload_cuda::raw::{
    CUcontext, CUdevice, CUdeviceptr, CUstream, CUstream_flags, CallError, Driver,
};
use transload_hal::HostSpan;

/// The primary context of a device, current on this thread while this value lives, and a stream in it that waits for no
/// other.
pub(crate) struct User<'a> {
    driver: &'a Driver,
    device: CUdevice,
    pub(crate) stream: CUstream,
    owned: Vec<CUdeviceptr>,
}

impl<'a> User<'a> {
    pub(crate) fn of(cuda: &'a Cuda, device: i32) -> User<'a> {
        let (driver, device) = (cuda.driver(), CUdevice(device));
        let mut context = CUcontext::NULL;
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, device) }.unwrap();
        // SAFETY: the context was retained.
        unsafe { driver.cuCtxPushCurrent_v2(context) }.unwrap();
        let mut stream = CUstream::NULL;
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuStreamCreate(&raw mut stream, flags) }.unwrap();
        User {
            driver,
            device,
            stream,
            owned: Vec::new(),
        }
    }

    /// Device memory with these bytes, which is freed with the user.
    pub(crate) fn upload(&mut self, bytes: &[u8]) -> CUdeviceptr {
        let mut address = 0;
        // SAFETY: the out-pointer is a local variable.
        unsafe { self.driver.cuMemAlloc_v2(&raw mut address, bytes.len()) }.unwrap();
        self.owned.push(address);
        let from = bytes.as_ptr().cast();
        // SAFETY: both have that length.
        unsafe { self.driver.cuMemcpyHtoD_v2(address, from, bytes.len()) }.unwrap();
        // A copy from pageable memory returns before the bytes have arrived.
        // SAFETY: the call takes no arguments.
        unsafe { self.driver.cuCtxSynchronize() }.unwrap();
        address
    }

    /// Starts a copy in the user's stream.
    pub(crate) fn start(
        &self,
        from: CUdeviceptr,
        to: CUdeviceptr,
        len: usize,
    ) -> Result<(), CallError> {
        // SAFETY: tests keep both until they have waited, or leak both.
        unsafe { self.driver.cuMemcpyDtoDAsync_v2(to, from, len, self.stream) }
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        for address in self.owned.drain(..) {
            // SAFETY: the memory was allocated above. A ruined context refuses the call.
            let _ = unsafe { self.driver.cuMemFree_v2(address) };
        }
        // SAFETY: it was created above.
        let _ = unsafe { self.driver.cuStreamDestroy_v2(self.stream) };
        let mut popped = CUcontext::NULL;
        // SAFETY: it was pushed above.
        let _ = unsafe { self.driver.cuCtxPopCurrent_v2(&raw mut popped) };
        // SAFETY: it was retained above.
        let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// The bytes that the host reads there, even while a device writes them.
pub(crate) fn seen(span: HostSpan) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    // SAFETY: the test keeps the memory. The caller compares bytes that a device writes meanwhile with the expected
    // ones.
    unsafe { span.copy_to(HostSpan::of_mut(&mut bytes)) };
    bytes
}
