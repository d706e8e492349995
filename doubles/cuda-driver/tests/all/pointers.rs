//! The attributes of addresses.

use crate::common;

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use common::work::result;
use common::{GIGABYTE, enter, machine, machine_in_context};
use transload_cuda::raw::{
    CU_MEMHOSTREGISTER, CUcontext, CUdeviceptr, CUmemAllocationProp, CUmemAllocationType,
    CUmemLocation, CUmemorytype, CUpointer_attribute as A, CUresult, Driver,
};

const WRONG: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// An attribute of the size of `T`, in the first bytes of a place that is longer.
fn ask<T: Copy>(driver: &Driver, attribute: A, at: CUdeviceptr) -> Result<T, CUresult> {
    let mut place = MaybeUninit::<[u8; 16]>::new([0xaa; 16]);
    let data = place.as_mut_ptr().cast();
    // SAFETY: the place is longer than any attribute.
    result(unsafe { driver.cuPointerGetAttribute(data, attribute, at) })?;
    // SAFETY: it was written at first, and is read as a number or a handle.
    let value = unsafe { data.cast::<T>().read_unaligned() };
    // SAFETY: it was written at first.
    let bytes = unsafe { place.assume_init() };
    assert!(
        bytes[size_of::<T>()..].iter().all(|byte| *byte == 0xaa),
        "{attribute:?} is longer"
    );
    Ok(value)
}

/// Several attributes at once, each of 8 bytes, so that those of 4 leave the upper half alone.
fn ask_all(driver: &Driver, attributes: &mut [A], at: CUdeviceptr) -> Result<Vec<u64>, CUresult> {
    let mut values = vec![0x1111_1111_1111_1111; attributes.len()];
    let mut places: Vec<*mut c_void> = values
        .iter_mut()
        .map(|value: &mut u64| (&raw mut *value).cast())
        .collect();
    let (count, attributes) = (attributes.len() as u32, attributes.as_mut_ptr());
    // SAFETY: the places are ours, and as many.
    result(unsafe { driver.cuPointerGetAttributes(count, attributes, places.as_mut_ptr(), at) })?;
    Ok(values)
}

fn device_memory(driver: &Driver, bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuMemAlloc_v2(&raw mut address, bytes) }.unwrap();
    address
}

fn pinned(driver: &Driver, bytes: usize) -> CUdeviceptr {
    let mut start: *mut c_void = ptr::null_mut();
    // SAFETY: the out-pointer is a local variable.
    unsafe { driver.cuMemHostAlloc(&raw mut start, bytes, 0) }.unwrap();
    start.addr() as u64
}

fn register(driver: &Driver, bytes: &mut [u8], flags: u32) -> CUdeviceptr {
    let start = bytes.as_mut_ptr();
    // SAFETY: the tests keep the bytes to their end.
    unsafe { driver.cuMemHostRegister_v2(start.cast(), bytes.len(), flags) }.unwrap();
    start.addr() as u64
}

const HOST: Result<CUmemorytype, CUresult> = Ok(CUmemorytype::CU_MEMORYTYPE_HOST);
const DEVICE: Result<CUmemorytype, CUresult> = Ok(CUmemorytype::CU_MEMORYTYPE_DEVICE);

#[test]
fn memories_are_told_apart() {
    let driver = machine(&[("TRANSLOAD_DOUBLE_DEVICES", "2")]);
    let context = enter(&driver, 1);
    let on_device = device_memory(&driver, 100);
    let pinned = pinned(&driver, 100);
    let mut bytes = [0; 100];
    let registered = register(&driver, &mut bytes, 0);
    for base in [on_device, pinned, registered] {
        let at = base + 99;
        assert_eq!(
            ask(&driver, A::CU_POINTER_ATTRIBUTE_CONTEXT, at),
            Ok(context)
        );
        assert_eq!(
            ask(&driver, A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at),
            Ok(1i32)
        );
        assert_eq!(
            ask(&driver, A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at),
            Ok(at)
        );
        assert_eq!(
            ask(&driver, A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at),
            Ok(base)
        );
        assert_eq!(
            ask(&driver, A::CU_POINTER_ATTRIBUTE_RANGE_SIZE, at),
            Ok(100u64)
        );
        assert_eq!(
            ask(&driver, A::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at),
            Ok(base)
        );
        assert_eq!(
            ask(&driver, A::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at),
            Ok(100u64)
        );
        assert_eq!(ask(&driver, A::CU_POINTER_ATTRIBUTE_MAPPED, at), Ok(1u32));
        assert_eq!(
            ask(&driver, A::CU_POINTER_ATTRIBUTE_IS_MANAGED, at),
            Ok(0u32)
        );
        assert_eq!(
            ask(&driver, A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at),
            Ok(0u32)
        );
        assert_eq!(
            ask(&driver, A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, at),
            Ok(3u32)
        );
        let types = ask(&driver, A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at);
        assert_eq!(types, Ok(0u64));
        let pool = ask(&driver, A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at);
        assert_eq!(pool, Ok(0u64));
        let rdma = ask(
            &driver,
            A::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
            at,
        );
        assert_eq!(rdma, Ok(0u32));
        let gone = ask::<u64>(&driver, A::CU_POINTER_ATTRIBUTE_CONTEXT, base + 100);
        assert_eq!(gone, Err(WRONG), "one byte after its end");
    }
    let memory = A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    assert_eq!(ask(&driver, memory, on_device), DEVICE);
    assert_eq!(ask(&driver, memory, pinned), HOST);
    assert_eq!(ask(&driver, memory, registered), HOST);
    let host = A::CU_POINTER_ATTRIBUTE_HOST_POINTER;
    assert_eq!(ask::<u64>(&driver, host, on_device), Err(WRONG));
    assert_eq!(ask(&driver, host, pinned + 1), Ok(pinned + 1));
    assert_eq!(ask(&driver, host, registered + 1), Ok(registered + 1));
    let ipc = A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    assert_eq!(ask(&driver, ipc, on_device), Ok(1u32));
    assert_eq!(ask(&driver, ipc, pinned), Ok(0u32));
}

#[test]
fn pageable_and_freed_memory_is_unknown() {
    let driver = machine_in_context(&[]);
    let mut bytes = [0u8; 8];
    let local = bytes.as_mut_ptr().addr() as u64;
    let freed = device_memory(&driver, 8);
    // SAFETY: it is freed once.
    unsafe { driver.cuMemFree_v2(freed) }.unwrap();
    for at in [local, freed, 0] {
        for number in 1..=20 {
            let expected = match A(number) {
                A::CU_POINTER_ATTRIBUTE_P2P_TOKENS => CUresult::CUDA_ERROR_NOT_SUPPORTED,
                _ => WRONG,
            };
            assert_eq!(
                ask::<u64>(&driver, A(number), at),
                Err(expected),
                "{:?}",
                A(number)
            );
        }
    }
    let known = pinned(&driver, 8);
    assert_eq!(ask::<u64>(&driver, A(0), known), Err(WRONG), "no attribute");
    assert_eq!(ask::<u64>(&driver, A(23), known), Err(WRONG));
    let null = ptr::null_mut();
    let attribute = A::CU_POINTER_ATTRIBUTE_CONTEXT;
    // SAFETY: the double refuses a null pointer.
    let nowhere = result(unsafe { driver.cuPointerGetAttribute(null, attribute, known) });
    assert_eq!(nowhere, Err(WRONG));
}

#[test]
fn several_at_once_are_zeros_where_they_do_not_apply() {
    let driver = machine_in_context(&[]);
    let on_device = device_memory(&driver, 8);
    let mut asked = [
        A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        A::CU_POINTER_ATTRIBUTE_HOST_POINTER,
        A::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        A::CU_POINTER_ATTRIBUTE_MAPPED,
    ];
    let upper = 0x1111_1111_0000_0000;
    let device = u64::from(CUmemorytype::CU_MEMORYTYPE_DEVICE.0);
    let known = ask_all(&driver, &mut asked, on_device);
    assert_eq!(known, Ok(vec![upper | device, 0, 8, upper | 1]));
    let bytes = [0u8; 8];
    let unknown = ask_all(&driver, &mut asked, bytes.as_ptr().addr() as u64);
    assert_eq!(unknown, Ok(vec![upper, 0, 0, upper]));
    asked[3] = A(99);
    assert_eq!(ask_all(&driver, &mut asked, on_device), Err(WRONG));
    assert_eq!(ask_all(&driver, &mut [], on_device), Err(WRONG));
    let mut value = 7u64;
    let mut places = [(&raw mut value).cast(), ptr::null_mut()];
    let (attributes, places) = (asked.as_mut_ptr(), places.as_mut_ptr());
    // SAFETY: there are two of each; the double refuses a null pointer.
    let null = result(unsafe { driver.cuPointerGetAttributes(2, attributes, places, on_device) });
    assert_eq!((null, value), (Err(WRONG), 7), "nothing was written");
}

#[test]
fn no_two_allocations_have_one_number() {
    let driver = machine_in_context(&[]);
    let number = |at| ask::<u64>(&driver, A::CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
    let mut numbers = vec![number(pinned(&driver, 1)).unwrap()];
    for _ in 0..3 {
        let address = device_memory(&driver, 1);
        let block = ask::<u64>(&driver, A::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address);
        assert_eq!(block, number(address));
        numbers.push(number(address).unwrap());
        // SAFETY: it is freed once.
        unsafe { driver.cuMemFree_v2(address) }.unwrap();
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4);
    let mut bytes = [0; 8];
    let registered = register(&driver, &mut bytes, 0);
    assert_eq!(number(registered), Err(WRONG), "it was not allocated here");
}

#[test]
fn who_may_use_an_address_depends_on_the_current_context() {
    let driver = machine(&GIGABYTE);
    let first = enter(&driver, 0);
    let on_first = device_memory(&driver, 8);
    let mut bytes = [0; 8];
    let read_only = register(&driver, &mut bytes, CU_MEMHOSTREGISTER::READ_ONLY);
    enter(&driver, 1);
    let pointer = A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
    let flags = A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
    assert_eq!(ask::<u64>(&driver, pointer, on_first), Err(WRONG));
    assert_eq!(ask(&driver, flags, on_first), Ok(0u32));
    assert_eq!(ask(&driver, pointer, read_only), Ok(read_only));
    assert_eq!(ask(&driver, flags, read_only), Ok(1u32));
    // SAFETY: the context is the driver's.
    unsafe { driver.cuCtxEnablePeerAccess(first, 0) }.unwrap();
    assert_eq!(ask(&driver, pointer, on_first), Ok(on_first));
    assert_eq!(ask(&driver, flags, on_first), Ok(3u32));
    // SAFETY: no context is current then.
    unsafe { driver.cuCtxSetCurrent(CUcontext::NULL) }.unwrap();
    let none = Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(ask::<u64>(&driver, pointer, on_first), none);
    assert_eq!(ask::<u32>(&driver, flags, on_first), none.map(|_| 0));
    let memory = A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    assert_eq!(
        ask(&driver, memory, on_first),
        DEVICE,
        "it is the same everywhere"
    );
}

#[test]
fn reserved_addresses_and_mapped_memory_are_told_apart() {
    const GRAIN: usize = 2 << 20;
    let driver = machine_in_context(&[]);
    let mut base = 0;
    // SAFETY: the out-pointers here and below are local variables.
    unsafe { driver.cuMemAddressReserve(&raw mut base, 2 * GRAIN, 0, 0, 0) }.unwrap();
    let wish = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes:
            transload_cuda::raw::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation::device(0),
        ..CUmemAllocationProp::default()
    };
    let mut piece = 0;
    // SAFETY: as above.
    unsafe { driver.cuMemCreate(&raw mut piece, GRAIN, &raw const wish, 0) }.unwrap();
    // SAFETY: the addresses are reserved, and the piece is ours.
    unsafe { driver.cuMemMap(base, GRAIN, 0, piece, 0) }.unwrap();
    let (mapped, reserved) = (base + 1, base + GRAIN as u64);
    for (at, is) in [(mapped, 1u32), (reserved, 0)] {
        assert_eq!(ask(&driver, A::CU_POINTER_ATTRIBUTE_MAPPED, at), Ok(is));
        assert_eq!(
            ask(&driver, A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at),
            Ok(base)
        );
        let size = ask(&driver, A::CU_POINTER_ATTRIBUTE_RANGE_SIZE, at);
        assert_eq!(size, Ok(2 * GRAIN));
    }
    assert_eq!(
        ask(&driver, A::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, mapped),
        Ok(GRAIN)
    );
    let memory = A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    assert_eq!(ask(&driver, memory, mapped), DEVICE);
    assert_eq!(ask::<u32>(&driver, memory, reserved), Err(WRONG));
    let types = A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;
    assert_eq!(ask(&driver, types, mapped), Ok(1u64));
    assert_eq!(
        ask(&driver, A::CU_POINTER_ATTRIBUTE_CONTEXT, mapped),
        Ok(CUcontext::NULL)
    );
    let pointer = A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
    assert_eq!(
        ask::<u64>(&driver, pointer, mapped),
        Err(WRONG),
        "no device has access"
    );
    let block = ask(&driver, A::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, mapped);
    assert_eq!(block, Ok(piece));
}
