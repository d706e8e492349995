//! Pools, and memory from them.

use std::ptr;

use transload_cuda::raw::{
    CUdevice, CUdeviceptr, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUresult, CUstream, Driver,
};

use super::work::result;

pub(crate) const NO_POOL: CUmemoryPool = CUmemoryPool(ptr::null_mut());

pub(crate) fn default_pool(driver: &Driver, device: i32) -> CUmemoryPool {
    let mut pool = NO_POOL;
    // SAFETY: the out-pointers here and below are local variables.
    unsafe { driver.cuDeviceGetDefaultMemPool(&raw mut pool, CUdevice(device)) }.unwrap();
    pool
}

pub(crate) fn current_pool(driver: &Driver, device: i32) -> CUmemoryPool {
    let mut pool = NO_POOL;
    // SAFETY: as above.
    unsafe { driver.cuDeviceGetMemPool(&raw mut pool, CUdevice(device)) }.unwrap();
    pool
}

/// The properties of a pool of a device, for other processes too.
pub(crate) fn on(device: i32) -> CUmemPoolProps {
    CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation::device(device),
        ..CUmemPoolProps::default()
    }
}

pub(crate) fn create(driver: &Driver, wish: &CUmemPoolProps) -> Result<CUmemoryPool, CUresult> {
    let mut pool = NO_POOL;
    // SAFETY: as above.
    result(unsafe { driver.cuMemPoolCreate(&raw mut pool, wish) }).map(|()| pool)
}

pub(crate) fn destroy(driver: &Driver, pool: CUmemoryPool) -> Result<(), CUresult> {
    // SAFETY: the double refuses anything that is no pool.
    result(unsafe { driver.cuMemPoolDestroy(pool) })
}

pub(crate) fn allocate(
    driver: &Driver,
    bytes: usize,
    stream: CUstream,
) -> Result<CUdeviceptr, CUresult> {
    let mut address = 0;
    // SAFETY: as above.
    result(unsafe { driver.cuMemAllocAsync(&raw mut address, bytes, stream) }).map(|()| address)
}

pub(crate) fn allocate_from(
    driver: &Driver,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Result<CUdeviceptr, CUresult> {
    let mut address = 0;
    let place = &raw mut address;
    // SAFETY: as above.
    result(unsafe { driver.cuMemAllocFromPoolAsync(place, bytes, pool, stream) }).map(|()| address)
}

pub(crate) fn free(
    driver: &Driver,
    address: CUdeviceptr,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the double refuses an address that is not allocated.
    result(unsafe { driver.cuMemFreeAsync(address, stream) })
}

/// An attribute that is an amount.
pub(crate) fn amount(driver: &Driver, pool: CUmemoryPool, attribute: CUmemPool_attribute) -> u64 {
    let mut amount = 77u64;
    let place = (&raw mut amount).cast();
    // SAFETY: the place is as long as amounts are.
    unsafe { driver.cuMemPoolGetAttribute(pool, attribute, place) }.unwrap();
    amount
}

pub(crate) fn set_amount(
    driver: &Driver,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    mut amount: u64,
) -> Result<(), CUresult> {
    let place = (&raw mut amount).cast();
    // SAFETY: as above.
    result(unsafe { driver.cuMemPoolSetAttribute(pool, attribute, place) })
}

/// An attribute that is another number.
pub(crate) fn word(
    driver: &Driver,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
) -> Result<u32, CUresult> {
    let mut words = [77u32; 2];
    let place = words.as_mut_ptr().cast();
    // SAFETY: the place is longer than any attribute.
    result(unsafe { driver.cuMemPoolGetAttribute(pool, attribute, place) })?;
    assert_eq!(words[1], 77, "it is longer");
    Ok(words[0])
}

pub(crate) fn set_word(
    driver: &Driver,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    mut word: i32,
) {
    let place = (&raw mut word).cast();
    // SAFETY: the place is as long as the attribute.
    unsafe { driver.cuMemPoolSetAttribute(pool, attribute, place) }.unwrap();
}
