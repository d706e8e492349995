//! Memory that the user makes with the driver, without the backend.
#![allow(dead_code, reason = "no test uses all of it")]

use std::fmt;

use transload_cuda::raw::{
    CU_MEMHOSTREGISTER, CUcontext, CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationProp, CUmemAllocationType, CUmemAttach_flags, CUmemLocation, CUstream, Driver,
};

/// Some memory, which is freed when this is dropped.
pub(crate) struct Own {
    pub(crate) address: CUdeviceptr,
    pub(crate) len: u64,
    free: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Own {
    fn new(address: CUdeviceptr, len: usize, free: impl FnOnce() + Send + Sync + 'static) -> Own {
        Own {
            address,
            len: len as u64,
            free: Some(Box::new(free)),
        }
    }

    /// An owner of nothing, for memory that does not exist.
    pub(crate) fn none() -> Own {
        Own {
            address: 0,
            len: 0,
            free: None,
        }
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Own({:#x}, {} bytes)", self.address, self.len)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(free) = self.free.take() {
            free();
        }
    }
}

/// Runs `act` in the primary context of a device.
pub(crate) fn beside<T>(driver: &Driver, number: i32, act: impl FnOnce() -> T) -> T {
    let mut context = CUcontext::NULL;
    // SAFETY: the out-pointers here and below are local variables; contexts are the driver's.
    unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, CUdevice(number)) }.unwrap();
    // SAFETY: as above.
    unsafe { driver.cuCtxPushCurrent_v2(context) }.unwrap();
    let answer = act();
    let mut popped = CUcontext::NULL;
    // SAFETY: as above.
    unsafe { driver.cuCtxPopCurrent_v2(&raw mut popped) }.unwrap();
    // SAFETY: as above.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(CUdevice(number)) }.unwrap();
    answer
}

/// Memory of `cuMemAlloc`, in whichever context is current.
pub(crate) fn plain(driver: &Driver, len: usize) -> CUdeviceptr {
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuMemAlloc_v2(&raw mut address, len) }.unwrap();
    address
}

pub(crate) fn free(driver: &Driver, address: CUdeviceptr) {
    // SAFETY: it is the test's, and no operation uses it.
    unsafe { driver.cuMemFree_v2(address) }.unwrap();
}

/// Memory of `cuMemAlloc`.
pub(crate) fn of_device(driver: &Driver, number: i32, len: usize) -> Own {
    let driver = driver.clone();
    let address = beside(&driver, number, || plain(&driver, len));
    Own::new(address, len, move || {
        beside(&driver, number, || free(&driver, address));
    })
}

/// Memory of a device's pool.
pub(crate) fn of_pool(driver: &Driver, number: i32, len: usize) -> Own {
    let driver = driver.clone();
    let mut address = 0;
    beside(&driver, number, || {
        // SAFETY: the place is ours, and the default stream is always there.
        unsafe { driver.cuMemAllocAsync(&raw mut address, len, CUstream::NULL) }.unwrap();
        // SAFETY: as above.
        unsafe { driver.cuStreamSynchronize(CUstream::NULL) }.unwrap();
    });
    Own::new(address, len, move || {
        beside(&driver, number, || {
            // SAFETY: it is the test's, and no operation uses it.
            unsafe { driver.cuMemFreeAsync(address, CUstream::NULL) }.unwrap();
            // SAFETY: as above.
            unsafe { driver.cuStreamSynchronize(CUstream::NULL) }.unwrap();
        });
    })
}

/// Memory that is managed.
pub(crate) fn managed(driver: &Driver, number: i32, len: usize) -> Own {
    let driver = driver.clone();
    let mut address = 0;
    let flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
    beside(&driver, number, || {
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuMemAllocManaged(&raw mut address, len, flags) }.unwrap();
    });
    Own::new(address, len, move || {
        beside(&driver, number, || free(&driver, address));
    })
}

/// Pinned memory that the driver allocates.
pub(crate) fn pinned(driver: &Driver, len: usize) -> Own {
    let driver = driver.clone();
    let mut start = std::ptr::null_mut();
    beside(&driver, 0, || {
        // SAFETY: the out-pointer is a local variable.
        unsafe { driver.cuMemHostAlloc(&raw mut start, len, 0) }.unwrap();
    });
    let address = start.expose_provenance();
    Own::new(address as u64, len, move || {
        let start = std::ptr::with_exposed_provenance_mut(address);
        beside(&driver, 0, || {
            // SAFETY: it is the test's, and no operation uses it.
            unsafe { driver.cuMemFreeHost(start) }.unwrap();
        });
    })
}

/// Memory of the heap that the user has registered.
pub(crate) fn registered(driver: &Driver, len: usize) -> Own {
    let driver = driver.clone();
    let bytes = Vec::leak(vec![0u8; len]);
    let start = bytes.as_mut_ptr();
    let flags = CU_MEMHOSTREGISTER::PORTABLE | CU_MEMHOSTREGISTER::DEVICEMAP;
    beside(&driver, 0, || {
        // SAFETY: the bytes are the test's until they are let go below.
        unsafe { driver.cuMemHostRegister_v2(start.cast(), len, flags) }.unwrap();
    });
    let address = start.expose_provenance();
    Own::new(address as u64, len, move || {
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
        beside(&driver, 0, || {
            // SAFETY: as above, and no operation uses it.
            unsafe { driver.cuMemHostUnregister(start.cast()) }.unwrap();
        });
        // SAFETY: it was leaked above, and is taken back once.
        drop(unsafe { Vec::from_raw_parts(start, len, len) });
    })
}

/// Addresses with memory behind some of them, each piece with the access that device 0 has.
pub(crate) fn mapped(driver: &Driver, pieces: &[Option<CUmemAccess_flags>]) -> Own {
    const PIECE: usize = 2 << 20;
    let (driver, len) = (driver.clone(), pieces.len() * PIECE);
    let prop = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation::device(0),
        ..CUmemAllocationProp::default()
    };
    let mut address = 0;
    // SAFETY: the out-pointers here and below are local variables; addresses and handles are the driver's.
    unsafe { driver.cuMemAddressReserve(&raw mut address, len, 0, 0, 0) }.unwrap();
    let mut there = Vec::new();
    for (number, access) in pieces.iter().enumerate() {
        let Some(flags) = access else { continue };
        let at = address + (number * PIECE) as u64;
        let mut handle = 0;
        // SAFETY: as above.
        unsafe { driver.cuMemCreate(&raw mut handle, PIECE, &raw const prop, 0) }.unwrap();
        // SAFETY: as above.
        unsafe { driver.cuMemMap(at, PIECE, 0, handle, 0) }.unwrap();
        // SAFETY: as above.
        unsafe { driver.cuMemRelease(handle) }.unwrap();
        let wish = CUmemAccessDesc {
            location: CUmemLocation::device(0),
            flags: *flags,
        };
        // SAFETY: as above.
        unsafe { driver.cuMemSetAccess(at, PIECE, &raw const wish, 1) }.unwrap();
        there.push(at);
    }
    Own::new(address, len, move || {
        for at in there {
            // SAFETY: it is the test's, and no operation uses it.
            unsafe { driver.cuMemUnmap(at, PIECE) }.unwrap();
        }
        // SAFETY: as above.
        unsafe { driver.cuMemAddressFree(address, len) }.unwrap();
    })
}
