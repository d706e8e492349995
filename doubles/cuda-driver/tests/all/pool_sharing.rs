//! Pools that two processes have.

use crate::common;

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process as system;
use std::ptr;

use common::bytes::{download, pattern, upload};
use common::machine_in_context;
use common::pool::{NO_POOL, allocate_from, create, default_pool, destroy, free, on, word};
use common::process::{self, Other, hex, is_other, unhex};
use common::work::{result, synchronize};
use transload_cuda::raw::{
    CUdeviceptr, CUmemAllocationHandleType as T, CUmemPool_attribute, CUmemPoolPtrExportData,
    CUmemoryPool, CUresult, CUstream, Driver,
};

const FD: T = T::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const WRONG: Result<(), CUresult> = Err(CUresult::CUDA_ERROR_INVALID_VALUE);

fn export(driver: &Driver, pool: CUmemoryPool, types: T) -> Result<OwnedFd, CUresult> {
    let mut fd: c_int = -1;
    let place = (&raw mut fd).cast();
    // SAFETY: the place is one for a file descriptor.
    result(unsafe { driver.cuMemPoolExportToShareableHandle(place, pool, types, 0) })?;
    // SAFETY: the driver has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn import(driver: &Driver, fd: c_int) -> Result<CUmemoryPool, CUresult> {
    let mut pool = NO_POOL;
    let handle = ptr::without_provenance_mut(fd as usize);
    // SAFETY: the out-pointers are local variables, and the double refuses anything that is no pool.
    let answer = unsafe { driver.cuMemPoolImportFromShareableHandle(&raw mut pool, handle, FD, 0) };
    result(answer).map(|()| pool)
}

fn name(driver: &Driver, address: CUdeviceptr) -> Result<CUmemPoolPtrExportData, CUresult> {
    let mut data = CUmemPoolPtrExportData::default();
    // SAFETY: the out-pointers are local variables, and the double refuses anything that is no memory.
    result(unsafe { driver.cuMemPoolExportPointer(&raw mut data, address) }).map(|()| data)
}

fn open(
    driver: &Driver,
    pool: CUmemoryPool,
    mut data: CUmemPoolPtrExportData,
) -> Result<CUdeviceptr, CUresult> {
    let mut address = 0;
    // SAFETY: the out-pointers are local variables, and the double refuses anything that is no name.
    let answer = unsafe { driver.cuMemPoolImportPointer(&raw mut address, pool, &raw mut data) };
    result(answer).map(|()| address)
}

#[test]
fn memory_of_a_pool_is_seen_in_another_process() {
    let bytes = [pattern(1, 1000), pattern(2, 5000), pattern(3, 700)];
    if is_other() {
        let driver = machine_in_context(&[]);
        let file = File::options()
            .read(true)
            .write(true)
            .open(process::hear())
            .unwrap();
        let pool = import(&driver, file.as_raw_fd()).unwrap();
        drop(file);
        let [first, second] = [(); 2].map(|()| {
            let reserved = unhex(&process::hear());
            open(&driver, pool, CUmemPoolPtrExportData { reserved }).unwrap()
        });
        assert_eq!(download(&driver, first, 1000), bytes[0]);
        assert_eq!(download(&driver, second, 5000), bytes[1]);
        upload(&driver, second, &bytes[2]);
        let from = allocate_from(&driver, 1, pool, CUstream::NULL);
        assert_eq!(from.map(drop), WRONG, "it gives nothing out here");
        let types = word(&driver, pool, CUmemPool_attribute(10));
        assert_eq!(types, Ok(0));
        assert_eq!(export(&driver, pool, FD).map(drop), WRONG);
        assert_eq!(name(&driver, first).map(drop), WRONG);
        // SAFETY: it is freed once.
        unsafe { driver.cuMemFree_v2(first) }.unwrap();
        free(&driver, second, CUstream::NULL).unwrap();
        assert_eq!(free(&driver, second, CUstream::NULL), WRONG);
        synchronize(&driver, CUstream::NULL).unwrap();
        destroy(&driver, pool).unwrap();
        process::tell("done");
        return;
    }
    let driver = machine_in_context(&[]);
    let pool = create(&driver, &on(0)).unwrap();
    let addresses = [1000, 5000].map(|len| {
        let address = allocate_from(&driver, len, pool, CUstream::NULL).unwrap();
        upload(
            &driver,
            address,
            bytes.iter().find(|of| of.len() == len).unwrap(),
        );
        address
    });
    let fd = export(&driver, pool, FD).unwrap();
    let mut other = Other::start("pool_sharing::memory_of_a_pool_is_seen_in_another_process");
    other.tell(&format!("/proc/{}/fd/{}", system::id(), fd.as_raw_fd()));
    for address in addresses {
        other.tell(&hex(&name(&driver, address).unwrap().reserved));
    }
    assert_eq!(other.hear(), "done");
    assert_eq!(download(&driver, addresses[1], 700), bytes[2]);
    assert_eq!(download(&driver, addresses[1] + 700, 4300), bytes[1][700..]);
    other.end();
}

#[test]
fn what_is_not_to_be_shared_is_refused() {
    let driver = machine_in_context(&[]);
    let pool = create(&driver, &on(0)).unwrap();
    let other = create(&driver, &on(0)).unwrap();
    let own = default_pool(&driver, 0);
    assert_eq!(
        export(&driver, own, FD).map(drop),
        WRONG,
        "it was not made for it"
    );
    assert_eq!(
        export(&driver, pool, T::CU_MEM_HANDLE_TYPE_NONE).map(drop),
        WRONG
    );
    let fabric = export(&driver, pool, T::CU_MEM_HANDLE_TYPE_FABRIC).map(drop);
    assert_eq!(fabric, Err(CUresult::CUDA_ERROR_NOT_SUPPORTED));
    let file = File::open("/dev/null").unwrap();
    assert_eq!(import(&driver, file.as_raw_fd()).map(drop), WRONG);
    assert_eq!(import(&driver, -1).map(drop), WRONG);
    let address = allocate_from(&driver, 100, pool, CUstream::NULL).unwrap();
    let data = name(&driver, address).unwrap();
    assert_eq!(name(&driver, address + 1).map(drop), WRONG);
    let of_own = allocate_from(&driver, 100, own, CUstream::NULL).unwrap();
    assert_eq!(name(&driver, of_own).map(drop), WRONG);
    assert_eq!(
        open(&driver, pool, data).map(drop),
        WRONG,
        "it was not imported"
    );
    let imported = import(&driver, export(&driver, other, FD).unwrap().as_raw_fd()).unwrap();
    assert_eq!(
        open(&driver, imported, data).map(drop),
        WRONG,
        "it is of another pool"
    );
    let imported = import(&driver, export(&driver, pool, FD).unwrap().as_raw_fd()).unwrap();
    let nonsense = CUmemPoolPtrExportData { reserved: [7; 64] };
    assert_eq!(open(&driver, imported, nonsense).map(drop), WRONG);
    let mut beyond = data;
    // The size follows the kind, the file and the offset.
    beyond.reserved[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(open(&driver, imported, beyond).map(drop), WRONG);
    let opened = open(&driver, imported, data).unwrap();
    upload(&driver, address, &pattern(1, 100));
    assert_eq!(download(&driver, opened, 100), pattern(1, 100));
}
