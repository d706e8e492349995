//! Addresses and memory apart.

use crate::common;

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use common::process::{self, Other};
use common::{control, machine, refused};
use transload_cuda::raw::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUmemRangeHandleType, CUresult,
    CallError, Driver,
};

const MIB: usize = 1 << 20;
const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const NONE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
const READ: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
const BOTH: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

fn on(device: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: FD,
        location: CUmemLocation::device(device),
        ..CUmemAllocationProp::default()
    }
}

fn create(
    driver: &Driver,
    size: usize,
    prop: &CUmemAllocationProp,
) -> Result<CUmemGenericAllocationHandle, CallError> {
    let mut handle = 0;
    // SAFETY: the out-pointers are local variables.
    unsafe { driver.cuMemCreate(&raw mut handle, size, prop, 0) }.map(|()| handle)
}

fn release(driver: &Driver, handle: CUmemGenericAllocationHandle) -> Result<(), CallError> {
    // SAFETY: the double refuses an invalid handle.
    unsafe { driver.cuMemRelease(handle) }
}

fn reserve(
    driver: &Driver,
    size: usize,
    alignment: usize,
    at: CUdeviceptr,
) -> Result<CUdeviceptr, CallError> {
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuMemAddressReserve(&raw mut address, size, alignment, at, 0) }
        .map(|()| address)
}

fn unreserve(driver: &Driver, address: CUdeviceptr, size: usize) -> Result<(), CallError> {
    // SAFETY: the double refuses an invalid address.
    unsafe { driver.cuMemAddressFree(address, size) }
}

fn map(
    driver: &Driver,
    address: CUdeviceptr,
    size: usize,
    handle: CUmemGenericAllocationHandle,
) -> Result<(), CallError> {
    // SAFETY: the double refuses anything that is no handle or no address.
    unsafe { driver.cuMemMap(address, size, 0, handle, 0) }
}

fn unmap(driver: &Driver, address: CUdeviceptr, size: usize) -> Result<(), CallError> {
    // SAFETY: the double refuses an invalid address.
    unsafe { driver.cuMemUnmap(address, size) }
}

fn grant(
    driver: &Driver,
    address: CUdeviceptr,
    size: usize,
    wishes: &[(i32, CUmemAccess_flags)],
) -> Result<(), CallError> {
    let wishes: Vec<_> = wishes
        .iter()
        .map(|(device, flags)| CUmemAccessDesc {
            location: CUmemLocation::device(*device),
            flags: *flags,
        })
        .collect();
    // SAFETY: the array has the stated length.
    unsafe { driver.cuMemSetAccess(address, size, wishes.as_ptr(), wishes.len()) }
}

fn access(
    driver: &Driver,
    address: CUdeviceptr,
    device: i32,
) -> Result<CUmemAccess_flags, CallError> {
    let mut flags = 7;
    let location = CUmemLocation::device(device);
    // SAFETY: the out-pointers are local variables.
    let answer = unsafe { driver.cuMemGetAccess(&raw mut flags, &raw const location, address) };
    answer.map(|()| CUmemAccess_flags(flags as u32))
}

fn export(driver: &Driver, handle: CUmemGenericAllocationHandle) -> Result<OwnedFd, CallError> {
    let mut fd: c_int = -1;
    let place = (&raw mut fd).cast();
    // SAFETY: the place is ours, and one for a file descriptor.
    unsafe { driver.cuMemExportToShareableHandle(place, handle, FD, 0) }?;
    // SAFETY: the driver gave it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn import(driver: &Driver, file: impl AsFd) -> Result<CUmemGenericAllocationHandle, CallError> {
    let mut handle = 0;
    let fd = ptr::without_provenance_mut::<c_void>(file.as_fd().as_raw_fd() as usize);
    // SAFETY: the place is ours, and the file is open.
    unsafe { driver.cuMemImportFromShareableHandle(&raw mut handle, fd, FD) }.map(|()| handle)
}

fn free_bytes(driver: &Driver) -> usize {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the out-pointers are local variables.
    unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) }.unwrap();
    free
}

#[test]
fn a_piece_counts_until_it_is_released_and_unmapped() {
    let driver = common::machine_in_context(&[]);
    let all = free_bytes(&driver);
    let piece = create(&driver, 4 * MIB, &on(0)).unwrap();
    assert_eq!(free_bytes(&driver), all - 4 * MIB);
    let base = reserve(&driver, 8 * MIB, 0, 0).unwrap();
    assert!(base.is_multiple_of(2 * MIB as u64));
    map(&driver, base, 4 * MIB, piece).unwrap();
    assert_eq!(
        control("leaks").unwrap().lines().count(),
        4,
        "context, piece, addresses, mapping"
    );
    release(&driver, piece).unwrap();
    assert_eq!(free_bytes(&driver), all - 4 * MIB, "it is mapped");
    assert_eq!(refused(release(&driver, piece)), INVALID);
    assert_eq!(
        refused(map(&driver, base + 4 * MIB as u64, 4 * MIB, piece)),
        INVALID
    );
    unmap(&driver, base, 4 * MIB).unwrap();
    assert_eq!(free_bytes(&driver), all);
    unreserve(&driver, base, 8 * MIB).unwrap();
    assert_eq!(control("leaks").unwrap().lines().count(), 1, "the context");
    assert_eq!(common::counter("allocations"), 1);
}

#[test]
fn what_is_wished_for_is_modelled_or_refused() {
    let driver = machine(&[]);
    let refusal = |size, prop: &CUmemAllocationProp| refused(create(&driver, size, prop).map(drop));
    assert_eq!(refusal(0, &on(0)), INVALID);
    assert_eq!(refusal(2 * MIB + 4096, &on(0)), INVALID);
    assert_eq!(refusal(2 << 30, &on(0)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(
        refusal(2 * MIB, &on(1)),
        CUresult::CUDA_ERROR_INVALID_DEVICE
    );
    let not_modelled = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    let with = |change: &dyn Fn(&mut CUmemAllocationProp)| {
        let mut prop = on(0);
        change(&mut prop);
        refusal(2 * MIB, &prop)
    };
    assert_eq!(
        with(&|of| of.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_INVALID),
        INVALID
    );
    assert_eq!(
        with(&|of| of.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED),
        not_modelled
    );
    let fabric = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
    assert_eq!(with(&|of| of.requestedHandleTypes = fabric), not_modelled);
    assert_eq!(
        with(&|of| of.requestedHandleTypes = CUmemAllocationHandleType(64)),
        INVALID
    );
    assert_eq!(
        with(&|of| of.allocFlags.gpuDirectRDMACapable = 1),
        not_modelled
    );
    assert_eq!(
        with(&|of| of.location = CUmemLocation::HOST),
        INVALID,
        "the host's is not shared"
    );
    let none = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    let host = |of: &mut CUmemAllocationProp| {
        of.location = CUmemLocation::HOST;
        of.requestedHandleTypes = none;
    };
    assert_eq!(with(&host), not_modelled);
    let node = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
    assert_eq!(with(&|of| of.location.type_ = node), not_modelled);
    let current = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    assert_eq!(with(&|of| of.location.type_ = current), INVALID);
    control("fault oom").unwrap();
    assert_eq!(refusal(2 * MIB, &on(0)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);

    let granularity = |option| {
        let mut granularity = 0;
        let prop = on(0);
        // SAFETY: the out-pointers are local variables.
        let answer = unsafe {
            driver.cuMemGetAllocationGranularity(&raw mut granularity, &raw const prop, option)
        };
        answer.map(|()| granularity)
    };
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    assert_eq!(granularity(minimum), Ok(2 * MIB));
    assert_eq!(
        refused(granularity(CUmemAllocationGranularity_flags(2)).map(drop)),
        INVALID
    );
}

#[test]
fn addresses_are_where_they_are_wished_if_nothing_is_there() {
    let driver = machine(&[]);
    let refusal = |size, alignment, at| refused(reserve(&driver, size, alignment, at).map(drop));
    assert_eq!(refusal(0, 0, 0), INVALID);
    assert_eq!(refusal(4097, 0, 0), INVALID);
    assert_eq!(refusal(4096, 3, 0), INVALID);
    assert_eq!(refusal(4096, 0, 4097), INVALID);
    assert_eq!(refusal(1 << 60, 0, 0), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let wide = reserve(&driver, 4096, 1 << 30, 0).unwrap();
    assert!(wide.is_multiple_of(1 << 30));
    // Lower than where the system puts mappings by itself.
    let hint = 0x10_0000_0000;
    assert_eq!(reserve(&driver, 4 * MIB, 0, hint), Ok(hint));
    let other = reserve(&driver, 4 * MIB, 0, hint).unwrap();
    assert_ne!(other, hint, "that is a hint only");
    assert_eq!(refused(unreserve(&driver, hint, 2 * MIB)), INVALID);
    assert_eq!(
        refused(unreserve(&driver, hint + 2 * MIB as u64, 2 * MIB)),
        INVALID
    );
    unreserve(&driver, hint, 4 * MIB).unwrap();
    assert_eq!(refused(unreserve(&driver, hint, 4 * MIB)), INVALID);
}

#[test]
fn mappings_are_made_in_reserved_addresses_and_go_as_a_whole() {
    let driver = machine(&[]);
    let piece = create(&driver, 4 * MIB, &on(0)).unwrap();
    let base = reserve(&driver, 8 * MIB, 0, 0).unwrap();
    let at = |mib: usize| base + (mib * MIB) as u64;
    let refusal = |at, size, handle| refused(map(&driver, at, size, handle));
    assert_eq!(refusal(base + 4096, 2 * MIB, piece), INVALID);
    assert_eq!(refusal(base, MIB, piece), INVALID);
    assert_eq!(refusal(base, 0, piece), INVALID);
    assert_eq!(
        refusal(base, 6 * MIB, piece),
        INVALID,
        "the piece is shorter"
    );
    assert_eq!(
        refusal(at(6), 4 * MIB, piece),
        INVALID,
        "it is not reserved"
    );
    assert_eq!(refusal(base, 4 * MIB, 7), INVALID, "there is no such piece");
    // SAFETY: as in `map`.
    let offset = refused(unsafe { driver.cuMemMap(base, 2 * MIB, 2 * MIB, piece, 0) });
    assert_eq!(offset, INVALID);
    map(&driver, base, 4 * MIB, piece).unwrap();
    assert_eq!(
        refusal(at(2), 4 * MIB, piece),
        INVALID,
        "something is there"
    );
    map(&driver, at(4), 2 * MIB, piece).unwrap();
    assert_eq!(refused(unreserve(&driver, base, 8 * MIB)), INVALID);
    assert_eq!(refused(unmap(&driver, base, 2 * MIB)), INVALID);
    assert_eq!(refused(unmap(&driver, at(2), 4 * MIB)), INVALID);
    assert_eq!(
        refused(unmap(&driver, base, 8 * MIB)),
        INVALID,
        "the end is not mapped"
    );
    // SAFETY: no argument is a pointer.
    let freed = unsafe { driver.cuMemFree_v2(base) };
    assert_eq!(refused(freed), CUresult::CUDA_ERROR_INVALID_CONTEXT);
    unmap(&driver, base, 6 * MIB).unwrap();
    map(&driver, base, 4 * MIB, piece).unwrap();
    common::enter(&driver, 0);
    // SAFETY: as above.
    let freed = unsafe { driver.cuMemFree_v2(base) };
    assert_eq!(refused(freed), INVALID, "it is unmapped, not freed");
}

#[test]
fn each_device_has_the_access_that_it_was_given() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_TOPOLOGY", "topologies/one-way-peer.toml")]);
    let piece = create(&driver, 4 * MIB, &on(0)).unwrap();
    let base = reserve(&driver, 8 * MIB, 0, 0).unwrap();
    map(&driver, base, 2 * MIB, piece).unwrap();
    map(&driver, base + 2 * MIB as u64, 4 * MIB, piece).unwrap();
    assert_eq!(access(&driver, base, 0), Ok(NONE));
    let refusal = |size, wishes: &[_]| refused(grant(&driver, base, size, wishes));
    assert_eq!(
        refusal(8 * MIB, &[(0, BOTH)]),
        INVALID,
        "the end is not mapped"
    );
    assert_eq!(refusal(4 * MIB, &[(0, BOTH)]), INVALID, "a mapping is cut");
    assert_eq!(refusal(6 * MIB, &[]), INVALID);
    assert_eq!(refusal(6 * MIB, &[(0, CUmemAccess_flags(2))]), INVALID);
    assert_eq!(
        refusal(6 * MIB, &[(0, BOTH), (2, BOTH)]),
        CUresult::CUDA_ERROR_INVALID_DEVICE
    );
    assert_eq!(access(&driver, base, 0), Ok(NONE), "nothing was changed");
    grant(&driver, base, 6 * MIB, &[(0, READ)]).unwrap();
    let last = base + 6 * MIB as u64 - 1;
    assert_eq!(access(&driver, last, 0), Ok(READ));
    assert_eq!(access(&driver, last, 1), Ok(NONE));
    assert_eq!(refused(access(&driver, last + 1, 0).map(drop)), INVALID);
    let mut flags = 0;
    let host = CUmemLocation::HOST;
    // SAFETY: the out-pointers are local variables.
    let answer = unsafe { driver.cuMemGetAccess(&raw mut flags, &raw const host, base) };
    assert_eq!(refused(answer), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    unmap(&driver, base, 6 * MIB).unwrap();
    map(&driver, base, 4 * MIB, piece).unwrap();
    assert_eq!(
        access(&driver, base, 0),
        Ok(NONE),
        "a new mapping starts anew"
    );
}

#[test]
fn only_a_device_that_reaches_memory_is_given_access_to_it() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_TOPOLOGY", "topologies/one-way-peer.toml")]);
    let granted = |memory: i32, device: i32| {
        let piece = create(&driver, 2 * MIB, &on(memory)).unwrap();
        let base = reserve(&driver, 2 * MIB, 0, 0).unwrap();
        map(&driver, base, 2 * MIB, piece).unwrap();
        grant(&driver, base, 2 * MIB, &[(device, BOTH)]).map_err(|error| error.result().unwrap())
    };
    let pairs = [granted(0, 1), granted(1, 0)];
    let refused = Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    assert!(
        pairs.contains(&Ok(())) && pairs.contains(&refused),
        "{pairs:?}"
    );
    assert_eq!(granted(1, 1), Ok(()));
}

#[test]
fn a_handle_comes_back_from_an_address() {
    let driver = machine(&[]);
    let piece = create(&driver, 2 * MIB, &on(0)).unwrap();
    let base = reserve(&driver, 2 * MIB, 0, 0).unwrap();
    map(&driver, base, 2 * MIB, piece).unwrap();
    release(&driver, piece).unwrap();
    let retain = |address: CUdeviceptr| {
        let mut handle = 0;
        let address = ptr::without_provenance_mut(address as usize);
        // SAFETY: the place is ours; the address is not looked at.
        let answer = unsafe { driver.cuMemRetainAllocationHandle(&raw mut handle, address) };
        answer.map(|()| handle)
    };
    assert_eq!(retain(base + 5000), Ok(piece));
    let mut prop = CUmemAllocationProp::default();
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuMemGetAllocationPropertiesFromHandle(&raw mut prop, piece) }.unwrap();
    assert_eq!((prop.type_, prop.location), (on(0).type_, on(0).location));
    assert_eq!(prop.requestedHandleTypes, FD);
    unmap(&driver, base, 2 * MIB).unwrap();
    assert_eq!(refused(retain(base).map(drop)), INVALID);
    release(&driver, piece).unwrap();
    assert_eq!(refused(release(&driver, piece)), INVALID);
}

#[test]
fn a_piece_goes_by_file_descriptor() {
    let driver = common::machine_in_context(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    let piece = create(&driver, 4 * MIB, &on(1)).unwrap();
    let file = export(&driver, piece).unwrap();
    let again = import(&driver, &file).unwrap();
    assert_ne!(again, piece);
    let mut prop = CUmemAllocationProp::default();
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuMemGetAllocationPropertiesFromHandle(&raw mut prop, again) }.unwrap();
    assert_eq!(
        (prop.location, prop.requestedHandleTypes),
        (on(1).location, FD)
    );
    release(&driver, again).unwrap();
    import(&driver, &file).expect("the file stays the caller's");

    let mut own = on(0);
    own.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    let own = create(&driver, 2 * MIB, &own).unwrap();
    assert_eq!(
        refused(export(&driver, own).map(drop)),
        INVALID,
        "it was not wished for"
    );
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(refused(import(&driver, &reader).map(drop)), INVALID);
    let mut handle = 0;
    let closed = ptr::without_provenance_mut(100_000);
    // SAFETY: the out-pointer is a local variable; the double refuses anything that is no file.
    let answer = unsafe { driver.cuMemImportFromShareableHandle(&raw mut handle, closed, FD) };
    assert_eq!(refused(answer), INVALID);
}

#[test]
fn there_are_no_dma_bufs() {
    let driver = common::machine_in_context(&[]);
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuMemAlloc_v2(&raw mut address, MIB) }.unwrap();
    let of_range = |address, size| {
        let mut fd: c_int = -1;
        let place = (&raw mut fd).cast();
        let dma_buf = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: the out-pointer is a local variable.
        refused(unsafe { driver.cuMemGetHandleForAddressRange(place, address, size, dma_buf, 0) })
    };
    assert_eq!(of_range(address, MIB), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(of_range(address, 2 * MIB), INVALID);
    assert_eq!(of_range(address + 1, 4096), INVALID);
}

fn write(driver: &Driver, address: CUdeviceptr, bytes: &[u8]) -> Result<(), CallError> {
    // SAFETY: the buffer has that length.
    unsafe { driver.cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) }?;
    // SAFETY: no argument is a pointer.
    unsafe { driver.cuCtxSynchronize() }
}

fn read(driver: &Driver, address: CUdeviceptr, len: usize) -> Result<Vec<u8>, CallError> {
    let mut bytes = vec![0; len];
    // SAFETY: the buffer has that length.
    unsafe { driver.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, len) }.map(|()| bytes)
}

/// A piece at addresses of its own, which device 0 reads and writes.
fn place(driver: &Driver, piece: CUmemGenericAllocationHandle) -> CUdeviceptr {
    let base = reserve(driver, 2 * MIB, 0, 0).unwrap();
    map(driver, base, 2 * MIB, piece).unwrap();
    grant(driver, base, 2 * MIB, &[(0, BOTH)]).unwrap();
    base
}

#[test]
fn bytes_are_the_pieces_whatever_addresses_it_has() {
    let driver = common::machine_in_context(&[]);
    let [low, high] = [0, 0].map(|device| create(&driver, 2 * MIB, &on(device)).unwrap());
    let base = reserve(&driver, 4 * MIB, 0, 0).unwrap();
    let border = base + 2 * MIB as u64;
    map(&driver, base, 2 * MIB, low).unwrap();
    map(&driver, border, 2 * MIB, high).unwrap();
    assert_eq!(
        refused(write(&driver, border - 2, b"abcd")),
        INVALID,
        "no access"
    );
    grant(&driver, base, 2 * MIB, &[(0, BOTH)]).unwrap();
    assert_eq!(
        refused(write(&driver, border - 2, b"abcd")),
        INVALID,
        "none to the second"
    );
    grant(&driver, base, 4 * MIB, &[(0, BOTH)]).unwrap();
    write(&driver, border - 2, b"abcd").unwrap();
    grant(&driver, base, 4 * MIB, &[(0, READ)]).unwrap();
    assert_eq!(
        refused(write(&driver, border - 2, b"....")),
        INVALID,
        "it may be read only"
    );
    assert_eq!(read(&driver, border - 2, 4).unwrap(), b"abcd");
    let again = place(&driver, high);
    assert_eq!(
        read(&driver, again, 2).unwrap(),
        b"cd",
        "one piece at two places"
    );
    unmap(&driver, base, 4 * MIB).unwrap();
    assert_eq!(refused(read(&driver, base, 1).map(drop)), INVALID);
    map(&driver, base, 2 * MIB, high).unwrap();
    grant(&driver, base, 2 * MIB, &[(0, READ)]).unwrap();
    assert_eq!(read(&driver, base, 2).unwrap(), b"cd");
}

#[test]
fn a_piece_is_one_in_two_processes() {
    let open = |told: String| {
        let file = std::fs::File::options().read(true).write(true).open(told);
        OwnedFd::from(file.unwrap())
    };
    let driver = common::machine_in_context(&[]);
    if process::is_other() {
        let piece = import(&driver, open(process::hear())).unwrap();
        let base = place(&driver, piece);
        assert_eq!(read(&driver, base, 3).unwrap(), b"one");
        write(&driver, base + 3, b"two").unwrap();
        process::tell("written");
        process::hear();
        assert_eq!(
            read(&driver, base, 6).unwrap(),
            b"onetwo",
            "it stays while it is used"
        );
        return;
    }
    let piece = create(&driver, 2 * MIB, &on(0)).unwrap();
    let base = place(&driver, piece);
    write(&driver, base, b"one").unwrap();
    let file = export(&driver, piece).unwrap();
    let mut other = Other::start("vmm::a_piece_is_one_in_two_processes");
    other.tell(&format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        file.as_raw_fd()
    ));
    assert_eq!(other.hear(), "written");
    assert_eq!(read(&driver, base, 6).unwrap(), b"onetwo");
    unmap(&driver, base, 2 * MIB).unwrap();
    release(&driver, piece).unwrap();
    other.tell("released");
    other.end();
}

#[test]
fn unmapping_waits_for_what_is_under_way() {
    let driver = common::machine_in_context(&[
        ("TRANSLOAD_DOUBLE_TOPOLOGY", "topologies/pcie-peer.toml"),
        ("TRANSLOAD_DOUBLE_CLOCK", "virtual"),
    ]);
    let piece = create(&driver, 2 * MIB, &on(0)).unwrap();
    let base = place(&driver, piece);
    // SAFETY: the source is staged before this returns.
    unsafe { driver.cuMemcpyHtoD_v2(base, [7u8; 9].as_ptr().cast(), 9) }.unwrap();
    assert_eq!(control("now").unwrap(), "0");
    unmap(&driver, base, 2 * MIB).unwrap();
    assert_ne!(control("now").unwrap(), "0");
    let again = place(&driver, piece);
    assert_eq!(read(&driver, again, 9).unwrap(), [7; 9]);
}
