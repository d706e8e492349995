//! Buffers and their expected bytes.

use transload_cuda::Cuda;
use transload_cuda::raw::{CUcontext, CUdevice, CallError, Driver};
use transload_hal::{Buffer, HostSpan};

/// A buffer and the bytes that it must hold; `None` where any byte is allowed.
pub(crate) struct Memory {
    pub(crate) buffer: Buffer,
    pub(crate) expected: Vec<Option<u8>>,
}

impl Memory {
    /// A buffer that was never written.
    pub(crate) fn new(buffer: Buffer) -> Memory {
        let len = buffer.len() as usize;
        Memory {
            buffer,
            expected: vec![None; len],
        }
    }

    /// Writes bytes that depend on `seed` through the host's address.
    pub(crate) fn fill(&mut self, seed: u8) {
        let bytes: Vec<u8> = (0..self.expected.len()).map(|at| byte(seed, at)).collect();
        let span = self.buffer.host(0, bytes.len() as u64).unwrap();
        // SAFETY: no operation uses the buffer yet.
        unsafe { HostSpan::of(&bytes).copy_to(span) };
        self.expected = bytes.into_iter().map(Some).collect();
    }

    /// The bytes of the buffer, read by the driver's synchronous copies, which the backend never uses.
    pub(crate) fn read(&self, cuda: &Cuda) -> Result<Vec<u8>, CallError> {
        let mut bytes = vec![0; self.expected.len()];
        if let Some(span) = self.buffer.host(0, bytes.len() as u64) {
            // SAFETY: no operation uses the buffer any more.
            unsafe { span.copy_to(HostSpan::of_mut(&mut bytes)) };
            return Ok(bytes);
        }
        let driver = cuda.driver();
        let device = CUdevice(self.buffer.memory().device.index as i32);
        let _current = Primary::enter(driver, device)?;
        let (to, from) = (bytes.as_mut_ptr().cast(), self.buffer.position());
        // SAFETY: the buffer is as long as the vector.
        unsafe { driver.cuMemcpyDtoH_v2(to, from, bytes.len()) }?;
        Ok(bytes)
    }

    /// Describes the first wrong byte.
    pub(crate) fn wrong(&self, bytes: &[u8]) -> Option<String> {
        let mut pairs = self.expected.iter().zip(bytes);
        let at = pairs.position(|(expected, is)| expected.is_some_and(|byte| byte != *is))?;
        let (memory, is, expected) = (self.buffer.memory(), bytes[at], self.expected[at]);
        Some(format!(
            "byte {at} of a buffer in {memory} is {is:#04x}, not {expected:02x?}"
        ))
    }
}

fn byte(seed: u8, at: usize) -> u8 {
    (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed
}

/// A device's primary context, current on this thread until this is dropped.
struct Primary<'a> {
    driver: &'a Driver,
    device: CUdevice,
}

impl<'a> Primary<'a> {
    fn enter(driver: &'a Driver, device: CUdevice) -> Result<Primary<'a>, CallError> {
        let mut context = CUcontext::NULL;
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, device) }?;
        // SAFETY: the context was retained.
        unsafe { driver.cuCtxPushCurrent_v2(context) }.unwrap();
        Ok(Primary { driver, device })
    }
}

impl Drop for Primary<'_> {
    fn drop(&mut self) {
        let mut popped = CUcontext::NULL;
        // SAFETY: it was pushed above.
        unsafe { self.driver.cuCtxPopCurrent_v2(&raw mut popped) }.unwrap();
        // SAFETY: it was retained above.
        unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device) }.unwrap();
    }
}
