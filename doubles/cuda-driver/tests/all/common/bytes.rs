//! Memory of each kind, and its bytes.

use std::ffi::c_void;
use std::ptr;

use transload_cuda::raw::{CUDA_MEMCPY2D, CUdeviceptr, CUmemorytype, CUresult, CUstream, Driver};

use super::work::{result, synchronize};

/// Bytes that tell themselves apart: by seed, and by position.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Memory of the current context's device.
pub(crate) fn allocate(driver: &Driver, bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuMemAlloc_v2(&raw mut address, bytes) }.unwrap();
    address
}

pub(crate) fn free(driver: &Driver, address: CUdeviceptr) {
    // SAFETY: the address is the driver's.
    unsafe { driver.cuMemFree_v2(address) }.unwrap();
}

/// Memory of the host's, there until the end of the process. Only ever reached through pointers, since the driver
/// writes it.
#[derive(Clone, Copy)]
pub(crate) struct Host {
    pub(crate) start: *mut u8,
    len: usize,
}

impl Host {
    pub(crate) fn pageable(bytes: &[u8]) -> Host {
        let (start, len) = (bytes.to_vec().leak().as_mut_ptr(), bytes.len());
        Host { start, len }
    }

    pub(crate) fn pinned(driver: &Driver, bytes: &[u8]) -> Host {
        let mut start: *mut c_void = ptr::null_mut();
        let len = bytes.len();
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuMemHostAlloc(&raw mut start, len, 0) }.unwrap();
        let start = start.cast();
        let pinned = Host { start, len };
        pinned.write(bytes);
        pinned
    }

    pub(crate) fn address(&self) -> CUdeviceptr {
        self.start.expose_provenance() as u64
    }

    pub(crate) fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: the buffer has that length.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start, bytes.len()) };
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the buffer has that length.
        unsafe { ptr::copy_nonoverlapping(self.start, bytes.as_mut_ptr(), self.len) };
        bytes
    }
}

/// Writes memory that devices reach, and waits.
pub(crate) fn upload(driver: &Driver, to: CUdeviceptr, bytes: &[u8]) {
    let from = bytes.as_ptr().cast();
    // SAFETY: the memory has that length.
    unsafe { driver.cuMemcpyHtoD_v2(to, from, bytes.len()) }.unwrap();
    synchronize(driver, CUstream::NULL).unwrap();
}

/// Reads memory that devices reach, after what blocking streams of the current context do.
pub(crate) fn download(driver: &Driver, from: CUdeviceptr, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: the buffer has that length.
    unsafe { driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, len) }.unwrap();
    bytes
}

/// Memory of the current context's device with something in it.
pub(crate) fn uploaded(driver: &Driver, bytes: &[u8]) -> CUdeviceptr {
    let address = allocate(driver, bytes.len());
    upload(driver, address, bytes);
    address
}

/// A copy between any two addresses, in a stream: one row, of whatever memory the addresses are.
pub(crate) fn copy(
    driver: &Driver,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    len: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let row = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        srcDevice: src,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        dstDevice: dst,
        WidthInBytes: len,
        Height: 1,
        ..CUDA_MEMCPY2D::default()
    };
    // SAFETY: the double refuses anything that is no memory; the test's memory stays until the test has synchronised.
    result(unsafe { driver.cuMemcpy2DAsync_v2(&raw const row, stream) })
}
